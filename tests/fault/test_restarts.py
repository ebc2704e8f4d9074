"""SIGKILL of a real server amid writers and readers, and a start on what it kept: what must be there is, and all go on."""

import contextlib
import threading

import numpy as np
import pytest
import redis

from redis_replay import ReplayBuffer, _ops_write, _requests, limiters, samplers
from redis_replay._outbox import Outbox
from redis_replay.exceptions import BufferGoneError, BufferNotFoundError, ReplayError
from tests import _server
from tests._helpers import wait_until
from tests._ports import on_ports
from tests._proxy import Proxy
from tests._rewindable import Rewindable
from tests._server import turns
from tests._waiting import Running, blocked, open_handle, record, records, tags

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
LENT = QUEUE | {"lease": 1000.0}
KEPT = ["aof", "everysec", "rdb"]


@pytest.fixture(params=_server.REAL)
def binary(request):
    """A real server's program, in turn."""
    return _server.find(request.param) or _server.missing(request.param)


@pytest.fixture
def serve(binary, tmp_path):
    """Gives `serve(how)`: a server that keeps its data so."""
    with contextlib.ExitStack() as stack:

        def start(how):
            start_at = lambda port: contextlib.closing(Rewindable(binary, tmp_path, how, port))  # noqa: E731
            return stack.enter_context(on_ports(start_at))

        yield start


class Crew:
    """Two writers, of small records and of large ones, and a reader that acknowledges, each by a handle that stays open.

    A call of theirs that fails, fails the test. `given`: index and tag of each record that was acknowledged to a writer;
    `acked`: the tags that the reader acknowledged.
    """

    def __init__(self, url):
        self.given, self.acked, self._url, self._over = [], [], url, threading.Event()
        self._turns = [0, 0, 0]
        with ReplayBuffer(url, "b", capacity=10**6, **LENT):
            pass
        self._threads = [Running(self._write, n, bytes(10 + 6_000 * n)) for n in (0, 1)] + [Running(self._read)]

    def _write(self, n, padding):
        with ReplayBuffer(self._url, "b") as buffer:
            while not self._over.is_set():
                first = 10**6 * n + 3 * self._turns[n]
                new = [{"i": np.int64(tag), "padding": padding} for tag in range(first, first + 3)]
                self.given += zip(buffer.extend(new).tolist(), range(first, first + 3), strict=True)
                self._turns[n] += 1

    def _read(self):
        with ReplayBuffer(self._url, "b") as buffer:
            while not self._over.is_set():
                batch, info = buffer.sample(3, True, wait=True, timeout=10)
                if buffer.ack(info.lease).applied:
                    self.acked += tags(batch)
                self._turns[2] += 1

    def works(self, n=5):
        """Returns when each of them has done n more calls."""
        before = list(self._turns)
        more = lambda: all(now >= then + n for now, then in zip(self._turns, before, strict=True))  # noqa: E731
        wait_until(lambda: more() or any(thread.is_over for thread in self._threads), 10, "the crew to work")
        self.check()

    def check(self):
        """Raises what one of them raised."""
        for thread in self._threads:
            if thread.is_over:
                thread.result()

    def end(self):
        """Lets each of them end its call, and no more."""
        self._over.set()
        for thread in self._threads:
            thread.result(10)

    def known(self):
        """What they were told so far: tags of what is stored, and of what was acknowledged."""
        return {tag for _, tag in self.given}, set(self.acked)


@pytest.mark.parametrize("how", KEPT)
def test_what_was_settled_is_there_after_a_kill(serve, how):
    """What was acknowledged before the files held it is there, everything with `always`; what was acknowledged as read does
    not come back; no index was given twice; each handle went on by itself.
    """
    server = serve(how)
    crew = Crew(server.url)
    crew.works()
    kept, gone = crew.known()
    server.settle()
    crew.works()
    if how == "aof":
        kept, gone = crew.known()
    known = crew.known()[0]
    server.restart()
    crew.works()
    crew.end()
    with ReplayBuffer(server.url, "b") as buffer:
        there = [int(r["i"]) for r in buffer.records()]
        stats, findings = buffer.stats(), buffer.doctor().findings
    written, acked = crew.known()
    assert (kept - acked - set(there), gone & set(there), len(there) - len(set(there))) == (set(), set(), 0)
    assert (len({index for index, _ in crew.given}), stats["restarts"], findings) == (len(crew.given), 1, ())
    if how == "aof":
        assert (sorted([*there, *crew.acked]), stats["rewound"]) == (sorted(written), 0)
    if how == "rdb":
        assert (stats["rewound"] > 0, bool(known - acked - set(there))) == (True, True)


