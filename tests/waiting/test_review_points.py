"""The points of the core's review, a family of tests for each, named after it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import CancelledError

import pytest

from redis_replay import samplers
from redis_replay.exceptions import (
    BufferClosedError,
    BufferGoneError,
    BufferShutDownError,
    ConnectionLostError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from tests import _server, _workers
from tests._helpers import SOON, wait_until
from tests._proxy import Proxy
from tests._waiting import Running, blocked, deaf, record, records, tags

LEARNERS = 8
TOTAL = 100_000


# no silent hang

KINDS = ("sync", "async", "attached", "unpickled")

SAMPLE = {
    "ready": [0, 1],
    "timed out": ReplayTimeoutError,
    "cancelled": ReplayCancelledError,
    "shut down": BufferShutDownError,
    "closed": BufferClosedError,
    "gone": BufferGoneError,
}
ENDS = {
    "sample": SAMPLE,
    "wait_until_sampleable": SAMPLE | {"ready": True, "timed out": False, "cancelled": False},
    "iteration": {
        "ready": [0, 1],
        "shut down": StopIteration,
        "closed": BufferClosedError,
        "gone": BufferGoneError,
    },
}


@pytest.mark.parametrize(  # how a handle came to be is nothing to the server: the later two once each
    ("kind", "server"),
    [*((kind, on) for kind in ("sync", "async") for on in _server.KINDS), ("attached", "valkey"), ("unpickled", "redis")],
    indirect=["server"],
)
@pytest.mark.parametrize(("way", "reason"), [(way, reason) for way, ends in ENDS.items() for reason in ends])
def test_no_silent_hang_each_wait_says_why(server, make_buffer, open_kind, kind, way, reason):
    """A wait of any kind on any handle ends with the reason that ended it."""
    other, event = make_buffer(sampler=samplers.Fifo()), threading.Event()
    handle = open_kind(kind, batch_size=2)
    options = {"timed out": {"timeout": 0.2}, "cancelled": {"cancel_event": event}}.get(reason, {})
    call = handle.start(way, **options)
    if reason != "timed out":
        blocked(other)
    {
        "ready": lambda: other.extend(records(2)),
        "timed out": lambda: None,
        "cancelled": event.set,
        "shut down": other.shutdown,
        "closed": handle.close,
        "gone": other.delete,
    }[reason]()
    assert call.how(timeout=SOON) == ENDS[way][reason]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "verb", "end"),
    [
        ("sample", "shutdown", BufferShutDownError),
        ("sample", "delete", BufferGoneError),
        ("wait_until_sampleable", "shutdown", BufferShutDownError),
        ("wait_until_sampleable", "delete", BufferGoneError),
        ("iteration", "shutdown", StopIteration),
        ("iteration", "delete", BufferGoneError),
    ],
)
def test_no_silent_hang_another_process_ends_it(real_server, make_buffer, open_kind, processes, name, kind, way, verb, end):
    """A shutdown or a delete in another process ends a wait without a timeout within 2 s."""
    other, handle = make_buffer(), open_kind(kind, batch_size=2)
    call = handle.start(way)
    blocked(other)
    began_at = processes.submit(_workers.act, real_server.url, name, verb).result(20)
    assert (call.how(timeout=SOON), call.ended_at - began_at < 2) == (end, True)


# one meaning of size

BUFFERS = {
    "plain": {},
    "without replacement": {"sampler": samplers.Uniform(replacement=False)},
    "used once": {"consume_after_n_samples": 1},
    "used thrice": {"consume_after_n_samples": 3},
    "queue": {"sampler": samplers.Fifo(), "consume_after_n_samples": 1},
}
STEPS = {
    "written": lambda b: b.extend(records(8)),
    "sampled": lambda b: [b.extend(records(8)), b.sample(3)],
    "evicted": lambda b: b.extend(records(25)),
    "removed": lambda b: b.remove(b.extend(records(8))[2:5]),
    "emptied": lambda b: [b.extend(records(8)), b.empty()],
    "draining": lambda b: [b.extend(records(8)), b.sample(3), b.shutdown()],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", BUFFERS)
def test_one_meaning_of_size_after_each_step(server, make_buffer, kind, step):
    """`stats()["size"]`, `len(buffer)` and `sampleable_size` are one number, on every kind of buffer."""
    buffer = make_buffer(capacity=10, **BUFFERS[kind])
    STEPS[step](buffer)
    live = len(list(buffer.records()))
    assert (buffer.stats()["size"], len(buffer), buffer.sampleable_size) == (live, live, live)


def test_one_meaning_of_size_pressure_is_difference(server, make_buffer):
    """What readers hold is `storage_size` less `sampleable_size`."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(records(10))
    buffer.sample(4)
    stats = buffer.stats()
    assert (stats["storage_size"] - stats["size"], buffer.storage_size, len(buffer)) == (4, 10, 6)


