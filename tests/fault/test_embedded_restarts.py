"""A directory of `embedded:///dir` after its server, its owner, or both were killed: the next open resumes by itself."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from redis_replay import ReplayBuffer, embedded, samplers
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import EmbeddedServerError
from tests import _server
from tests._helpers import is_alive, wait_until
from tests._waiting import Running, records

pytestmark = pytest.mark.fault
ROOT = Path(__file__).parents[2]
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}

OWNER = """
import sys, numpy as np
from redis_replay import ReplayBuffer, samplers
buffer = ReplayBuffer(f"embedded://{sys.argv[1]}", "b", capacity=10**6, sampler=samplers.Fifo(), consume_after_n_samples=1)
print(buffer._server.pid, flush=True)
while True:
    print(buffer.extend({"i": buffer.write_count + np.arange(3)})[-1], buffer.write_count, flush=True)
"""


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def url(directory):
    return f"embedded://{directory}"


@contextlib.contextmanager
def program(code, *arguments):
    """A process that runs `code`; killed at the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def pid_of(buffer):
    """Of the server that the handle started."""
    return buffer._server.pid


def stored(buffer):
    return [int(record["i"]) for record in buffer.records()]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 2, "the server's end")


@pytest.fixture(params=_server.REAL)
def by_each_server(request, monkeypatch):
    """`embedded://` runs each server in turn."""
    binary = _server.find(request.param) or _server.missing(request.param)
    monkeypatch.setattr(embedded, "find_binary", lambda: binary)


def test_next_open_resumes_after_the_server_was_killed(by_each_server, url):
    """Nobody closed anything, the handle on the dead server is still open: the next one has all that was acknowledged."""
    with ReplayBuffer(url, "b", capacity=100, **QUEUE) as old:
        old.extend(records(10))
        drawn = old.sample(4)["i"].tolist()
        old.can_sample(1)
        kill(pid_of(old))
        with ReplayBuffer(url, "b") as buffer:
            assert (drawn + buffer.sample(6)["i"].tolist(), len(buffer)) == (list(range(10)), 0)
            assert (buffer.stats()["restarts"], buffer.doctor().findings) == (1, ())


def test_next_open_resumes_after_the_owner_was_killed(url, directory):
    """Its owner is killed while it writes: the server ends with it, and the next open has all that the owner was answered."""
    with program(OWNER, directory) as process:
        pid = int(process.stdout.readline())
        lines = [process.stdout.readline().split() for _ in range(5)]
        process.kill()
        lines += [line.split() for line in process.stdout.read().splitlines()]
    acknowledged = int(lines[-1][-1])
    with ReplayBuffer(url, "b") as buffer:
        assert stored(buffer)[:acknowledged] == list(range(acknowledged))
        assert (len(buffer) % 3, buffer.write_count, buffer.doctor().findings) == (0, len(buffer), ())
    assert not is_alive(pid)


def test_owner_and_server_and_watcher_killed_at_once(url, directory):
    """Nobody is left to clean up; what lies about, the lock and the socket's folder, hinders nobody."""
    with program(OWNER, directory) as process:
        pid = int(process.stdout.readline())
        watcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        process.stdout.readline()
        for victim in (watcher, pid, process.pid):
            os.kill(victim, signal.SIGKILL)
        told = [line.split() for line in process.stdout.read().splitlines()]
    with ReplayBuffer(url, "b") as buffer:
        assert len(buffer) >= int(told[-1][-1] if told else 3)
        assert buffer.doctor().findings == ()


def test_dead_lock_and_half_a_rewrite_hinder_nobody(url, directory):
    """A lock that names a socket that is no more, and what a killed server's rewrite left: the first means nothing, the
    second, which may be as large as the data, is gone after the next open.
    """
    with ReplayBuffer(url, "b", capacity=100) as buffer:
        buffer.extend(records(3))
    (directory / "lock").write_text("/nowhere/s" + "x" * 300)
    (directory / "temp-rewriteaof-123.aof").write_text("half")
    with ReplayBuffer(url, "b") as buffer:
        assert (stored(buffer), (directory / "temp-rewriteaof-123.aof").exists()) == ([0, 1, 2], False)


def test_rewrite_that_outlives_its_server_is_waited_for(by_each_server, url, directory, monkeypatch):
    """A server is killed while a child of it rewrites the file, which holds the directory meanwhile: the next open waits."""
    monkeypatch.setattr(embedded, "_LOCK_S", 0.1)
    with ReplayBuffer(url, "b", capacity=100) as old:
        old.extend(records(5))
        with redis.Redis.from_url(old._server.url) as client:
            client.config_set("rdb-key-save-delay", 100_000)  # µs for each of its ten keys or so
            client.bgrewriteaof()
            wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"], 5, "the rewrite")
        old.extend(records(5, 5))
        kill(pid_of(old))
        with ReplayBuffer(url, "b") as buffer:
            assert (stored(buffer), list(directory.glob("temp-*"))) == (list(range(10)), [])


def test_two_processes_get_it_one_after_the_other(url, directory):
    """While one has it another is refused, at once and by name; once the first was killed, the other has it, and all data."""
    open_it = "import sys; from redis_replay import ReplayBuffer, embedded; embedded._LOCK_S = 0.1\n"
    with program(OWNER, directory) as first:
        pid = int(first.stdout.readline())
        first.stdout.readline()
        with program(f"{open_it}ReplayBuffer(f'embedded://{directory}', 'b')") as second:
            assert "is in use by another embedded server" in second.communicate(timeout=20)[1]
        assert is_alive(pid)
        first.kill()
        lines = first.stdout.read().splitlines()
    with ReplayBuffer(url, "b") as buffer:
        assert len(buffer) >= int(lines[-1].split()[-1])


def test_of_many_that_open_it_at_once_one_has_it(directory, monkeypatch):
    """Eight threads race for a directory: one has it, all others are refused, also where a dead server had it before."""
    monkeypatch.setattr(embedded, "_LOCK_S", 0.3)
    with EmbeddedServer(directory) as dead:
        kill(dead.pid)
        calls = [Running(EmbeddedServer, directory) for _ in range(8)]
        ended = [call.error() or call.result() for call in calls]
    servers = [one for one in ended if isinstance(one, EmbeddedServer)]
    assert (len(servers), sum(isinstance(one, EmbeddedServerError) for one in ended)) == (1, 7)
    servers[0].close()
