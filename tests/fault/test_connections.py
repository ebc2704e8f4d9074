"""Connections that are cut, held up or lost, replies that never come, and interrupts: nothing doubled, nothing lost."""

import contextlib
import gc
import random
import signal
import socket
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest

from redis_replay import _ops_write, _requests, samplers
from redis_replay.exceptions import ConnectionLostError, OutcomeUnknownError
from tests._helpers import SOON, wait_until
from tests._proxy import now_and_then
from tests._server import REAL, turns
from tests._waiting import Running, blocked, open_handle, record, records, tags

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
PIXELS = np.zeros(6_000, np.uint8)  # makes a record large: it goes in, and comes out, by another way


def large(n, first=0):
    """A batch of n large records."""
    return {"i": np.arange(first, first + n), "pixels": np.tile(PIXELS, (n, 1))}


MAKE = pytest.mark.parametrize("make", [records, large])


@pytest.fixture
def quick_calls(monkeypatch):
    """Calls without a timeout of their own give up after half a second instead of five."""
    for module in (_requests, _ops_write):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)


def stored(buffer):
    """The tags of all stored records, in order."""
    return [int(r["i"]) for r in buffer.records()]


# Replies and requests that are lost

WAYS = {
    "replies lost": ("replies", False),
    "replies cut short": ("replies", True),
    "requests lost": ("requests", False),
    "requests cut short": ("requests", True),
}
CUTS = pytest.mark.parametrize(  # small and large records each way, and each server with either: a server sees whole commands
    ("make", "way", "real_server"),
    [(make, way, REAL[(m + w) % 2]) for w, way in enumerate(WAYS) for m, make in enumerate([records, large])],
    indirect=["real_server"],
)


@CUTS
def test_cut_writes_are_there_once(proxy, make_buffer, make, way, seed):
    """Of 60 writes, one in eight cut somewhere, each is there once, under the index that it was given."""
    buffer, direct = make_buffer(target=proxy.url, capacity=1_000), make_buffer(capacity=1_000)
    buffer.extend(make(1))
    direction, partly = WAYS[way]
    setattr(proxy, direction, now_and_then(8, seed, partly=partly))
    given = [int(i) for tag in range(1, 121, 2) for i in buffer.extend(make(2, tag))]
    assert (stored(direct), direct.write_count, proxy.cuts > 2) == (list(range(121)), 121, True)
    assert tags(direct.get(given)) == list(range(1, 121))


@CUTS
def test_cut_draws_lose_no_record(proxy, make_buffer, make, way, seed):
    """Of 60 consuming draws, one reply or request in eight cut somewhere, all together give each record once."""
    direct = make_buffer(capacity=1_000, **QUEUE)
    direct.extend(make(240))
    buffer = make_buffer(target=proxy.url, attach=True)
    direction, partly = WAYS[way]
    setattr(proxy, direction, now_and_then(8, seed, partly=partly))
    drawn = [tag for _ in range(60) for tag in tags(buffer.sample(4, wait=True, timeout=10))]
    assert (sorted(drawn), proxy.cuts > 2, direct.doctor().findings) == (list(range(240)), True, ())


@MAKE
def test_cut_counts_are_exact(proxy, make_buffer, make, seed):
    """A draw that was asked for again is counted once."""
    direct = make_buffer(capacity=1_000, sampler=samplers.Fifo(), consume_after_n_samples=3)
    direct.extend(make(30))
    buffer = make_buffer(target=proxy.url, attach=True)
    proxy.replies = now_and_then(6, seed)
    for _ in range(30):
        buffer.sample(3)
    stats = direct.stats()
    assert (stats["sample_calls"], stats["samples_returned"], stats["consumed"], len(direct)) == (30, 90, 30, 0)


def test_cut_waits_are_served(proxy, make_buffer, seed):
    """A wait whose connections are cut again and again, the subscription too, is served once its records are there."""
    direct = make_buffer(**QUEUE)
    buffer = make_buffer(target=proxy.url, attach=True, poll_interval=0.05)
    proxy.replies = now_and_then(10, seed, partly=True)
    call = Running(buffer.sample, 4, wait=True)
    wait_until(lambda: proxy.cuts > 10, 10, "ten cuts")
    direct.extend(records(4))
    assert call.how(timeout=5) == [0, 1, 2, 3]


def test_delayed_replies_are_waited_for(proxy, make_buffer):
    """A slow network delays calls, and no more."""
    buffer = make_buffer(target=proxy.url, capacity=1_000)
    proxy.delay_s = 0.1
    assert tags(buffer.get(buffer.extend(records(3)))) == [0, 1, 2]


