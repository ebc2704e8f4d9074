"""Writers that the rate limiter holds back: they wait as readers do, in order, and every wait ends with a reason."""

import contextlib
import threading
import time

import numpy as np
import pytest

from redis_replay import _core, _ops_wait
from redis_replay._encode import encode_batch
from redis_replay.exceptions import (
    ArgumentError,
    BufferClosedError,
    BufferGoneError,
    BufferShutDownError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from redis_replay.limiters import Queue, SampleToInsertRatio
from redis_replay.samplers import Fifo, Prioritized
from tests._contract import LARGE, SMALL, RawLane, Records
from tests._helpers import SOON, wait_until
from tests._waiting import Frozen, Running, blocked, deaf, record, records, tags

QUEUE = {"sampler": Fifo(), "consume_after_n_samples": 1}
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture
def full(server, make_buffer):
    """A handle on a queue for four records that holds four. Notices alone wake in time: polls come each half minute."""
    buffer = make_buffer(rate_limiter=Queue(4), poll_interval=30, **QUEUE)
    buffer.extend(records(4))
    return buffer


@pytest.fixture
def writer(full, make_buffer):
    """Gives `writer()`: another handle on the queue."""
    return lambda **options: make_buffer(attach=True, **{"poll_interval": 30} | options)


@KINDS
def test_a_draw_lets_a_writer_in(full, open_kind, kind):
    """By a notice, with all of its records."""
    handle = open_kind(kind, poll_interval=30)
    call = Running(handle.run, "extend", records(3, 4))
    blocked(full)
    assert full.stats()["blocked"][0]["side"] == "insert"
    full.sample(2)
    assert not call.is_over
    full.sample(1)
    assert call.result().tolist() == [5, 6, 7]
    assert tags(full.sample(4)) == [3, 4, 5, 6]
    assert full.stats()["waiters"] == 0


@pytest.mark.parametrize("width", [1, LARGE], ids=["small", "large"])
def test_both_ways_of_writing_wait(server, make_buffer, width):
    """A large batch waits without its bytes, and sends them once."""
    made = Records(width)
    buffer = make_buffer(rate_limiter=Queue(4), poll_interval=30, **QUEUE)
    buffer.extend(made.many(0, 4))
    call = Running(make_buffer(attach=True, poll_interval=30).extend, made.many(4, 8))
    blocked(buffer)
    assert len(buffer.sample(4)["i"]) == 4
    assert call.result().tolist() == [5, 6, 7, 8]
    assert buffer.doctor().ok


def test_writers_come_in_order(full, writer):
    """The first that came is the first that writes, and a large batch does not starve behind small ones."""
    calls = []
    for i, n in enumerate([3, 1, 1]):
        calls.append(Running(writer().extend, records(n, 10 * i)))
        blocked(full, i + 1)
    full.sample(1)
    full.sample(1)
    assert [call.is_over for call in calls] == [False] * 3
    with pytest.raises(ReplayTimeoutError):
        full.extend(records(1), timeout=0)  # a newcomer does not overtake either
    full.sample(1)
    assert calls[0].result().tolist() == [5, 6, 7]
    assert [call.is_over for call in calls[1:]] == [False, False]
    full.sample(2)
    assert sorted(call.result().tolist() for call in calls[1:]) == [[8], [9]]


def test_readers_and_writers_wait_for_each_other(server, make_buffer):
    """Each side is woken by the other alone, and neither stands in the other's way."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(2, 2, 4), poll_interval=30)  # difference 0 to 8
    made = [make_buffer(attach=True, poll_interval=30) for _ in range(2)]
    buffer.extend(records(4))
    write = Running(made[0].extend, records(2, 4))
    blocked(buffer, 1)
    assert len(buffer.sample(4)["i"]) == 4
    assert write.result().tolist() == [5, 6]
    buffer.sample(6)
    read = Running(made[1].sample, 6, wait=True)
    blocked(buffer, 1)
    buffer.extend(records(1, 6), timeout=0)
    assert not read.is_over
    buffer.extend(records(1, 7), timeout=0)
    assert len(read.result()["i"]) == 6


@KINDS
def test_a_writers_wait_ends_at_its_timeout(full, open_kind, kind):
    """Naming what it waited for; nothing was written."""
    handle = open_kind(kind)
    call = Running(handle.run, "extend", records(2), timeout=0.3)
    error = call.error()
    assert isinstance(error, ReplayTimeoutError)
    assert (error.side, error.have, error.need, error.what, error.done) == ("insert", 0, 2, "room for 2 records", 0)
    assert 0.3 <= call.seconds < 0.3 + SOON
    assert (full.write_count, full.stats()["waiters"]) == (4, 0)


def test_a_cancelled_writer_leaves(full, writer):
    """Within a tenth of a second, and those behind it move up."""
    event = threading.Event()
    first = Running(writer().extend, records(4), cancel_event=event)
    blocked(full, 1)
    second = Running(writer().add, record(9))
    blocked(full, 2)
    full.sample(1)
    assert not second.is_over
    event.set()
    assert isinstance(first.error(), ReplayCancelledError)
    assert second.result() == 5
    with pytest.raises(ReplayCancelledError):
        full.extend(records(1), cancel_event=event)
    assert full.wait_until_writable(1, cancel_event=event) is False
    assert full.write_count == 5


ENDS = {
    "shutdown": (lambda b, w: b.shutdown(drain=False), BufferShutDownError),
    "drain": (lambda b, w: b.shutdown(), BufferShutDownError),
    "delete": (lambda b, w: b.delete(), BufferGoneError),
    "close": (lambda b, w: w.close(), BufferClosedError),
}


@pytest.mark.parametrize(("end", "error"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", ["extend", "wait_until_writable"])
def test_every_end_ends_a_writers_wait(full, writer, way, end, error):
    """At once, though it polls each half minute only."""
    waiting = writer()
    call = Running(waiting.extend, records(1)) if way == "extend" else Running(waiting.wait_until_writable)
    blocked(full, 1)
    end(full, waiting)
    assert isinstance(call.error(), error)


def test_draining_gives_out_what_is_there_while_writers_are_refused(full, writer):
    """Readers that wait keep their places."""
    reader = Running(writer().sample, 4, wait=True)
    assert reader.how() == [0, 1, 2, 3]
    readers = [Running(writer().sample, 2, wait=True) for _ in range(1)]
    blocked(full, 1)
    full.add(record(4))
    full.shutdown()
    assert readers[0].how() == [4]


def test_another_limiter_frees_who_waits(full, writer):
    """In one step, from any handle; and who can never come any more is told so."""
    small, large = Running(writer().extend, records(1)), Running(writer().extend, records(4))
    blocked(full, 2)
    writer().set_rate_limiter(Queue(5))
    wait_until(lambda: small.is_over or large.is_over or full.stats()["waiters"] == 2, description="a look")
    full.set_rate_limiter(Queue(3))
    assert isinstance(large.error(), ArgumentError)
    full.set_rate_limiter(None)
    assert small.error() is None


def test_who_can_never_come_gives_up_its_place(full, writer):
    """Those behind it move up."""
    wide = Running(writer().extend, records(4))
    blocked(full, 1)
    small = Running(writer().extend, records(1))
    blocked(full, 2)
    full.set_rate_limiter(Queue(3))
    assert isinstance(wide.error(), ArgumentError)
    full.sample(2)
    assert small.result().tolist() == [5]
    assert full.stats()["waiters"] == 0


WAYS = {
    "removed": lambda b: b.remove(np.arange(1, 200)),
    "too old": lambda b: b.set_version(b.stats()["version"] + 1),
    "hidden": lambda b: b.update_priority(np.arange(1, 200), 0.0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [10, 20])
def test_records_that_leave_undrawn_let_nobody_wait_for_ever(server, make_buffer, way, batch):
    """A reader that waits for more records than there are lets writers in, however far the draws are behind."""
    options = {"max_staleness": 0} if way == "too old" else {}
    limiter, sampler = SampleToInsertRatio(1, 10, 40), Prioritized(alpha=1.0, beta=0.0)
    buffer = make_buffer(rate_limiter=limiter, sampler=sampler, poll_interval=30, **options)
    actor, learner = (make_buffer(attach=True, poll_interval=30) for _ in range(2))
    stop = threading.Event()

    def act():
        with contextlib.suppress(ReplayCancelledError):
            while True:
                actor.extend(records(8), priority=1.0, cancel_event=stop)

    call = Running(act)
    for _ in range(6):
        assert len(learner.sample(batch, wait=True, timeout=5)["i"]) == batch
        WAYS[way](buffer)
    assert buffer.stats()["samples_returned"] == 6 * batch
    stop.set()
    call.result()


def test_a_reader_that_needs_more_than_the_range_is_served(server, make_buffer):
    """Writes come through until it has its records: neither side waits for the other."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(8, 1, 20), poll_interval=30)
    call = Running(make_buffer(attach=True, poll_interval=30).sample, 32, wait=True)
    blocked(buffer, 1)
    for i in range(32):
        buffer.add(record(i), timeout=2)
    assert len(call.result()["i"]) == 32
    with pytest.raises(ReplayTimeoutError):
        buffer.extend(records(2), timeout=0)


def test_wait_until_writable_is_advice(full, writer):
    """It takes no room away from others."""
    calls = [Running(writer().wait_until_writable, 2) for _ in range(3)]
    blocked(full, 3)
    full.sample(2)
    assert [call.how() for call in calls] == [True] * 3
    assert full.can_insert(2)
    assert full.wait_until_writable(3, timeout=0) is False


def test_a_lost_notice_costs_a_poll(full, writer):
    waiting = writer(poll_interval=0.3)
    missed = deaf(waiting._now.listener)
    call = Running(waiting.extend, records(1))
    blocked(full, 1)
    full.sample(1)
    assert call.result().tolist() == [5]
    wait_until(lambda: missed, description="the notice that was dropped")


def test_a_hung_writers_turn_passes_on(full, writer):
    """Half a second later at most, the next in line has the room."""
    hung = writer()
    frozen = Frozen(hung)
    first = Running(hung.extend, records(1))
    blocked(full, 1)
    frozen.paused.wait(SOON)
    second = Running(writer().extend, records(1))
    blocked(full, 2)
    began = time.monotonic()
    full.sample(1)
    assert second.result().tolist() == [5]
    assert 0.3 < time.monotonic() - began < 0.5 + SOON
    frozen.thaw()
    full.sample(1)
    assert first.result().tolist() == [6]


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["small", "large"])
def test_a_write_refused_after_its_turn_leaves_the_line(full, writer, client, width):
    """Who stands behind it need not wait until the turn has run out; one that is asked for its schema goes on having it."""
    raw, config = RawLane(client, full.name).register(), f"rr:{{{full.name}}}:config"
    full.sample(1)
    assert raw.wait(1, 1, side="w", wait=1, turn_us=10**9)[0] == "READY"
    behind = Running(writer().extend, records(1))
    blocked(full, 2)
    schema = client.hget(config, "schema_hash")
    client.hdel(config, "schema_hash")
    rows = encode_batch(Records(width).many(0, 1), None)
    assert raw.write(rows, keep_place=1, schema="")[0] == "NO_SCHEMA"
    assert (full.stats()["waiters"], behind.is_over) == (2, False)
    client.hset(config, "schema_hash", schema)
    assert raw.write(rows, keep_place=1)[0] == "SCHEMA"
    assert behind.result().tolist() == [5]
    assert full.stats()["waiters"] == 0