# a sample is a reservation


def learn_from(processes, server, buffer, batch_size, timeout):
    """Starts the learners, writes the records, and gives the calls under way."""
    calls = [processes.submit(_workers.learn, server.url, buffer.name, batch_size, timeout) for _ in range(LEARNERS)]
    for first in range(0, TOTAL, 10_000):
        buffer.extend(records(10_000, first))
    return calls


def all_tags(results):
    return sorted(tag for batches, _ in results for batch, _ in batches for tag in batch)


@pytest.mark.parametrize(("batch_size", "real_server"), [(250, "valkey"), (192, "redis")], indirect=["real_server"])
def test_sample_is_a_reservation_drained_exactly_once(real_server, make_buffer, processes, batch_size):
    """8 learner processes get each of 100,000 records once, none of their calls fails, and the rest is one short batch."""
    buffer = make_buffer(capacity=TOTAL, consume_after_n_samples=1)
    calls = learn_from(processes, real_server, buffer, batch_size, None)
    buffer.shutdown()
    results = [call.result(50) for call in calls]
    rest = TOTAL % batch_size
    assert all_tags(results) == list(range(TOTAL))
    assert {end for _, end in results} == {"shut down"}
    assert [len(b) for batches, _ in results for b, _ in batches if len(b) < batch_size] == ([rest] if rest else [])
    assert [last for batches, _ in results for _, last in batches].count(True) == 1


def test_sample_is_a_reservation_rest_reported(real_server, make_buffer, processes):
    """A rest that is no full batch stays in the buffer, and the first learner in line is told how much it is."""
    buffer = make_buffer(capacity=TOTAL, consume_after_n_samples=1)
    results = [call.result(50) for call in learn_from(processes, real_server, buffer, 192, 1.5)]
    rest = tags(buffer.sample(TOTAL % 192))
    assert sorted(all_tags(results) + rest) == list(range(TOTAL))
    assert max(have for _, have in results) == len(rest)


# counters survive


def test_counters_survive_in_a_new_process(real_server, make_buffer, processes, name):
    """A process that attaches later sees the same counters."""
    buffer = make_buffer(capacity=10, consume_after_n_samples=2)
    buffer.extend(records(25))
    buffer.sample(4)
    buffer.sample(4)
    buffer.remove(buffer.add(record(0)))
    assert processes.submit(_workers.stats, real_server.url, name).result(20) == buffer.stats()


# notify after commit, no lost wakeup


def test_no_lost_wakeup_written_before_subscription(server, make_buffer):
    """Records that come between the first look and the confirmed subscription are found at once."""
    buffer, writer = make_buffer(sampler=samplers.Fifo(), poll_interval=30), make_buffer()
    listener = buffer._now.listener
    subscribe = listener._subscribe

    def late(*args):
        writer.extend(records(2))
        subscribe(*args)

    listener._subscribe = late
    assert Running(buffer.sample, 2, wait=True).how(timeout=SOON) == [0, 1]