@MAKE
def test_write_without_reply_is_unknown(proxy, make_buffer, quick_calls, make):
    """A write whose reply does not come by the deadline is an OutcomeUnknownError, and was applied once or not at all."""
    buffer, direct = make_buffer(target=proxy.url, capacity=1_000), make_buffer(capacity=1_000)
    buffer.extend(make(1))
    proxy.replies = lambda data: 0
    call = Running(buffer.extend, make(3, 1))
    assert (call.how(), call.seconds < SOON) == (OutcomeUnknownError, True)
    proxy.replies = lambda data: None
    buffer.extend(make(1, 4))
    assert stored(direct) in ([0, 4], [0, 1, 2, 3, 4])
    assert (direct.write_count, direct.doctor().findings) == (len(stored(direct)), ())


@MAKE
def test_write_that_never_arrived_stays_out(proxy, make_buffer, quick_calls, make):
    """A write that arrives after its call has ended, and after the next call of the handle, is refused."""
    buffer, direct = make_buffer(target=proxy.url, capacity=1_000), make_buffer(capacity=1_000)
    buffer.extend(make(1))
    proxy.kept = late = bytearray()
    assert Running(buffer.extend, make(3, 1)).how() == OutcomeUnknownError
    proxy.kept = None
    buffer.extend(make(1, 4))
    deliver(proxy, late)
    assert (stored(direct), direct.write_count) == ([0, 4], 2)


def deliver(proxy, requests):
    """Has requests arrive much too late, and returns when the server has judged them."""
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port)) as connection:
        connection.settimeout(5)
        connection.sendall(requests + b"PING\r\n")
        replies = b""
        while not replies.endswith(b"+PONG\r\n"):
            replies += connection.recv(65536)


def test_draw_without_reply_goes_back(proxy, make_buffer, quick_calls):
    """A consuming draw whose reply never came gives its records back with the handle's next call."""
    direct = make_buffer(**QUEUE)
    direct.extend(records(10))
    buffer = make_buffer(target=proxy.url, attach=True)
    buffer.sample(1)
    proxy.replies = lambda data: 0
    assert Running(buffer.sample, 4, wait=True, timeout=0.3).how() == ConnectionLostError
    proxy.replies = lambda data: None
    assert (len(direct), tags(buffer.sample(4)), direct.stats()["consumed"]) == (5, [1, 2, 3, 4], 5)


def test_draw_without_reply_goes_back_by_itself(proxy, make_buffer, quick_calls):
    """A draw whose reply never came gives its records back within 2 s, also when its handle makes no other call."""
    direct = make_buffer(**QUEUE)
    direct.extend(records(10))
    buffer = make_buffer(target=proxy.url, attach=True)
    buffer.sample(1)
    proxy.replies = lambda data: 0
    Running(buffer.sample, 4, wait=True, timeout=0.3).error()
    proxy.replies = lambda data: None
    wait_until(lambda: len(direct) == 9, 2, "the records to come back")


def test_call_that_lost_its_connection_ends_in_time(proxy, make_buffer):
    """With every connection refused, a wait with a timeout ends soon after it."""
    buffer = make_buffer(target=proxy.url)
    proxy.close()
    call = Running(buffer.sample, 1, wait=True, timeout=0.3)
    assert (call.how(), call.seconds < SOON) == (ConnectionLostError, True)


@pytest.mark.parametrize(("kind", "real_server"), turns(1), indirect=["real_server"])
def test_late_reply_is_nobodys(proxy, make_buffer, name, quick_calls, kind):
    """A reply that comes after its call has given up is given to no other call."""
    make_buffer(capacity=1_000)
    handle = open_handle(kind, None, name, target=proxy.url)
    handle.run("add", record(0))
    proxy.hold()
    late = Running(handle.run, "add", record(1))
    assert late.how() == OutcomeUnknownError
    proxy.let_go()
    indices = [handle.run("add", record(tag)) for tag in range(2, 6)]
    assert tags(handle.run("get", indices)) == [2, 3, 4, 5]
    handle.end()


@pytest.mark.parametrize(("kind", "real_server"), turns(1), indirect=["real_server"])
def test_a_look_whether_a_batch_is_good_ends_with_the_call(proxy, make_buffer, name, kind):
    """One that was drawn ahead: before a server that does not answer, the call has no more time than without."""
    make_buffer(capacity=1_000).extend([record(tag) for tag in range(8)])
    handle = open_handle(kind, None, name, target=proxy.url, batch_size=2, prefetch=1)
    handle.run("sample")
    proxy.hold()
    call = Running(handle.run, "sample", wait=True, timeout=0.3)
    assert (call.how(), call.seconds < SOON) == (ConnectionLostError, True)
    proxy.let_go()
    handle.end()


# Killed connections, flushed scripts


@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_killed_connections_are_not_felt(real_server, make_buffer, kind):
    """When the server closes the connections of a waiting handle, it is woken all the same, without its poll."""
    client = real_server.client()
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    call = Running(buffer.sample, 2, wait=True)
    blocked(writer)
    client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    channels = client.pubsub_channels()
    writer.extend(records(2))
    assert call.how(timeout=SOON) == [0, 1]
    assert len(channels) == (0 if kind == "pubsub" else 2)


