"""Write-behind: `add` takes records, a thread (a task, of an async handle) writes them in batches.

Of the thread's locks only those of the interpreter itself are used, as in _draw_thread: a signal's handler that raises inside
`threading.Condition` leaves it released, or locked.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from redis_replay._clock import monotonic
from redis_replay._core import CALL_SECONDS, log
from redis_replay._ops_behind import Item
from redis_replay._ops_write import Terms
from redis_replay.exceptions import BufferClosedError, NotWrittenError, ReplayCancelledError, ReplayError, ReplayTimeoutError

MOST, MOST_BYTES = 1024, 2**20  # of one write
HELD, HELD_BYTES = 4 * MOST, 8 * MOST_BYTES  # that are taken and not stored, at most
LOOK_SECONDS = 0.1  # between two looks at a cancel_event
SHUTDOWN_SECONDS = CALL_SECONDS  # that a shutdown waits for what its own handle has taken
CLOSE_SECONDS = 1.0  # in which a write that runs learns that its handle is closed
BREATH_SECONDS = 0.001  # between two turns of the event loop that an `add` which need not wait lets in
IDLE_SECONDS = 1.0  # after which the thread ends, until there is something again

Settled = Callable[[Sequence[Item]], None]
Write = Callable[[Sequence[Item], Settled], None]

_open: "weakref.WeakSet[Behind]" = weakref.WeakSet()


def done(future: Any, index: int) -> Any:
    """A future that knows its index."""
    future.set_result(index)
    return future


class _Behind:
    """What both ways have in common: what was taken and is not stored."""

    def __init__(self, name: str, delay: float) -> None:
        self._name, self._delay = name, delay
        self._items: deque[Item] = deque()
        self._bytes = self._begun = self._ended = 0  # the last two: since the start
        self._urgent = 0  # up to this one that was taken no delay is waited for
        self._since = 0.0  # when the first of the items came
        self._lost = 0  # since it was told
        self._why: BaseException | None = None
        self._closed = False

    @property
    def _taken(self) -> int:
        """Since the start. No interrupt can come between a record and its being counted."""
        return self._begun + len(self._items)

    def __len__(self) -> int:
        """Records that were taken and are not stored."""
        return self._taken - self._ended

    @property
    def _is_full(self) -> bool:
        return len(self) >= HELD or self._bytes >= HELD_BYTES

    def _put(self, item: Item) -> None:
        if not self._items:
            self._since = monotonic()
        self._items.append(item)
        self._bytes += item.rows.nbytes

    @property
    def _seconds(self) -> float:
        """Until the items are to be written; 0: now."""
        if self._closed or self._ended < self._urgent or len(self._items) >= MOST or self._bytes >= MOST_BYTES:
            return 0.0
        return max(0.0, self._since + self._delay - monotonic())

    def _take(self) -> list[Item]:
        """The next to be written."""
        out: list[Item] = []
        size = 0
        while self._items and len(out) < MOST and size < MOST_BYTES:
            out.append(self._items.popleft())
            size += out[-1].rows.nbytes
        self._begun += len(out)
        return out

    def _take_all(self) -> list[Item]:
        """They will not be written."""
        left, self._items = self._items, deque()
        self._begun += len(left)
        return list(left)

    def _settle(self, items: Sequence[Item], why: BaseException | None = None) -> None:
        """They are stored, or will not be. Those that nobody told are told why."""
        for item in items:
            if why is not None and not item.future.done():
                item.future.set_exception(why)
            if not item.future.cancelled() and (error := item.future.exception()) is not None:
                self._lost, self._why = self._lost + 1, self._why or error
        self._ended += len(items)
        self._bytes -= sum(item.rows.nbytes for item in items)

    def _check(self) -> None:
        """Tells once what was lost.

        Raises:
            NotWrittenError: something was.
        """
        n, why, self._lost, self._why = self._lost, self._why, 0, None
        if why is not None:
            raise NotWrittenError(name=self._name, n=n, reason=str(why)) from why

    def _stopped(self, terms: Terms, since: float, what: str) -> None:
        """Whether a call has to end.

        Raises:
            ReplayCancelledError, ReplayTimeoutError.
        """
        if terms.cancel_event is not None and terms.cancel_event.is_set():
            raise ReplayCancelledError(name=self._name, have=self._ended, need=self._taken, side="write")
        if monotonic() - since >= terms.timeout:
            about = {"have": self._ended, "need": self._taken, "timeout_s": terms.timeout}
            raise ReplayTimeoutError(name=self._name, what=what, **about)


class Behind(_Behind):
    """For threads.

    Args:
        write: writes items in order, and tells their futures, then the function that it is given; called in a thread.
        delay: seconds that the first of them waits for others.
    """

    def __init__(self, write: Write, name: str, delay: float) -> None:
        super().__init__(name, delay)
        self._write, self._lock, self._pid = write, threading.RLock(), os.getpid()
        self._bell: SimpleQueue[None] = SimpleQueue()  # for the thread
        self._waiting: deque[threading.Lock] = deque()  # one for each call that waits: released when something has changed
        self._thread: threading.Thread | None = None
        _open.add(self)

    def add(self, item: Item, terms: Terms) -> "Future[int]":
        """Takes a record, as soon as there is room for it.

        Raises:
            NotWrittenError: of records before, which nobody was told of; this one is not taken. BufferClosedError,
            ReplayCancelledError, ReplayTimeoutError.
        """
        item.future = future = Future[int]()
        self._wait(partial(self._took, item), terms, "records before to be written")
        return future

    def _took(self, item: Item) -> bool:
        """Whether there was room for it."""
        with self._lock:
            self._check()
            if self._closed:
                raise BufferClosedError(name=self._name)
            if self._is_full:
                return False
            self._put(item)
            if self._thread is None or len(self._items) in (1, MOST) or self._is_full:
                self._rouse()
            return True

    def _rouse(self) -> None:
        """There is a thread, and it looks what there is to do. Called with the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="redis-replay write-behind", daemon=True)
            thread.start()
            self._thread = thread
        self._bell.put(None)

    def _wait(self, is_so: Callable[[], bool], terms: Terms, what: str) -> None:
        """Returns as soon as it is so. Raises as `_stopped`."""
        since = monotonic()
        while not is_so():
            change = threading.Lock()
            change.acquire()
            self._waiting.append(change)
            if is_so():  # between the first look and this
                return
            self._stopped(terms, since, what)
            if not change.acquire(timeout=min(LOOK_SECONDS, terms.timeout)):
                with contextlib.suppress(ValueError):
                    self._waiting.remove(change)

    def _tell(self) -> None:
        """All who wait look again."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft().release()

    def _run(self) -> None:
        while items := self._next():
            why: BaseException | None = None
            try:
                self._write(items, self._settled)
            except BaseException as error:  # noqa: BLE001 - whatever it is, who waits for a record is told
                why = error
            self._settled([item for item in items if not item.future.done()], why)

    def _settled(self, items: Sequence[Item], why: BaseException | None = None) -> None:
        with self._lock:
            self._settle(items, why)
        self._tell()

    def _next(self) -> list[Item]:
        """What is to be written now, once there is something; empty: nothing came for a while, and the thread is gone."""
        idle = monotonic()
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():  # an interrupt kept it from being this one
                    return []
                seconds = self._seconds if self._items else IDLE_SECONDS
                if self._items and not seconds and (live := self._live(self._take())):
                    return live
                if not self._items and (self._closed or monotonic() - idle >= IDLE_SECONDS):
                    self._thread = None
                    return []
            self._tell()  # of those that were cancelled
            with contextlib.suppress(Empty):
                self._bell.get(timeout=seconds)

    def _live(self, items: list[Item]) -> list[Item]:
        """Those that nobody has cancelled; nobody can from now on."""
        live = [item for item in items if item.future.set_running_or_notify_cancel()]
        self._settle([item for item in items if item.future.cancelled()])
        return live

    def _hurry(self) -> int:
        """What was taken is written now. Gives its last number."""
        with self._lock:
            self._urgent = self._taken
            if self._items:
                self._rouse()
            return self._urgent

    def flush(self, terms: Terms) -> None:
        """Returns when all that was taken is stored.

        Raises:
            NotWrittenError, ReplayCancelledError, ReplayTimeoutError.
        """
        upto = self._hurry()
        self._wait(lambda: self._ended >= upto, terms, "records that add took to be written")
        with self._lock:
            self._check()

    def flush_at_exit(self) -> None:
        """As `flush`, within 5 s, in the process that it belongs to: a forked one has nothing of it.

        Raises:
            as that.
        """
        if self._pid == os.getpid():
            self.flush(Terms(CALL_SECONDS))

    def drain(self) -> None:
        """For a handle that is about to be closed: nothing is taken any more, and what can be written within 5 s is."""
        _open.discard(self)
        self._closed = True
        self.hurry(CALL_SECONDS)

    def end(self) -> None:
        """The handle is closed: what is left will not be written.

        Raises:
            NotWrittenError: something was not.
        """
        self._settled(self._take_all(), BufferClosedError(name=self._name))
        self.hurry(CLOSE_SECONDS)  # what is being written learns that the handle is closed
        self._check()

    def hurry(self, seconds: float) -> None:
        """What was taken is written now, as far as the time reaches. What is not is told by others."""
        until = monotonic() + seconds
        self._hurry()
        self._wait(lambda: not len(self) or monotonic() >= until, Terms(), "")


class AsyncBehind(_Behind):
    """For tasks of one event loop. Its arguments and methods are those of Behind."""

    def __init__(self, write: Callable[[Sequence[Item], Settled], Awaitable[None]], name: str, delay: float) -> None:
        super().__init__(name, delay)
        self._write, self._changed = write, asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._breath = 0.0  # when the event loop was let run last

    async def add(self, item: Item, terms: Terms) -> "asyncio.Future[int]":
        """Takes a record, as soon as there is room for it."""
        since = monotonic()
        self._check()
        if since - self._breath >= BREATH_SECONDS:  # who awaits nothing else would keep the task from writing
            self._breath = since
            await asyncio.sleep(0)
        while self._is_full and not self._closed:
            self._stopped(terms, since, "records before to be written")
            await self._wait(LOOK_SECONDS)
        if self._closed:
            raise BufferClosedError(name=self._name)
        item.future = future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # `flush` tells it, too
        self._put(item)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="redis-replay write-behind")
        elif len(self._items) == MOST or self._is_full:
            await self._tell()
        return future

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait()

    async def _run(self) -> None:
        try:
            while self._items:
                while seconds := self._seconds:
                    await self._wait(seconds)
                await self._write_some()
        finally:
            self._task = None

    async def _write_some(self) -> None:
        items = self._take()
        why: ReplayError = BufferClosedError(name=self._name)
        live = [item for item in items if not item.future.cancelled()]
        self._settle([item for item in items if item.future.cancelled()])
        told: list[Item] = []

        def settled(some: Sequence[Item]) -> None:
            told.extend(some)
            self._settle(some)

        try:
            if live:
                await self._write(live, settled)
        except ReplayError as error:
            why = error
        finally:
            self._settle(live[len(told) :], why)
            await self._tell()

    async def flush(self, terms: Terms) -> None:
        """Returns when all that was taken is stored."""
        since = monotonic()
        upto = self._urgent = self._taken
        await self._tell()
        while self._ended < upto:
            self._stopped(terms, since, "records that add took to be written")
            await self._wait(LOOK_SECONDS)
        self._check()

    async def drain(self) -> None:
        """For a handle that is about to be closed."""
        self._closed = True
        await self.hurry(CALL_SECONDS)

    async def end(self) -> None:
        """The handle is closed: what is left will not be written."""
        self._settle(self._take_all(), BufferClosedError(name=self._name))
        await self.hurry(CLOSE_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._check()

    async def hurry(self, seconds: float) -> None:
        """What was taken is written now, as far as the time reaches."""
        until = monotonic() + seconds
        self._urgent = self._taken
        await self._tell()
        while len(self) and monotonic() < until:
            await self._wait(LOOK_SECONDS)


@atexit.register
def _at_exit() -> None:
    """A program that ends without having closed its handles loses nothing that can be written, and is told of the rest."""
    for behind in list(_open):
        try:
            behind.flush_at_exit()
        except ReplayError as error:
            log.error("%s", error)