def test_a_large_write_has_a_longer_turn(full, client, name):
    """A second more for each 16 MiB."""
    wish = _ops_wait.room_wish(1, 1, 48 * 2**20, wait=True)
    standing = {"wait": True, "keep_place": False, "poll_us": 1, "shutdowns": 0, "channel": "c"}
    assert wish.script(standing, list).args[-1] == b"3500000"


def test_the_line_is_seen(full, writer):
    """Who is blocked on what, for how long."""
    one = writer()
    calls = [Running(one.extend, records(2)), Running(writer().wait_until_writable, 3)]
    blocked(full, 2)
    time.sleep(0.1)
    first, second = sorted(full.stats()["blocked"], key=lambda line: line["need"])
    assert first | {"seconds": 0} == {
        "side": "insert", "need": 2, "take": 2, "seconds": 0, "has_turn": False, "client": one._now.core.client,
    }  # fmt: skip
    assert 0.1 <= first["seconds"] < SOON
    assert (second["need"], second["take"]) == (3, 0)
    full.shutdown(drain=False)
    assert all(isinstance(call.error(), BufferShutDownError) for call in calls)


def test_a_blocked_writer_says_so(full, writer, caplog, monkeypatch):
    """A log line names the side, the counters, and what would help."""
    monkeypatch.setattr(_ops_wait, "LOG_SECONDS", 0.1)
    with pytest.raises(ReplayTimeoutError):
        writer(poll_interval=0.05).extend(records(1), timeout=0.5)
    said = [record.getMessage() for record in caplog.records if record.name == _core.log.name]
    assert said
    assert all("room for 1 record" in line and "blocks insert calls until more sample calls" in line for line in said)


def test_never_more_than_the_ratio(server, make_buffer):
    """Over all learners and actors together, at every moment."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(3, 10, 30), capacity=500)
    made = [make_buffer(attach=True) for _ in range(6)]
    stop, seen = threading.Event(), []

    def act(handle):
        for i in range(40):
            handle.extend(records(2, i), timeout=20)
        return True

    def learn(handle):
        while not stop.is_set():
            try:
                handle.sample(5, wait=True, cancel_event=stop, min_items=5)
            except ReplayCancelledError:
                return True
        return True

    calls = [Running(act, handle) for handle in made[:3]] + [Running(learn, handle) for handle in made[3:]]
    while not all(call.is_over for call in calls[:3]):
        stats = buffer.stats()
        seen.append(stats["limiter_difference"])
        assert stats["limiter_difference"] == 3 * stats["write_count"] - stats["samples_returned"]
    wait_until(lambda: buffer.stats()["limiter_difference"] < 5, description="the learners to come to the end")
    stop.set()
    assert [call.result(20) for call in calls] == [True] * 6
    assert max(seen) <= 60
    assert all(difference >= 0 or difference == 0 for difference in seen)
    assert buffer.stats()["samples_returned"] == 3 * 240 - buffer.stats()["limiter_difference"]
