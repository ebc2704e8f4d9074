"""A server, or something before it, that sends byte by byte: the caller's time holds over the whole reply."""

import asyncio
import threading

import numpy as np
import pytest

from redis_replay import _ops_write, _requests, _runtime, samplers
from redis_replay.exceptions import ConnectionLostError, OutcomeUnknownError, ReplayCancelledError
from tests._helpers import SOON
from tests._waiting import Running, open_handle, record, records, tags

# What trickles is the proxy: the kind of the server behind it does not matter.
pytestmark = [pytest.mark.fault, pytest.mark.parametrize("real_server", ["valkey"], indirect=True)]
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
TRICKLE = 1, 0.02, 0  # a byte at a time: never silent for long
ONLY_LARGE = 1, 0.02, 10_000  # so are the chunks of payloads; what is said before them passes


def large(n, first=0):
    """A batch of records of 300 kB: they go in, and come out, by another way."""
    return records(n, first) | {"pixels": np.zeros((n, 300_000), np.uint8)}


def wide(n, first=0):
    """A batch of records of 4 kB, which come in one reply with the draw."""
    return records(n, first) | {"pixels": np.zeros((n, 4_000), np.uint8)}


@pytest.fixture
def make():
    """What the buffer holds."""
    return records


@pytest.fixture(params=["sync", "async"])
def handle(request, make_buffer, make, proxy, name):
    """A handle behind the proxy, of either kind, that has written record 0 and drawn it; a direct one has written 1 to 3."""
    direct = make_buffer(capacity=10_000, **QUEUE)
    made = open_handle(request.param, None, name, target=proxy.url)
    made.run("extend", make(1))
    assert tags(made.run("sample", 1)) == [0]
    direct.extend(make(3, 1))
    yield made
    proxy.pace = {}
    made.end()


@pytest.fixture
def quick_calls(monkeypatch):
    """Calls without a timeout of their own have 0.4 s instead of five."""
    for module in (_requests, _ops_write):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.4)


CALLS = {
    "wait": (lambda handle: handle.start("sample", batch_size=1, timeout=0.3), ConnectionLostError),
    "write": (lambda handle: Running(handle.run, "add", record(9)), OutcomeUnknownError),
    "read": (lambda handle: Running(handle.run, "get", [2, 3]), ConnectionLostError),
    "stats": (lambda handle: Running(handle.run, "stats"), ConnectionLostError),
}


@pytest.mark.parametrize("call", CALLS)
def test_trickled_reply_ends_in_time(proxy, handle, quick_calls, call):
    """A small reply that comes byte by byte is given up at the call's deadline, and the handle is right afterwards."""
    start, error = CALLS[call]
    proxy.pace = {"replies": TRICKLE}
    running = start(handle)
    assert (running.how(), running.seconds < SOON) == (error, True)
    proxy.pace = {}
    assert int(handle.run("get", 3)["i"]) == 2
    assert tags(handle.run("sample", 3)) == [1, 2, 3]


@pytest.mark.parametrize("make", [large])
def test_trickled_burst_ends_in_time(proxy, handle):
    """So is a batch of large records, whose bytes come byte by byte behind an answer that came at once; and it goes back."""
    proxy.pace = {"replies": ONLY_LARGE}
    running = handle.start("sample", batch_size=1, timeout=0.3)
    assert (running.how(), running.seconds < SOON) == (ConnectionLostError, True)
    proxy.pace = {}
    assert tags(handle.run("sample", 3)) == [1, 2, 3]


@pytest.mark.parametrize("handle", ["async"], indirect=True)
def test_next_call_finds_what_went_back(proxy, handle, monkeypatch):
    """In an event loop, too: where a task of its own gives the batch back, however late that begins, the next call sees it."""
    settle = _runtime.AsyncRuntime._settle

    async def late(*args, **kwargs):
        await asyncio.sleep(0.2)
        await settle(*args, **kwargs)

    monkeypatch.setattr(_runtime.AsyncRuntime, "_settle", late)
    proxy.pace = {"replies": TRICKLE}
    assert handle.start("sample", batch_size=1, timeout=0.3).how() == ConnectionLostError
    proxy.pace = {}
    assert tags(handle.run("sample", 3)) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_trickled_login_ends_in_time(make_buffer, proxy, name, kind):
    """Opening a buffer through it ends soon after its time, though each byte of the login comes soon."""
    make_buffer()
    proxy.pace = {"replies": TRICKLE}
    opening = Running(open_handle, kind, None, name, target=proxy.url)
    assert (type(opening.error()), opening.seconds < SOON) == (ConnectionLostError, True)


def test_trickle_obeys_a_cancel_event(proxy, handle):
    """A wait without a timeout whose reply trickles ends within 3 s of its cancel_event."""
    event = threading.Event()
    proxy.pace = {"replies": TRICKLE}
    running = handle.start("sample", batch_size=1, cancel_event=event)
    event.set()
    assert running.how(timeout=SOON) == ReplayCancelledError


@pytest.mark.parametrize("make", [large])
def test_server_that_reads_slowly_ends_a_write_in_time(proxy, handle):
    """A large write that is taken in little by little ends at its deadline: it is not given its time for each piece."""
    proxy.pace = {"requests": (30_000, 0.02, 10_000)}
    batch, extend = large(60, 9), handle.buffer.extend
    way = (lambda: handle.call(extend(batch, timeout=0.4))) if hasattr(handle, "loop") else lambda: extend(batch, timeout=0.4)
    running = Running(way)
    assert (running.how(), running.seconds < SOON) == (OutcomeUnknownError, True)


@pytest.mark.parametrize("make", [large])
@pytest.mark.parametrize("handle", ["async"], indirect=True)
def test_write_that_was_given_up_is_not_kept(proxy, handle):
    """What an event loop had not sent of it yet is thrown away with its connection."""
    writer = handle.buffer._now.connection._idle[-1]._connection._writer
    proxy.pace = {"requests": ONLY_LARGE}
    running = Running(lambda: handle.call(handle.buffer.extend(large(60, 9), timeout=0.3)))
    assert running.how() == OutcomeUnknownError
    assert (writer.transport.is_closing(), writer.transport.get_write_buffer_size()) == (True, 0)


@pytest.mark.parametrize("make", [wide])
def test_slow_line_is_no_trickle(proxy, handle):
    """A reply of 4 MB at about 3 MB a second is waited for, though a wait looks up each second; it comes once."""
    handle.run("extend", wide(997, 4))
    before, proxy.pace = proxy.arrived, {"replies": (30_000, 0.01, 10_000)}
    running = handle.start("sample", batch_size=1_000, timeout=0.1)
    assert running.how() == list(range(1, 1_001))
    assert (running.seconds > 1.1, proxy.arrived - before) == (True, 1)
