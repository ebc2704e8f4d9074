"""TorchRL's replay buffers, row by row: the defects that cannot happen here, and the behaviours that hold.

The numbers in the docstrings (D: defect, C: checklist) are those of the comparison this library was designed by.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter

import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferShutDownError, NotReadyError
from redis_replay.samplers import Fifo
from tests._contract import AGE, LARGE, SMALL, Records, nothing_changes, numbers, refused
from tests._helpers import SOON, thread_of, wait_until, waiters

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


@contextlib.contextmanager
def child(method, target, *args):
    """A process that runs `target(pipe, *args)`, and our end of the pipe."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        yield ours, process
    finally:
        process.kill()
        process.join()
        ours.close()


# Defects


def wait_without_end(pipe, url, name):
    with ReplayBuffer(url, name, poll_interval=30) as buffer:
        try:
            buffer.wait_until_sampleable(1, timeout=None)
        except BufferShutDownError:
            pipe.send("shut down")


@METHODS
def test_a_shutdown_ends_waits_in_other_processes(real_server, make_buffer, name, method):
    """D1: the flag is the server's, so a child that waits without end has its reason within 2 s."""
    buffer = make_buffer()
    with child(method, wait_without_end, real_server.url, name) as (pipe, _):
        waiters(buffer)
        buffer.shutdown()
        assert pipe.poll(2)
        assert pipe.recv() == "shut down"


def undo_a_draw(buffer, raw):
    raw.settle(open_number=raw.number)


CHANGES = {
    "add": lambda buffer, raw: [buffer.add(Records(SMALL).one(n)) for n in range(3)],
    "extend": lambda buffer, raw: buffer.extend(Records(SMALL).many(0, 3)),
    "undone-draw": undo_a_draw,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_makes_records_live_wakes(server, make_buffer, make_raw, change):
    """D2: every way by which records come in, or back, notifies; nobody waits for the poll in 30 s."""
    buffer, waiter = make_buffer(consume_after_n_samples=1), make_buffer(attach=True, poll_interval=30)
    raw = make_raw()
    if change is undo_a_draw:
        buffer.extend(Records(SMALL).many(0, 3))
        raw.sample(3)
    with thread_of(lambda: waiter.wait_until_sampleable(3, timeout=20)) as found:
        waiters(buffer)
        change(buffer, raw)
        wait_until(lambda: found, timeout=2, description="the wait to end")
    assert found == [True]


def test_large_writes_wake_as_small_ones_do(server, make_buffer):
    """D2: the way by the gate notifies, too."""
    buffer, waiter = make_buffer(), make_buffer(attach=True, poll_interval=30)
    with thread_of(lambda: waiter.wait_until_sampleable(3, timeout=20)) as found:
        waiters(buffer)
        buffer.extend(Records(LARGE).many(0, 3))
        wait_until(lambda: found, timeout=2, description="the wait to end")
    assert found == [True]


def write_for_ever(pipe, url, name, width):
    with ReplayBuffer(url, name) as buffer:
        pipe.send("started")
        while True:
            buffer.extend(Records(width).many(0, 50))


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["small", "large"])
def test_a_killed_writer_holds_no_lock(real_server, make_buffer, name, width):
    """D3: after SIGKILL in the middle of writes others write on, waits keep their time, and the buffer is whole."""
    buffer = make_buffer()
    with child("spawn", write_for_ever, real_server.url, name, width) as (pipe, process):
        assert pipe.recv() == "started"
        wait_until(lambda: buffer.write_count > 200, description="some writes")
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    started = time.monotonic()
    assert len(buffer.extend(Records(width).many(0, 50))) == 50
    buffer.empty()
    assert buffer.wait_until_sampleable(1, timeout=0.3) is False
    assert time.monotonic() - started < SOON
    assert buffer.doctor().ok


def take_all(pipe, url, name):
    with ReplayBuffer(url, name) as buffer:
        pipe.send("started")
        taken = []
        try:
            while True:
                taken += buffer.sample(4, wait=True, timeout=20)["i"].tolist()
        except BufferShutDownError:
            pipe.send(taken)


