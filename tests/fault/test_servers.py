"""A server that freezes, restarts, loads, or is not there yet."""

import contextlib
import os
import signal
import threading

import pytest
import redis

from redis_replay import ReplayBuffer, _ops_wait, samplers
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import (
    BufferClosedError,
    BufferGoneError,
    BufferNotFoundError,
    ConnectionLostError,
    OutcomeUnknownError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from tests import _server
from tests._helpers import SOON, wait_until
from tests._ports import Program, held_port
from tests._server import turns
from tests._waiting import Running, blocked, open_handle, record, records

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


@pytest.fixture(params=_server.REAL)
def binary(request):
    """A real server's program, in turn."""
    return _server.find(request.param) or _server.missing(request.param)


@pytest.fixture
def port():
    """A TCP port at which the test's own server may start, end, and start again."""
    with held_port() as held:
        yield held


@pytest.fixture
def url(port):
    """Where the test's own server will be."""
    return f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def open_buffer():
    """Gives `open_buffer(url, **options)`: a handle that is closed at the end, whether or not its server is there."""
    handles = []

    def make(url, **options):
        handles.append(ReplayBuffer(url, "b", **options))
        return handles[-1]

    yield make
    for handle in handles:
        handle.close()


# Frozen


class Freezer:
    """A server of the test's own that can be stopped without ending its connections."""

    def __init__(self, server):
        self.server = server

    def freeze(self):
        """It answers nothing from now on."""
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self):
        """It goes on where it was."""
        os.kill(self.server.pid, signal.SIGCONT)


@pytest.fixture
def freezer():
    """A server that can be frozen: any, since it does nothing then."""
    with EmbeddedServer() as server:
        made = Freezer(server)
        yield made
        made.thaw()


def test_new_wait_on_a_frozen_server_ends(freezer, open_buffer):
    """A wait that begins on a frozen server ends soon after its timeout, and works once it is thawed."""
    buffer = open_buffer(freezer.server.url, capacity=10, **QUEUE)
    buffer.add(record(7))
    freezer.freeze()
    call = Running(buffer.sample, 1, wait=True, timeout=0.5)
    assert (call.how(), call.seconds < SOON) == (ConnectionLostError, True)
    freezer.thaw()
    assert Running(buffer.sample, 1).how() == [7]


LENT = {"lease": 60, **QUEUE}


def test_wait_that_acknowledges_on_a_frozen_server_ends(freezer, open_buffer):
    """A wait whose batch before is on lease, which it acknowledges first, ends within its own timeout all the same."""
    buffer = open_buffer(freezer.server.url, capacity=10, **LENT)
    buffer.extend(records(2))
    call = Running(lambda: [buffer.sample(1), freezer.freeze(), buffer.sample(1, wait=True, timeout=0.5)])
    assert (call.how(), call.seconds < SOON) == (OutcomeUnknownError, True)


def test_frozen_acknowledgement_obeys_its_cancel_event(freezer, open_buffer):
    """A cancel_event ends a wait also while it acknowledges the batch before, and says that it was cancelled."""
    buffer, event = open_buffer(freezer.server.url, capacity=10, **LENT), threading.Event()
    buffer.extend(records(2))
    threading.Timer(0.3, event.set).start()
    call = Running(lambda: [buffer.sample(1), freezer.freeze(), buffer.sample(1, wait=True, cancel_event=event)])
    assert (call.how(), call.seconds < SOON) == (ReplayCancelledError, True)


def test_blocked_wait_on_a_frozen_server_ends(freezer, open_buffer):
    """A wait that is blocked when the server freezes ends soon after its timeout."""
    buffer, other = (open_buffer(freezer.server.url, capacity=10, **QUEUE) for _ in range(2))
    call = Running(buffer.sample, 1, wait=True, timeout=1)
    blocked(other)
    freezer.freeze()
    assert (call.how(), call.seconds < SOON) == (ConnectionLostError, True)


def test_new_connection_to_a_frozen_server_ends(freezer, open_buffer):
    """A wait that must connect anew to a frozen server ends soon after its timeout: connecting is given up after 1 s."""
    buffer = open_buffer(freezer.server.url, capacity=10, **QUEUE)
    freezer.freeze()
    Running(buffer.sample, 1, wait=True, timeout=0).error()
    call = Running(buffer.sample, 1, wait=True, timeout=0.3)
    assert (call.how(timeout=7), call.seconds < SOON) == (ConnectionLostError, True)


def test_frozen_wait_obeys_its_cancel_event(freezer, open_buffer):
    """A wait without a timeout on a frozen server ends soon after its cancel_event is set."""
    buffer, other = (open_buffer(freezer.server.url, capacity=10, **QUEUE) for _ in range(2))
    event = threading.Event()
    call = Running(buffer.sample, 1, wait=True, cancel_event=event)
    blocked(other)
    freezer.freeze()
    event.set()
    assert call.how(timeout=SOON) == ReplayCancelledError


