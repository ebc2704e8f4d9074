"""`write_behind`: what `add` takes is stored once, in order, or somebody is told that it is not."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer, _async, _behind, _sync
from redis_replay.exceptions import (
    ArgumentError,
    BufferClosedError,
    BufferGoneError,
    BufferShutDownError,
    NotWrittenError,
    ReplayCancelledError,
    ReplayTimeoutError,
    SchemaError,
)
from redis_replay.limiters import Queue, SampleToInsertRatio
from redis_replay.samplers import Fifo, Prioritized
from tests._contract import SMALL, Records, numbers, stored_numbers
from tests._helpers import wait_until
from tests._server import turns
from tests._waiting import Running, open_handle

KINDS = pytest.mark.parametrize(("kind", "server"), turns(), indirect=["server"])
ROWS = Records(SMALL)
LONG = 60.0  # nothing is written before it has to be


@pytest.fixture
def handle(request, name):
    """`handle("sync")`: a handle on the test's buffer that writes behind; closed at the end."""
    opened, server = [], request.getfixturevalue("real_server" if "real_server" in request.fixturenames else "server")

    def make(kind, delay=LONG, **options):
        opened.append(open_handle(kind, server, name, write_behind=delay, **options))
        return opened[-1]

    yield make
    for one in opened:
        if not one.buffer._closed:
            one.end()


def index_of(handle, future):
    return future.result(5) if isinstance(future, concurrent.futures.Future) else handle.call(waited(future))


async def waited(future):
    return await future


@pytest.mark.parametrize("kind", ["sync", "async", "attached", "async attached"])
def test_records_are_stored_in_order(server, make_buffer, handle, kind):
    """Each once, under the index that its future tells; `extend` comes behind them."""
    buffer = make_buffer()
    behind = handle(kind)
    futures = [behind.run("add", ROWS.one(i)) for i in range(5)]
    assert len(buffer) == 1  # the first fixed the schema
    assert behind.run("extend", ROWS.many(5, 8)).tolist() == [6, 7, 8]
    futures += [behind.run("add", ROWS.one(i)) for i in range(8, 12)]
    behind.run("flush")
    assert [index_of(behind, future) for future in futures] == [1, 2, 3, 4, 5, 9, 10, 11, 12]
    assert stored_numbers(buffer) == list(range(12))
    behind.run("flush")


@KINDS
def test_the_delay_is_kept(server, make_buffer, handle, kind):
    """Nobody has to ask."""
    buffer = make_buffer()
    behind = handle(kind, 0.02)
    for i in range(5):
        behind.run("add", ROWS.one(i))
    wait_until(lambda: len(buffer) == 5)


@KINDS
def test_a_full_one_writes_at_once(server, make_buffer, handle, kind, monkeypatch):
    monkeypatch.setattr(_behind, "MOST", 4)
    buffer = make_buffer()
    behind = handle(kind)
    for i in range(1 + 4):
        behind.run("add", ROWS.one(i))
    wait_until(lambda: len(buffer) == 5)


@KINDS
def test_a_record_is_taken_as_it_was(server, make_buffer, handle, kind):
    """What the caller does with it afterwards is his."""
    buffer = make_buffer()
    behind = handle(kind)
    record = {"x": np.arange(4)}
    for _ in range(3):
        behind.run("add", record)
        record["x"] += 1
    behind.run("flush")
    assert [r["x"][0] for r in buffer.records()] == [0, 1, 2]


@KINDS
def test_a_bad_record_spoils_no_other(server, make_buffer, handle, kind):
    """It is the `add` that raises."""
    buffer = make_buffer()
    behind = handle(kind)
    behind.run("add", ROWS.one(0))
    for bad, error in (({"y": 1}, SchemaError), ({}, (SchemaError, ArgumentError))):
        with pytest.raises(error):
            behind.run("add", bad)
        behind.run("add", ROWS.one(len(stored_numbers(buffer))))
        behind.run("flush")
    with pytest.raises(ArgumentError):
        behind.run("add", ROWS.one(1), priority=1.0)
    assert stored_numbers(buffer) == [0, 1, 2]


