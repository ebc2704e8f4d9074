"""Batches drawn ahead: they come in order, none of before a change is given out, nothing is lost with the handle."""

import gc
import threading
import time
from collections import Counter

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay._connection import Connection
from redis_replay._steps import Fetch
from redis_replay.exceptions import (
    ArgumentError,
    BufferClosedError,
    BufferGoneError,
    BufferShutDownError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from redis_replay.samplers import Fifo, Prioritized, Uniform
from tests._contract import LARGE, SMALL, Records, numbers
from tests._helpers import wait_until
from tests._server import turns
from tests._waiting import Running, open_handle

KINDS = pytest.mark.parametrize(("kind", "server"), turns(), indirect=["server"])


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def records(request):
    """Both ways that payloads come."""
    return Records(request.param)


@pytest.fixture
def handle(request, name):
    """`handle("sync", prefetch=2)`: a handle on the test's buffer, closed at the end."""
    opened, server = [], request.getfixturevalue("real_server" if "real_server" in request.fixturenames else "server")

    def make(kind, **options):
        opened.append(open_handle(kind, server, name, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.end()


def ready(handle, n):
    """Returns when so many batches are there."""
    queue = handle.buffer._ahead._queue
    wait_until(lambda: sum(entry.batch.done() for entry in list(queue)) == n, description=f"{n} batches drawn ahead")


@pytest.mark.parametrize("kind", ["sync", "async", "attached", "async attached"])
def test_batches_come_as_without(server, make_buffer, handle, records, kind):
    """Whole, with what is told of them; those of another size are drawn now. `sample_calls` counts what was drawn."""
    make_buffer().extend(records.many(0, 20))
    ahead = handle(kind, batch_size=8, prefetch=3)
    for _ in range(5):
        batch, info = ahead.run("sample", return_info=True)
        assert [n + 1 for n in numbers(batch)] == info.index.tolist()
        assert len(numbers(ahead.run("sample"))) == 8
    assert len(numbers(ahead.run("sample", 4))) == 4
    assert len(numbers(ahead.run("sample", min_items=2))) == 8
    ready(ahead, 3)
    assert ahead.run("stats")["sample_calls"] == 12 + 3


@KINDS
def test_a_batch_is_there_when_it_is_asked_for(server, make_buffer, handle, monkeypatch, kind):
    """Also while the server gives none: what was drawn ahead needs no draw."""
    make_buffer().extend(Records(SMALL).many(0, 20))
    ahead = handle(kind, batch_size=8, prefetch=2)
    ahead.run("sample")
    ready(ahead, 2)
    before = ahead.run("stats")["sample_calls"]
    ahead.buffer._ahead._depth = 0
    assert all(len(numbers(ahead.run("sample"))) == 8 for _ in range(2))
    assert ahead.run("stats")["sample_calls"] == before


CHANGES = {
    "empty": lambda buffer, _: (buffer.empty(), buffer.extend(Records(SMALL).many(50, 70))),
    "loads": lambda buffer, path: (
        buffer.empty(), buffer.extend(Records(SMALL).many(50, 70)), buffer.dumps(path / "c"), buffer.loads(path / "c")
    ),
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_before_a_change_is_given_out(server, make_buffer, handle, tmp_path, kind, change):
    """Whoever makes it."""
    buffer = make_buffer()
    buffer.extend(Records(SMALL).many(0, 20))
    ahead = handle(kind, batch_size=8, prefetch=3)
    ahead.run("sample")
    ready(ahead, 3)
    CHANGES[change](buffer, tmp_path)
    for _ in range(5):
        assert min(numbers(ahead.run("sample"))) >= 50


@KINDS
def test_nothing_of_before_the_end_is_given_out(server, make_buffer, handle, kind):
    """Shut down, deleted: `sample` says so."""
    buffer = make_buffer()
    buffer.extend(Records(SMALL).many(0, 20))
    ahead = handle(kind, batch_size=8, prefetch=3)
    for end, error in ((buffer.shutdown, BufferShutDownError), (buffer.delete, BufferGoneError)):
        ahead.run("sample")
        ready(ahead, 3)
        end()
        with pytest.raises(error):
            ahead.run("sample")
        if error is BufferShutDownError:
            buffer.reopen()


@KINDS
def test_the_bounds_of_a_call_hold(server, make_buffer, handle, kind):
    """Too few records, a timeout, a cancel_event, while nothing is drawn ahead."""
    buffer = make_buffer()
    ahead = handle(kind, batch_size=8, prefetch=2)
    with pytest.raises(NotReadyError):
        ahead.run("sample")
    with pytest.raises(ReplayTimeoutError):
        ahead.run("sample", wait=True, timeout=0.05)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ReplayCancelledError):
        ahead.run("sample", wait=True, cancel_event=cancel)
    waiting = Running(ahead.run, "sample", wait=True)
    buffer.extend(Records(SMALL).many(0, 8))
    assert set(numbers(waiting.result())) <= set(range(8))


def test_a_call_does_not_wait_for_a_slow_batch_beyond_its_bound(real_server, make_buffer, handle, monkeypatch):
    """The batch stays on its way."""
    stuck, go, fetch = threading.Event(), threading.Event(), Connection.fetch

    def slow(self, step: Fetch):
        ahead = threading.current_thread().name.startswith("redis-replay-prefetch")
        assert not (ahead and stuck.is_set()) or go.wait(10)
        return fetch(self, step)

    monkeypatch.setattr(Connection, "fetch", slow)
    make_buffer().extend(Records(LARGE).many(0, 20))
    ahead = handle("sync", batch_size=8, prefetch=1)
    ahead.run("sample")
    ready(ahead, 1)
    stuck.set()
    ahead.run("sample")
    assert len(numbers(ahead.run("sample", wait=True, timeout=0.1))) == 8
    assert len(ahead.buffer._ahead) == 1
    go.set()
    ready(ahead, 1)


def test_calls_that_wait_for_batches_on_their_way_end_with_the_handle(real_server, make_buffer, handle, monkeypatch):
    """One that is being drawn, and one whose draw has not begun and is cancelled."""
    stuck, go, fetch = threading.Event(), threading.Event(), Connection.fetch

    def slow(self, step: Fetch):
        if threading.current_thread().name.startswith("redis-replay-prefetch"):
            stuck.set()
            assert go.wait(10)
        return fetch(self, step)

    monkeypatch.setattr(Connection, "fetch", slow)
    make_buffer().extend(Records(LARGE).many(0, 20))
    ahead = handle("sync", batch_size=8, prefetch=2)
    taken, following = [], ahead.buffer._ahead._next
    monkeypatch.setattr(ahead.buffer._ahead, "_next", lambda: taken.append(following()) or taken[-1])
    waiting = [Running(ahead.run, "sample", wait=True) for _ in range(2)]
    assert stuck.wait(10)
    wait_until(lambda: len(taken) == 2, description="both to wait")
    closing = Running(ahead.close)
    assert [type(one.error()) for one in waiting] == [BufferClosedError] * 2
    go.set()
    closing.result()


LENDING = {"consume_after_n_samples": 1, "sampler": Fifo(), "lease": 60.0}


def test_what_was_not_given_out_goes_back(server, make_buffer, handle):
    """At `close`; what was given out is acknowledged by the draw after the next `sample`, the last one by `close`."""
    buffer = make_buffer(**LENDING)
    buffer.extend(Records(SMALL).many(0, 20))
    ahead = handle("sync", batch_size=2, prefetch=3)
    got = [n for _ in range(4) for n in numbers(ahead.run("sample"))]
    assert got == list(range(8))
    ready(ahead, 3)
    assert buffer.stats()["leased"] in (8, 10)  # three ahead, the caller's own, and the one before until the next draw
    ahead.close()
    stats = buffer.stats()
    assert (stats["leased"], stats["consumed"], len(buffer)) == (0, 8, 12)
    with ReplayBuffer(server.target(), buffer.name) as other:
        assert numbers(other.sample(12)) == list(range(8, 20))


async def test_nothing_is_lost_by_tasks(server, make_buffer, name):
    """As by threads."""
    buffer = make_buffer(**LENDING)
    buffer.extend(Records(SMALL).many(0, 20))
    async with AsyncReplayBuffer(server.async_target(), name, batch_size=2, prefetch=3) as ahead:
        got = [n for _ in range(4) for n in numbers(await ahead.sample())]
    assert got == list(range(8))
    stats = buffer.stats()
    assert (stats["leased"], stats["consumed"], len(buffer)) == (0, 8, 12)


def test_what_was_dropped_goes_back_at_once(server, make_buffer, handle):
    """By the next draw ahead: a version makes batches stale, and their records are live still."""
    buffer = make_buffer(**LENDING | {"sampler": Uniform()}, max_staleness=5)
    buffer.extend(Records(SMALL).many(0, 20))
    ahead = handle("sync", batch_size=4, prefetch=2)
    ahead.run("sample")
    ready(ahead, 2)
    buffer.set_version(1)
    got = Counter(numbers(ahead.run("sample")))
    ready(ahead, 2)
    wait_until(lambda: buffer.stats()["leased"] <= 12, description="the dropped ones to go back")
    for _ in range(3):
        got.update(numbers(ahead.run("sample", wait=True)))
    assert max(got.values()) == 1


def test_a_handle_that_is_closed_meanwhile_says_so(server, make_buffer, handle, monkeypatch):
    """Between the look at the moment and the draws that follow it."""
    make_buffer().extend(Records(SMALL).many(0, 20))
    ahead = handle("sync", batch_size=4, prefetch=2)
    mark = ahead.buffer._ahead._mark

    def closing(until):
        now = mark(until)
        ahead.close()
        return now

    monkeypatch.setattr(ahead.buffer._ahead, "_mark", closing)
    with pytest.raises(BufferClosedError):
        ahead.run("sample")


def test_threads_share_what_is_drawn_ahead(server, make_buffer, handle):
    """Each record is given to one of them, once."""
    buffer = make_buffer(capacity=400, **LENDING)
    buffer.extend(Records(SMALL).many(0, 400))
    ahead = handle("sync", batch_size=4, prefetch=4)
    runs = [Running(lambda: [n for _ in range(25) for n in numbers(ahead.run("sample", wait=True))]) for _ in range(4)]
    assert sorted(n for run in runs for n in run.result(20)) == list(range(400))


def test_weights_are_those_of_the_draw(server, make_buffer, handle):
    """`priority_weight` and what `update_priority` needs come with a batch."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0))
    buffer.extend(Records(SMALL).many(0, 20), priority=np.arange(20.0))
    ahead = handle("sync", batch_size=8, prefetch=2)
    for _ in range(4):
        _, info = ahead.run("sample", return_info=True)
        assert info.priority.tolist() == [float(i - 1) for i in info.index]
        assert ahead.run("update_priority", info.index, info.priority).ignored == 0


@KINDS
def test_what_makes_no_sense_is_refused(server, make_buffer, name, kind):
    make_buffer(consume_after_n_samples=1)
    for options in ({"prefetch": 2}, {"prefetch": -1, "batch_size": 2}, {"prefetch": 2, "batch_size": 2}):
        with pytest.raises(ArgumentError, match="prefetch"):
            open_handle(kind, server, name, **options)


def test_a_copy_draws_ahead_itself(real_server, make_buffer, handle):
    """It is pickled as an option, without what is there."""
    make_buffer().extend(Records(SMALL).many(0, 20))
    copy = handle("unpickled", batch_size=4, prefetch=2)
    assert len(copy.buffer._ahead) == 0
    assert len(numbers(copy.run("sample"))) == 4
    assert len(copy.buffer._ahead) == 2


@KINDS
def test_what_was_lent_ahead_and_ran_out_is_not_given_out(server, make_buffer, handle, kind, monkeypatch):
    """Its renewals were lost: others may have its records by then."""
    buffer = make_buffer(**LENDING | {"lease": 0.3})
    buffer.extend(Records(SMALL).many(0, 16))
    ahead = handle(kind, batch_size=4, prefetch=1)
    assert numbers(ahead.run("sample")) == [0, 1, 2, 3]
    ready(ahead, 1)
    monkeypatch.setattr(ahead.buffer._own.leases, "living", list)
    wait_until(lambda: buffer.stats()["reclaimed"] >= 4, description="the lease to run out")
    with ReplayBuffer(server.target(), buffer.name) as other:
        others = numbers(other.sample(8))
    assert not set(numbers(ahead.run("sample"))) & set(others)


@KINDS
def test_a_batch_of_which_it_is_learnt_that_its_lease_ended_is_not_given_out(server, make_buffer, handle, kind):
    """Its renewal came late."""
    buffer = make_buffer(**LENDING)
    buffer.extend(Records(SMALL).many(0, 16))
    ahead = handle(kind, batch_size=4, prefetch=1)
    ahead.run("sample")
    ready(ahead, 1)
    leases = ahead.buffer._own.leases
    (name,) = leases.of(ahead.buffer._ahead._queue[0].place.owner)
    assert buffer.release(name).applied == 1
    leases.end([name])
    with ReplayBuffer(server.target(), buffer.name) as other:
        others = numbers(other.sample(4))
    assert not set(numbers(ahead.run("sample"))) & set(others)


def test_the_time_that_a_call_waits_for_a_batch_on_its_way_is_its_own(server, make_buffer, handle, monkeypatch):
    """It does not begin anew for the call's own draw."""
    make_buffer(**LENDING).extend(Records(SMALL).many(0, 4))
    ahead, go = handle("sync", batch_size=4, prefetch=1), threading.Event()
    assert numbers(ahead.run("sample")) == [0, 1, 2, 3]
    ready(ahead, 1)
    monkeypatch.setattr(ahead.buffer._ahead, "_draw", lambda _: go.wait(10))
    try:
        for _ in range(2):  # the first takes the failed draw, and begins the one that is stuck
            started = time.monotonic()
            with pytest.raises(ReplayTimeoutError):
                ahead.run("sample", wait=True, timeout=1.0)
            assert time.monotonic() - started < 1.9
    finally:
        go.set()


@KINDS
def test_what_an_interrupted_call_let_go_of_goes_back(server, make_buffer, handle, kind):
    """With the next draw ahead, or at the end: nobody has seen it."""
    buffer = make_buffer(**LENDING)
    buffer.extend(Records(SMALL).many(0, 20))
    ahead = handle(kind, batch_size=4, prefetch=1)
    assert numbers(ahead.run("sample")) == [0, 1, 2, 3]
    for _ in range(2):
        ready(ahead, 1)
        ahead.buffer._ahead._queue.popleft()
        gc.collect()
        ahead.run("sample")
    ready(ahead, 1)
    ahead.buffer._ahead._queue.popleft()
    gc.collect()
    ahead.close()
    stats = buffer.stats()
    assert (stats["leased"], stats["consumed"], len(buffer)) == (0, 12, 8)
