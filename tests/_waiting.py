"""Blocked calls for tests: each in a thread of its own, of every kind of handle, and how it ended."""

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay._steps import Notice
from tests._helpers import wait_until


def records(n, first=0):
    """A batch of n small records, tagged from `first` on."""
    return {"i": np.arange(first, first + n, dtype=np.int64)}


def record(tag):
    """One small record."""
    return {"i": np.int64(tag)}


def tags(batch):
    """The tags of a batch, as a list."""
    return batch["i"].tolist()


class Running:
    """A call in a thread of its own. The thread is a daemon, so a hang fails one test and no more."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._future: Future = Future()
        self._call = lambda: call(*args, **kwargs)
        self.began_at = time.monotonic()
        self.ended_at = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:
            self.ended_at = time.monotonic()
            self._future.set_exception(error)
        else:
            self.ended_at = time.monotonic()
            self._future.set_result(result)

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return self._future.done()

    @property
    def seconds(self) -> float:
        """How long the call took."""
        return self.ended_at - self.began_at

    def result(self, timeout: float = 5.0) -> Any:
        """What the call gave; raises what it raised, or TimeoutError if it has not ended."""
        return self._future.result(timeout)

    def error(self, timeout: float = 5.0) -> BaseException | None:
        """What the call raised, or None."""
        return self._future.exception(timeout)

    def how(self, timeout: float = 5.0) -> Any:
        """The class of what the call raised (StopIteration: a loop ended), True, False, or the tags of its batch."""
        error = self.error(timeout)
        if error is not None:
            return type(error)
        result = self.result()
        if isinstance(result, StopIteration):
            return StopIteration
        return result if isinstance(result, bool) else tags(result)


def blocked(buffer: ReplayBuffer, n: int = 1) -> int:
    """Returns when n calls stand in the buffer's line. `buffer` is a handle that does not wait itself."""
    wait_until(lambda: buffer.stats()["waiters"] == n, description=f"{n} waiters")
    return n


def deaf(listener: Any, message: str = "wake", times: float = float("inf")) -> list[bytes]:
    """Makes a handle's listener miss notices that start with `message`. Gives the list of those it missed."""
    missed: list[bytes] = []
    put = listener.put

    def pick(found: Any) -> None:
        if found and found["type"] == "message" and found["data"].startswith(message.encode()) and len(missed) < times:
            missed.append(found["data"])
        else:
            put(found)

    listener.put = pick
    return missed


class Frozen:
    """A handle whose waits, from the next pause on, stay in that pause until they are thawed: a program that hangs."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._thawed = threading.Event()
        self._pause = buffer._now.listener.pause
        buffer._now.listener.pause = self._stay
        self.paused = threading.Event()

    def _stay(self, step: Any) -> Notice:
        if self._thawed.is_set():
            return self._pause(step)
        self.paused.set()
        self._thawed.wait(30)
        return Notice("poll")

    def thaw(self) -> None:
        """Lets its waits go on, once one of them has come to its pause: another would be no frozen one."""
        assert self.paused.wait(5), "no wait came to its pause"
        self._thawed.set()


class SyncHandle:
    """A ReplayBuffer as a test that waits sees it."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def start(self, way: str, **kwargs: Any) -> Running:
        """Blocks in `sample`, `wait_until_sampleable` or `iteration`, for a batch of the handle's batch_size."""
        if way == "iteration":
            return Running(lambda: next(iter(self.buffer), None) or StopIteration())
        if way == "sample":
            return Running(self.buffer.sample, wait=True, **kwargs)
        return Running(self.buffer.wait_until_sampleable, **kwargs)

    def run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the handle."""
        return getattr(self.buffer, name)(*args, **kwargs)

    def ask(self, call: Callable[[], Any]) -> Any:
        """Calls what belongs to the handle, such as the `resolve` of its error."""
        return call()

    def close(self) -> None:
        """Closes the handle."""
        self.buffer.close()

    end = close


class AsyncHandle:
    """An AsyncReplayBuffer in an event loop of its own, in a thread, with the face of SyncHandle."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.buffer: AsyncReplayBuffer = self.call(self._opened(make))

    @staticmethod
    async def _opened(make: Callable[[], Any]) -> AsyncReplayBuffer:
        made = make()
        if asyncio.iscoroutine(made):
            return await made
        return await made.__aenter__()

    def call(self, coroutine: Any, timeout: float = 5.0) -> Any:
        """Runs a coroutine in the handle's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """As SyncHandle.run."""
        return self.call(getattr(self.buffer, name)(*args, **kwargs), 10)

    def ask(self, call: Callable[[], Any]) -> Any:
        """As SyncHandle.ask."""
        return self.call(call(), 10)

    def start(self, way: str, **kwargs: Any) -> Running:
        """As SyncHandle.start."""
        if way == "iteration":
            return Running(self.call, self._first(), 60)
        if way == "sample":
            return Running(self.call, self.buffer.sample(wait=True, **kwargs), 60)
        return Running(self.call, self.buffer.wait_until_sampleable(**kwargs), 60)

    def cancel_waits(self) -> None:
        """Cancels the tasks of all calls that are under way."""
        self.call(self._cancel())

    async def _cancel(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_name() != "redis-replay notices":
                task.cancel()

    async def _finish(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.wait([*rest, asyncio.ensure_future(asyncio.sleep(0))], timeout=2)

    async def _first(self) -> Any:
        async for batch in self.buffer:
            return batch
        return StopIteration()

    def close(self) -> None:
        """Closes the handle."""
        self.call(self.buffer.close())

    def end(self) -> None:
        """Closes the handle and its loop."""
        self.close()
        self.call(self._finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


HANDLES = ("sync", "async", "attached", "async attached", "unpickled", "async unpickled")


def open_handle(kind: str, server: Any, name: str, target: Any = None, **options: Any) -> SyncHandle | AsyncHandle:
    """A handle of a kind on a buffer that exists, through `target` if one is given."""
    here = target or (server.async_target() if "async" in kind else server.target())
    if kind == "async":
        return AsyncHandle(lambda: AsyncReplayBuffer(here, name, **options))
    if kind == "async attached":
        return AsyncHandle(lambda: AsyncReplayBuffer.attach(here, name, timeout=5, **options))
    if kind == "async unpickled":
        return AsyncHandle(lambda: pickle.loads(pickle.dumps(AsyncReplayBuffer(here, name, **options))))
    if kind == "attached":
        return SyncHandle(ReplayBuffer.attach(here, name, timeout=5, **options))
    if kind == "unpickled":
        with ReplayBuffer(here, name, **options) as original:
            return SyncHandle(pickle.loads(pickle.dumps(original)))
    return SyncHandle(ReplayBuffer(here, name, **options))
