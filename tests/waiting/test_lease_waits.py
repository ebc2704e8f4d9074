"""Leases and time: they are renewed while their reader lives, and who waits gets what came back."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time

import pytest

from redis_replay import _ops_lease, _requests, samplers
from redis_replay.exceptions import BufferShutDownError, ConnectionLostError
from tests import _workers
from tests._helpers import SOON, wait_until
from tests._waiting import Running, blocked, records, tags

QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
SPAWN = multiprocessing.get_context("spawn")
LONG = 1000.0  # seconds
SHORT = 0.3  # seconds: it runs out unless it is renewed


@pytest.fixture
def queue(server, make_buffer):
    """A handle on a queue of ten records."""
    buffer = make_buffer(**QUEUE)
    buffer.extend(records(10))
    return buffer


@pytest.fixture
def reader(queue, make_buffer):
    """Gives `reader()`: another handle on the queue, which polls every half minute only."""
    return lambda **options: make_buffer(attach=True, **{"poll_interval": 30} | options)


def forsake(buffer):
    """The handle renews its leases no more, as if its process were dead."""
    buffer._now._renewal.stop()


def test_a_live_reader_keeps_what_it_has(queue, reader):
    """Longer than the lease, by itself, and though it makes no call."""
    other = reader()
    lease = other.sample(4, True, lease=SHORT)[1].lease
    time.sleep(2.5 * SHORT)
    assert (queue.stats()["leased"], queue.stats()["reclaimed"]) == (4, 0)
    assert other.ack(lease).applied == 1


def test_a_thread_that_ended_keeps_nothing(queue, reader):
    """Nobody would acknowledge its batch, so its records come back."""
    other = reader()
    thread = threading.Thread(target=other.sample, args=(4,), kwargs={"lease": SHORT})
    thread.start()
    thread.join()
    wait_until(lambda: queue.stats()["reclaimed"] == 4, description="the lease to end")


def test_another_threads_draw_acknowledges_nothing(queue, reader):
    """Each thread stands for its own batch."""
    other = reader()
    other.sample(4, lease=LONG)
    assert Running(other.sample, 2, lease=LONG).how() == [4, 5]
    assert (queue.stats()["leased"], queue.stats()["consumed"]) == (6, 0)


def test_a_waiter_gets_what_a_dead_reader_had(queue, reader):
    """Within a second of the lease's end, though it polls every half minute only."""
    dead, waiter = reader(), reader()
    dead.sample(4, lease=SHORT)
    forsake(dead)
    call = Running(waiter.sample, 10, wait=True)
    assert call.how(timeout=SHORT + 1) == list(range(10))
    assert queue.stats()["reclaimed"] == 4


def test_a_waiter_that_takes_nothing_is_told_of_the_leases_end(queue, reader):
    """Its wait began before the lease."""
    dead, waiter = reader(), reader()
    call = Running(waiter.wait_until_sampleable, 11)
    blocked(queue)
    dead.sample(4, lease=SHORT)
    forsake(dead)
    queue.extend(records(1, 10))
    assert call.result(timeout=SHORT + 1) is True


def test_a_waiter_that_stood_in_line_before_the_lease_gets_it_back(queue, reader):
    """It is told when the lease of the one that was served before it ends."""
    dead, waiter = reader(), reader()
    first = Running(dead.sample, 12, wait=True, lease=SHORT)
    blocked(queue)
    second = Running(waiter.sample, 12, wait=True)
    blocked(queue, 2)
    queue.extend(records(2, 10))
    assert first.how() == list(range(12))
    forsake(dead)
    assert second.how(timeout=SHORT + 1) == list(range(12))


def test_a_release_wakes(queue, reader):
    """What comes back is there for who waits."""
    holder, waiter = reader(), reader()
    lease = holder.sample(4, True, lease=LONG)[1].lease
    call = Running(waiter.sample, 10, wait=True)
    blocked(queue)
    holder.release(lease)
    assert call.how(timeout=SOON) == list(range(10))


def test_a_lease_length_that_is_no_number_in_a_notice_harms_nobody(queue, reader, server):
    """Anybody may publish: a waiter looks, and goes on."""
    waiter = reader()
    call = Running(waiter.sample, 12, wait=True)
    blocked(queue)
    lane = next(iter(waiter._now.core._all)).name
    for text in (f"standby {lane} x", f"standby {lane} {'9' * 5000}", f"standby {lane} -1", "standby", "", " ", f"x {lane}"):
        server.client().publish(waiter._now.core.channel, text)
    queue.extend(records(2, 10))
    assert call.how() == list(range(12))


# Processes


def heard(pipe):
    """What the other process tells."""
    assert pipe.poll(20)
    return pipe.recv()


@pytest.fixture
def lent(real_server, make_buffer):
    """A handle on a queue of ten records."""
    buffer = make_buffer(**QUEUE)
    buffer.extend(records(10))
    return buffer


@pytest.fixture
def process(real_server, lent):
    """Another process, which has lent a batch of four of them."""
    mine, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_workers.lend, args=(real_server.url, lent.name, 4, 0.5, theirs), daemon=True)
    child.start()
    assert heard(mine) == [0, 1, 2, 3]
    child.pipe = mine
    yield child
    child.kill()
    child.join()


def test_a_killed_readers_records_come_back(process, lent):
    """In time, whole, once."""
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    assert tags(lent.sample(10, wait=True, timeout=3)) == list(range(10))
    assert time.monotonic() - began < SOON


