"""AsyncReplayBuffer: the same operations as ReplayBuffer, awaited. It opens at its first await, or by `async with`."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from redis_replay import _handle as h
from redis_replay import _ops_admin as admin
from redis_replay import _ops_read as read
from redis_replay import _ops_sample as draw
from redis_replay import _ops_write as write
from redis_replay import _options as opt
from redis_replay._clock import monotonic
from redis_replay._codec import decode_record, encode_batch, encode_record
from redis_replay._connection import AsyncConnection
from redis_replay._core import CALL_SECONDS, LANES, Core, Lane, LocalStats
from redis_replay._steps import Call, Listen, Operation, Pause, Pipe, Step
from redis_replay._sync import INTERRUPT_SECONDS, ReplayBuffer
from redis_replay._types import Report
from redis_replay._wakeup import AsyncListener
from redis_replay.exceptions import BufferClosedError, BufferShutDownError, ReplayError, ReplayTimeoutError


class _Runtime:
    """What belongs to one event loop of one process: sockets, subscription, lanes."""

    def __init__(self, address: Any, core: Core) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self.core = core
        self.connection = AsyncConnection(address, core)
        self.listener = AsyncListener(self.connection)
        self.slots = asyncio.BoundedSemaphore(LANES)
        self.settling: set[asyncio.Task[None]] = set()

    async def perform(self, step: Step) -> Any:
        """Does what an operation asks for."""
        if isinstance(step, (Call, Pipe)):
            return await self.connection.run(step)
        if isinstance(step, Pause):
            return await self.listener.pause(step)
        if isinstance(step, Listen):
            return await self.listener.open(step)
        return await asyncio.sleep(step.seconds)

    async def drive(self, operation: Operation) -> Any:
        """Runs an operation to its end."""
        try:
            step = next(operation)
            while True:
                try:
                    result = await self.perform(step)
                except BaseException as error:  # noqa: BLE001 - it is the operation that must judge it
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return stop.value


class AsyncReplayBuffer:
    """ReplayBuffer for asyncio: the same arguments and names, as coroutines; see there.

    `write_count`, `sampleable_size` and `storage_size` are awaited without parentheses; `len()` is `await sampleable_size`.
    A handle belongs to the event loop that awaits it; in another loop or process it opens anew.
    """

    def __init__(
        self,
        url: object,
        name: str,
        *,
        capacity: object = opt.UNSET,
        batch_size: int | None = None,
        sampler: object = opt.UNSET,
        consume_after_n_samples: object = opt.UNSET,
        seed: int | None = None,
        poll_interval: float = 1.0,
        fresh: bool = False,
    ) -> None:
        options = {"capacity": capacity, "sampler": sampler, "consume_after_n_samples": consume_after_n_samples}
        mode = h.mode(options, fresh)
        self._prepare(url, name, options, batch_size, poll_interval, seed)
        self._how: tuple[Any, ...] | None = (admin.open_buffer, mode, opt.stored(options), admin.OPEN_SECONDS)

    @classmethod
    async def attach(
        cls, url: object, name: str, *, timeout: float | None = None, batch_size: int | None = None,
        seed: int | None = None, poll_interval: float = 1.0,
    ) -> Self:  # fmt: skip
        limit = opt.seconds("timeout", timeout)
        self = cls.__new__(cls)
        self._prepare(url, name, {}, batch_size, poll_interval, seed)
        self._how = (admin.attach, {}, limit)
        await self._runtime()
        return self

    def _prepare(self, url: object, name: object, options: dict[str, Any], batch: object, poll: object, seed: object) -> None:
        self._setup, self._server = h.setup(url, name, options, batch, poll, seed)
        self._closed = False
        self._core = self._setup.core(self._setup.seed)
        self._now: _Runtime | None = None
        self._opening = asyncio.Lock()

    # Running operations

    async def _runtime(self) -> _Runtime:
        if self._closed:
            raise BufferClosedError(name=self._setup.name)
        now = self._now
        if now is not None and now.pid == os.getpid() and now.loop is asyncio.get_running_loop():
            return now
        if now is not None:  # another process or loop: nothing of the old sockets, lanes and random numbers may be used
            self._core, self._opening = now.core.renew(), asyncio.Lock()
            self._now = None
        async with self._opening:
            return self._now or await self._open()

    async def _open(self) -> _Runtime:
        now = _Runtime(self._setup.address, self._core)
        try:
            if self._how is not None:
                operation, *args = self._how
                if operation is admin.open_buffer:
                    args[-1] += monotonic()
                await now.drive(operation(now.core, *args))
        except BaseException:
            await self._end(now)
            raise
        self._how = None
        self._now = now
        return now

    async def _read(self, operation: Any, *args: Any) -> Any:
        now = await self._runtime()
        return await now.drive(operation(now.core, *args))

    async def _run(self, operation: Any, *args: Any, timeout: float = CALL_SECONDS) -> Any:
        """Runs an operation on a lane of its own."""
        now = await self._runtime()
        try:
            await asyncio.wait_for(now.slots.acquire(), None if timeout == opt.FOREVER else timeout + INTERRUPT_SECONDS)
        except TimeoutError:
            raise ReplayTimeoutError(name=now.core.name, what="a free lane", have=0, need=1, timeout_s=timeout) from None
        lane = now.core.take_lane()
        try:
            result = await now.drive(operation(now.core, lane, *args))
        except BaseException as error:
            if isinstance(error, BufferClosedError) or not isinstance(error, ReplayError):
                self._settle_later(now, lane)
            else:
                self._put(now, lane)
            raise
        self._put(now, lane)
        return result

    @staticmethod
    def _put(now: _Runtime, lane: Lane) -> None:
        now.core.put_lane(lane)
        now.slots.release()

    def _settle_later(self, now: _Runtime, lane: Lane) -> None:
        """A cancelled task must not wait: a task of its own ends what the call left open, then gives the lane back."""
        task = now.loop.create_task(self._settle(now, lane, forget=False))
        now.settling.add(task)
        task.add_done_callback(now.settling.discard)
        task.add_done_callback(lambda _: self._put(now, lane))

    @staticmethod
    async def _settle(now: _Runtime, lane: Lane, *, forget: bool) -> None:
        """Ends what an interrupted call left open, if the server can be reached at once; else the next call does."""
        if not lane.registered:
            return
        try:
            await now.drive(admin.settle(now.core, lane, forget=forget, until=monotonic() + INTERRUPT_SECONDS))
        except ReplayError:
            return

    # Writing

    async def add(self, record: Any) -> int:
        rows = encode_record(record, (await self._runtime()).core.schema)
        return int((await self._run(write.write, rows))[0])

    async def extend(self, batch: Any) -> NDArray[np.int64]:
        rows = encode_batch(batch, (await self._runtime()).core.schema)
        indices: NDArray[np.int64] = await self._run(write.write, rows)
        return indices

    async def remove(self, index: Any) -> int:
        return int(await self._run(write.remove, h.indices(index)))

    async def empty(self, empty_write_count: bool = True) -> None:
        await self._run(write.change, "empty", int(bool(empty_write_count)))

    # Drawing and waiting

    async def sample(
        self, batch_size: int | None = None, return_info: bool = False, *, wait: bool = False,
        timeout: float | None = None, cancel_event: Any = None, min_items: int | None = None,
    ) -> Any:  # fmt: skip
        core = (await self._runtime()).core
        wish = h.draw_wish(core, self._setup.batch_size, batch_size, min_items, wait, timeout, cancel_event)
        drawn = await self._run(draw.sample, wish, timeout=wish.timeout if wait else CALL_SECONDS)
        return h.decode(core, drawn, return_info)

    async def wait_until_sampleable(
        self, min_items: int | None = None, timeout: float | None = None, cancel_event: Any = None
    ) -> bool:
        wish = h.wait_wish((await self._runtime()).core, self._setup.batch_size, min_items, timeout, cancel_event)
        return bool(await self._run(draw.wait_until, wish, timeout=wish.timeout))

    async def can_sample(self, batch_size: int | None = None) -> bool:
        wish = h.can_wish((await self._runtime()).core, self._setup.batch_size, batch_size)
        return bool(await self._run(draw.can, wish))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            try:
                batch = await self.sample(wait=True)
            except BufferShutDownError:
                return
            yield batch

    # Looking

    async def get(self, index: Any) -> Any:
        core, wanted = (await self._runtime()).core, h.indices(index)
        return h.found(core, index, wanted, await self._read(read.get, wanted))

    async def records(self) -> AsyncIterator[Any]:
        after: str = "0"
        while after:
            after, indices, payloads = await self._read(read.page, after)
            schema = (await self._runtime()).core.schema
            for index, payload in zip(indices, payloads, strict=True):
                assert schema is not None
                yield decode_record(schema, payload, index)

    async def stats(self) -> dict[str, int | float | str | bool]:
        counters: dict[str, int | float | str | bool] = await self._read(read.stats)
        return counters

    async def doctor(self) -> Report:
        report: Report = await self._read(admin.examine)
        return report

    async def _counter(self, name: str) -> int:
        return int((await self.stats())[name])

    @property
    def write_count(self) -> Awaitable[int]:
        return self._counter("write_count")

    @property
    def sampleable_size(self) -> Awaitable[int]:
        return self._counter("sampleable_size")

    @property
    def storage_size(self) -> Awaitable[int]:
        return self._counter("storage_size")

    @property
    def local_stats(self) -> LocalStats:
        return self._core.local

    @property
    def name(self) -> str:
        return self._setup.name

    @property
    def capacity(self) -> int:
        return self._core.capacity

    @property
    def batch_size(self) -> int | None:
        return self._setup.batch_size

    # Ends of life

    async def shutdown(self, drain: bool = True) -> None:
        await self._run(write.change, "shutdown", int(bool(drain)))

    async def reopen(self) -> None:
        await self._run(write.change, "reopen")

    async def delete(self) -> None:
        await self._read(admin.delete)
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        now = self._now
        if now is not None and now.pid == os.getpid() and now.loop is asyncio.get_running_loop():
            await self._end(now)
        if self._server is not None:
            self._server.close()

    async def _end(self, now: _Runtime) -> None:
        await now.listener.close()
        until = monotonic() + 2 * INTERRUPT_SECONDS
        try:
            for _ in range(LANES):
                await asyncio.wait_for(now.slots.acquire(), max(0.0, until - monotonic()))
        except TimeoutError:
            pass
        for lane in now.core.lanes:
            await self._settle(now, lane, forget=True)
        await now.connection.close()

    async def __aenter__(self) -> Self:
        await self._runtime()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"setup": self._setup, "identity": self._core.identity(), "closed": self._closed, "how": self._how}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._setup, self._server, self._closed = state["setup"], None, state["closed"]
        self._core, self._how = self._setup.core(None), state["how"]
        self._core.identify(state["identity"])
        self._now, self._opening = None, asyncio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._setup.address)!r}, {self._setup.name!r})"


def _document() -> None:
    """Both handles say the same, so the words stand once."""
    for name, member in vars(AsyncReplayBuffer).items():
        if not name.startswith("_") and member.__doc__ is None:
            target = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            target.__doc__ = getattr(ReplayBuffer, name).__doc__


_document()
