"""Numbered requests, straight to the scripts: applied at most once, answered the same again, refused out of turn."""

from struct import pack

import pytest

from redis_replay._encode import encode_batch
from redis_replay._lua import header, verbs
from redis_replay.samplers import Fifo
from tests._contract import LARGE, SMALL, Records, nothing_changes


def rows(low, high, width=SMALL):
    """Encoded records as large as `width` makes them."""
    return encode_batch(Records(width).many(low, high), None)


def gate(raw, **kwargs):
    """The answer that the caller of a large write reads: the first gate's where it did not open, else the second's."""
    opened, closed = raw.gate(rows(0, 3, LARGE), **kwargs)
    return closed if opened[0] == "OPEN" else opened


# Each numbered verb, on a buffer that holds five records.
REQUESTS = {
    "add": lambda raw, **k: raw.add(rows(0, 3), **k),
    "gate": gate,
    "sample": lambda raw, **k: raw.sample(3, **k),
    "remove": lambda raw, **k: raw("remove", index=[1, 4, 9], **k),
    "empty": lambda raw, **k: raw("empty", reset=1, **k),
    "empty-counted": lambda raw, **k: raw("empty", reset=0, **k),
    "shutdown": lambda raw, **k: raw("shutdown", drain=0, **k),
    "drain": lambda raw, **k: raw("shutdown", drain=1, **k),
    "reopen": lambda raw, **k: raw("reopen", **k),
    "wait": lambda raw, **k: raw.wait(3, **k),
    "wait-registering": lambda raw, **k: raw.wait(90, wait=1, **k),
    "settle": lambda raw, **k: raw.settle(**k),
    "ack": lambda raw, **k: raw("ack", lease=["nobody.1"], **k),
    "update": lambda raw, **k: raw("update", index=pack("<2d", 1, 9), priority=pack("<2d", 2.5, 0), **k),
    "pace": lambda raw, **k: raw("pace", rate_limiter="Queue(size=5)", law="1 1 1 0 5 5 1", **k),
    "version": lambda raw, **k: raw("version", version=3, **k),
    "alpha": lambda raw, **k: raw("alpha", alpha="0.5", cursor="0", process="", **k),
    "swap": lambda raw, **k: raw("swap", copy="a", high=9, own=1, totals="", shares=[], **k),  # there is no copy
    "release": lambda raw, **k: raw("release", lease=["nobody.1"], **k),
}
REFUSED = ("add", "gate", "sample", "wait", "wait-registering")  # by a shut buffer
EACH = pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])


@pytest.fixture
def filled(server, make_buffer, request):
    """A buffer of five records, which are as large as what the test's request writes."""
    callspec = request.node.callspec
    width = LARGE if callspec.params.get("request_") is gate else SMALL
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=callspec.params.get("consume"))
    buffer.extend(Records(width).many(0, 5))
    return buffer


def test_every_numbered_verb_is_tested():
    """A new verb with a number has to be added to this file; `resolve`, whose number is another's, has its own."""
    numbered = {verb for verb in verbs() if any(slot.name == "number" for slot in header(verb).argv)}
    tested = {
        "add", "gate", "sample", "ack", "release", "remove", "update", "version", "empty", "shutdown", "reopen", "wait",
        "settle", "pace", "alpha", "swap",
    }  # fmt: skip
    assert numbered - {"resolve"} == tested


@EACH
@CONSUMES
def test_the_same_number_gives_the_same_answer(server, filled, client, make_raw, request_, consume):
    """A request that is sent again changes nothing, and its answer is word for word the first one."""
    raw = make_raw()
    first = request_(raw)
    with nothing_changes(client, ()):
        assert request_(raw, number=raw.number) == first
    assert filled.doctor().ok


@CONSUMES
@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["small", "large"])
def test_a_repeated_draw_is_not_counted_again(server, make_buffer, make_raw, consume, width):
    """Three deliveries of one number are one draw: the same records, one hand-out."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(Records(width).many(0, 5))
    raw = make_raw()
    answers = [raw.sample(2, number=2) for _ in range(3)]
    assert answers == [answers[0]] * 3
    stats = buffer.stats()
    assert (stats["sample_calls"], stats["samples_returned"], stats["consumed"]) == (1, 2, 2 if consume == 1 else 0)


def test_a_repeated_draw_that_is_made_anew_tells_of_what_it_was_made(server, make_buffer, make_raw, small):
    """Its probability is that of now, like the records that it is given."""
    buffer, raw = make_buffer(capacity=100), make_raw()
    buffer.extend(small.many(0, 4))
    assert raw.sample(2, number=2)[3] == "4"
    buffer.extend(small.many(4, 40))
    again = raw.sample(2, number=2)
    assert (again[0], again[3]) == ("OK", "40")


@CONSUMES
def test_a_repeated_draw_goes_by_what_was_given(server, make_buffer, make_raw, consume):
    """What others write or draw in between does not change the answer, where the buffer consumes."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(Records(SMALL).many(0, 5))
    raw, other = make_raw(), make_raw("other")
    first = raw.sample(2)
    other.sample(2)
    buffer.extend(Records(SMALL).many(5, 9))
    again = raw.sample(2, number=raw.number)
    if consume is None:  # drawn anew: how many there are is that of now
        assert again.pop(3) == "9"
        assert first.pop(3) == "5"
    assert again == first


