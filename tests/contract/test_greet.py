"""The script that opens a connection: what a server has forgotten is found out, and set right, once."""

import pytest

from redis_replay._encode import encode_batch
from redis_replay._keys import NAMES
from redis_replay.exceptions import LimitError
from redis_replay.samplers import Fifo
from tests._contract import nothing_changes, numbers

JUMP = 2**32  # indices that nobody is given after the server was found to be another
MAX_INDEX = 2**53 - 1
CONSUMES = pytest.mark.parametrize("consume", [None, 1])


@pytest.fixture
def buffer(server, make_buffer, request, small):
    """A buffer of the records 1 to 5 under the indices 1 to 5."""
    consume = request.node.callspec.params.get("consume")
    made = make_buffer(capacity=100, sampler=Fifo(), consume_after_n_samples=consume)
    made.extend(small.many(1, 6))
    return made


def greet(raw, given=0, /, **known):
    """The answer to a client that was given an index, and whose lanes were answered up to these numbers."""
    return raw("greet", given=given, numbers=" ".join(f"{lane}:{number}" for lane, number in known.items()))


@CONSUMES
def test_who_knows_no_more_changes_nothing(buffer, client, make_raw, consume):
    """A server that knows all that the client was told says so."""
    raw = make_raw()
    greet(raw, 0)  # notes the server's process, where the one who created the buffer may not ask for it
    with nothing_changes(client, ()):
        assert greet(raw, 5, raw=raw.number) == greet(raw, 0) == ["OK", "-"]


@CONSUMES
@pytest.mark.parametrize("left", [5, 0], ids=["some left", "none left"])
def test_an_index_that_was_given_is_not_given_again(buffer, client, make_raw, small, consume, left):
    """The next write comes behind it, what is there stays, and nothing is there in between."""
    buffer.remove(list(range(left + 1, 6)))
    raw = make_raw()
    assert greet(raw, 9) == ["REWOUND", "-", "5"]
    assert greet(raw, 9) == ["OK", "-"]
    assert buffer.extend(small.many(10, 12)).tolist() == [JUMP + 10, JUMP + 11]
    assert [int(r["i"]) for r in buffer.records()] == [*range(1, left + 1), 10, 11]
    assert (buffer.remove([6, 7, 8, 9]), buffer.stats()["ignored"], buffer.stats()["rewound"]) == (0, 4, 1)
    assert buffer.doctor().findings == ()
    assert numbers(buffer.sample(left + 2, min_items=1)) == [*range(1, left + 1), 10, 11]


@pytest.mark.parametrize("holes", [False, True], ids=["whole", "holes"])
def test_a_ring_goes_on_over_many_jumps(server, make_buffer, make_raw, small, holes):
    """Whatever is drawn, evicted, taken out or emptied: what lies between live records is nobody's."""
    ring, raw, stored = make_buffer(capacity=8, sampler=Fifo()), make_raw(), {}
    for turn in range(30):
        given = ring.extend(small.many(3 * turn, 3 * turn + 3)).tolist()
        stored = dict([*stored.items(), *zip(given, range(3 * turn, 3 * turn + 3), strict=True)][-8:])
        if holes and turn % 3 < 2:
            gone = [*stored][-turn % len(stored)]
            assert (ring.remove(gone), stored.pop(gone) >= 0) == (1, True)
        if turn % 2:
            assert greet(raw, given[-1] + turn)[0] == "REWOUND"
        assert numbers(ring.sample(len(stored))) == numbers(ring.get([*stored])) == list(stored.values())
        assert (ring.remove([i + 1 for i in stored if i + 1 not in stored]), ring.doctor().findings) == (0, ())
    ring.empty()
    assert (greet(raw, given[-1] + 40)[0], len(ring), ring.extend(small.many(0, 9)).size) == ("REWOUND", 0, 9)
    assert (numbers(ring.sample(8)), ring.doctor().findings) == ([*range(1, 9)], ())


def test_jumps_never_come_to_the_last_index(server, make_buffer, make_raw, small, client, name):
    """Each is at most a small share of the indices that are left."""
    queue, raw = make_buffer(sampler=Fifo(), consume_after_n_samples=1), make_raw()
    assert greet(raw, MAX_INDEX - 65_536 * 3)[0] == "REWOUND"
    assert queue.add(small.one(1)) == MAX_INDEX - 65_536 * 3 + 3 + 1
    assert (greet(raw, MAX_INDEX)[0], queue.doctor().findings) == ("REWOUND", ())
    with pytest.raises(LimitError):
        queue.add(small.one(2))


def test_ranges_between_live_records_are_bounded(real_server, make_buffer, make_raw, small, client, name):
    """Where every connection finds another process, as behind some proxies, a ring's calls do not get slower for ever."""
    ring, raw, keys = make_buffer(capacity=2_000, sampler=Fifo()), make_raw(), [f"rr:{{{name}}}:{what}" for what in NAMES]
    ring.add(small.one(0))
    ((_, entry),) = client.xrange(keys[2])
    with client.pipeline() as pipe:  # as if the server had been another one after each of 999 records
        for index in range(3, 2_000, 2):
            pipe.xadd(keys[2], entry, id=f"0-{index}")
        pipe.execute()
    sizes = dict.fromkeys(("sampleable_size", "storage_size", "write_count", "records_total"), 1_000)
    client.hset(keys[1], mapping={"last": 1_999, **sizes})
    client.hset(keys[0], "skipped", " ".join(f"{index}:{index}" for index in range(2, 1_999, 2)))
    for _ in range(3):
        client.hset(keys[0], "server", "another")
        assert greet(raw) == ["OK", "-"]
        ring.add(small.one(1))
    assert len(client.hget(keys[0], "skipped").split()) == 1_000
    assert (numbers(ring.sample(1_003)), ring.doctor().findings) == ([0] * 1_000 + [1] * 3, ())