def test_no_lost_wakeup_subscription_never_confirmed(real_server, make_buffer):
    """A wait whose subscription is not confirmed ends within the poll interval."""
    with contextlib.closing(Proxy(real_server.url)) as proxy:
        buffer, writer = make_buffer(target=proxy.url, poll_interval=0.3), make_buffer()
        proxy.replies = lambda data: 0 if b"subscribe" in data else None
        call = Running(buffer.wait_until_sampleable, 2)
        blocked(writer)
        writer.extend(records(2))
        assert call.how(timeout=SOON) is True


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("times", [1, float("inf")])
def test_no_lost_wakeup_notices_dropped(server, make_buffer, open_kind, way, times):
    """A wait that misses one notice, or all, ends within the poll interval."""
    writer = make_buffer()
    handle = open_kind(way, batch_size=2, poll_interval=0.2)
    listener = handle.buffer._now.listener
    missed = deaf(listener, times=times)
    call = handle.start("wait_until_sampleable")
    blocked(writer)
    writer.extend(records(2))
    assert call.how(timeout=SOON) is True
    wait_until(lambda: missed, description="the notice that was dropped")


def test_no_lost_wakeup_later_notice_arrives(server, make_buffer):
    """After a missed notice the next one wakes the wait, without the poll."""
    buffer, writer = make_buffer(poll_interval=30), make_buffer()
    missed = deaf(buffer._now.listener, times=1)
    call = Running(buffer.sample, 2, wait=True)
    blocked(writer)
    writer.extend(records(2))
    wait_until(lambda: missed, description="the notice that was dropped")
    wait_until(lambda: writer.add(record(9)) and call.is_over, description="the end of the wait")
    assert len(call.result()["i"]) == 2


@pytest.mark.parametrize("way", ["sync", "async"])
def test_no_lost_wakeup_subscription_killed(real_server, make_buffer, open_kind, way):
    """A killed subscription is opened anew, and the wait looks again at once."""
    writer, client = make_buffer(), real_server.client()
    handle = open_kind(way, batch_size=2, poll_interval=30)
    call = handle.start("wait_until_sampleable")
    blocked(writer)
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    writer.extend(records(2))
    assert call.how(timeout=SOON) is True


# no herd


def wakes_of(server, name):
    """A subscription that sees every notice of the buffer, and a function that counts those of a kind so far."""
    pubsub = server.client().pubsub()
    pubsub.psubscribe(f"rr:{{{name}}}:wake:*")
    wait_until(lambda: pubsub.get_message(timeout=0.1), description="the subscription")
    seen = []

    def count(kind="wake"):
        while message := pubsub.get_message(timeout=0.05):
            seen.append(message["data"].split()[0].decode())
        return seen.count(kind)

    return pubsub, count


def waiters(make_buffer, writer, needs, handles=None):
    """One waiting call for each need, in this order, all on their own handle or on `handles` in turn."""
    calls = []
    for i, need in enumerate(needs):
        buffer = handles[i % len(handles)] if handles else make_buffer(attach=True, poll_interval=30)
        calls.append(Running(buffer.sample, need, wait=True))
        blocked(writer, i + 1)
    return calls


@pytest.mark.parametrize("shared", [True, False])
def test_no_herd_one_batch_wakes_one(server, make_buffer, name, shared):
    """Of 16 waiters of need 32, a write of 32 records wakes the first, with one notice."""
    writer = make_buffer(consume_after_n_samples=1)
    pubsub, notices = wakes_of(server, name)
    handles = [make_buffer(poll_interval=30)] if shared else None
    calls = waiters(make_buffer, writer, [32] * 16, handles)
    writer.extend(records(32))
    assert sorted(calls[0].how()) == list(range(32))
    assert [call.is_over for call in calls] == [True] + [False] * 15
    assert (notices(), writer.stats()["notices"]) == (1, 1)
    pubsub.close()


def test_no_herd_served_in_order_of_arrival(server, make_buffer):
    """Each batch goes to whoever has waited longest."""
    writer = make_buffer(consume_after_n_samples=1)
    calls = waiters(make_buffer, writer, [2] * 8)
    served = []
    for first in range(0, 16, 2):
        writer.extend(records(2, first))
        wait_until(lambda: sum(call.is_over for call in calls) == len(served) + 1, description="one more served")
        served.append(next(i for i, call in enumerate(calls) if call.is_over and i not in served))
    assert served == list(range(8))


