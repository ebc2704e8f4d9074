"""Sends what is packed, and reads the replies. Only _wire, _wakeup and the asyncio half of this file touch a socket.

Nothing that changes anything is sent twice here, except a script that the server did not know. A connection with an unread
reply is closed.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError, ResponseError

from redis_replay import _burst
from redis_replay._address import Address
from redis_replay._core import Core
from redis_replay._faults import Translator
from redis_replay._greet import Greeting
from redis_replay._lua import load
from redis_replay._requests import pack, pack_script
from redis_replay._steps import Call, Fetch, NotNowError, Pipe, ScriptMissingError
from redis_replay._wire import FakeWire, SocketWire, Wire
from redis_replay.exceptions import ServerRefusedError

FAULTS = (RedisError, OSError)
GREET_SECONDS = 1.0  # for the first words on a new connection


def _load_command(verb: str) -> bytes:
    return pack(b"SCRIPT", b"LOAD", load(verb).text.encode())


def _missing(replies: Sequence[Any]) -> bool:
    """Whether one of the replies, or of those inside an EXEC, says that a script is not loaded."""
    flat = [*replies, *(replies[-1] if replies and isinstance(replies[-1], list) else ())]
    return any(isinstance(reply, ScriptMissingError) for reply in flat)


def _pass_on_cancel(task: asyncio.Task[Any] | None, before: int) -> None:
    """Raises a cancellation that was swallowed: redis-py sends in a wait_for, which may do that before Python 3.12."""
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


class _Exchange:
    """What both kinds of connection know: how a step is packed, and what its replies mean."""

    def __init__(self, address: Address, core: Core) -> None:
        self.core = core
        self.address = address
        self.faults = Translator(core.name, str(address))

    def packed(self, step: Call | Pipe) -> tuple[str, Iterable[bytes], int]:
        """Name, bytes and number of replies of a step."""
        if isinstance(step, Pipe):
            return "pipeline", step.packed(), step.replies
        return step.script.verb, (pack_script(self.core, step.script),), 1

    def translate(self, verb: str, replies: list[Any]) -> list[Any]:
        """The server's refusals, in or out of an EXEC, as ours.

        Raises:
            NotNowError: it let nothing through, of a MULTI neither.
        """
        for i, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[i] = refusal = self.faults.refusal(verb, reply)
                if isinstance(refusal, NotNowError):
                    raise refusal
            elif isinstance(reply, list) and any(isinstance(r, Exception) for r in reply):
                replies[i] = [self.faults.refusal(verb, r) if isinstance(r, Exception) else r for r in reply]
        return replies

    def result(self, step: Call | Pipe, replies: list[Any]) -> Any:
        """What is sent back to the operation."""
        if isinstance(step, Pipe):
            return replies
        if isinstance(replies[0], ScriptMissingError):  # flushed again since it was loaded
            raise NotNowError(ServerRefusedError(address=str(self.address), verb=step.script.verb, reason=str(replies[0])))
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]


class Connection(_Exchange):
    """Sockets of one handle in one process, for threads: a stack of idle ones, the last used on top."""

    def __init__(self, address: Address, core: Core) -> None:
        super().__init__(address, core)
        self._idle: list[Wire] = []
        self._closed = False

    def run(self, step: Call | Pipe) -> Any:
        """Sends a step and gives its result; loads a script that the server does not know.

        Raises:
            LostError, NotNowError, ReplayError.
        """
        verb, packed, count = self.packed(step)
        replies = self._ask(verb, packed, count, step.timeout)
        if _missing(replies):
            for needed in step.needs if isinstance(step, Pipe) else (verb,):
                self._ask("SCRIPT LOAD", (_load_command(needed),), 1, step.timeout)
            if isinstance(step, Call):
                replies = self._ask(verb, packed, count, step.timeout)
        return self.result(step, replies)

    def fetch(self, step: Fetch) -> Any:
        """Reads stream entries. Reading twice harms nobody, so replies of an unexpected form are read again."""
        packed = (_burst.request(step),)
        if step.size is not None:
            try:
                return self._with_wire("XRANGE", step.timeout, lambda wire: wire.receive(packed, step))
            except _burst.IrregularError:
                pass
        return _burst.hand_on(step, self._ask("XRANGE", packed, len(step.indices) + 1, step.timeout))

    def _ask(self, verb: str, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        return self.translate(verb, self._with_wire(verb, timeout, lambda wire: wire.ask(packed, count, timeout)))

    def _with_wire(self, verb: str, timeout: float, use: Callable[[Wire], Any]) -> Any:
        """Whatever goes wrong, a socket with an unread reply is closed; and where one is dead, the idle ones are, too."""
        wire = None
        try:
            wire = self._idle_wire() or self._greeted(timeout)
            result = use(wire)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if isinstance(error, FAULTS):
                self._close_idle()
                raise self.faults.fault(verb, error, sent=wire is not None) from error
            raise
        if self._closed:
            wire.close()
        else:
            self._idle.append(wire)
        return result

    def _greeted(self, timeout: float) -> Wire:
        """A new socket for commands, on which the first words have been said."""
        wire = self.open(timeout)
        try:
            greeting = Greeting(self.core, str(self.address))
            while greeting.words:
                replies = wire.ask((greeting.words,), 1, min(timeout, GREET_SECONDS))
                greeting.heard(self.translate("greet", replies)[0])
        except BaseException:
            wire.close()
            raise
        return wire

    def open(self, timeout: float) -> Wire:
        """A new socket, logged in within `timeout`, for the caller to close."""
        connection = self.address.connection(timeout)
        return FakeWire(connection) if self.address.fake else SocketWire(connection)

    def _idle_wire(self) -> Wire | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _close_idle(self) -> None:
        while (wire := self._idle_wire()) is not None:
            wire.close()

    def close(self) -> None:
        """Closes every socket."""
        self._closed = True
        self._close_idle()


class AsyncConnection(_Exchange):
    """Sockets of one handle in one event loop. Its methods are those of Connection."""

    def __init__(self, address: Address, core: Core) -> None:
        super().__init__(address, core)
        self.pool = address.async_pool()
        self._greeted: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # connection -> the socket it had then

    async def run(self, step: Call | Pipe) -> Any:
        """Sends a step and gives its result; loads a script that the server does not know."""
        verb, packed, count = self.packed(step)
        replies = await self._exchange(verb, packed, count, step.timeout)
        if _missing(replies):
            for needed in step.needs if isinstance(step, Pipe) else (verb,):
                await self._exchange("SCRIPT LOAD", (_load_command(needed),), 1, step.timeout)
            if isinstance(step, Call):
                replies = await self._exchange(verb, packed, count, step.timeout)
        return self.result(step, replies)

    async def fetch(self, step: Fetch) -> Any:
        """Reads stream entries."""
        packed = (_burst.request(step),)
        return _burst.hand_on(step, await self._exchange("XRANGE", packed, len(step.indices) + 1, step.timeout))

    async def _exchange(self, verb: str, packed: Iterable[bytes], count: int, timeout: float) -> list[Any]:
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(timeout):
                connection = await self.pool.get_connection()
            await self._greet(connection, timeout)
        except FAULTS as error:
            raise self.faults.fault(verb, error, sent=False) from error
        try:
            await connection.send_packed_command(list(packed), check_health=False)
            _pass_on_cancel(task, cancels)
            replies = [await self._read(connection, timeout) for _ in range(count)]
        except FAULTS as error:
            await connection.disconnect(nowait=True)
            raise self.faults.fault(verb, error, sent=True) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self.pool.release(connection)
        return self.translate(verb, replies)

    async def _greet(self, connection: Any, timeout: float) -> None:
        """Says the first words on a connection that was opened, or opened anew, since its last use."""
        if self._greeted.get(connection) is connection._writer:
            return
        try:
            greeting = Greeting(self.core, str(self.address))
            while greeting.words:
                await connection.send_packed_command([greeting.words], check_health=False)
                reply = await self._read(connection, min(timeout, GREET_SECONDS))
                greeting.heard(self.translate("greet", [reply])[0])
        except BaseException:
            await connection.disconnect(nowait=True)
            await self.pool.release(connection)
            raise
        self._greeted[connection] = connection._writer

    @staticmethod
    async def _read(connection: Any, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):  # given to read_response, it would return None, and the reply unread
                return await connection.read_response()
        except ResponseError as error:
            return error

    async def close(self) -> None:
        """Closes every socket."""
        await self.pool.disconnect()