def test_power_cut_takes_no_more_than_what_was_not_synced(serve):
    """With `everysec`: a power cut is played by taking away what came after the server had said that all is synced."""
    server = serve("everysec")
    crew = Crew(server.url)
    crew.works()
    kept, gone = crew.known()
    synced = await_sync(server)
    crew.works()
    server.kill()
    with open(appended(server), "r+b") as file:
        file.truncate(synced)
    server.start()
    crew.works()
    crew.end()
    with ReplayBuffer(server.url, "b") as buffer:
        there = {int(r["i"]) for r in buffer.records()}
        assert (kept - set(crew.acked) - there, gone & there, buffer.doctor().findings) == (set(), set(), ())
    assert len({index for index, _ in crew.given}) == len(crew.given)


def appended(server):
    """The file that a server appends to."""
    return max((server.data / "appendonlydir").glob("*.incr.aof"))


def await_sync(server):
    """How long the file is when the server says that all that was answered before is synced; where it cannot say so (before
    Redis 7.2), that it is written.
    """
    with server.client() as client, client.client() as connection:
        connection.set("mark", 1)
        with contextlib.suppress(redis.ResponseError):
            assert connection.execute_command("WAITAOF", 1, 0, 5_000)[0] == 1
        connection.delete("mark")
        wait_until(lambda: not client.info("persistence")["aof_buffer_length"], 10, "the file to hold all")
        return appended(server).stat().st_size


# Calls that are under way


@pytest.mark.parametrize("how", KEPT)
@pytest.mark.parametrize(("kind", "binary"), turns(), indirect=["binary"])
def test_blocked_calls_go_on(serve, how, kind):
    """A reader and a writer that are blocked when the server is killed go on when what they wait for is there."""
    server = serve(how)
    with ReplayBuffer(server.url, "full", capacity=9, rate_limiter=limiters.Queue(3), **QUEUE) as full:
        full.extend(records(3))
        with ReplayBuffer(server.url, "empty", capacity=9, **QUEUE) as empty:
            reader = open_handle(kind, None, "empty", target=server.url, poll_interval=0.2)
            writer = open_handle(kind, None, "full", target=server.url, poll_interval=0.2)
            server.settle()
            read = reader.start("sample", batch_size=2, timeout=20)
            write = Running(writer.run, "extend", records(2, 3), timeout=20)
            blocked(empty), blocked(full)
            server.restart()
            empty.extend(records(2, 7))
            assert (read.how(), tags(full.sample(2)), write.error()) == ([7, 8], [0, 1], None)
            assert [tags(full.sample(3)), empty.stats()["waiters"], full.stats()["waiters"]] == [[2, 3, 4], 0, 0]
        for handle in (reader, writer):
            handle.end()


@pytest.fixture
def impatient(monkeypatch):
    """Calls whose reply does not come end after 0.3 s."""
    monkeypatch.setattr(_ops_write, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(_requests, "CALL_SECONDS", 0.3)


@pytest.fixture
def muted(serve):
    """A durable server, a proxy before it that can keep replies back, and two handles, one through it and one not."""
    server = serve("aof")
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(server.url)))
        direct = stack.enter_context(ReplayBuffer(server.url, "b", capacity=9, **QUEUE))
        buffer = stack.enter_context(ReplayBuffer(proxy.url, "b"))
        buffer.extend(records(4))
        yield server, proxy, buffer, direct


def test_answer_to_a_write_outlives_a_restart(muted, impatient):
    """A write was applied and its reply lost: after a restart it is told which indices it was given."""
    server, proxy, buffer, direct = muted
    proxy.mute = b""
    unknown = Running(buffer.extend, records(2, 4)).error()
    wait_until(lambda: len(direct) == 6, 5, "the write to be applied")
    proxy.mute = None
    server.restart()
    outcome = unknown.resolve()
    assert (outcome.applied, outcome.index.tolist(), tags(direct.get([5, 6]))) == (True, [5, 6], [4, 5])


def test_answer_to_a_draw_outlives_a_restart(muted):
    """A draw was applied and its reply lost: asked for again after a restart it is the same batch, which was counted once."""
    server, proxy, buffer, direct = muted
    first = tags(buffer.sample(1))
    proxy.mute = b""
    draw = Running(buffer.sample, 2)
    wait_until(lambda: len(direct) == 1, 5, "the draw to be applied")
    proxy.mute = None
    server.restart()
    assert (first, draw.how(), tags(direct.sample(1)), direct.stats()["sample_calls"]) == ([0], [1, 2], [3], 3)


