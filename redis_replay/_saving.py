"""What a handle saves and loads: checkpoints, and the state that a trainer keeps."""

import io
from collections.abc import Awaitable, Callable, Mapping
from os import PathLike
from typing import Any

from redis_replay import _ops_dump as dump
from redis_replay import _ops_load as load
from redis_replay import _ops_read as read
from redis_replay import _options as opt
from redis_replay._blocks import Source, Writer
from redis_replay._core import Core
from redis_replay._handle import Setup
from redis_replay._runtime import AsyncRuntime
from redis_replay.exceptions import ArgumentTypeError, LoadError

HOLD_BYTES = 2**30
LOAD_SECONDS = 5.0  # that a load waits for a lane
COUNTED = ("write_count", "sampleable_size", "storage_size", "consumed", "evicted", "removed", "stale", "sample_calls",
           "samples_returned", "version")  # fmt: skip

Progress = Callable[[int, int], None]


def _most(max_hold_bytes: object) -> int:
    return opt.whole_number("max_hold_bytes", max_hold_bytes, 0, 2**53 - 1)


def _source(path: Any) -> Source:
    """What `loads` takes.

    Raises:
        ArgumentTypeError: it is neither a path nor bytes.
    """
    if isinstance(path, (str, bytes, PathLike)):
        return path
    raise ArgumentTypeError(name="path", allowed="a path, or the bytes of a checkpoint", found=path)


def _path(path: Any) -> str | PathLike[str]:
    """Where `dumps` writes to.

    Raises:
        ArgumentTypeError: it is no path.
    """
    if isinstance(path, (str, PathLike)):
        return path
    raise ArgumentTypeError(name="path", allowed="a path", found=path)


def _state(core: Core, url: str, stats: Mapping[str, Any], position: int, data: bytes | None) -> dict[str, Any]:
    state = {
        "url": url,
        "name": core.name,
        "epoch": core.epoch,
        "counters": {name: stats[name] for name in COUNTED},
        "position": position,
        "beta": core.beta,
    }
    return state if data is None else state | {"data": data}


def _data(state: Any) -> bytes | None:
    """What `state_dict(include_data=True)` has put in.

    Raises:
        ArgumentTypeError: it is no such state.
    """
    data = state.get("data") if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or not isinstance(data, bytes | None):
        raise ArgumentTypeError(name="state", allowed="what state_dict() gave", found=state)
    return data


def _check(core: Core, state: Mapping[str, Any], last: int, written: int) -> None:
    """A state without data is good for the buffer that it was taken of, as long as nothing took it back behind that moment.

    Raises:
        LoadError: it is another one, or has lost something.
    """
    if "epoch" not in state:
        keys = ", ".join(map(repr, sorted(map(str, state))[:5])) or "none"
        hint = "a directory that TorchRL's dumps() wrote is read by redis_replay.transfer.import_torchrl"
        raise LoadError(name=core.name, reason=f"the state is none that state_dict() gave (its keys: {keys}); {hint}")
    if state["epoch"] != core.epoch:
        found = f"the state is of another buffer ({state.get('name')!r} at {state.get('url')}), and holds no data"
        raise LoadError(name=core.name, reason=f"{found}: loads() a dump, or save with state_dict(include_data=True)")
    if last < int(state.get("position", 0)):
        reason = f"its newest index is {last}, and was {state['position']} when the state was saved: loads() a dump"
        raise LoadError(name=core.name, reason=reason)
    before = int(dict(state.get("counters") or {}).get("write_count", 0))
    if written < before:
        reason = f"its write_count is {written}, and was {before} when the state was saved: it was emptied: loads() a dump"
        raise LoadError(name=core.name, reason=reason)