@METHODS
@pytest.mark.parametrize("early", [20, 0], ids=["before", "after"])
def test_processes_share_what_is_consumed(real_server, make_buffer, name, method, early):
    """D4: two learners and 40 records, written before the learners start or after: each record goes to one of them, once."""
    buffer = make_buffer(consume_after_n_samples=1)
    if early:
        buffer.extend(Records(SMALL).many(0, early))
    learners = (child(method, take_all, real_server.url, name) for _ in range(2))
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(learner)[0] for learner in learners]
        assert [pipe.recv() for pipe in pipes] == ["started", "started"]
        for low in range(early, 40, 5):
            buffer.extend(Records(SMALL).many(low, low + 5))
        buffer.shutdown()
        taken = Counter(number for pipe in pipes for number in pipe.recv())
    assert taken == Counter(range(40))


def test_a_batch_is_full_or_keeps_waiting(server, make_buffer, small):
    """D5: two learners of 4 and 6 records: one has its 4, the other waits on, and has its 4 when 2 more come."""
    buffer = make_buffer(consume_after_n_samples=1)
    learners = [make_buffer(attach=True) for _ in range(2)]
    with (
        thread_of(lambda: numbers(learners[0].sample(4, wait=True, timeout=10))) as first,
        thread_of(lambda: numbers(learners[1].sample(4, wait=True, timeout=10))) as second,
    ):
        waiters(buffer, 2)
        buffer.extend(small.many(0, 6))
        wait_until(lambda: first or second, description="one batch")
        waiters(buffer, 1)
        assert len(first) + len(second) == 1
        buffer.extend(small.many(6, 8))
    assert sorted(first[0] + second[0]) == list(range(8))
    assert (len(first[0]), len(second[0])) == (4, 4)


@pytest.mark.parametrize("call", ["sample", "sample-at-once", "wait_until", "attach"])
def test_a_nan_timeout_is_refused(server, make_buffer, name, call):
    """D11: a ValueError at once, in place of a loop that never ends."""
    buffer, nan = make_buffer(), float("nan")
    with refused(ValueError) as caught:
        {
            "sample": lambda: buffer.sample(1, wait=True, timeout=nan),
            "sample-at-once": lambda: buffer.sample(1, timeout=nan),
            "wait_until": lambda: buffer.wait_until_sampleable(1, timeout=nan),
            "attach": lambda: ReplayBuffer.attach(server.target(), name, timeout=nan),
        }[call]()
    assert "timeout" in str(caught.value)


def test_a_lost_notice_costs_a_poll(server, make_buffer, client, name, small):
    """D14: write and notice are one step; and where the notice is lost all the same, the waiter looks by itself."""
    buffer, waiter = make_buffer(), make_buffer(attach=True, poll_interval=0.3)
    with thread_of(lambda: waiter.wait_until_sampleable(3, timeout=20)) as found:
        waiters(buffer)
        key = f"rr:{{{name}}}:waiting"
        for lane, text in client.hgetall(key).items():
            client.hset(key, lane, b" ".join([*text.split(b" ")[:-1], b"rr:{%b}:wake:nowhere" % name.encode()]))
        buffer.extend(small.many(0, 3))
        wait_until(lambda: found, timeout=2, description="the wait to end")
    assert (found, waiter.local_stats.wakeups_by_notice) == ([True], 0)
    assert waiter.local_stats.wakeups_by_poll >= 1


# Checklist


def test_a_blocked_wait_ends_by_another_thread(server, make_buffer, small):
    """C1: a wait on an empty buffer is True after an extend, and sample(wait=True) gives a full batch."""
    buffer, waiter = make_buffer(), make_buffer(attach=True)
    with (
        thread_of(lambda: waiter.wait_until_sampleable(4, timeout=10)) as found,
        thread_of(lambda: len(waiter.sample(4, wait=True, timeout=10)["i"])) as drawn,
    ):
        waiters(buffer, 2)
        buffer.extend(small.many(0, 4))
    assert (found, drawn) == ([True], [4])


def write_once(pipe, url, name):
    with ReplayBuffer(url, name) as buffer:
        pipe.send(buffer.extend(Records(SMALL).many(0, 8)).tolist())


