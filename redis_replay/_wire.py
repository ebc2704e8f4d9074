"""One socket to the server: opened and logged in by redis-py, then spoken to directly. What it raises is a WireError.

redis-py's pool and parser cost more than a small script takes to run (docs/benchmarks.md), and every call passes here.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from redis_replay import _burst
from redis_replay._clock import monotonic
from redis_replay._faults import FAULTS, by_handler
from redis_replay._requests import pack
from redis_replay._span import Span
from redis_replay._steps import Fetch

READ_BYTES = 65536
ARM_SECONDS = 0.05  # by which a socket's own timeout may be too long: setting it costs a system call
PING_SECONDS = 5.0  # of silence, after which a subscription is asked whether it is still there
PONG_SECONDS = 5.0  # for its answer
PING = (pack(b"PING"),)
CLOSED = "the server closed the connection"


class Wire(Protocol):
    """What a connection needs of a socket. `born`: when it began to be opened; `greeted`: the first words have been said."""

    born: float
    greeted: bool

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        """Sends, and reads `count` replies, all within `timeout`; an error is an item of the list."""

    def push(self, seconds: float) -> list[Any] | None:
        """A message of a subscription, if one comes within `seconds`."""

    def receive(self, packed: Iterable[bytes], step: Fetch, timeout: float) -> list[Any]:
        """Sends, and puts payloads in their rows without parsing. The replies that are left, the last one among them."""

    def close(self) -> None:
        """Closes the socket."""


def _parser() -> hiredis.Reader:
    return hiredis.Reader(replyError=ResponseError, protocolError=InvalidResponse)


def _are_there(replies: list[Any], count: int, reader: hiredis.Reader) -> bool:
    """Whether so many replies are, with those that have come, which are put there."""
    while len(replies) < count and (reply := reader.gets()) is not False:
        replies.append(reply)
    return len(replies) == count


class _Timely:
    """A socket while redis-py logs in on it: each of its reads has a timeout, and here they share one."""

    def __init__(self, own: Any, arm: Callable[[], None]) -> None:
        self.own = own
        self.arm: Callable[[], None] | None = arm

    def __getattr__(self, name: str) -> Any:
        if self.arm is not None and name in ("recv", "recv_into", "sendall"):
            self.arm()
        return getattr(self.own, name)


class _Pulse:
    """Whether a silent subscription is still there: the other end may have gone without a word."""

    def __init__(self) -> None:
        self._heard = monotonic()
        self._asked = 0.0

    def beat(self) -> None:
        """Something came."""
        self._heard, self._asked = monotonic(), 0.0

    def asks(self) -> bool:
        """Whether to send a PING now."""
        if self._asked or monotonic() - self._heard < PING_SECONDS:
            return False
        self._asked = monotonic()
        return True

    def check(self) -> None:
        """Nothing came."""
        if self._asked and monotonic() - self._asked >= PONG_SECONDS:
            raise RedisConnectionError("no answer to a PING")


class SocketWire:
    """A socket of our own, with hiredis to parse."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self.born, self.greeted = monotonic(), False
        self._span = Span()
        self._span.begin(timeout)
        self._armed = 0.0
        connection.redis_connect_func = self._log_in
        try:
            with FAULTS:
                connection.connect()
        finally:
            connection.redis_connect_func = None  # in a circle a socket would outlive its last user
        self._connection = connection
        self._reader = _parser()
        self._buffer = bytearray(READ_BYTES)
        self._pulse = _Pulse()

    def _log_in(self, connection: Any) -> None:
        self._socket = connection._sock
        connection._sock = timely = _Timely(self._socket, self._arm)
        try:
            connection.on_connect()
        finally:
            timely.arm = None

    def _arm(self) -> None:
        """Sees to it that what the socket does next ends in time."""
        left = self._span.left()
        if not left <= self._armed <= left + ARM_SECONDS:
            self._socket.settimeout(left)
            self._armed = left

    def _send(self, packed: Iterable[bytes]) -> None:
        try:
            for piece in packed:
                self._arm()
                if (sent := self._socket.send(piece)) < len(piece):
                    self._send_rest(memoryview(piece)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            self._raise_last_words()
            raise

    def _send_rest(self, rest: memoryview) -> None:
        while rest:
            self._arm()
            rest = rest[self._socket.send(rest) :]

    def _raise_last_words(self) -> None:
        """A server that closes the connection on what it will not take says why: that tells more than a broken pipe."""
        for _ in range(2):  # the first look may find the reset itself
            with suppress(OSError, RedisConnectionError):
                self._fill()
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, ResponseError):
                raise reply

    def _receive_into(self, room: memoryview | bytearray) -> int:
        self._arm()
        got: int = self._socket.recv_into(room)
        self._span.came(got)
        return got

    def _fill(self) -> None:
        got = self._receive_into(self._buffer)
        if not got:
            raise RedisConnectionError(CLOSED)
        self._reader.feed(self._buffer, 0, got)  # type: ignore[arg-type]

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        with FAULTS:
            self._span.begin(timeout)
            self._send(packed)
            return self._replies(count)

    def _replies(self, count: int) -> list[Any]:
        replies: list[Any] = []
        while not _are_there(replies, count, self._reader):
            self._fill()
        return replies

    def push(self, seconds: float) -> list[Any] | None:
        with FAULTS:
            message = self._reader.gets()
            if message is not False:
                return message  # type: ignore[no-any-return]
            if self._pulse.asks():
                self._span.begin(PONG_SECONDS)
                self._send(PING)
            self._armed = 0.0  # to the millisecond: a pause ends by this
            self._span.begin(max(seconds, 0.001))
            try:
                self._fill()
            except TimeoutError as error:
                if by_handler(error):
                    raise
                self._pulse.check()
                return None
            self._pulse.beat()
            return self._reader.gets() or None

    def receive(self, packed: Iterable[bytes], step: Fetch, timeout: float) -> list[Any]:
        if len(self._buffer) < (needed := _burst.buffer_bytes(step.size or 0)):
            self._buffer = bytearray(needed)
        with FAULTS:
            self._span.begin(timeout)
            self._send(packed)
            taking = _burst.receive(step, memoryview(self._buffer))
            try:
                room = next(taking)
                while True:
                    room = taking.send(self._receive_into(room))
            except StopIteration as done:
                left, rest = done.value
            self._reader.feed(rest)
            return self._replies(left)

    def close(self) -> None:
        self._connection.disconnect()


