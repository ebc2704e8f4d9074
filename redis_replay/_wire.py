"""One socket to the server: opened and logged in by redis-py, then spoken to directly.

redis-py's pool and parser cost more than a small script takes to run (docs/benchmarks.md), and every call passes here.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, Protocol

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from redis_replay import _burst
from redis_replay._steps import Fetch

READ_BYTES = 65536


class Wire(Protocol):
    """What a connection needs of a socket."""

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        """Sends, and reads `count` replies; an error is an item of the list."""

    def push(self, seconds: float) -> list[Any] | None:
        """A message of a subscription, if one comes within `seconds`."""

    def receive(self, packed: Iterable[bytes], step: Fetch) -> Any:
        """Sends, and puts the payloads in their rows without parsing."""

    def close(self) -> None:
        """Closes the socket."""


class SocketWire:
    """A socket of our own, with hiredis to parse."""

    def __init__(self, connection: Any) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection._sock
        self._reader = hiredis.Reader(replyError=ResponseError)
        self._buffer = bytearray(READ_BYTES)

    def _send(self, packed: Iterable[bytes], timeout: float) -> None:
        self._socket.settimeout(timeout)
        try:
            for piece in packed:
                self._socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            self._raise_last_words()
            raise

    def _raise_last_words(self) -> None:
        """A server that closes the connection on what it will not take says why: that tells more than a broken pipe."""
        for _ in range(2):  # the first look may find the reset itself
            with contextlib.suppress(OSError, RedisConnectionError):
                self._fill()
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, ResponseError):
                raise reply

    def _fill(self) -> None:
        got = self._socket.recv_into(self._buffer)
        if not got:
            raise RedisConnectionError("the server closed the connection")
        self._reader.feed(self._buffer, 0, got)  # type: ignore[arg-type]

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        self._send(packed, timeout)
        replies: list[Any] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is not False:
                replies.append(reply)
            else:
                self._fill()
        return replies

    def push(self, seconds: float) -> list[Any] | None:
        message = self._reader.gets()
        if message is False:
            self._socket.settimeout(max(seconds, 0.001))
            try:
                self._fill()
            except TimeoutError:
                return None
            message = self._reader.gets()
        return message or None

    def receive(self, packed: Iterable[bytes], step: Fetch) -> Any:
        if len(self._buffer) < (needed := _burst.buffer_bytes(step.size or 0)):
            self._buffer = bytearray(needed)
        self._send(packed, step.timeout)
        return _burst.receive(step, self._socket.recv_into, memoryview(self._buffer))

    def close(self) -> None:
        self._connection.disconnect()


class FakeWire:
    """A connection to a fakeredis, which has no socket."""

    def __init__(self, connection: Any) -> None:
        connection.connect()  # not by its first command: that leaves it unable to tell whether something can be read
        self._connection = connection

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        self._connection.send_packed_command(list(packed), check_health=False)
        return [self._read(timeout) for _ in range(count)]

    def _read(self, timeout: float) -> Any:
        try:
            return self._connection.read_response(timeout=timeout)
        except ResponseError as error:
            return error

    def push(self, seconds: float) -> list[Any] | None:
        return self._read(5.0) if self._connection.can_read(timeout=seconds) else None

    def receive(self, packed: Iterable[bytes], step: Fetch) -> Any:
        return _burst.hand_on(step, self.ask(packed, len(step.indices) + 1, step.timeout))

    def close(self) -> None:
        self._connection.disconnect()
