"""One subscription for each client, shared by its waiting calls: notices come in here and go to the lane they name.

A notice is a hint: a lost one costs a poll. After a loss the subscription is opened anew, and every waiting call checks.
"""

import asyncio
import threading
from typing import Any

from redis_replay._clock import monotonic
from redis_replay._connection import AsyncConnection, AsyncWire, Connection
from redis_replay._faults import WireError
from redis_replay._requests import pack
from redis_replay._steps import EVENTS, Listen, Notice, Pause
from redis_replay._wire import Wire
from redis_replay.exceptions import BufferClosedError

SLICE_SECONDS = 0.25  # how long a closed handle, or a program that ends, may go unnoticed
CANCEL_SECONDS = 0.1  # how long a cancel_event may
SUBSCRIBE_SECONDS = 1.0  # for a subscription to be confirmed, in an event loop
REOPEN_SECONDS = 0.5  # at least, between two tries to open a subscription

Message = dict[str, Any]


class _Boxes:
    """What both kinds of listener know: which lane has which notice."""

    def __init__(self, connection: Any) -> None:
        self.core = connection.core
        self.outage = connection.outage
        self.channels = (self.core.channel, self.core.keys.events)
        self.request = (pack(b"SUBSCRIBE", *(c.encode() for c in self.channels)),)
        self.notices: dict[str, Notice] = {}
        self.generation = 0  # subscriptions opened so far
        self.seen: dict[str, int] = {}  # lane -> the generation that it last looked under
        self.closed = False
        self.tried = -REOPEN_SECONDS  # when a subscription was last asked for

    def early(self) -> float:
        """Seconds until the next try to have a subscription: also where each one is had, and cut at once."""
        return self.tried + REOPEN_SECONDS - monotonic()

    def opened(self, replies: list[Any]) -> None:
        """Takes in how SUBSCRIBE was answered. Every wait looks at once."""
        if refusal := next((r for r in replies if isinstance(r, Exception)), None):
            raise WireError(refusal)
        self.generation += 1
        self.outage.hear()

    def put(self, message: Message | None) -> None:
        """Takes a message of the subscription in."""
        if message is None or message["type"] != "message":
            return
        if message["channel"].decode() == self.core.keys.events:
            self.notices[EVENTS] = Notice("wake")
            return
        words = message["data"].decode(errors="replace").split(" ")  # anybody may publish
        after = int(words[2]) / 1e6 if len(words) == 3 and words[2].isdecimal() and len(words[2]) < 16 else 0.0
        if len(words) > 1 and words[1] in self.seen:
            self.notices[words[1]] = Notice(words[0], after)

    def begin(self, lane: str) -> None:
        """What came for the lane before concerns another wait."""
        self.notices.pop(lane, None)
        self.seen[lane] = self.generation

    def take(self, lane: str, cancel_event: Any) -> Notice | None:
        """Why the lane's pause ends now, if it does."""
        if self.closed:
            raise BufferClosedError(name=self.core.name)
        if notice := self.notices.pop(lane, None):
            return notice
        if cancel_event is not None and cancel_event.is_set():
            return Notice("cancelled")
        seen, self.seen[lane] = self.seen.get(lane, self.generation), self.generation
        return Notice("lost") if seen != self.generation else None


def _message(push: Any) -> Message | None:
    if not isinstance(push, list) or len(push) < 3:  # a PING is answered by two, or refused
        return None
    return {"type": push[0].decode(), "channel": push[1], "data": push[2]}


def _slice(until: float, cancel_event: Any) -> float:
    return max(0.0, min(until - monotonic(), SLICE_SECONDS if cancel_event is None else CANCEL_SECONDS))