@METHODS
def test_a_later_process_ends_a_blocked_wait(real_server, make_buffer, name, method):
    """C2: the writer is a process that was started after the wait began."""
    buffer, waiter = make_buffer(), make_buffer(attach=True, poll_interval=30)
    with thread_of(lambda: len(waiter.sample(8, wait=True, timeout=20)["i"])) as drawn:
        waiters(buffer)
        with child(method, write_once, real_server.url, name) as (pipe, _):
            assert pipe.recv() == list(range(1, 9))
    assert drawn == [8]


def test_timeouts_end_waits_in_their_way(server, make_buffer):
    """C3: False from the wait, TimeoutError from sample; 0 looks once; what is no time is refused."""
    buffer = make_buffer(poll_interval=30)
    for timeout in (0, 0.15):
        started = time.monotonic()
        assert buffer.wait_until_sampleable(1, timeout=timeout) is False
        with refused(TimeoutError):
            buffer.sample(1, wait=True, timeout=timeout)
        assert 2 * timeout <= time.monotonic() - started < 2 * timeout + SOON
    for bad, kind in ((-1, ValueError), (float("nan"), ValueError), (True, TypeError), ("1", TypeError)):
        with refused(kind):
            buffer.wait_until_sampleable(1, timeout=bad)


def test_a_set_event_cancels_waits(server, make_buffer, small):
    """C4: False from the wait, a RuntimeError from sample, soon after it is set, and also where records are there."""
    buffer, event = make_buffer(poll_interval=30), threading.Event()
    with thread_of(lambda: buffer.sample(1, wait=True, cancel_event=event)) as ended:
        waiters(buffer)
        event.set()
        wait_until(lambda: ended, timeout=0.5, description="the wait to end")
    assert isinstance(ended[0], RuntimeError)
    buffer.extend(small.many(0, 3))
    assert buffer.wait_until_sampleable(1, cancel_event=event) is False
    with refused(RuntimeError):
        buffer.sample(1, wait=True, cancel_event=event)