@pytest.fixture(params=["sync", "async"])
def polling(request, freezer, open_buffer):
    """A wait whose poll a frozen server does not answer: gives its handle, the call, and its cancel_event."""
    other = open_buffer(freezer.server.url, capacity=10, **QUEUE)
    handle = open_handle(request.param, None, "b", target=freezer.server.url, poll_interval=0.05)
    event, polls, connection = threading.Event(), threading.Event(), handle.buffer._now.connection
    call, run = handle.start("sample", batch_size=1, cancel_event=event), connection.run
    blocked(other)
    freezer.freeze()
    connection.run = lambda step: [polls.set(), run(step)][1]
    assert polls.wait(2)
    yield handle, call, event
    freezer.thaw()
    event.set()
    call.error()
    handle.end()


def test_frozen_poll_obeys_its_cancel_event(polling):
    """A cancel_event that is set while a poll is under way, which the server does not answer, ends the wait soon."""
    _, call, event = polling
    event.set()
    assert call.how(timeout=SOON) == ReplayCancelledError


def test_frozen_poll_ends_when_closed(polling):
    """Closing the handle ends a wait whose poll is not answered."""
    handle, call, _ = polling
    closing = Running(handle.close)
    assert (call.how(timeout=SOON), closing.error()) == (BufferClosedError, None)


def test_closing_does_not_wait_for_a_frozen_server(freezer, open_buffer):
    """`close()` of a handle whose server is frozen is over soon."""
    buffer = open_buffer(freezer.server.url, capacity=10, **QUEUE)
    buffer.add(record(1))
    freezer.freeze()
    Running(buffer.sample, 1, wait=True, timeout=0).error()
    closing = Running(buffer.close)
    assert (closing.error(timeout=15), closing.seconds < SOON) == (None, True)


def test_write_to_a_frozen_server_is_unknown(freezer, open_buffer):
    """A write to a frozen server ends at its deadline as unknown, and is there once after the handle's next call."""
    buffer = open_buffer(freezer.server.url, capacity=10)
    buffer.add(record(0))
    freezer.freeze()
    call = Running(buffer.add, record(1), timeout=0.5)
    assert (call.how(), call.seconds < SOON) == (OutcomeUnknownError, True)
    freezer.thaw()
    buffer.add(record(2))
    assert [int(r["i"]) for r in buffer.records()] in ([0, 2], [0, 1, 2])


def test_wait_outlasts_patience_and_ends(port, url, binary, open_buffer, monkeypatch):
    """A wait without a timeout ends when its server has been away for as long as patience lasts."""
    monkeypatch.setattr(_ops_wait, "PATIENCE_SECONDS", 0.5)
    with EmbeddedServer(port=port, binary=binary):
        buffer, other = (open_buffer(url, capacity=10, poll_interval=0.1, **QUEUE) for _ in range(2))
        call = Running(buffer.sample, 1, wait=True)
        blocked(other)
    assert call.how(timeout=SOON) == ConnectionLostError


# Restarted

TURNS = pytest.mark.parametrize(("kind", "binary"), turns(), indirect=["binary"])
OUTAGES = [1, pytest.param(10, marks=pytest.mark.slow), pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(90)])]


@TURNS
@pytest.mark.parametrize("outage", OUTAGES)
def test_wait_outlives_a_restart(binary, port, url, tmp_path, outage, kind, caplog):
    """A learner that waits while a durable server restarts has its batch within 3 s of the last put; each end is told once."""
    with EmbeddedServer(tmp_path, port=port, binary=binary), ReplayBuffer(url, "b", capacity=100, **QUEUE) as writer:
        handle = open_handle(kind, None, "b", target=url)
        writer.extend(records(10))
        call = handle.start("sample", batch_size=32, timeout=120)
        blocked(writer)
    threading.Event().wait(outage)
    with EmbeddedServer(tmp_path, port=port, binary=binary), redis.Redis.from_url(url) as client:
        with ReplayBuffer(url, "b") as late:
            late.extend(records(30, 10))
        assert call.how(timeout=3) == list(range(32))
        assert [word in line for word, line in zip(("is lost", "serves again"), told(caplog), strict=True)] == [True, True]
        again = handle.start("wait_until_sampleable", min_items=99, timeout=5)
        wait_until(lambda: client.pubsub_numsub(handle.buffer._now.core.channel)[0][1] == 1, 3, "the subscription")
        handle.run("delete")
        again.error()
        handle.end()


@TURNS
def test_wait_outlives_a_slow_start(binary, port, url, tmp_path, kind, caplog):
    """A learner that waits while a server restarts, and loads its data, goes on when it has; each end is told once."""
    with EmbeddedServer(tmp_path, port=port, binary=binary), ReplayBuffer(url, "b", capacity=100, **QUEUE) as writer:
        fill(url)
        handle = open_handle(kind, None, "b", target=url)
        call = handle.start("sample", batch_size=1, timeout=120)
        blocked(writer)
    with loading(binary, port, tmp_path):
        with ReplayBuffer.attach(url, "b", timeout=20, poll_interval=0.1) as late:
            late.add(record(7))
            assert call.how(timeout=SOON) == [7]
            assert sum("'b'" in line and "is lost" in line for line in told(caplog)) == 2  # of `handle` and of `late`
            late.delete()
        handle.end()


