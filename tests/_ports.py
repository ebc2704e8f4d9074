"""Servers of a test's own: on TCP ports that nobody else can take, or that are picked anew if somebody has; with their log.

A port that was looked up beforehand, and let go, may be anybody's when the server starts. So it is held: a socket that is
bound to it and never listens keeps others off, while a server, which sets SO_REUSEADDR, may listen there, end and come
back; between them connections are refused. Only Linux shares a port like that. Elsewhere it was free a moment ago, no more.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_replay.embedded import EmbeddedServerError
from tests._helpers import wait_until

T = TypeVar("T")
TRIES = 5
_TAKEN = (
    "already in use",  # a server's log
    "another program uses it",  # an embedded server's error
    "unable to listen on this port",  # the answer to CONFIG SET tls-port
)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A TCP port of 127.0.0.1 for a server of the test's own, which may start there and end as often as it likes."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


@contextlib.contextmanager
def on_ports(start: Callable[..., contextlib.AbstractContextManager[T]], number: int = 1) -> Iterator[T]:
    """What `start(*ports)` gives, entered; with other ports where it fails because one of them is taken all the same."""
    for left in reversed(range(TRIES)):
        with contextlib.ExitStack() as stack:
            ports = [stack.enter_context(held_port()) for _ in range(number)]
            try:
                made = stack.enter_context(start(*ports))
            except (EmbeddedServerError, ServerEndedError, redis.ResponseError) as error:
                if left and any(words in str(error).lower() for words in _TAKEN):
                    continue
                raise
            yield made
            return


class ServerEndedError(AssertionError):
    """A server ended while it started, or did not answer in time. The text ends with its log."""


class Program:
    """A server that runs a command of its own, from the moment that it answers until `kill()`, or the end of a `with`.

    `where` is how redis-py reaches it: `port=`, or `unix_socket_path=`. It counts as there when the answer is its own: on a
    port that another server had first, that one would answer.
    """

    def __init__(self, command: list[str], timeout: float = 10, **where: Any) -> None:
        self._where = where
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                wait_until(lambda: self._process.poll() is not None or self._answers(), timeout, "the server")
                ended = self._process.poll() is not None
            except BaseException as error:
                self.kill()
                raise ServerEndedError(f"{error}; its log ends:\n{_end_of(log)}") from error
            if ended:
                raise ServerEndedError(f"{command[0]} ended while starting; its log ends:\n{_end_of(log)}")

    def _answers(self) -> bool:
        once = Retry(NoBackoff(), 0)  # by itself it tries four times, over seconds
        with redis.Redis(**self._where, socket_timeout=1, retry=once) as client, contextlib.suppress(redis.RedisError):
            return client.info("server")["process_id"] == self._process.pid  # a loading server tells that, too
        return False

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _end_of(log: Any) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-12:]) or "(empty)"