def test_lease_that_ran_out_meanwhile_comes_back(serve):
    """Time goes on while a server is away: what a reader that ended had been lent is there for others at the first call."""
    server = serve("aof")
    with ReplayBuffer(server.url, "b", capacity=9, **QUEUE) as buffer, ReplayBuffer(server.url, "b") as other:
        buffer.extend(records(2))
        lease = Running(other.sample, 2, True, lease=0.05).result()[1].lease  # in a thread that is no more: nobody renews it
        server.restart()
        wait_until(lambda: buffer.stats()["reclaimed"] == 2, 5, "the lease to end")
        assert (tags(buffer.sample(2)), other.ack(lease).late) == ([0, 1], 1)


def test_lease_of_a_live_reader_is_renewed_afterwards(serve):
    """A reader that is alive keeps its batch over a restart that takes less than the lease: its handle renews it again."""
    server = serve("aof")
    with ReplayBuffer(server.url, "b", capacity=9, **QUEUE) as buffer, server.client() as client:
        buffer.extend(records(2))
        _, info = buffer.sample(2, True, lease=1.5)
        server.restart()
        ((_, end),) = client.zrange("rr:{b}:leases", 0, -1, withscores=True)
        wait_until(lambda: client.zrange("rr:{b}:leases", 0, -1, withscores=True)[0][1] > end, 5, "a renewal")
        assert buffer.ack(info.lease).applied == 1


def test_what_a_client_has_not_written_yet_is_written_afterwards(serve):
    """What a recorder gathers is in its program alone: a restart of the server costs it nothing, and it goes in once."""
    server = serve("aof")
    with ReplayBuffer(server.url, "b", capacity=9) as buffer:
        outbox = Outbox(buffer, timeout=0.2)
        outbox.put(records(2), 2)
        outbox.flush()
        outbox.put(records(3, 2), 3)
        server.kill()
        with pytest.raises(ReplayError):
            outbox.flush()
        assert len(outbox) == 3
        server.start()
        outbox.flush()
        assert ([int(r["i"]) for r in buffer.records()], len(outbox)) == (list(range(5)), 0)


# Nothing is kept


@pytest.fixture(params=[False, True], ids=["nobody", "somebody"])
def forgetful(request, serve):
    """A server that keeps nothing, and whether somebody creates a buffer of the same name after the restart."""
    server = serve("nothing")
    server.recreates = request.param
    return server


def came_back(server):
    """It was killed and started, and has nothing, or another buffer."""
    server.restart()
    if server.recreates:
        with ReplayBuffer(server.url, "b", capacity=9, **QUEUE) as other:
            other.extend(records(9, 100))


CALLS = {
    "add": (record(1),), "extend": (records(2),), "sample": (1,), "get": (1,), "remove": (1,), "empty": (), "stats": (),
    "can_sample": (1,), "wait_until_sampleable": (1, 5), "shutdown": (), "doctor": (),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_each_call_says_that_all_is_gone(forgetful, kind):
    """A server that kept nothing has no buffer any more, or another one: each call of an old handle says that it is gone."""
    with ReplayBuffer(forgetful.url, "b", capacity=9, **QUEUE) as buffer:
        buffer.extend(records(3))
        handle = open_handle(kind, None, "b", target=forgetful.url)
        came_back(forgetful)
        found = {call: type(Running(handle.run, call, *given).error()) for call, given in CALLS.items()}
        handle.end()
    assert found == dict.fromkeys(CALLS, BufferGoneError)


def test_waits_end_when_all_is_gone(forgetful):
    """A blocked reader and a blocked writer are told, each within its poll; who opens it anew is told that it is not there."""
    options = {"capacity": 9, "poll_interval": 0.1, **QUEUE}
    with contextlib.ExitStack() as stack:
        buffer = stack.enter_context(ReplayBuffer(forgetful.url, "b", **options))
        full = stack.enter_context(ReplayBuffer(forgetful.url, "full", rate_limiter=limiters.Queue(1), **options))
        full.add(record(1))
        read, write = Running(buffer.sample, 2, wait=True), Running(full.add, record(2), timeout=20)
        for name in ("b", "full"):
            blocked(stack.enter_context(ReplayBuffer(forgetful.url, name)))
        came_back(forgetful)
        assert (read.how(), write.how()) == (BufferGoneError, BufferGoneError)
    with pytest.raises(BufferNotFoundError):
        ReplayBuffer(forgetful.url, "full")