def test_priorities_and_versions_go_along(server, make_buffer, handle):
    """Given for some of them."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0), max_staleness=9)
    behind = handle("sync")
    for i in range(12):
        given = {"priority": float(i)} if i % 3 else {}
        behind.run("add", ROWS.one(i), **given, **({"version": i // 4} if i % 2 else {}))
    behind.run("flush")
    index, priority = buffer.priorities()
    assert index.tolist() == list(range(1, 13))
    assert [p for i, p in enumerate(priority.tolist()) if i % 3] == [float(i) for i in range(12) if i % 3]
    assert stored_numbers(buffer) == list(range(12))


@KINDS
def test_shut_down_and_gone_are_told(server, make_buffer, handle, kind):
    """By each future, once by `flush`, and by the next `add` that is written; the handle's own `shutdown` writes first."""
    buffer = make_buffer()
    behind = handle(kind)
    behind.run("add", ROWS.one(0))
    future = behind.run("add", ROWS.one(1))
    behind.run("shutdown")
    assert index_of(behind, future) == 2
    buffer.reopen()
    for end, error in ((buffer.shutdown, BufferShutDownError), (buffer.delete, BufferGoneError)):
        futures = [behind.run("add", ROWS.one(i)) for i in range(3)]
        end()
        with pytest.raises(NotWrittenError) as caught:
            behind.run("flush")
        assert (caught.value.n, type(caught.value.__cause__)) == (3, error)
        for future in futures:
            with pytest.raises(error):
                index_of(behind, future)
        behind.run("flush")
        if error is BufferShutDownError:
            buffer.reopen()


@KINDS
def test_who_never_looks_at_a_future_is_told(server, make_buffer, handle, kind):
    """By the next `add`, once."""
    buffer = make_buffer()
    behind = handle(kind, 0.001)
    behind.run("add", ROWS.one(0))
    buffer.shutdown()
    behind.run("add", ROWS.one(1))
    wait_until(lambda: len(behind.buffer._behind) == 0)
    with pytest.raises(NotWrittenError) as caught:
        behind.run("add", ROWS.one(2))
    assert caught.value.n == 1
    buffer.reopen()
    behind.run("add", ROWS.one(3))
    behind.run("flush")
    assert stored_numbers(buffer) == [0, 3]


async def test_the_delay_is_kept_for_who_awaits_nothing_but_add(server, make_buffer, name):
    buffer = make_buffer(capacity=10_000)
    async with AsyncReplayBuffer(server.async_target(), name, write_behind=0.005) as behind:
        for i in range(2000):
            await behind.add(ROWS.one(i))
            time.sleep(0.0005)  # noqa: ASYNC251 - work of the caller's, which does not let the loop run
            if i > 10 and len(buffer) > 1:
                break
        assert len(buffer) > 1


@KINDS
def test_a_rate_limiter_holds_records_back_one_by_one(server, make_buffer, handle, kind):
    """As many as it lets in are in, though all of them together are too many; the wait for room is the next `add`'s."""
    buffer = make_buffer(capacity=50, rate_limiter=Queue(9), consume_after_n_samples=1, sampler=Fifo())
    behind = handle(kind, 0.001)
    for i in range(20):
        behind.run("add", ROWS.one(i))
    wait_until(lambda: len(buffer) == 9)
    with pytest.raises(ReplayTimeoutError):
        behind.run("flush", timeout=0.05)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ReplayCancelledError):
        behind.run("flush", cancel_event=cancel)
    got = []
    while len(got) < 20:
        got += numbers(buffer.sample(3, wait=True, timeout=5, min_items=1))
    assert got == list(range(20))
    behind.run("flush")


def test_one_thread_that_writes_and_draws_is_never_stuck(server, make_buffer, handle):
    """By a limiter that is against more writes until there were draws."""
    limiter = SampleToInsertRatio(1.0, min_size_to_sample=2, error_buffer=4.0)
    make_buffer(capacity=100, rate_limiter=limiter)
    behind = handle("sync", 0.001)
    for i in range(40):
        behind.run("add", ROWS.one(i))
        if i >= 2:
            behind.run("sample", 1, wait=True, timeout=5)
    behind.run("flush", timeout=5)


@KINDS
def test_shutdown_does_not_wait_for_a_rate_limiter(server, make_buffer, handle, kind, monkeypatch):
    """What it holds back is told by the futures."""
    for module in (_sync, _async):
        monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 0.1)
    buffer = make_buffer(capacity=50, rate_limiter=Queue(2), consume_after_n_samples=1, sampler=Fifo())
    behind = handle(kind, 0.001)
    futures = [behind.run("add", ROWS.one(i)) for i in range(4)]
    wait_until(lambda: len(buffer) == 2)
    behind.run("shutdown")
    assert buffer.stats()["state"] == "draining"
    for future in futures[2:]:
        with pytest.raises(BufferShutDownError):
            index_of(behind, future)
    with pytest.raises(NotWrittenError):
        behind.run("flush")


@KINDS
def test_add_waits_for_room(server, make_buffer, handle, kind, monkeypatch):
    """Within its timeout."""
    monkeypatch.setattr(_behind, "HELD", 5)
    buffer = make_buffer(capacity=50, rate_limiter=Queue(1), consume_after_n_samples=1, sampler=Fifo())
    behind = handle(kind, 0.001)
    for i in range(1 + 5):
        behind.run("add", ROWS.one(i))
    with pytest.raises(ReplayTimeoutError, match="records before"):
        behind.run("add", ROWS.one(6), timeout=0.05)
    waiting = Running(behind.run, "add", ROWS.one(6))
    assert numbers(buffer.sample(1)) == [0]
    waiting.result()
    assert [numbers(buffer.sample(1, wait=True, timeout=5))[0] for _ in range(6)] == list(range(1, 7))