def fill(url):
    """Makes the server's data take a while to load."""
    with redis.Redis.from_url(url) as client:
        client.mset({f"more-{n}": os.urandom(1000) for n in range(200)})  # what can be compressed is loaded without a pause
        client.bgrewriteaof()
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 5, "the rewrite")


def told(caplog):
    """What was logged of the connection, one line each."""
    return [r.getMessage() for r in caplog.records if r.name == "redis_replay" and "waiting for" not in r.getMessage()]


def test_wait_on_a_lost_buffer_says_gone(binary, port, url, open_buffer):
    """A learner that waits while a server restarts empty is told that its buffer is gone."""
    with EmbeddedServer(port=port, binary=binary):
        buffer, writer = (open_buffer(url, capacity=100, poll_interval=0.2, **QUEUE) for _ in range(2))
        call = Running(buffer.sample, 32, wait=True)
        blocked(writer)
    with EmbeddedServer(port=port, binary=binary):
        assert call.how(timeout=SOON) == BufferGoneError


# Not there yet


def test_attach_outwaits_a_missing_server(binary, port, url):
    """`attach` to a server that starts only later succeeds, once the buffer is created."""
    call = Running(ReplayBuffer.attach, url, "b", timeout=10, poll_interval=0.1)
    threading.Event().wait(0.5)
    with EmbeddedServer(port=port, binary=binary), ReplayBuffer(url, "b", capacity=7), call.result(SOON) as attached:
        assert attached.capacity == 7


def test_attach_without_a_server_times_out(url):
    """`attach` to a server that never starts ends soon after its timeout, and says that nothing answers there."""
    call = Running(ReplayBuffer.attach, url, "b", timeout=0.5)
    assert (call.how(), 0.5 <= call.seconds < SOON) == (ConnectionLostError, True)


def test_attach_outwaits_a_loading_server(binary, port, url, tmp_path):
    """`attach` to a server that still loads its data succeeds when it has; anything else is refused until then."""
    with EmbeddedServer(tmp_path, port=port, binary=binary), ReplayBuffer(url, "b", capacity=7) as buffer:
        buffer.add(record(1))
        fill(url)
    with loading(binary, port, tmp_path):
        with pytest.raises(redis.BusyLoadingError), redis.Redis.from_url(url) as client:
            client.get("x")
        with ReplayBuffer.attach(url, "b", timeout=10, poll_interval=0.1) as attached:
            assert (attached.capacity, len(attached)) == (7, 1)


@contextlib.contextmanager
def loading(binary, port, directory):
    """A server that takes a while to load what is kept in the directory, and answers LOADING meanwhile."""
    command = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--appendonly", "yes"]
    command += ["--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024", "--save", ""]
    with Program(command, port=port):
        yield


def test_attach_times_out_without_a_creator(server, name):
    """`attach` on a server without the buffer ends at its timeout, and leaves no key."""
    call = Running(ReplayBuffer.attach, server.target(), name, timeout=0.3)
    assert (call.how(), 0.3 <= call.seconds < SOON) == (ReplayTimeoutError, True)
    assert server.client().keys() == []


def test_attach_is_woken_by_the_creator(server, make_buffer, name):
    """`attach` returns as soon as the buffer is created, without its poll."""
    call = Running(ReplayBuffer.attach, server.target(), name, timeout=10, poll_interval=30)
    client = server.client()
    wait_until(lambda: client.pubsub_numsub(f"rr:{{{name}}}:events")[0][1], description="its subscription")
    make_buffer(capacity=7)
    with call.result(SOON) as attached:
        assert attached.capacity == 7


def test_attach_looks_again_once_it_listens(server, make_buffer, name, monkeypatch):
    """A buffer that is created between the first look of `attach` and its subscription is found at once."""
    from redis_replay._wakeup import Listener

    subscribe, made = Listener._subscribe, []

    def late(self, *args):
        if not made:
            made.append(make_buffer(capacity=7))
        subscribe(self, *args)

    monkeypatch.setattr(Listener, "_subscribe", late)
    call = Running(ReplayBuffer.attach, server.target(), name, timeout=10, poll_interval=30)
    with call.result(SOON) as attached:
        assert attached.capacity == 7


def test_opening_nothing_is_not_found(server, name):
    """Without `attach` a missing buffer is an error at once."""
    with pytest.raises(BufferNotFoundError):
        ReplayBuffer(server.target(), name)


def test_a_write_that_may_not_wait_bears_a_slow_server(freezer, open_buffer):
    """`timeout=0` is of the wait for room: a server that takes a moment is heard."""
    buffer = open_buffer(freezer.server.url, capacity=10)
    buffer.add(record(1))
    freezer.freeze()
    call = Running(buffer.extend, records(2), timeout=0)
    threading.Event().wait(0.3)
    freezer.thaw()
    assert call.result().tolist() == [2, 3]
