"""The thread that draws ahead for a sync handle.

Only locks of the interpreter itself are used. Those of `concurrent.futures` and `threading.Condition` are entered by code in
Python, and one that a signal interrupts there stays locked: whoever asked for it next would wait for ever.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any
from weakref import finalize


class Draw:
    """A call that a thread makes, or has made. Its methods are those of a Future."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._begun, self._running = Lock(), Lock()  # who has the first one decides what becomes of it
        self._running.acquire()
        self._over = self._cancelled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._then: deque[Callable[[Draw], object]] = deque()

    @classmethod
    def made(cls, result: Any) -> "Draw":
        """One that has been made."""
        draw = cls(lambda: result)
        draw.run()
        return draw

    def run(self) -> None:
        """Makes it, unless it was cancelled."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's to see
            self._error = error
        self._end()

    def cancel(self) -> bool:
        """It will not be made, unless it has begun."""
        if self._begun.acquire(blocking=False):
            self._cancelled = True
            self._end()
        return self._cancelled

    def _end(self) -> None:
        self._call = _nothing  # whom it is for may be collected
        self._over = True
        self._running.release()
        self._tell()

    def _tell(self) -> None:
        while self._then:
            try:
                tell = self._then.popleft()
            except IndexError:  # another thread has told it
                return
            tell(self)

    def wait(self, seconds: float = -1) -> None:
        """Returns when it is over, or after `seconds`."""
        if not self._over and self._running.acquire(timeout=seconds):
            self._running.release()

    def done(self) -> bool:
        """Whether it is over."""
        return self._over

    def cancelled(self) -> bool:
        """Whether it will never be made."""
        return self._cancelled

    def exception(self) -> BaseException | None:
        """With what it failed."""
        return self._error

    def result(self) -> Any:
        """What it gave."""
        if self._error is not None:
            raise self._error
        return self._result

    def add_done_callback(self, tell: Callable[["Draw"], object]) -> None:
        """Calls it when this is over, or now."""
        self._then.append(tell)
        if self._over:
            self._tell()


def _nothing() -> None:
    """What is left to do."""


class DrawThread:
    """One thread, so that draws are made in order. It begins with the first, and ends when nobody has this any more."""

    def __init__(self) -> None:
        self._draws: SimpleQueue[Draw | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._end = finalize(self, self._draws.put, None)

    def submit(self, call: Callable[[], Any]) -> Draw:
        """To be made next, or never: by a thread that has ended."""
        draw = Draw(call)
        if not self._end.alive:
            draw.cancel()
        elif self._thread is None:
            self._thread = Thread(target=_serve, args=(self._draws,), name="redis-replay-prefetch", daemon=True)
            self._thread.start()
        self._draws.put(draw)
        return draw

    def stop(self) -> None:
        """What has not begun is the caller's to cancel."""
        self._end()

    def join(self) -> None:
        """Returns when the draw that runs has ended."""
        if self._thread is not None:
            self._thread.join()


def _serve(draws: "SimpleQueue[Draw | None]") -> None:
    while (draw := draws.get()) is not None:
        draw.run()
        del draw
