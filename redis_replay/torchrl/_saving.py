"""What a TorchRL handle saves and loads: files, and the state that a trainer keeps."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redis_replay import _ops_load as load
from redis_replay import _stored as stored
from redis_replay._blocks import Source
from redis_replay._saving import HOLD_BYTES, Progress, _source
from redis_replay._types import SampleInfo
from redis_replay.checkpoint import Checkpoint
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferShutDownError,
    CheckpointMismatchError,
    RecordNotFoundError,
)
from redis_replay.torchrl._life import Life

FILE = "buffer.ckpt"  # in a directory that is named instead of a file


def file_of(path: Any) -> Any:
    """The file that is meant: of a directory, as TorchRL names one, that in it."""
    return Path(path) / FILE if isinstance(path, (str, PathLike)) and Path(path).is_dir() else path


class Saves(Life):
    """Checkpoints with TorchRL's names."""

    _limiter: type | None = None  # that the class cannot do without

    def dumps(
        self, path: str | PathLike[str], *, max_hold_bytes: int = HOLD_BYTES, progress: Progress | None = None
    ) -> int:  # fmt: skip
        """Writes all that the buffer is, at one moment, to the file `path`, or to `buffer.ckpt` in it where it is a directory.
        The rest as redis_replay.ReplayBuffer.dumps. Transforms are this handle's, and in `state_dict` alone.
        """
        return self.buffer.dumps(file_of(path), max_hold_bytes=max_hold_bytes, progress=progress)

    def loads(self, path: Source, *, progress: Progress | None = None) -> int:
        """Puts what a checkpoint holds in the place of all that the buffer holds, for everyone, as the loads of
        redis_replay.ReplayBuffer. Waits for the draws that this handle has on their way. Batches drawn ahead are dropped, in
        every process; `load_state_dict` brings those of the state back.

        Raises:
            as that; CheckpointMismatchError: also where the class needs a rate limiter that the checkpoint has not.
        """
        return self._load(_source(file_of(path)), progress).records

    def _load(self, source: Source, progress: Progress | None = None) -> load.Loaded:
        if self._limiter is not None:
            self._prove(source)
        self._ahead.get().clear(patiently=True)
        try:
            return self.buffer._load(source, progress)
        finally:
            self._forget()

    dump = save = dumps
    load = loads

    def _prove(self, source: Source) -> Checkpoint:
        """The checkpoint, if `loads` would take it now. Changes nothing."""
        saved: Checkpoint = self.buffer._read("loads", load.prove, source)
        theirs = saved.settings.get("rate_limiter")
        if self._limiter is not None and not isinstance(theirs, self._limiter):
            found = {"rate_limiter": (self._stored_limiter(), theirs)}
            raise CheckpointMismatchError(path=saved.path, reason="", name=self.buffer.name, differences=found)
        if not self._is_open():
            raise BufferShutDownError(name=self.buffer.name)
        return saved

    def _stored_limiter(self) -> object:
        return stored.setting("rate_limiter", str(self.buffer.stats()["rate_limiter"]))

    def _differences(self) -> dict[str, tuple[object, object]]:
        if self._limiter is None or isinstance(found := self._stored_limiter(), self._limiter):
            return {}
        return {"rate_limiter": (found, self._limiter)}

    def state_dict(self, *, include_data: bool = True) -> dict[str, Any]:
        """What a trainer's checkpoint keeps: all that the buffer holds, as `dumps` writes it, as a uint8 tensor (bytes,) under
        "data", what this handle has drawn ahead, and the state of its transforms. Numbers, text and tensors alone: torch reads
        it back with weights_only. Without `include_data`: small, for a buffer that outlives the trainer.

        Raises:
            as redis_replay.ReplayBuffer.state_dict.
        """
        ahead = [_columns(info) for _, info in self._ahead.get().results()] if include_data else []
        state = self.buffer.state_dict(include_data=include_data)
        if include_data:
            state["data"] = torch.frombuffer(bytearray(state["data"]), dtype=torch.uint8)
            state["drawn_ahead"] = {str(i): columns for i, columns in enumerate(ahead)}
        return state | {"transforms": dict(self._path.transform.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """With data: as `loads`; the state may go, or change, afterwards. What was drawn ahead comes next, in order, as far as
        this handle's `prefetch` reaches. Without: as that of redis_replay.ReplayBuffer, the buffer must be the one that it was
        taken of, and neither emptied nor set back since. What an older state has not is 0.

        Raises:
            as those; ArgumentTypeError: it is no such state. ArgumentError: it is of other transforms.
        """
        data, transforms = bytes_of(state_dict), transforms_of(state_dict, self._path.transform)
        loaded = self._load(data) if data is not None else None
        small = {name: value for name, value in state_dict.items() if name not in ("data", "drawn_ahead")}
        if data is None:
            self.buffer.load_state_dict(small)
            self._forget()
        elif "beta" in small:
            self.buffer.beta = small["beta"]
        if transforms:
            self._path.transform.load_state_dict(transforms)
        if loaded is not None and self._depth:
            every = dict(state_dict.get("drawn_ahead") or {})
            batches = (self._again(every[key], loaded.shift) for key in sorted(every, key=int))
            self._ahead.get().put([batch for batch in batches if batch is not None])

    def _again(self, columns: Mapping[str, Any], shift: int) -> tuple[Any, SampleInfo] | None:
        """A batch that was drawn ahead, of what was loaded; None where a record of it had left before."""
        arrays = {name: value.cpu().numpy() for name, value in columns.items()}
        info = SampleInfo(**{"times_sampled": None, "last": False} | arrays | {"index": arrays["index"] + shift})
        try:
            data = self.buffer.get(info.index)
        except RecordNotFoundError:
            return None
        return self._path.outward(data, info), info


def _columns(info: SampleInfo) -> dict[str, torch.Tensor]:
    """What a draw told of each record, as tensors (n,)."""
    return {name: torch.from_numpy(value.copy()) for name, value in vars(info).items() if isinstance(value, np.ndarray)}


def transforms_of(state: Mapping[str, Any], transform: Any) -> dict[str, Any]:
    """The state of transforms that a state holds; empty: none.

    Raises:
        ArgumentError: they are others.
    """
    theirs, ours = dict(state.get("transforms") or {}), set(transform.state_dict())
    if theirs and set(theirs) != ours:
        allowed = f"of the same transforms, with the entries {sorted(ours)}"
        raise ArgumentError(name="state_dict", allowed=allowed, found=sorted(theirs))
    return theirs


def bytes_of(state: Any) -> bytes | None:
    """The checkpoint that a state holds, as bytes of its own.

    Raises:
        ArgumentTypeError: it is no such state.
    """
    data = state.get("data") if isinstance(state, Mapping) else state
    if isinstance(data, torch.Tensor) and data.dtype == torch.uint8:
        data = data.detach().cpu().contiguous().numpy().tobytes()
    if not isinstance(state, Mapping) or not isinstance(data, bytes | None):
        raise ArgumentTypeError(name="state_dict", allowed="what state_dict() gave", found=type(state).__name__)
    return data
