"""AsyncReplayBuffer: the same operations as ReplayBuffer, awaited. It opens at its first await, or by `async with`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from redis_replay import _arguments as args
from redis_replay import _handle as h
from redis_replay import _ops_admin as admin
from redis_replay import _ops_behind as behind
from redis_replay import _ops_doctor as doctor
from redis_replay import _ops_lease as leases
from redis_replay import _ops_read as read
from redis_replay import _ops_sample as draw
from redis_replay import _ops_wait as waits
from redis_replay import _ops_write as write
from redis_replay import _options as opt
from redis_replay import _prefetch as ahead
from redis_replay import _saving as saving
from redis_replay import _scripts as scripts
from redis_replay import _versions as versions
from redis_replay._ahead import AsyncAhead, Place
from redis_replay._behind import SHUTDOWN_SECONDS, AsyncBehind, done
from redis_replay._core import CALL_SECONDS, Core, log
from redis_replay._decode import decode_record
from redis_replay._encode import encode_batch, encode_record
from redis_replay._ops_behind import Item
from redis_replay._runtime import AsyncRuntime
from redis_replay._sync import ReplayBuffer
from redis_replay._types import LeasesEnded, Report, Stats, Updated
from redis_replay.exceptions import BufferClosedError, BufferShutDownError, NotWrittenError, ReplayError
from redis_replay.limiters import RateLimiter


class AsyncReplayBuffer(saving.AsyncSaves, h.Known):
    """ReplayBuffer for asyncio: the same arguments and names, as coroutines; see there.

    `write_count`, `sampleable_size` and `storage_size` are awaited without parentheses; `len()` is `await sampleable_size`.
    A handle belongs to the event loop that awaits it; in another loop or process it opens anew. `capacity` is 0
    until it is open.
    """

    def __init__(
        self,
        url: object,
        name: str,
        *,
        capacity: object = opt.UNSET,
        batch_size: int | None = None,
        sampler: object = opt.UNSET,
        remover: object = opt.UNSET,
        rate_limiter: object = opt.UNSET,
        consume_after_n_samples: object = opt.UNSET,
        lease: object = opt.UNSET,
        max_staleness: object = opt.UNSET,
        seed: int | None = None,
        prefetch: int = 0,
        cache_bytes: int = 0,
        write_behind: float | None = None,
        poll_interval: float = 1.0,
        call_timeout: float | None = None,
        fresh: bool = False,
    ) -> None:
        options = {
            "capacity": capacity, "sampler": sampler, "remover": remover, "rate_limiter": rate_limiter,
            "consume_after_n_samples": consume_after_n_samples, "lease": lease, "max_staleness": max_staleness,
        }  # fmt: skip
        how = {
            "batch_size": batch_size, "seed": seed, "prefetch": prefetch, "cache_bytes": cache_bytes,
            "write_behind": write_behind, "poll_interval": poll_interval, "call_timeout": call_timeout,
        }  # fmt: skip
        mode = h.mode(options, fresh)
        self._prepare(url, name, options, how)
        self._how: tuple[Any, ...] | None = (admin.open_buffer, mode, opt.stored(options))

    @classmethod
    async def attach(
        cls, url: object, name: str, *, timeout: float | None = None, batch_size: int | None = None,
        seed: int | None = None, prefetch: int = 0, cache_bytes: int = 0, write_behind: float | None = None,
        poll_interval: float = 1.0, call_timeout: float | None = None,
    ) -> Self:  # fmt: skip
        how = {
            "batch_size": batch_size, "seed": seed, "prefetch": prefetch, "cache_bytes": cache_bytes,
            "write_behind": write_behind, "poll_interval": poll_interval, "call_timeout": call_timeout,
        }  # fmt: skip
        limit = opt.seconds("timeout", timeout)
        h.shared(url)
        self = cls.__new__(cls)
        self._prepare(url, name, {}, how)
        self._how = (admin.attach, {}, limit)
        await self._runtime()
        return self

    def _prepare(self, url: object, name: object, options: dict[str, Any], how: dict[str, Any]) -> None:
        self._setup, self._server = h.setup(url, name, options, **how)
        self._closed = False
        self._ahead: AsyncAhead | None = None
        self._behind: AsyncBehind | None = None
        self._core = self._setup.core(self._setup.seed)
        self._now: AsyncRuntime | None = None
        self._opening = asyncio.Lock()

    @property
    def _own(self) -> Core:
        return self._core

    # Running operations

    async def _runtime(self) -> AsyncRuntime:
        if self._closed:
            raise BufferClosedError(name=self._setup.name)
        if self._now is not None and self._now.foreign:  # nothing of the old sockets, lanes and random numbers may be used
            self._core, self._opening, self._now = self._core.renew(), asyncio.Lock(), None
        if self._now is not None:
            return self._now
        async with self._opening:
            return self._now or await self._open()

    async def _open(self) -> AsyncRuntime:
        now = AsyncRuntime(self._setup.address, self._core)
        try:
            if self._how is not None:
                operation, *args = self._how
                await now.drive(operation(now.core, *args))
            h.check_prefetch(self._setup, now.core)
        except BaseException as error:
            await now.close()
            h.name_call(error, "open")
            raise
        self._how, self._now, depth = None, now, self._setup.prefetch
        self._ahead = (
            AsyncAhead(self._draw_ahead, self._moment, depth, now.core.leases, ahead.is_held(now.core)) if depth else None
        )
        delay = self._setup.write_behind
        self._behind = AsyncBehind(self._write_out, now.core.name, delay) if delay is not None else None
        return now

    async def _read(self, call: str, operation: Any, *args: Any) -> Any:
        now = await self._runtime()
        try:
            return await now.drive(operation(now.core, *args))
        except ReplayError as error:
            h.name_call(error, call)
            raise

    async def _run(self, call: str, operation: Any, *args: Any, timeout: float | None = None) -> Any:
        now = await self._runtime()
        limit = now.core.bound(CALL_SECONDS) if timeout is None else timeout
        try:
            return await now.run(operation, *args, timeout=limit)
        except ReplayError as error:
            h.name_call(error, call)
            raise

    # Writing

    async def add(
        self, record: Any, *, priority: Any = None, version: Any = None, timeout: float | None = None, cancel_event: Any = None
    ) -> Any:  # fmt: skip
        core = (await self._runtime()).core
        terms = h.terms(core, timeout, cancel_event)
        given, origin = args.priorities(core, priority, 1), versions.origin(core, version, 1)
        rows = encode_record(record, core.schema)
        if self._behind is not None and core.schema is not None:
            return await self._behind.add(Item.of(core, rows, given, origin), terms)
        index = int((await self._run("add", write.write, rows, terms, given, origin))[0])
        return done(asyncio.get_running_loop().create_future(), index) if self._behind is not None else index

    async def flush(self, timeout: float | None = None, cancel_event: Any = None) -> None:
        core = (await self._runtime()).core
        if self._behind is not None:
            await self._behind.flush(h.terms(core, timeout, cancel_event))

    async def _write_out(self, items: Sequence[Item], settled: Any) -> None:
        await (await self._runtime()).run(behind.write_out, items, settled, timeout=opt.FOREVER)

    async def extend(
        self, batch: Any, *, priority: Any = None, version: Any = None, timeout: float | None = None, cancel_event: Any = None
    ) -> NDArray[np.int64]:  # fmt: skip
        core = (await self._runtime()).core
        terms = h.terms(core, timeout, cancel_event)
        if self._behind is not None:
            began = core.clock()
            await self._behind.flush(terms)
            terms = terms.after(core.clock() - began)
        rows = encode_batch(batch, core.schema)
        given, origin = args.priorities(core, priority, len(rows)), versions.origin(core, version, len(rows))
        indices: NDArray[np.int64] = await self._run("extend", write.write, rows, terms, given, origin)
        return indices

    async def update_priority(self, index: Any, priority: Any) -> Updated:
        wanted = args.indices(index)
        given = args.new_priorities((await self._runtime()).core, priority, len(wanted))
        updated: Updated = await self._run("update_priority", write.update_priority, wanted, given)
        return updated

    async def set_alpha(self, alpha: float) -> None:
        await self._run("set_alpha", write.set_alpha, args.alpha((await self._runtime()).core, alpha))

    async def set_version(self, version: Any) -> int:
        wanted = versions.buffers_version((await self._runtime()).core, version)
        return int(await self._run("set_version", write.set_version, wanted))

    async def remove(self, index: Any) -> int:
        return int(await self._run("remove", write.remove, args.indices(index)))

    async def empty(self, empty_write_count: bool = True) -> None:
        await self._run("empty", write.change, scripts.empty(reset=opt.flag("empty_write_count", empty_write_count)))

    # Drawing and waiting

    async def sample(
        self, batch_size: int | None = None, return_info: bool = False, *, wait: bool = False,
        timeout: float | None = None, cancel_event: Any = None, min_items: int | None = None, lease: float | None = None,
        stall_timeout: float | None = None,
    ) -> Any:  # fmt: skip
        core = (await self._runtime()).core
        patience = h.Patience(timeout, cancel_event, stall_timeout)
        wish = h.draw_wish(core, self._setup.batch_size, batch_size, min_items, wait, patience, lease)
        decode = h.decoder(return_info)
        if self._ahead is not None and ahead.is_ahead(self._setup, batch_size, min_items, lease):
            turn = ahead.Turn.of(core, wish)
            taken = await self._ahead.take(turn.ended, turn.until)
            if taken is not None:
                return taken if return_info else taken[0]
            wish = turn.rest()
        return await self._run("sample", draw.sample, wish, decode, timeout=wish.timeout if wish.wait else None)

    async def _moment(self, until: float | None) -> tuple[str, ...]:
        moment: tuple[str, ...] = await self._read("sample", read.moment, until)
        return moment

    async def _draw_ahead(self, place: Place) -> Any:
        core, queue = (await self._runtime()).core, self._ahead
        assert queue is not None
        if names := queue.vain():
            await self._run("sample", leases.end, scripts.release, names)
        wish = ahead.ahead_wish(core, self._setup.batch_size, place.owner, queue.done.owner)
        return await self._run("sample", draw.sample, wish, h.decoder(True))

    async def ack(self, lease: Any) -> LeasesEnded:
        return await self._end_leases(scripts.ack, lease)

    async def release(self, lease: Any) -> LeasesEnded:
        return await self._end_leases(scripts.release, lease)

    async def _end_leases(self, verb: Any, lease: Any) -> LeasesEnded:
        ended: LeasesEnded = await self._run(verb.__name__, leases.end, verb, args.lease_names(lease))
        return ended

    async def wait_until_sampleable(
        self, min_items: int | None = None, timeout: float | None = None, cancel_event: Any = None,
        stall_timeout: float | None = None,
    ) -> bool:  # fmt: skip
        patience = h.Patience(timeout, cancel_event, stall_timeout)
        wish = h.wait_wish((await self._runtime()).core, self._setup.batch_size, min_items, patience)
        return bool(await self._run("wait_until_sampleable", waits.wait_until, wish, timeout=wish.timeout))

    async def can_sample(self, batch_size: int | None = None) -> bool:
        wish = h.can_wish((await self._runtime()).core, self._setup.batch_size, batch_size)
        return bool(await self._run("can_sample", waits.can, wish))

    async def wait_until_writable(self, n: int = 1, timeout: float | None = None, cancel_event: Any = None) -> bool:
        wish = h.room_wish((await self._runtime()).core, n, timeout, cancel_event)
        return bool(await self._run("wait_until_writable", waits.wait_until, wish, timeout=wish.timeout))

    async def can_insert(self, n: int = 1) -> bool:
        return bool(await self._run("can_insert", waits.can, h.room_now(n)))

    async def set_rate_limiter(self, rate_limiter: RateLimiter | None) -> None:
        await self._run("set_rate_limiter", write.change, h.pace((await self._runtime()).core, rate_limiter))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            try:
                batch = await self.sample(wait=True)
            except BufferShutDownError:
                return
            yield batch

    # Looking

    async def get(self, index: Any) -> Any:
        core, wanted = (await self._runtime()).core, args.indices(index)
        return h.found(core, index, wanted, await self._read("get", read.get, wanted))

    async def records(self) -> AsyncIterator[Any]:
        after: int | None = None
        while after != 0:
            after, indices, payloads = await self._read("records", read.page, after or 0)
            schema = (await self._runtime()).core.schema
            for index, payload in zip(indices, payloads, strict=True):
                assert schema is not None
                yield decode_record(schema, payload, index)

    async def priorities(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        each: tuple[NDArray[np.int64], NDArray[np.float64]] = await self._read("priorities", read.priorities)
        return each

    async def stats(self) -> Stats:
        counters: Stats = await self._read("stats", read.stats)
        return counters

    async def doctor(self) -> Report:
        report: Report = await self._read("doctor", doctor.examine)
        return report

    async def _counter(self, name: str) -> int:
        return int((await self._read("stats", read.stats))[name])

    @property
    def write_count(self) -> Awaitable[int]:
        return self._counter("write_count")

    @property
    def sampleable_size(self) -> Awaitable[int]:
        return self._counter("sampleable_size")

    @property
    def storage_size(self) -> Awaitable[int]:
        return self._counter("storage_size")

    # Ends of life

    async def shutdown(self, drain: bool = True) -> None:
        await self._runtime()
        if self._behind is not None:
            await self._behind.hurry(SHUTDOWN_SECONDS)
        await self._run("shutdown", write.change, scripts.shutdown(drain=opt.flag("drain", drain)))

    async def reopen(self) -> None:
        await self._run("reopen", write.change, scripts.reopen())

    async def delete(self) -> None:
        await self._read("delete", admin.delete)
        await self.close()

    async def close(self) -> None:
        await self._close(release=False)

    async def _close(self, release: bool) -> None:
        if self._closed:
            return
        now = self._now if self._now is not None and not self._now.foreign else None
        if now is not None and self._behind is not None:
            await self._behind.drain()
        self._closed = True
        if now is not None and self._ahead is not None:
            await self._ahead.stop()
        if now is not None:
            await now.close(release)
        if self._server is not None:
            self._server.close()
        if now is not None and self._behind is not None:
            await self._behind.end()

    async def __aenter__(self) -> Self:
        await self._runtime()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self._close(release=kind is not None)
        except NotWrittenError as error:
            if kind is None:
                raise
            log.error("%s", error)  # what ended the block is told

    def __getstate__(self) -> dict[str, Any]:
        return {"setup": self._setup, "identity": self._core.identity(), "closed": self._closed, "how": self._how}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._setup, self._server, self._closed = state["setup"], None, state["closed"]
        self._core, self._how = self._setup.core(None), state["how"]
        self._core.identify(state["identity"])
        self._now, self._opening, self._ahead, self._behind = None, asyncio.Lock(), None, None


def _document() -> None:
    """Both handles say the same, so the words stand once."""
    for name, member in {**vars(saving.AsyncSaves), **vars(AsyncReplayBuffer)}.items():
        if not name.startswith("_"):
            target = member if isinstance(member, property) else getattr(member, "__func__", member)
            target.__doc__ = getattr(ReplayBuffer, name).__doc__


_document()