def test_only_so_many_ranges_are_kept(server, make_buffer, make_raw, small, client, name):
    """A buffer that consumes needs none to draw: it keeps the last 16, so that a call that names one is counted."""
    queue, raw = make_buffer(sampler=Fifo(), consume_after_n_samples=1), make_raw()
    for _ in range(20):
        greet(raw, queue.add(small.one(1)) + 1)
    assert len(client.hget(f"rr:{{{name}}}:config", "skipped").split()) == 16
    assert (numbers(queue.sample(20)), queue.doctor().findings) == ([1] * 20, ())


@CONSUMES
def test_another_server_may_have_lost_what_anybody_was_given(real_server, make_buffer, client, make_raw, small, consume):
    """Whoever comes first passes over all indices that may have been given; who had been given one is told later."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(small.many(1, 6))
    raw = make_raw()
    client.hset(f"rr:{{{buffer.name}}}:config", "server", "another")
    assert (greet(raw, 0), greet(raw, 3), buffer.stats()["restarts"], buffer.stats()["rewound"]) == (["OK", "-"],) * 2 + (1, 0)
    assert buffer.add(small.one(6)) == JUMP + 6
    assert (greet(raw, 7), greet(raw, 7)) == (["REWOUND", "-", "5"], ["OK", "-"])
    assert (buffer.stats()["rewound"], len(buffer), buffer.doctor().findings) == (1, 6, ())


@CONSUMES
def test_a_lane_that_fell_back_has_its_number_again(buffer, client, make_raw, small, consume):
    """A copy of what was answered is refused, the next request is judged, and the rest is as it was."""
    raw = make_raw()
    greet(raw, 0)  # notes the server's process, where the one who created the buffer may not ask for it
    with nothing_changes(client, (":requests", ":lanes", ":counters")):
        assert greet(raw, 5, raw=7)[0] == "REWOUND"
    rows = encode_batch(small.many(6, 8), None)
    with nothing_changes(client, ()):
        assert (raw.add(rows, number=6)[0], raw.add(rows, number=7)[0]) == ("STALE", "REWOUND")
    assert (raw.add(rows, number=8)[:1], len(buffer), buffer.stats()["rewound"]) == (["OK"], 7, 1)


@CONSUMES
def test_a_lane_that_vanished_registers_anew(buffer, client, make_raw, small, consume):
    """It is counted once, and its next request is told so: the lane may have gone with a write that was applied."""
    raw = make_raw()
    assert (greet(raw, 5, gone=3)[0], greet(raw, 5, gone=3)[0], buffer.stats()["rewound"]) == ("REWOUND", "OK", 1)
    raw.name, rows = "gone", encode_batch(small.many(6, 8), None)
    with nothing_changes(client, ()):
        assert (raw.add(rows, number=4)[0], raw("resolve", number=4)[0]) == ("FORGOTTEN", "FORGOTTEN")
    assert (raw.settle(number=5)[0], raw.add(rows, number=4)[0], raw.add(rows, number=6)[0]) == ("OK", "STALE", "OK")
    assert (len(buffer), buffer.doctor().findings) == (7, ())


@CONSUMES
@pytest.mark.parametrize("proof", ["index", "lane", "another client"])
def test_a_lane_that_vanished_with_proof_is_known_again(buffer, make_raw, small, consume, proof):
    """Where an index or another lane proves that the server was rewound, its requests go on under their numbers."""
    raw = make_raw()
    if proof == "another client":
        greet(make_raw("other"), 7)
    answer = greet(raw, 7 if proof == "index" else 5, gone=3, **({"raw": 9} if proof == "lane" else {}))
    raw.name, rows = "gone", encode_batch(small.many(6, 8), None)
    answers = [answer[0], raw.add(rows, number=3)[0], raw("resolve", number=4)[2:], raw.add(rows, number=5)[0]]
    assert answers == ["REWOUND", "REWOUND", ["NEVER"], "OK"]
    assert (len(buffer), buffer.doctor().findings) == (7, ())


@CONSUMES
def test_a_hold_of_a_lane_that_fell_back_ends(buffer, client, make_raw, consume):
    """What its last draw, as the server remembers it, still held is let go."""
    raw = make_raw()
    raw.sample(2)
    greet(raw, 5, raw=raw.number + 5)
    stats = buffer.stats()
    assert (stats["holds"], stats["parting"], stats["storage_size"]) == (0, 0, 3 if consume else 5)
    assert buffer.doctor().findings == ()


def test_a_wait_of_a_lane_that_fell_back_ends(buffer, make_raw):
    """It stands in nobody's way."""
    raw = make_raw()
    raw.wait(90, wait=1)
    greet(raw, 5, raw=raw.number + 1)
    assert (buffer.stats()["waiters"], buffer.doctor().findings) == (0, ())


def test_another_epoch_is_gone(buffer, client, make_raw):
    """A buffer of the same name is not touched."""
    raw = make_raw()
    raw.epoch = b"another"
    with nothing_changes(client, ()):
        assert greet(raw, 99, raw=99)[0] == "GONE"
