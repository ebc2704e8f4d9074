"""Sends what is packed, and reads the replies. Only _wire touches a socket.

Nothing that changes anything is sent twice here, except what was not done because the server did not know a script. A
connection with an unread reply is closed.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis_replay import _burst
from redis_replay._address import Address
from redis_replay._clock import monotonic
from redis_replay._core import Core
from redis_replay._faults import Outage, Translator, WireError
from redis_replay._greet import Greeting
from redis_replay._lua import load
from redis_replay._requests import pack, pack_script
from redis_replay._steps import Call, Fetch, NotNowError, Pipe, ScriptMissingError, UnansweredError
from redis_replay._wire import AsyncFakeWire, AsyncSocketWire, FakeWire, SocketWire, Wire

AsyncWire = AsyncSocketWire | AsyncFakeWire
GREET_SECONDS = 1.0  # for the first words on a new connection
MOMENT = 0.02  # seconds
TRIES = 2  # of a step whose scripts are not loaded


def _load_command(verb: str) -> bytes:
    return pack(b"SCRIPT", b"LOAD", load(verb).text.encode())


def _missing(replies: Sequence[Any]) -> bool:
    """Whether one of the replies, or of those inside an EXEC, says that a script is not loaded."""
    flat = [*replies, *(replies[-1] if replies and isinstance(replies[-1], list) else ())]
    return any(isinstance(reply, ScriptMissingError) for reply in flat)


def _left(until: float) -> float:
    """Seconds until then. Never none: what has no time left is tried in a moment."""
    return max(MOMENT, until - monotonic())


def _check(until: float) -> None:
    """A request for which no time is left is not sent: so it is known that it was not.

    Raises:
        WireError: the time is over.
    """
    if monotonic() >= until:
        raise WireError(TimeoutError("timed out before anything was sent"))


def _loaded(replies: list[Any]) -> None:
    """Raises what SCRIPT LOAD was refused with."""
    if isinstance(replies[0], Exception):
        raise replies[0]


class _Exchange:
    """What both kinds of connection know: how a step is packed, what its replies mean, and which sockets are idle."""

    def __init__(self, address: Address, core: Core) -> None:
        self.core = core
        self.address = address
        self.faults = Translator(core.name, str(address))
        self.outage = Outage(core.name, str(address))
        self._idle: list[Any] = []
        self._closed = False

    def packed(self, step: Call | Pipe) -> tuple[str, Iterable[bytes], int]:
        """Name, bytes and number of replies of a step."""
        if isinstance(step, Pipe):
            return "pipeline", step.packed(), step.replies
        return step.script.verb, (pack_script(self.core, step.script),), 1

    def named(self, step: Fetch) -> str:
        """What errors call it."""
        return step.needs[0] if step.needs else "XRANGE"

    def needed(self, step: Call | Pipe | Fetch) -> list[bytes]:
        """The commands that load the scripts of a step."""
        return [_load_command(verb) for verb in ((step.script.verb,) if isinstance(step, Call) else step.needs)]

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

    def judged(self, verb: str, reply: Any) -> Any:
        """One reply; a refusal, "not now" too, as ours."""
        return self.faults.refusal(verb, reply) if isinstance(reply, Exception) else reply

    def _greeting(self, wire: Wire | AsyncWire) -> Greeting | None:
        """The first words, if they are still to be said on this socket."""
        return None if wire.greeted or not self.core.capacity else Greeting(self.core, str(self.address))

    def result(self, step: Call | Pipe, replies: list[Any]) -> Any:
        """What is sent back to the operation."""
        if isinstance(step, Pipe):
            return replies
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]

    def fetched(self, step: Fetch, replies: list[Any]) -> Any:
        """What is sent back to the operation."""
        last = _burst.hand_on(step, replies)
        if isinstance(last, Exception):
            step.lacks = True
            raise last
        return last

    def flushed(self, verb: str) -> NotNowError:
        """The scripts were flushed again since they were loaded."""
        return self.faults.not_now(verb, "NOSCRIPT No matching script")

    def failed(self, verb: str, error: WireError | NotNowError, wire: Wire | AsyncWire | None) -> Exception:
        """What it means for the operation. A server that says "not now" may have given its place to another."""
        found: Exception = error
        if isinstance(error, WireError):
            found = self.faults.fault(verb, error.error, sent=wire is not None)
        if isinstance(found, UnansweredError):
            if self.core.cache is not None:
                self.core.cache.clear()
            lost = isinstance(error, WireError) and wire is not None
            self.outage.begin(found, wire.born if wire is not None and lost else monotonic())
        return found

    def _idle_wire(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _keeps(self, wire: Wire | AsyncWire) -> bool:
        """Whether a socket that has served may serve again. One from before an outage does not show that it is over."""
        if self.outage.lost:
            self.outage.end(wire.born)
        return not (self._closed or self.outage.lost)


class Connection(_Exchange):
    """Sockets of one handle in one process, for threads: a stack of idle ones, the last used on top."""

    def run(self, step: Call | Pipe) -> Any:
        """Sends a step and gives its result; loads scripts that the server does not know.

        Raises:
            LostError, NotNowError, ReplayError.
        """
        until = monotonic() + step.timeout
        for _ in range(TRIES):
            verb, packed, count = self.packed(step)
            replies = self._ask(verb, packed, count, until)
            if not _missing(replies):
                return self.result(step, replies)
            for command in self.needed(step):
                _loaded(self._ask("SCRIPT LOAD", (command,), 1, until))
        raise self.flushed(verb)

    def fetch(self, step: Fetch) -> Any:
        """Reads stream entries, and gives the reply to the command behind them."""
        verb, until = self.named(step), monotonic() + step.timeout
        for _ in range(TRIES):
            packed = (_burst.request(step),)

            def receive(wire: Wire) -> list[Any]:
                return self.translate(verb, wire.receive(packed, step, _left(until)))  # noqa: B023

            replies = self._with_wire(verb, _left(until), receive)
            if not _missing(replies):
                return self.fetched(step, replies)
            for command in self.needed(step):
                _loaded(self._ask("SCRIPT LOAD", (command,), 1, until))
        raise self.flushed(verb)

    def _ask(self, verb: str, packed: Iterable[bytes], count: int, until: float) -> list[Any]:
        def ask(wire: Wire) -> list[Any]:
            return self.translate(verb, wire.ask(packed, count, _left(until)))

        return self._with_wire(verb, _left(until), ask)  # type: ignore[no-any-return]

    def _with_wire(self, verb: str, timeout: float, use: Callable[[Wire], Any]) -> Any:
        """Whatever goes wrong, a socket with an unread reply is closed; and where one is dead, the idle ones are, too."""
        wire = None
        try:
            wire = self._greeted(timeout)
            result = use(wire)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if isinstance(error, (WireError, NotNowError)):
                self._close_idle()
                raise self.failed(verb, error, wire) from error.__cause__
            raise
        if self._keeps(wire):
            self._idle.append(wire)
        else:
            wire.close()
        return result

    def _greeted(self, timeout: float) -> Wire:
        """A socket for commands, on which the first words have been said, all within `timeout`."""
        until = monotonic() + timeout
        wire: Wire = self._idle_wire() or self.open(timeout)
        greeting = self._greeting(wire)
        try:
            while greeting and greeting.words:
                reply = wire.ask((greeting.words,), 1, min(_left(until), GREET_SECONDS))[0]
                wire.greeted = greeting.heard(self.judged("greet", reply))
            _check(until)
        except BaseException:
            wire.close()
            raise
        return wire

    def open(self, timeout: float) -> Wire:
        """A new socket, logged in within `timeout`, for the caller to close."""
        connection = self.address.connection(timeout)
        return FakeWire(connection) if self.address.fake else SocketWire(connection, timeout)

    def lose(self, error: WireError, wire: Wire) -> None:
        """The subscription was lost: so are, perhaps, the other sockets."""
        self.outage.begin(error, wire.born)
        self._close_idle()

    def _close_idle(self) -> None:
        while (wire := self._idle_wire()) is not None:
            wire.close()

    def close(self) -> None:
        """Closes every socket."""
        self._closed = True
        self._close_idle()


class AsyncConnection(_Exchange):
    """Sockets of one handle in one event loop. Its methods are those of Connection."""

    async def run(self, step: Call | Pipe) -> Any:
        """Sends a step and gives its result; loads scripts that the server does not know."""
        until = monotonic() + step.timeout
        for _ in range(TRIES):
            verb, packed, count = self.packed(step)
            replies = await self._ask(verb, packed, count, until)
            if not _missing(replies):
                return self.result(step, replies)
            for command in self.needed(step):
                _loaded(await self._ask("SCRIPT LOAD", (command,), 1, until))
        raise self.flushed(verb)

    async def fetch(self, step: Fetch) -> Any:
        """Reads stream entries, and gives the reply to the command behind them."""
        verb, until = self.named(step), monotonic() + step.timeout
        for _ in range(TRIES):
            packed = (_burst.request(step),)

            async def receive(wire: AsyncWire) -> list[Any]:
                return self.translate(verb, await wire.receive(packed, step, _left(until)))  # noqa: B023

            replies = await self._with_wire(verb, _left(until), receive)
            if not _missing(replies):
                return self.fetched(step, replies)
            for command in self.needed(step):
                _loaded(await self._ask("SCRIPT LOAD", (command,), 1, until))
        raise self.flushed(verb)

    async def _ask(self, verb: str, packed: Iterable[bytes], count: int, until: float) -> list[Any]:
        async def ask(wire: AsyncWire) -> list[Any]:
            return self.translate(verb, await wire.ask(packed, count, _left(until)))

        return await self._with_wire(verb, _left(until), ask)  # type: ignore[no-any-return]

    async def _with_wire(self, verb: str, timeout: float, use: Callable[[AsyncWire], Awaitable[Any]]) -> Any:
        wire = None
        try:
            wire = await self._greeted(timeout)
            result = await use(wire)
        except BaseException as error:
            if wire is not None:
                await wire.close()
            if isinstance(error, (WireError, NotNowError)):
                await self._close_idle()
                raise self.failed(verb, error, wire) from error.__cause__
            raise
        if self._keeps(wire):
            self._idle.append(wire)
        else:
            await wire.close()
        return result

    async def _greeted(self, timeout: float) -> AsyncWire:
        """A socket for commands, on which the first words have been said, all within `timeout`."""
        until = monotonic() + timeout
        wire: AsyncWire = self._idle_wire() or await self.open(timeout)
        greeting = self._greeting(wire)
        try:
            while greeting and greeting.words:
                reply = (await wire.ask((greeting.words,), 1, min(_left(until), GREET_SECONDS)))[0]
                wire.greeted = greeting.heard(self.judged("greet", reply))
            _check(until)
        except BaseException:
            await wire.close()
            raise
        return wire

    async def open(self, timeout: float) -> AsyncWire:
        """A new socket, logged in within `timeout`, for the caller to close."""
        connection = self.address.async_connection(timeout)
        wire: AsyncWire = AsyncFakeWire(connection) if self.address.fake else AsyncSocketWire(connection)
        await wire.open(timeout)
        return wire

    async def lose(self, error: WireError, wire: AsyncWire) -> None:
        """The subscription was lost: so are, perhaps, the other sockets."""
        self.outage.begin(error, wire.born)
        await self._close_idle()

    async def _close_idle(self) -> None:
        while (wire := self._idle_wire()) is not None:
            await wire.close()

    async def close(self) -> None:
        """Closes every socket."""
        self._closed = True
        await self._close_idle()
