"""Batches drawn ahead in threads."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Lock
from typing import Any

from redis_replay.exceptions import ReplayError


class Ahead:
    """Keeps `depth` batches on their way. One that was asked for before `mark()` changed is never given out.

    Args:
        draw: draws a batch, or raises a ReplayError; called in threads.
        mark: what a batch is good for: it changes when the buffer was emptied, loaded, shut down, or got another version.
    """

    def __init__(self, draw: Callable[[], Any], mark: Callable[[], object], depth: int) -> None:
        self._draw, self._mark, self._depth = draw, mark, depth
        self._queue: deque[tuple[object, Future[Any]]] = deque()
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(max(1, depth), thread_name_prefix="redis-replay-prefetch")

    def __len__(self) -> int:
        """Batches on their way or there."""
        return len(self._queue)

    def take(self) -> Any:
        """The next batch, or None where there is none: what failed in a thread is the caller's to try again, and to see."""
        now = self._mark()
        found = self._first(now)
        with self._lock:
            while len(self._queue) < self._depth:
                self._queue.append((now, self._threads.submit(self._draw)))
        return found

    def _first(self, now: object) -> Any:
        while True:
            with self._lock:
                if not self._queue:
                    return None
                mark, future = self._queue.popleft()
            if mark != now:
                future.cancel()
                continue
            try:
                return future.result()
            except ReplayError:
                continue

    def results(self) -> list[Any]:
        """The batches that are on their way or there, in order, and good still. Waits for those on their way."""
        now = self._mark()
        with self._lock:
            futures = [future for mark, future in self._queue if mark == now]
        wait(futures)
        return [future.result() for future in futures if not future.cancelled() and future.exception() is None]

    def put(self, batches: Iterable[Any]) -> None:
        """These come next, as far as there is room."""
        now = self._mark()
        with self._lock:
            for batch in islice(batches, self._depth - len(self._queue)):
                future: Future[Any] = Future()
                future.set_result(batch)
                self._queue.append((now, future))

    def clear(self, *, patiently: bool = False) -> None:
        """Forgets what is on its way. `patiently`: returns when the draws that run have ended."""
        with self._lock:
            queue, self._queue = self._queue, deque()
        for _, future in queue:
            future.cancel()
        if patiently:
            wait([future for _, future in queue])

    def close(self) -> None:
        """Ends the threads, once the draws that run have ended."""
        self.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)