class Listener(_Boxes):
    """For threads: whoever waits and finds nobody reading reads for all."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection
        self._pubsub: Wire | None = None
        self._lock = threading.RLock()  # taken by itself: an interrupt inside Condition's own `with` could leave it taken
        self._turn = threading.Condition(self._lock)
        self._reading = False

    def open(self, step: Listen) -> None:
        """Has the subscription confirmed, or gives up after `timeout`: then the poll alone must do."""
        self.begin(step.lane)
        until = monotonic() + step.timeout
        while not self._opened(until) and monotonic() < until:
            pass
        self.begin(step.lane)

    def _opened(self, until: float) -> bool:
        """One try to have a subscription, by the one who reads; the others wait for it. Whether there is one, or was a try."""
        leads = False
        try:
            with self._lock:
                if self._pubsub is not None or self.closed:
                    return True
                leads = not self._reading
                self._reading = True
                if not leads:
                    self._turn.wait(_slice(until, None))
            if leads:
                self._subscribe(max(0.05, until - monotonic()))
        except WireError as error:
            self.outage.deafen(error)
            return True
        finally:
            if leads:
                self._hand_over()
        return leads

    def _subscribe(self, timeout: float) -> None:
        self.tried = monotonic()
        wire = self._connection.open(timeout)
        try:
            left = max(0.05, self.tried + timeout - monotonic())
            self.opened(wire.ask(self.request, len(self.channels), left))
        except BaseException:
            wire.close()
            raise
        self._pubsub = wire

    def pause(self, step: Pause) -> Notice:
        """Blocks until there is a notice for the lane, or another reason to go on.

        Raises:
            BufferClosedError: the handle was closed, or the program ends.
        """
        until = monotonic() + step.seconds
        while True:
            if notice := self._look(step, until):
                return notice
            if monotonic() >= until:
                return self.notices.pop(step.lane, Notice("poll"))
            if not threading.main_thread().is_alive():
                raise BufferClosedError(name=self.core.name)

    def _look(self, step: Pause, until: float) -> Notice | None:
        """One slice of a pause: reads for everybody, if nobody does; else waits to be told."""
        leads = False
        try:
            with self._lock:
                if notice := self.take(step.lane, step.cancel_event):
                    return notice
                leads = not self._reading
                self._reading = True
                if not leads:
                    self._turn.wait(_slice(until, step.cancel_event))
            if leads:
                self._read(_slice(until, step.cancel_event))
        finally:
            if leads:
                self._hand_over()
        return None

    def _hand_over(self) -> None:
        """Lets another one read. An interrupt in it must not keep the others from their notices for good."""
        try:
            self._stop_reading()
        except BaseException:
            self._stop_reading()
            raise

    def _stop_reading(self) -> None:
        with self._lock:
            self._reading = False
            if self.closed:
                self._drop()
            self._turn.notify_all()

    def _read(self, seconds: float) -> None:
        if self._pubsub is None:
            self._reopen(seconds)
            return
        try:
            self.put(_message(self._pubsub.push(seconds)))
        except WireError as error:
            self._connection.lose(error, self._pubsub)
            self._drop()
        except BaseException:  # a part of a message may have been read
            self._drop()
            raise

    def _reopen(self, seconds: float) -> None:
        if (early := self.early()) > 0:
            threading.Event().wait(min(seconds, early))
            return
        try:
            self._subscribe(max(seconds, 0.05))
        except WireError as error:
            self.outage.deafen(error)

    def _drop(self) -> None:
        if self._pubsub is not None:
            self._pubsub.close()
        self._pubsub = None

    def close(self) -> None:
        """Ends every wait of this handle."""
        with self._lock:
            self.closed = True
            if not self._reading:
                self._drop()
            self._turn.notify_all()


class AsyncListener(_Boxes):
    """For an event loop: one task reads while there is a handle."""

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self._connection = connection
        self._pubsub: AsyncWire | None = None
        self._reader: asyncio.Task[None] | None = None
        self._turn = asyncio.Condition()
        self._confirmed = asyncio.Event()

    async def open(self, step: Listen) -> None:
        """Has the subscription confirmed, or gives up after `timeout`: then the poll alone must do."""
        self.begin(step.lane)
        if (self._reader is None or self._reader.done()) and not self.closed:
            self._reader = asyncio.create_task(self._read(), name="redis-replay notices")
        try:
            async with asyncio.timeout(step.timeout):  # not wait_for: that may swallow a cancellation before Python 3.12
                await self._confirmed.wait()
        except TimeoutError:
            return
        self.begin(step.lane)

    async def pause(self, step: Pause) -> Notice:
        """Waits until there is a notice for the lane, or another reason to go on."""
        until = monotonic() + step.seconds
        while True:
            if notice := self.take(step.lane, step.cancel_event):
                return notice
            if monotonic() >= until:
                return Notice("poll")
            async with self._turn:
                try:
                    async with asyncio.timeout(_slice(until, step.cancel_event)):
                        await self._turn.wait()
                except TimeoutError:
                    continue

    async def _read(self) -> None:
        while not self.closed:
            if self._pubsub is None:
                await self._reopen()
            else:
                await self._take_in(self._pubsub)
            async with self._turn:
                self._turn.notify_all()

    async def _take_in(self, wire: AsyncWire) -> None:
        try:
            self.put(_message(await wire.push(SLICE_SECONDS)))
        except WireError as error:
            await self._connection.lose(error, wire)
            await self._drop()

    async def _reopen(self) -> None:
        if (early := self.early()) > 0:
            await asyncio.sleep(early)
        try:
            await self._subscribe()
        except WireError as error:
            self.outage.deafen(error)

    async def _subscribe(self) -> None:
        self.tried = monotonic()
        wire = await self._connection.open(SUBSCRIBE_SECONDS)
        try:
            self.opened(await wire.ask(self.request, len(self.channels), SUBSCRIBE_SECONDS))
        except BaseException:
            await wire.close()
            raise
        self._pubsub = wire
        self._confirmed.set()

    async def _drop(self) -> None:
        wire, self._pubsub = self._pubsub, None
        self._confirmed.clear()
        if wire is not None:
            await wire.close()

    async def close(self) -> None:
        """Ends every wait of this handle."""
        self.closed = True
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        async with self._turn:
            self._turn.notify_all()
        await self._drop()