class Saves:
    """Checkpoints of a sync handle."""

    _read: Any
    _run: Any
    _runtime: Any
    _setup: Setup

    def dumps(
        self, path: str | PathLike[str], *, max_hold_bytes: int = HOLD_BYTES, progress: Progress | None = None
    ) -> int:  # fmt: skip
        """Writes all that the buffer is, at one moment, to the file `path`, while everybody goes on. Gives how many records.

        The file takes its place when it is whole and on the disk: a dump that fails or is killed leaves what was there.
        docs/checkpoint.md says what is in it, and what is not.

        Args:
            max_hold_bytes: that the server may keep for it, of records that leave meanwhile. 2^30 by default.
            progress: called with the records written and all of them, some 2,000 apart.

        Raises:
            DumpError: more would have to be kept, the buffer was emptied or loaded meanwhile, or the server forgot about it.
            UnderWayError: another dump of the buffer is under way, or another one writes to this file.
            OSError: the file cannot be written. BufferGoneError, BufferDamagedError, ConnectionLostError.
        """
        n: int = self._read("dumps", dump.dump_to, _path(path), _most(max_hold_bytes), progress)
        return n

    def loads(self, path: Source, *, merge: bool = False, progress: Progress | None = None) -> int:
        """Puts what a checkpoint holds in the place of all that the buffer holds: records and their order, priorities, uses,
        versions, counters, the rate limiter's state. Gives how many records.

        It is proven first, then built beside the buffer, then swapped in one step: until then, and after any error, the buffer
        is as it was. Waiters look again; leases and draws that are not fetched yet end. Records keep their index where they
        are this buffer's own, or nothing was ever written to it; else they get new ones, in the same order.

        Args:
            path: of the file, or its bytes.
            merge: write its records as new ones, with their priorities and versions, beside those that are there. They go in
                steps; what is known of draws stays behind.
            progress: called with the records loaded and all of them.

        Raises:
            CheckpointNotFoundError, CheckpointError: there is none, or it is not whole. CheckpointMismatchError: of a buffer
            with other settings. SchemaError: of other records. UnderWayError: another load is. LoadError: it took a break of a
            minute. BufferShutDownError: also while draining. OutOfMemoryError, BufferGoneError, ConnectionLostError;
            OutcomeUnknownError: the reply to the swap never came.
        """
        return self._load(path, progress, merge=merge).records

    def _load(self, path: Source, progress: Progress | None = None, *, merge: bool = False) -> load.Loaded:
        operation = load.merge if opt.flag("merge", merge) else load.load
        loaded: load.Loaded = self._run("loads", operation, _source(path), progress, timeout=LOAD_SECONDS)
        return loaded

    def state_dict(self, *, include_data: bool = False) -> dict[str, Any]:
        """What a trainer's checkpoint keeps of the buffer: small, where it is and how far it has come, for a buffer that
        outlives the trainer; with `include_data` all of it, as `dumps` writes it, as bytes under "data".

        Raises:
            as `dumps`, with `include_data`.
        """
        data = None
        if opt.flag("include_data", include_data):
            file = io.BytesIO()
            self._read("state_dict", dump.dump, Writer(file).write, HOLD_BYTES, None)
            data = file.getvalue()
        stats, position = self._read("state_dict", read.stats), self._read("state_dict", load.newest)
        return _state(self._runtime().core, str(self._setup.address), stats, position, data)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """With data: as `loads`. Without: the buffer must be the one that it was taken of, gone on from there: records may have
        left it as always, but neither its newest index nor its write_count is behind.

        Raises:
            LoadError: it is another one, was emptied, or has lost something. ArgumentTypeError; as `loads`, with data.
        """
        data = _data(state_dict)
        if data is not None:
            self.loads(data)
        else:
            written = self._read("load_state_dict", read.stats)["write_count"]
            _check(self._runtime().core, state_dict, self._read("load_state_dict", load.newest), written)
        self._runtime().core.beta = state_dict.get("beta", self._runtime().core.beta)


class AsyncSaves:
    """The same, to be awaited."""

    _read: Any
    _run: Any
    _runtime: Callable[[], Awaitable[AsyncRuntime]]
    _setup: Setup

    async def dumps(
        self, path: str | PathLike[str], *, max_hold_bytes: int = HOLD_BYTES, progress: Progress | None = None
    ) -> int:  # fmt: skip
        return int(await self._read("dumps", dump.dump_to, _path(path), _most(max_hold_bytes), progress))

    async def loads(self, path: Source, *, merge: bool = False, progress: Progress | None = None) -> int:
        operation = load.merge if opt.flag("merge", merge) else load.load
        loaded: load.Loaded = await self._run("loads", operation, _source(path), progress, timeout=LOAD_SECONDS)
        return loaded.records

    async def state_dict(self, *, include_data: bool = False) -> dict[str, Any]:
        data = None
        if opt.flag("include_data", include_data):
            file = io.BytesIO()
            await self._read("state_dict", dump.dump, Writer(file).write, HOLD_BYTES, None)
            data = file.getvalue()
        stats, position = await self._read("state_dict", read.stats), await self._read("state_dict", load.newest)
        return _state((await self._runtime()).core, str(self._setup.address), stats, position, data)

    async def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        data = _data(state_dict)
        if data is not None:
            await self.loads(data)
        else:
            written = (await self._read("load_state_dict", read.stats))["write_count"]
            _check((await self._runtime()).core, state_dict, await self._read("load_state_dict", load.newest), written)
        core = (await self._runtime()).core
        core.beta = state_dict.get("beta", core.beta)
