"""Small things that tests share."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
SOON = 4.0  # seconds: a bound for what takes a moment on a quiet machine; below the 5 after which a call asks again or ends


def wait_until(condition: Callable[[], T], timeout: float = 5.0, description: str = "the condition") -> T:
    """What `condition` gives, as soon as that is true. Fails with the description after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {description}, and last saw {found!r}")
        time.sleep(0.005)
    return found


async def wait_until_async(
    condition: Callable[[], T | Awaitable[T]], timeout: float = 5.0, description: str = "the condition"
) -> T:
    """As `wait_until`, for a plain or a coroutine function, without stopping the loop."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {description}, and last saw {found!r}")
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@contextlib.contextmanager
def thread_of(function):
    """A thread that runs `function`; gives the list that will hold its result, or its error."""
    results = []

    def run():
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield results
    thread.join(10)
    assert not thread.is_alive()


def waiters(buffer, n=1):
    wait_until(lambda: buffer.stats()["waiters"] == n, description=f"{n} waiting calls")
