"""The script that says what became of a write: its answer, or never; the same however often it is asked."""

import pytest

from redis_replay.samplers import Fifo
from tests._contract import LARGE, SMALL, Records, nothing_changes
from tests.contract.test_requests import REQUESTS, rows

WRITES = ("add", "gate", "remove", "empty", "empty-counted", "shutdown", "drain", "reopen")
EACH = pytest.mark.parametrize("request_", [REQUESTS[verb] for verb in WRITES], ids=WRITES)


@pytest.fixture
def filled(server, make_buffer, request):
    """A buffer of five records, which are as large as what the test's request writes."""
    width = LARGE if request.node.callspec.params.get("request_") is REQUESTS["gate"] else SMALL
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(Records(width).many(0, 5))
    return buffer


@EACH
def test_an_applied_write_gives_its_answer(server, filled, client, make_raw, request_):
    """Asked twice, the answer is the write's own both times, and nothing changes."""
    raw = make_raw()
    first = request_(raw)
    with nothing_changes(client, ()):
        answers = [raw("resolve", number=raw.number) for _ in range(2)]
    assert answers == [["OK", "-", *(str(word) for word in (first[0], *first[2:]))]] * 2


@EACH
def test_a_write_that_never_came_never_will(server, filled, client, make_raw, request_):
    """Asked about a number that was not judged, it says never, again and again, and the late copy changes nothing."""
    raw = make_raw()
    number = raw.number + 1
    with nothing_changes(client):
        assert [raw("resolve", number=number)[2:] for _ in range(2)] == [["NEVER"]] * 2
    with nothing_changes(client, ()):
        request_(raw, number=number)
    assert (raw("resolve", number=number)[2:], filled.doctor().findings) == (["NEVER"], ())


def test_a_refusal_is_no_application(server, filled, make_raw):
    """A write that a shut buffer refused has that for an answer."""
    raw = make_raw()
    filled.shutdown(drain=False)
    raw.add(rows(0, 3))
    assert raw("resolve", number=raw.number) == ["OK", "-", "SHUT"]


def test_asking_settles_the_draw_before(server, filled, make_raw):
    """The draw that the write named as open is undone, although the write never came."""
    raw = make_raw()
    raw.sample(2)
    open_number = raw.number
    assert raw("resolve", number=open_number + 1, open_number=open_number) == ["OK", "applied", "NEVER"]
    stats = filled.stats()
    assert (stats["consumed"], stats["sample_calls"], stats["size"], filled.doctor().ok) == (0, 0, 5, True)


def test_a_lane_that_went_on_is_stale(server, filled, client, make_raw):
    """After a later request the answer is kept no more."""
    raw = make_raw()
    raw.add(rows(0, 3))
    number = raw.number
    raw.settle()
    with nothing_changes(client, ()):
        assert raw("resolve", number=number)[0] == "STALE"
