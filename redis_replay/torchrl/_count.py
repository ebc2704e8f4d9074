"""A number that the server keeps, asked for often: answered from a reply that is a moment old, and from what was done since."""

import contextlib
import math
from collections.abc import Callable, Iterator
from threading import Lock

from redis_replay._clock import monotonic

COUNT_SECONDS = 0.05  # how old an answer may be: collectors ask for write_count in each environment step


class Count:
    """`write_count` as one handle knows it. Its own writes are in it as soon as they have returned."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._lock = Lock()
        self._known, self._then = 0, -math.inf
        self._begun = self._running = 0  # writes

    def read(self) -> int:
        """The count, at most 50 ms old."""
        with self._lock:
            if monotonic() - self._then < COUNT_SECONDS:
                return self._known
            begun, now = self._begun, monotonic()
        known = self._ask()
        with self._lock:
            if not self._running and begun == self._begun:  # else nobody knows which writes the answer has seen
                self._known, self._then = known, now
        return known

    @contextlib.contextmanager
    def write(self) -> Iterator[Callable[[int], None]]:
        """Around a write; what it gives is told how many records there were. A write that fails may have written some."""
        written: list[int] = []
        with self._lock:
            self._begun, self._running = self._begun + 1, self._running + 1
        try:
            yield written.append
        finally:
            with self._lock:
                self._running -= 1
                self._known += sum(written)
                if not written:
                    self._then = -math.inf

    def forget(self) -> None:
        """Whatever is known is not so any more."""
        with self._lock:
            self._begun, self._then = self._begun + 1, -math.inf