def test_a_paused_reader_is_late(process, lent):
    """What was reclaimed meanwhile belongs to others: its ack is refused, told and counted, and takes nothing of theirs."""
    os.kill(process.pid, signal.SIGSTOP)
    batch, info = lent.sample(10, True, wait=True, timeout=3, lease=LONG)
    os.kill(process.pid, signal.SIGCONT)
    process.pipe.send("ack")
    assert heard(process.pipe) == (0, 1)
    assert (tags(batch), lent.stats()["late"], lent.stats()["consumed"]) == (list(range(10)), 1, 0)
    assert lent.ack(info.lease).applied == 1


# Asyncio


async def test_a_tasks_next_draw_acknowledges(server, make_async_buffer):
    """Its own batch, not that of another task."""
    buffer = make_async_buffer(**QUEUE)
    await buffer.extend(records(10))
    await asyncio.create_task(buffer.sample(2, lease=LONG))
    await buffer.sample(2, lease=LONG)
    await buffer.sample(2, lease=LONG)
    stats = await buffer.stats()
    assert (stats["leased"], stats["consumed"]) == (4, 2)


async def test_a_live_tasks_lease_is_renewed(server, make_async_buffer):
    """While the loop runs; also that of a task that gave its batch to whoever awaited it."""
    buffer = make_async_buffer(**QUEUE)
    await buffer.extend(records(10))
    await asyncio.create_task(buffer.sample(2, lease=SHORT))
    await buffer.sample(3, lease=SHORT)
    await asyncio.sleep(2.5 * SHORT)
    stats = await buffer.stats()
    assert (stats["leased"], stats["reclaimed"]) == (5, 0)


async def test_leaving_by_an_exception_releases(server, make_async_buffer):
    """As the sync handle does; leaving in order acknowledges."""
    writer = make_async_buffer(**QUEUE)
    await writer.extend(records(10))

    async def leave(error):
        async with make_async_buffer(attach=True) as buffer:
            await buffer.sample(4, lease=LONG)
            if error:
                raise error

    with pytest.raises(RuntimeError):
        await leave(RuntimeError())
    assert (await writer.stats())["consumed"] == 0
    await leave(None)
    stats = await writer.stats()
    assert (stats["leased"], stats["consumed"]) == (0, 4)


# Leases of different lengths, and owners that are gone


def test_a_short_lease_behind_a_long_one_is_renewed(queue, reader):
    """The timer goes by the shortest, whichever came first."""
    other = reader()
    other.sample(2, lease=LONG)
    Running(other.sample, 1, lease=LONG).result()
    lease = other.sample(2, True, lease=SHORT)[1].lease
    time.sleep(2.5 * SHORT)
    assert other.ack(lease).applied == 1


async def test_a_short_lease_behind_a_long_one_is_renewed_in_a_loop(server, make_async_buffer):
    """As for threads."""
    buffer = make_async_buffer(**QUEUE)
    await buffer.extend(records(10))
    await asyncio.create_task(buffer.sample(2, lease=LONG))
    await asyncio.sleep(0.05)
    await buffer.sample(3, lease=SHORT)
    await asyncio.sleep(2.5 * SHORT)
    assert (await buffer.stats())["leased"] == 5


def test_close_releases_what_nobody_can_acknowledge(queue, make_buffer):
    """The batch of a thread that ended with it in its hands comes back, whatever the timer has done."""
    other = make_buffer(attach=True)
    thread = threading.Thread(target=other.sample, args=(4,), kwargs={"lease": LONG})
    thread.start()
    thread.join()
    other.sample(2, lease=LONG)
    other.close()
    stats = queue.stats()
    assert (stats["consumed"], stats["sampleable_size"], stats["leased"]) == (2, 8, 0)


def test_a_wait_ends_though_the_buffer_drains_and_opens_again(queue, reader):
    """Also where a rest was there, so that it never was shut."""
    lease = reader().sample(4, True, lease=LONG)[1].lease
    call = Running(reader().sample, 12, wait=True)
    blocked(queue)
    queue.shutdown()
    queue.reopen()
    assert call.how(timeout=SOON) is BufferShutDownError
    assert queue.release(lease).applied == 1


@pytest.mark.parametrize(  # what a handle's own timers do: each server once, and either moment
    ("started", "server"), [(False, "fakeredis"), (True, "valkey"), (False, "redis")], indirect=["server"]
)
def test_an_interrupt_while_a_timer_is_set_ends_no_renewal(queue, reader, monkeypatch, started):
    """Ctrl-C before or behind the start of a new timer: what another thread has is still renewed."""
    other = reader()
    first = other.sample(2, True, lease=1.0)[1].lease  # its timer runs
    start = threading.Timer.start

    def interrupted(timer):
        if started:
            start(timer)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Running(other.sample, 2, lease=SHORT).result()
    monkeypatch.undo()
    time.sleep(1.5)
    assert (queue.stats()["leased"], queue.stats()["reclaimed"]) == (2, 0)
    assert other.ack(first).applied == 1


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_an_error_says_how_many_leases_were_ended(queue, monkeypatch, verb):
    """Many leases go in steps: those of the steps before the error are counted in it."""
    monkeypatch.setattr(_ops_lease, "MANY", 1)
    steps, request = [], _requests.request

    def fails_later(*args, **kwargs):
        steps.append(args)
        if len(steps) == 3:
            raise ConnectionLostError(address="here", reason="cut")
        return (yield from request(*args, **kwargs))

    monkeypatch.setattr(_requests, "request", fails_later)
    with pytest.raises(ConnectionLostError) as caught:
        getattr(queue, verb)(["nobody.1", "nobody.2", "nobody.3"])
    assert caught.value.done == 2
