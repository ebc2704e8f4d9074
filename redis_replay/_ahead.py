"""Batches drawn ahead: in a thread of a sync handle, in tasks of an async one, one after another."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from redis_replay._draw_thread import Draw, DrawThread
from redis_replay._leases import Leases, caller

Held = Callable[[Any], bool]
LOOK_SECONDS = 0.1  # between two looks whether a call that waits for a batch on its way shall end


class Owner:
    """Who has the leases of a place, as long as there is one."""

    def __init__(self, place: "Place") -> None:
        self._place = ref(place)

    def is_alive(self) -> bool:
        """Whether somebody may still take what is there. A place that an interrupted call let go of is collected."""
        place = self._place()
        return place is not None and not place.given_up


class Place:
    """Whose a batch is that nobody has taken. Once it is given up, its lease is as that of a thread that has ended."""

    def __init__(self) -> None:
        self.given_up = False
        self.owner = Owner(self)


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

    def vain(self) -> list[str]:
        """Leases of batches that nobody will be given: dropped, or let go of by a call that was interrupted."""
        return [*self._leases.of(self.dropped.owner), *self._leases.forsaken(Owner)]

    @contextmanager
    def _waiting_for(self, entry: _Entry) -> Iterator[None]:
        """It stays the next one, if the call ends before it is there."""
        try:
            yield
        except BaseException:
            self._queue.appendleft(entry)
            raise

    def _is_there(self, entry: _Entry) -> bool:
        """Whether it is; else it stays the next one."""
        if entry.batch.done():
            return True
        self._queue.appendleft(entry)
        return False

    def _is_good(self, entry: _Entry) -> bool:
        """Not where its draw failed, or was cancelled, or others may have been given its records since."""
        if not entry.batch.cancelled() and entry.batch.exception() is None and self._held(entry.batch.result()):
            return True
        self._leases.hand(entry.place.owner, self.dropped.owner)
        return False

    def _hand_over(self, entry: _Entry) -> Any:
        """The caller has this batch now, and is done with what it had before."""
        batch = entry.batch.result()
        self._leases.hand(caller(), self.done.owner)
        self._leases.hand(entry.place.owner, caller())
        return batch

    def _drop(self, entry: _Entry) -> None:
        entry.batch.cancel()
        entry.batch.add_done_callback(lambda _: self._leases.hand(entry.place.owner, self.dropped.owner))

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
        self._thread = DrawThread()

    def take(self, ended: Callable[[], bool] = lambda: False, until: float | None = None) -> Any:
        """The next batch, or None where there is none: what failed in a thread is the caller's to try again, and to see.

        Args:
            ended: whether the call shall not wait any longer for one that is on its way.
            until: when a server that does not answer is given up.
        """
        now = self._mark(until)
        self._refill(now)
        entry = self._first(ended)
        if entry is None:
            return None
        self._refill(now)
        return self._hand_over(entry)

    def _refill(self, now: object) -> None:
        with self._lock:
            self._fill(now, lambda place: self._thread.submit(partial(self._draw, place)))

    def _first(self, ended: Callable[[], bool]) -> _Entry | None:
        while entry := self._next():
            with self._waiting_for(entry):
                while not entry.batch.done() and not ended():
                    entry.batch.wait(LOOK_SECONDS)
            if not self._is_there(entry):
                return None
            if self._is_good(entry):
                return entry
        return None

    def _next(self) -> _Entry | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def results(self) -> list[Any]:
        """The batches that are on their way or there, in order, and good still. Waits for those on their way."""
        now = self._mark(None)
        with self._lock:
            draws = [entry.batch for entry in self._queue if entry.moment == now]
        for draw in draws:
            draw.wait()
        return [draw.result() for draw in draws if not draw.cancelled() and draw.exception() is None]

    def put(self, batches: Iterable[Any]) -> None:
        """These come next, as far as there is room."""
        now = self._mark(None)
        with self._lock:
            for batch in islice(batches, self._depth - len(self._queue)):
                self._queue.append(_Entry(now, Place(), Draw.made(batch)))

    def clear(self, *, patiently: bool = False) -> None:
        """Forgets what is on its way. `patiently`: returns when the draws that run have ended."""
        with self._lock:
            queue, self._queue = self._queue, deque()
        for entry in queue:
            self._drop(entry)
        for entry in queue if patiently else ():
            entry.batch.wait()

    def stop(self) -> None:
        """No draw begins any more, and nothing is given out: leases go back with the next that ends the handle's."""
        with self._lock:
            self._give_up()
        self.dropped.given_up = True
        self._thread.stop()

    def close(self) -> None:
        """Ends the thread, once the draw that runs has ended."""
        self.stop()
        self._thread.join()


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
        entry = await self._first(ended)
        if entry is None:
            return None
        self._fill(now, self._submit)
        return self._hand_over(entry)

    def _submit(self, place: Place) -> "asyncio.Task[Any]":
        task = asyncio.create_task(self._in_turn(place), name="redis-replay prefetch")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is the caller's to see it again
        return task

    async def _in_turn(self, place: Place) -> Any:
        async with self._turn:
            return await self._draw(place)

    async def _first(self, ended: Callable[[], bool]) -> _Entry | None:
        while self._queue:
            entry = self._queue.popleft()
            with self._waiting_for(entry):
                while not entry.batch.done() and not ended():
                    await asyncio.wait([entry.batch], timeout=LOOK_SECONDS)
            if not self._is_there(entry):
                return None
            if self._is_good(entry):
                return entry
        return None

    async def stop(self) -> None:
        """The tasks end; leases go back with the next that ends the handle's."""
        queue = self._give_up()
        self.dropped.given_up = True
        await asyncio.gather(*(entry.batch for entry in queue), return_exceptions=True)