@KINDS
def test_close_writes_what_it_can(server, make_buffer, handle, kind):
    buffer = make_buffer()
    behind = handle(kind)
    for i in range(5):
        behind.run("add", ROWS.one(i))
    behind.close()
    assert stored_numbers(buffer) == list(range(5))
    with pytest.raises(BufferClosedError):
        behind.run("add", ROWS.one(6))


@KINDS
def test_close_tells_of_the_rest(server, make_buffer, handle, kind, monkeypatch):
    """And the handle is closed."""
    monkeypatch.setattr(_behind, "CALL_SECONDS", 0.1)
    buffer = make_buffer(capacity=50, rate_limiter=Queue(2), consume_after_n_samples=1, sampler=Fifo())
    behind = handle(kind, 0.001)
    futures = [behind.run("add", ROWS.one(i)) for i in range(5)]
    wait_until(lambda: len(buffer) == 2)
    with pytest.raises(NotWrittenError) as caught:
        behind.close()
    assert (caught.value.n, behind.buffer._closed, len(buffer)) == (3, True, 2)
    for future in futures[2:]:
        with pytest.raises(BufferClosedError):
            index_of(behind, future)
    behind.close()


def test_what_ends_a_with_block_is_not_hidden(server, make_buffer, name, monkeypatch, caplog):
    monkeypatch.setattr(_behind, "CALL_SECONDS", 0.1)
    make_buffer(capacity=50, rate_limiter=Queue(2), consume_after_n_samples=1, sampler=Fifo())

    def fail():
        with ReplayBuffer(server.target(), name, write_behind=0.001) as behind:
            for i in range(5):
                behind.add(ROWS.one(i))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "3 records" in caplog.text


def test_a_future_that_is_cancelled_is_not_written(server, make_buffer, handle):
    buffer = make_buffer()
    behind = handle("sync")
    futures = [behind.run("add", ROWS.one(i)) for i in range(4)]
    assert futures[2].cancel()
    behind.run("flush")
    assert stored_numbers(buffer) == [0, 1, 3]
    assert not futures[3].cancel()


async def test_an_awaited_future_is_the_index(server, make_buffer, name):
    make_buffer()
    async with AsyncReplayBuffer(server.async_target(), name, write_behind=0.01) as behind:
        futures = [await behind.add(ROWS.one(i)) for i in range(20)]
        assert await asyncio.gather(*futures) == list(range(1, 21))


def test_threads_share_it(server, make_buffer, handle):
    buffer = make_buffer(capacity=1000)
    behind = handle("sync", 0.001)
    behind.run("add", ROWS.one(0))
    runs = [
        Running(lambda low=low: [behind.run("add", ROWS.one(i)) for i in range(low, low + 100)]) for low in (1, 101, 201, 301)
    ]
    futures = [future for run in runs for future in run.result(20)]
    behind.run("flush")
    assert sorted(future.result() for future in futures) == list(range(2, 402))
    assert sorted(stored_numbers(buffer)) == list(range(401))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_nothing_of_it(real_server, make_buffer, handle):
    """What the parent took is written once, by the parent."""
    buffer = make_buffer()
    behind = handle("sync")
    for i in range(3):
        behind.run("add", ROWS.one(i))
    pid = os.fork()
    if not pid:
        try:
            behind.buffer.add(ROWS.one(9))
            behind.buffer.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert stored_numbers(buffer) == [0, 9]
    behind.run("flush")
    assert stored_numbers(buffer) == [0, 9, 1, 2]


def test_a_program_that_ends_writes_what_it_took(real_server, make_buffer, name):
    """Without a close, and soon."""
    buffer = make_buffer()
    code = f"""
import numpy as np
from redis_replay import ReplayBuffer
rb = ReplayBuffer({real_server.url!r}, {name!r}, write_behind=60)
for i in range(5):
    rb.add({{"i": np.int64(i)}})
"""
    began = time.monotonic()
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=where, timeout=30, check=False).returncode == 0
    assert time.monotonic() - began < 15
    assert [int(record["i"]) for record in buffer.records()] == list(range(5))


def test_nonsense_is_refused(server, make_buffer, name):
    make_buffer()
    for delay in (0, -1, 61, float("nan")):
        with pytest.raises(ArgumentError, match="write_behind"):
            ReplayBuffer(server.target(), name, write_behind=delay)