class FakeWire:
    """A connection to a fakeredis, which has no socket."""

    def __init__(self, connection: Any) -> None:
        self.born, self.greeted = monotonic(), False
        with FAULTS:
            connection.connect()  # not by its first command: that leaves it unable to tell whether something can be read
        self._connection = connection

    def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        with FAULTS:
            self._connection.send_packed_command(list(packed), check_health=False)
            return [self._read(timeout) for _ in range(count)]

    def _read(self, timeout: float) -> Any:
        try:
            return self._connection.read_response(timeout=timeout)
        except ResponseError as error:
            return error

    def push(self, seconds: float) -> list[Any] | None:
        with FAULTS:
            return self._read(5.0) if self._connection.can_read(timeout=seconds) else None

    def receive(self, packed: Iterable[bytes], step: Fetch, timeout: float) -> list[Any]:
        return self.ask(packed, len(step.index) + 1, timeout)

    def close(self) -> None:
        self._connection.disconnect()


class AsyncSocketWire:
    """A socket of an event loop. Its methods are those of SocketWire."""

    def __init__(self, connection: Any) -> None:
        self.born, self.greeted = monotonic(), False
        self._connection = connection
        self._reader = _parser()
        self._pulse = _Pulse()
        self._span = Span()

    async def open(self, timeout: float) -> None:
        """Connects and logs in."""
        try:
            with FAULTS:
                async with asyncio.timeout(timeout):
                    await self._connection.connect()
        except BaseException:
            await self.close()
            raise

    async def _send(self, packed: Iterable[bytes]) -> None:
        writer = self._connection._writer
        for piece in packed:
            writer.write(piece)
            async with asyncio.timeout(self._span.left()):
                await writer.drain()

    async def _read(self, most: int) -> bytes:
        async with asyncio.timeout(self._span.left()):
            got: bytes = await self._connection._reader.read(most)
        self._span.came(len(got))
        return got

    async def _fill(self) -> None:
        got = await self._read(READ_BYTES)
        if not got:
            raise RedisConnectionError(CLOSED)
        self._reader.feed(got)

    async def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        """As SocketWire.ask."""
        with FAULTS:
            self._span.begin(timeout)
            await self._send(packed)
            return await self._replies(count)

    async def _replies(self, count: int) -> list[Any]:
        replies: list[Any] = []
        while not _are_there(replies, count, self._reader):
            await self._fill()
        return replies

    async def receive(self, packed: Iterable[bytes], step: Fetch, timeout: float) -> list[Any]:
        """As SocketWire.receive."""
        with FAULTS:
            self._span.begin(timeout)
            await self._send(packed)
            taking = _burst.receive(step, memoryview(bytearray(_burst.buffer_bytes(step.size or 0))))
            try:
                room = next(taking)
                while True:
                    got = await self._read(len(room))
                    room[: len(got)] = got
                    room = taking.send(len(got))
            except StopIteration as done:
                left, rest = done.value
            self._reader.feed(rest)
            return await self._replies(left)

    async def push(self, seconds: float) -> list[Any] | None:
        """As SocketWire.push."""
        with FAULTS:
            message = self._reader.gets()
            if message is not False:
                return message  # type: ignore[no-any-return]
            if self._pulse.asks():
                self._span.begin(PONG_SECONDS)
                await self._send(PING)
            self._span.begin(max(seconds, 0.001))
            try:
                await self._fill()
            except TimeoutError as error:
                if by_handler(error):
                    raise
                self._pulse.check()
                return None
            self._pulse.beat()
            return self._reader.gets() or None

    async def close(self) -> None:
        """Closes the socket, and waits for nothing: what was not sent yet is given up, or a dead server would keep it, and TLS
        would wait for the server's goodbye, perhaps beyond the end of the event loop.
        """
        with suppress(RuntimeError):  # its event loop is over
            if (writer := self._connection._writer) is not None:
                writer.transport.abort()
            await self._connection.disconnect(nowait=True)


class AsyncFakeWire:
    """A connection of an event loop to a fakeredis."""

    def __init__(self, connection: Any) -> None:
        self.born, self.greeted = monotonic(), False
        self._connection = connection

    async def open(self, _timeout: float) -> None:
        """Connects."""
        with FAULTS:
            await self._connection.connect()

    async def ask(self, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        """As SocketWire.ask."""
        with FAULTS:
            await self._connection.send_packed_command(list(packed), check_health=False)
            async with asyncio.timeout(timeout):
                return [await self._read() for _ in range(count)]

    async def receive(self, packed: Iterable[bytes], step: Fetch, timeout: float) -> list[Any]:
        """As FakeWire.receive."""
        return await self.ask(packed, len(step.index) + 1, timeout)

    async def _read(self) -> Any:
        try:
            return await self._connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            return error

    async def push(self, seconds: float) -> list[Any] | None:
        """As SocketWire.push."""
        with FAULTS:
            try:
                async with asyncio.timeout(seconds):
                    return await self._read()  # type: ignore[no-any-return]
            except TimeoutError:
                return None

    async def close(self) -> None:
        """Closes it."""
        await self._connection.disconnect(nowait=True)