def test_no_herd_large_need_is_not_starved(server, make_buffer):
    """A need of 256 gets its batch before the needs of 32 that came after it, waiting or not."""
    writer = make_buffer(capacity=1000, consume_after_n_samples=1)
    calls = waiters(make_buffer, writer, [256] + [32] * 4)
    for first in range(0, 224, 32):
        writer.extend(records(32, first))
    with pytest.raises(NotReadyError):
        writer.sample(32)
    writer.extend(records(32, 224))
    assert len(calls[0].how()) == 256
    assert [call.is_over for call in calls] == [True] + [False] * 4


def test_no_herd_needs_behind_large_one_served(server, make_buffer):
    """Once the large need has its batch, what comes goes to those behind it."""
    writer = make_buffer(capacity=1000, consume_after_n_samples=1)
    calls = waiters(make_buffer, writer, [64, 32, 32])
    for first in range(0, 128, 32):
        writer.extend(records(32, first))
    assert sorted(tag for call in calls for tag in call.how()) == list(range(128))


QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


def behind(make_buffer, writer):
    """A call that is second in line."""
    call = Running(make_buffer(attach=True, poll_interval=30).sample, 2, wait=True)
    blocked(writer, 2)
    return call


def notified(writer, first, make_buffer, **options):
    """A wait on the handle `first` that was sent its notice and does not know, and a call behind it."""
    deaf(first.buffer._now.listener)
    given_up = first.start("sample", **options)
    blocked(writer)
    call = behind(make_buffer, writer)
    writer.extend(records(2))
    assert not given_up.is_over
    return given_up, call


def test_no_herd_cancelled_event_passes_on(server, make_buffer, open_kind):
    """A notified wait that ends by its cancel_event gives its turn to the next."""
    writer, event = make_buffer(**QUEUE), threading.Event()
    first = open_kind("sync", batch_size=2, poll_interval=30)
    given_up, call = notified(writer, first, make_buffer, cancel_event=event)
    event.set()
    assert (call.how(timeout=SOON), given_up.how()) == ([0, 1], ReplayCancelledError)


def test_no_herd_cancelled_task_passes_on(server, make_buffer, open_kind):
    """A notified wait whose task is cancelled gives its turn to the next."""
    writer = make_buffer(**QUEUE)
    first = open_kind("async", batch_size=2, poll_interval=30)
    given_up, call = notified(writer, first, make_buffer)
    first.cancel_waits()
    assert (call.how(timeout=SOON), given_up.how()) == ([0, 1], CancelledError)


def test_no_herd_timed_out_passes_on(real_server, make_buffer, open_kind):
    """A notified wait that cannot reach the server until its timeout leaves the batch to the next."""
    writer = make_buffer(**QUEUE)
    with contextlib.closing(Proxy(real_server.url)) as proxy:
        first = open_kind("sync", target=proxy.url, batch_size=2, poll_interval=30)
        given_up, call = notified(writer, first, make_buffer, timeout=1.5)
        proxy.hold()
        assert (call.how(timeout=SOON), given_up.how()) == ([0, 1], ConnectionLostError)
        proxy.let_go()


def test_no_herd_killed_process_passes_on(real_server, make_buffer, name):
    """A process that was notified and is killed before it can act leaves its batch to the next."""
    writer, context = make_buffer(**QUEUE), multiprocessing.get_context("spawn")
    process = context.Process(target=_workers.wait_for_batch, args=(real_server.url, name, 2))
    process.start()
    wait_until(lambda: writer.stats()["waiters"], 20, "the process to wait")
    os.kill(process.pid, signal.SIGSTOP)
    call = behind(make_buffer, writer)
    writer.extend(records(2))
    notices = writer.stats()["notices"]
    process.kill()
    process.join()
    assert (notices, call.how(timeout=SOON)) == (1, [0, 1])
