"""Batches drawn ahead: in a thread of a sync handle, in tasks of an async one, one after another."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from redis_replay._leases import Leases, caller
from redis_replay.exceptions import ReplayError

Held = Callable[[Any], bool]
LOOK_SECONDS = 0.1  # between two looks whether a call that waits for a batch on its way shall end


class Place:
    """Whose a batch is that nobody has taken. Once it is given up, its lease is as that of a thread that has ended."""

    def __init__(self) -> None:
        self.given_up = False

    def is_alive(self) -> bool:
        """Whether somebody may still take what is here."""
        return not self.given_up


class _Entry(NamedTuple):
    """A batch that is on its way to a place, or there, and the moment at which it was asked for."""

    moment: object
    place: Place
    batch: Any


class _Ahead:
    """What both ways have in common: the queue, and whose the leases are.

    A batch that was asked for before the moment changed is never given out: it changes when the buffer is emptied, loaded or
    shut down, or gets another version or rate limiter.

    Attributes:
        done: has the leases of batches that callers are done with. Any draw ahead acknowledges them.
        dropped: has the leases of batches that nobody will be given. Any draw ahead releases them.
    """

    def __init__(self, depth: int, leases: Leases | None, held: Held) -> None:
        self.done, self.dropped = Place(), Place()
        self._depth, self._leases = depth, Leases() if leases is None else leases
        self._held = held
        self._queue: deque[_Entry] = deque()

    def __len__(self) -> int:
        """Batches on their way or there."""
        return len(self._queue)

    @contextmanager
    def _waiting_for(self, entry: _Entry) -> Iterator[None]:
        """It stays the next one, unless it is there at the end."""
        try:
            yield
        except BaseException:
            self._queue.appendleft(entry)
            raise
        if not entry.batch.done():
            self._queue.appendleft(entry)

    def _hand_over(self, entry: _Entry) -> Any:
        """The caller has this batch now, and is done with what it had before. None: its draw failed, or was cancelled, or
        others may have been given its records since.
        """
        try:
            batch = None if entry.batch.cancelled() else entry.batch.result()
        except ReplayError:
            return None
        if batch is None or not self._held(batch):
            self._leases.hand(entry.place, self.dropped)
            return None
        self._leases.hand(caller(), self.done)
        self._leases.hand(entry.place, caller())
        return batch

    def _drop(self, entry: _Entry) -> None:
        entry.batch.cancel()
        entry.batch.add_done_callback(lambda _: self._leases.hand(entry.place, self.dropped))

    def _fill(self, moment: object, submit: Callable[[Place], Any]) -> None:
        while self._queue and self._queue[0].moment != moment:
            self._drop(self._queue.popleft())
        while len(self._queue) < self._depth:
            place = Place()
            self._queue.append(_Entry(moment, place, submit(place)))

    def _give_up(self) -> list[_Entry]:
        """Nobody will be given any of them: where they are lent, they go back."""
        queue, self._queue = list(self._queue), deque()
        for entry in queue:
            entry.place.given_up = True
            entry.batch.cancel()
        return queue


class Ahead(_Ahead):
    """For threads.

    Args:
        draw: draws a batch to a place, or raises a ReplayError; called in a thread.
        mark: the moment.
        depth: batches on their way or there.
        leases: of the handle, where batches are lent.
        held: whether a batch is the handle's still, of those that were lent.
    """

    def __init__(
        self, draw: Callable[[Place], Any], mark: Callable[[float | None], object], depth: int, leases: Leases | None = None,
        held: Held = lambda _: True,
    ) -> None:  # fmt: skip
        super().__init__(depth, leases, held)
        self._draw, self._mark, self._lock = draw, mark, Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-replay-prefetch")  # one, so that they come in order

    def take(self, ended: Callable[[], bool] = lambda: False, until: float | None = None) -> Any:
        """The next batch, or None where there is none: what failed in a thread is the caller's to try again, and to see.

        Args:
            ended: whether the call shall not wait any longer for one that is on its way.
            until: when a server that does not answer is given up.
        """
        now = self._mark(until)
        self._refill(now)
        batch = self._first(ended)
        if batch is not None:
            self._refill(now)
        return batch

    def _refill(self, now: object) -> None:
        with self._lock, suppress(RuntimeError):  # stopped meanwhile: the caller's own draw says that the handle is closed
            self._fill(now, lambda place: self._thread.submit(self._draw, place))

    def _first(self, ended: Callable[[], bool]) -> Any:
        while entry := self._next():
            with self._waiting_for(entry):
                while not entry.batch.done() and not ended():
                    wait([entry.batch], LOOK_SECONDS)
            if not entry.batch.done():
                return None
            if (batch := self._hand_over(entry)) is not None:
                return batch
        return None

    def _next(self) -> _Entry | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def results(self) -> list[Any]:
        """The batches that are on their way or there, in order, and good still. Waits for those on their way."""
        now = self._mark(None)
        with self._lock:
            futures = [entry.batch for entry in self._queue if entry.moment == now]
        wait(futures)
        return [future.result() for future in futures if not future.cancelled() and future.exception() is None]

    def put(self, batches: Iterable[Any]) -> None:
        """These come next, as far as there is room."""
        now = self._mark(None)
        with self._lock:
            for batch in islice(batches, self._depth - len(self._queue)):
                future: Future[Any] = Future()
                future.set_result(batch)
                self._queue.append(_Entry(now, Place(), future))

    def clear(self, *, patiently: bool = False) -> None:
        """Forgets what is on its way. `patiently`: returns when the draws that run have ended."""
        with self._lock:
            queue, self._queue = self._queue, deque()
        for entry in queue:
            self._drop(entry)
        if patiently:
            wait([entry.batch for entry in queue])

    def stop(self) -> None:
        """No draw begins any more, and nothing is given out: leases go back with the next that ends the handle's."""
        with self._lock:
            self._give_up()
        self.dropped.given_up = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Ends the thread, once the draw that runs has ended."""
        self.stop()
        self._thread.shutdown(wait=True)


class AsyncAhead(_Ahead):
    """For tasks of one event loop. Its arguments and methods are those of Ahead."""

    def __init__(
        self, draw: Callable[[Place], Any], mark: Callable[[float | None], Awaitable[object]], depth: int, leases: Leases,
        held: Held,
    ) -> None:  # fmt: skip
        super().__init__(depth, leases, held)
        self._draw, self._mark, self._turn = draw, mark, asyncio.Lock()

    async def take(self, ended: Callable[[], bool], until: float | None = None) -> Any:
        """The next batch, or None where there is none."""
        now = await self._mark(until)
        self._fill(now, self._submit)
        batch = await self._first(ended)
        if batch is not None:
            self._fill(now, self._submit)
        return batch

    def _submit(self, place: Place) -> "asyncio.Task[Any]":
        task = asyncio.create_task(self._in_turn(place), name="redis-replay prefetch")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is the caller's to see it again
        return task

    async def _in_turn(self, place: Place) -> Any:
        async with self._turn:
            return await self._draw(place)

    async def _first(self, ended: Callable[[], bool]) -> Any:
        while self._queue:
            entry = self._queue.popleft()
            with self._waiting_for(entry):
                while not entry.batch.done() and not ended():
                    await asyncio.wait([entry.batch], timeout=LOOK_SECONDS)
            if not entry.batch.done():
                return None
            if (batch := self._hand_over(entry)) is not None:
                return batch
        return None

    async def stop(self) -> None:
        """The tasks end; leases go back with the next that ends the handle's."""
        queue = self._give_up()
        self.dropped.given_up = True
        await asyncio.gather(*(entry.batch for entry in queue), return_exceptions=True)