@EACH
def test_a_lower_number_is_stale(server, filled, client, make_raw, request_):
    """A late copy of a request, after a later one has come, is refused and changes nothing."""
    raw = make_raw()
    raw.settle(number=7)
    with nothing_changes(client, ()):
        assert request_(raw, number=6)[:2] == ["STALE", "-"]


@EACH
def test_an_unknown_lane_is_forgotten(server, filled, client, make_raw, request_):
    """A lane that the server does not know is told so, and nothing is done for it; settle alone registers one."""
    raw = make_raw()
    raw.name = "nobody"
    if request_ is REQUESTS["settle"]:
        assert request_(raw)[0] == "OK"
        return
    with nothing_changes(client, ()):
        assert request_(raw)[:2] == ["FORGOTTEN", "-"]


@EACH
def test_another_epoch_is_gone(server, filled, client, make_raw, request_):
    """A request of a buffer that was deleted touches nothing of the one that has its name now, not even its lanes."""
    raw = make_raw()
    raw.epoch = b"another"
    with nothing_changes(client, ()):
        assert request_(raw)[:2] == ["GONE", "-"]


PLAIN = {
    "get": {"index": [1, 2]},
    "page": {"after": 0, "page_size": 10},
    "stats": {},
    "doctor": {},
    "audit": {"what": "order", "cursor": "0"},
    "renew": {"name": ["x"]},
    "delete": {},
}


@pytest.mark.parametrize("verb", PLAIN)
def test_calls_without_a_number_know_the_epoch(server, filled, client, make_raw, verb):
    """Reads, renew and delete are refused in the same way."""
    raw = make_raw()
    with nothing_changes(client, ()):
        assert raw(verb, epoch=b"another", **PLAIN[verb])[0] == "GONE"


@EACH
def test_a_skipped_number_is_accepted(server, filled, make_raw, request_):
    """A higher number is judged, however far it is: the ones in between never come."""
    raw = make_raw()
    word = request_(raw, number=50)[0]
    assert word in ("OK", "READY", "NOT_READY", "CLOSED")  # closed: there is no copy to swap
    assert raw.settle(number=49)[0] == "STALE"


@pytest.mark.parametrize("request_", [REQUESTS[v] for v in REFUSED], ids=REFUSED)
def test_a_refusal_is_an_answer_too(server, filled, client, make_raw, request_):
    """What a shut buffer refused it refuses to the same number after it was opened again."""
    raw = make_raw()
    filled.shutdown(drain=False)
    first = request_(raw)
    assert first[0] == "SHUT"
    filled.reopen()
    with nothing_changes(client, ()):
        assert request_(raw, number=raw.number) == first
    assert request_(raw)[0] != "SHUT"


def test_lanes_number_for_themselves(server, filled, make_raw):
    """The same number on two lanes is two requests."""
    first, second = make_raw("first"), make_raw("second")
    assert [first.add(rows(0, 1), number=2)[2], second.add(rows(0, 1), number=2)[2]] == ["6", "7"]


# An open number: the call ended before its reply


@EACH
def test_an_open_number_that_arrived_was_applied(server, filled, make_raw, request_):
    """The lane's next request names it, and is told so."""
    raw = make_raw()
    request_(raw)
    assert raw.settle(open_number=raw.number)[:2] == ["OK", "applied"]


@EACH
def test_an_open_number_that_never_came_is_dead(server, filled, client, make_raw, request_):
    """The next request is told `never`, and the late copy changes nothing."""
    raw = make_raw()
    assert raw.settle(number=9, open_number=8)[:2] == ["OK", "never"]
    with nothing_changes(client, ()):
        assert request_(raw, number=8)[:2] == ["STALE", "-"]


@EACH
def test_every_verb_says_what_became_of_it(server, filled, make_raw, request_):
    """Not only settle: whichever request comes next names the open number and is answered."""
    raw = make_raw()
    raw.add(rows(0, 1, LARGE if request_ is gate else SMALL))
    if request_ is gate:
        opened, _ = raw.gate(rows(0, 3, LARGE), open_number=raw.number)
        assert opened[1] == "applied"
    else:
        assert request_(raw, open_number=raw.number)[1] == "applied"


def test_the_lowest_open_number_is_enough(server, filled, make_raw):
    """Two calls in a row may have been lost: the first never came, the second did."""
    raw = make_raw()
    raw.sample(2, number=5, open_number=4)
    assert raw.settle(number=6, open_number=4)[:2] == ["OK", "applied"]
    assert raw.counters()["sample_calls"] == 0


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["small", "large"])
def test_an_open_write_stands(server, make_buffer, make_raw, width):
    """A write whose reply was lost is there, once."""
    buffer = make_buffer()
    buffer.add(Records(width).one(0))
    raw = make_raw()
    raw.write(rows(1, 4, width))
    assert raw.settle(open_number=raw.number)[1] == "applied"
    assert (len(buffer), buffer.write_count, buffer.doctor().ok) == (4, 4, True)


def test_a_settled_number_is_settled_once(server, filled, make_raw):
    """A settle that is sent again undoes nothing more."""
    raw = make_raw()
    raw.sample(2)
    number = raw.number
    for _ in range(2):
        assert raw.settle(number=number + 1, open_number=number)[0] == "OK"
    assert (raw.counters()["sample_calls"], filled.doctor().ok) == (0, True)