def test_a_shutdown_ends_all_waits(server, make_buffer, small):
    """C5: every waiter, of any handle, has the error; a second shutdown is none; nothing is drawn after it."""
    buffer, others = make_buffer(), [make_buffer(attach=True, poll_interval=30) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        ended = [stack.enter_context(thread_of(lambda b=b: b.sample(1, wait=True))) for b in others]
        waiters(buffer, 3)
        buffer.shutdown()
        wait_until(lambda: all(ended), timeout=2, description="all waits to end")
    assert [type(results[0]) for results in ended] == [BufferShutDownError] * 3
    buffer.shutdown()
    with refused(BufferShutDownError):
        others[0].sample(1, wait=True)


def test_emptying_keeps_waits_waiting(server, make_buffer, small):
    """C6: empty() ends no wait; it resets the size, and the write count unless told not to."""
    buffer, waiter = make_buffer(), make_buffer(attach=True)
    buffer.extend(small.many(0, 3))
    with thread_of(lambda: waiter.wait_until_sampleable(4, timeout=10)) as found:
        waiters(buffer)
        buffer.empty(empty_write_count=False)
        assert (len(buffer), buffer.write_count) == (0, 3)
        buffer.empty()
        assert (len(buffer), buffer.write_count, found) == (0, 0, [])
        buffer.extend(small.many(0, 4))
    assert found == [True]


def test_min_items_is_a_number_of_records(server, make_buffer, small):
    """C8: a positive whole number, the batch_size by default, an error without either; and as many must be there."""
    buffer, sized = make_buffer(), make_buffer(attach=True, batch_size=3)
    buffer.extend(small.many(0, 2))
    assert [buffer.wait_until_sampleable(n, timeout=0) for n in (2, 3)] == [True, False]
    assert sized.wait_until_sampleable(timeout=0) is False
    buffer.add(small.one(2))
    assert sized.wait_until_sampleable(timeout=0) is True
    for bad, kind in ((0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError), (None, ValueError)):
        with refused(kind):
            buffer.wait_until_sampleable(bad, timeout=0)


def test_stats_are_flat_and_repeatable(server, make_buffer, client, small):
    """C9: scalars by name, equal after JSON, the same again, and nothing is changed by looking."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 5))
    stats = buffer.stats()
    names = {"size", "storage_size", "sampleable_size", "write_count", "sample_calls", "samples_returned", "initialized"}
    assert names | {"capacity", "utilization"} <= set(stats)
    assert json.loads(json.dumps(stats)) == stats
    with nothing_changes(client, ()):
        assert buffer.stats() | AGE == stats | AGE


def test_fifteen_writes_into_ten_places(server, make_buffer, records):
    """C10: size 10, write_count 15, utilization 1."""
    buffer = make_buffer(capacity=10)
    buffer.extend(records.many(0, 15))
    stats = buffer.stats()
    assert (stats["size"], stats["write_count"], stats["utilization"]) == (10, 15, 1.0)


@pytest.mark.parametrize("consume", [None, 1])
def test_size_is_what_can_be_sampled(server, make_buffer, records, consume):
    """C11: size, sampleable_size and len are one number; storage_size is another one."""
    buffer = make_buffer(consume_after_n_samples=consume)
    buffer.extend(records.many(0, 9))
    buffer.sample(4)
    stats, live = buffer.stats(), 5 if consume else 9
    assert (stats["size"], stats["sampleable_size"], len(buffer)) == (live, live, live)
    assert stats["storage_size"] == 9


def write_pairs(pipe, url, name):
    with ReplayBuffer(url, name) as buffer:
        for n in range(100):
            buffer.extend(Records(SMALL).many(n, n + 2))
        pipe.send("done")


def test_counters_are_exact_under_writers(real_server, make_buffer, name):
    """C14: four processes, 100 writes of 2 each: 800."""
    buffer = make_buffer()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(child("spawn", write_pairs, real_server.url, name))[0] for _ in range(4)]
        assert [pipe.recv() for pipe in writers] == ["done"] * 4
    stats = buffer.stats()
    assert (stats["write_count"], stats["records_total"], stats["evicted"], stats["size"]) == (800, 800, 700, 100)
    assert buffer.doctor().ok


def test_stats_are_one_round_trip(real_server, make_buffer, client, small):
    """C16: one command for all counters, and they are the same from every handle."""
    buffer, other = make_buffer(), make_buffer(attach=True)
    buffer.extend(small.many(0, 3))
    other.stats()  # with the first words on its connection
    ours = buffer.stats()
    client.config_resetstat()
    theirs = other.stats()
    commands = client.info("commandstats")
    assert theirs == ours
    assert commands["cmdstat_evalsha"]["calls"] == 1


@pytest.mark.parametrize("consume", [1, 2])
def test_each_record_is_delivered_so_often(server, make_buffer, records, consume):
    """C17: once, or exactly n times; the size falls by the batch; an empty buffer is an error."""
    buffer, drawn, sizes = make_buffer(consume_after_n_samples=consume), Counter(), []
    buffer.extend(records.many(0, 12))
    while len(buffer):
        drawn.update(numbers(buffer.sample(4, min_items=1)))
        sizes.append(len(buffer))
    with refused(NotReadyError):
        buffer.sample(4, min_items=1)
    assert drawn == Counter(dict.fromkeys(range(12), consume))
    assert consume > 1 or sizes == [8, 4, 0]


def test_an_exhausted_buffer_takes_new_records(server, make_buffer, records):
    """C18: writes after exhaustion can be drawn, in turn with draws; more than is left comes short if one asks for it."""
    buffer = make_buffer(batch_size=4, sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 4))
    assert numbers(buffer.sample()) == [0, 1, 2, 3]
    buffer.extend(records.many(4, 10))
    assert numbers(buffer.sample()) == [4, 5, 6, 7]
    with refused(NotReadyError):
        buffer.sample()
    assert numbers(buffer.sample(min_items=1)) == [8, 9]
    buffer.extend(records.many(10, 16))
    buffer.shutdown()
    assert [numbers(batch) for batch in buffer] == [[10, 11, 12, 13], [14, 15]]


def test_consumed_room_is_used_first(server, make_buffer, records):
    """C19: a full buffer that gave out half of its records takes as many without evicting a live one."""
    buffer = make_buffer(capacity=6, sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 6))
    buffer.sample(3)
    buffer.extend(records.many(6, 9))
    assert (buffer.stats()["evicted"], len(buffer)) == (0, 6)
    buffer.add(records.one(9))
    assert buffer.stats()["evicted"] == 1
    assert numbers(buffer.sample(6)) == [4, 5, 6, 7, 8, 9]