def test_subscription_is_back_after_a_kill(real_server, make_buffer, name):
    """After a kill the subscription is there again, once."""
    client = real_server.client()
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    call = Running(buffer.sample, 2, wait=True)
    blocked(writer)
    channel = buffer._now.core.channel
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 1, 3, "the subscription")
    writer.extend(records(2))
    assert call.how(timeout=SOON) == [0, 1]


@contextlib.contextmanager
def flushing(real_server):
    """Flushes the server's scripts every few milliseconds."""
    done, client = threading.Event(), real_server.client()

    def flush():
        while not done.wait(0.005):
            client.script_flush()

    flusher = Running(flush)
    try:
        yield
    finally:
        done.set()
        flusher.result()


def test_flushed_scripts_are_not_felt(real_server, make_buffer):
    """While scripts are flushed every few milliseconds, no call fails, and no record is lost or doubled."""
    buffer = make_buffer(capacity=10_000, **QUEUE)

    def write(first):
        for tag in range(first, first + 100, 2):
            buffer.extend(large(2, tag))

    with flushing(real_server):
        writers = [Running(write, 100 * i) for i in range(4)]
        drawn = [tag for _ in range(100) for tag in tags(buffer.sample(4, wait=True, timeout=10))]
    assert [writer.error() for writer in writers] == [None] * 4
    assert (sorted(drawn), buffer.write_count, buffer.doctor().findings) == (list(range(400)), 400, ())


# Interrupts


class Interrupt:
    """Sends this process SIGINT once, after some seconds; `survive` gives what a call did about it."""

    def __init__(self, after):
        self._timer = threading.Timer(after, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))

    def survive(self, call, *args, **kwargs):
        """What the call gave, or None if it was interrupted. The signal comes in here and nowhere else."""
        result = None
        gc.disable()  # an interrupt that falls into a __del__ is lost, by the rules of Python
        try:
            self._timer.start()
            result = call(*args, **kwargs)
            for _ in range(1000):
                threading.Event().wait(0.01)  # it ended first: the interrupt comes here
        except KeyboardInterrupt:
            return result
        finally:
            self._timer.cancel()
            gc.enable()
        raise AssertionError("no interrupt came")


@pytest.fixture
def delays(seed):
    """20 moments at which to interrupt, over the length of a call."""
    generator = random.Random(seed)
    yield lambda longest: [generator.uniform(0, longest) for _ in range(20)]
    gc.collect()  # what an interrupt left unclosed is closed here


INTERRUPTED = pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")


@INTERRUPTED
def test_interrupted_waits_leave_a_right_handle(real_server, make_buffer, delays):
    """After each of 20 blocked samples that were interrupted, the handle's next calls get their own replies."""
    buffer, writer = make_buffer(capacity=1_000, **QUEUE), make_buffer(capacity=1_000, **QUEUE)
    wrong = []
    for tag, delay in enumerate(delays(0.03)):
        Interrupt(delay).survive(buffer.sample, 5, wait=True)
        index = buffer.add(record(tag))
        seen = (int(writer.get(index)["i"]), writer.stats()["waiters"], tags(buffer.sample(1)))
        wrong += [seen] if seen != (tag, 0, [tag]) else []
    assert wrong == []


@INTERRUPTED
def test_interrupted_writes_leave_a_right_handle(real_server, make_buffer, delays):
    """After each of 20 large writes that were interrupted, what is stored is whole, and the handle goes on."""
    buffer, writer = make_buffer(capacity=100_000), make_buffer(capacity=100_000)
    wrong = []
    for n, delay in enumerate(delays(0.015)):
        Interrupt(delay).survive(buffer.extend, large(150, 1_000 * n))
        index = buffer.extend(large(1, 1_000 * n + 999))
        wrong += [n] if tags(writer.get(index)) != [1_000 * n + 999] else []
    counts = {n: sum(tag // 1_000 == n for tag in stored(writer)) for n in range(20)}
    assert (wrong, set(counts.values()) <= {1, 151}, writer.doctor().findings) == ([], True, ())


@INTERRUPTED
def test_interrupted_draws_leave_a_right_handle(real_server, make_buffer, delays):
    """After each of 20 large samples that were interrupted, the next batch is its own, and no record came twice."""
    buffer, writer = make_buffer(capacity=100_000, **QUEUE), make_buffer(capacity=100_000, **QUEUE)
    writer.extend(large(4_000))
    drawn = []
    for delay in delays(0.005):
        batch = Interrupt(delay).survive(buffer.sample, 150)
        drawn += tags(batch) if batch else []
        drawn += tags(buffer.sample(5))
    rest = stored(writer)
    assert (len(set(drawn)), set(drawn) & set(rest), writer.doctor().findings) == (len(drawn), set(), ())
    assert len(drawn) % 5 == 0
