"""What happens to data on its way into the buffer and out of it: transforms, collation, memory, device. No I/O."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, is_tensorclass
from torchrl.envs.transforms import Compose, Transform

from redis_replay import _options as opt
from redis_replay._types import SampleInfo
from redis_replay.exceptions import ArgumentError, ArgumentTypeError

_ALLOWED = "a TensorDict, a tensorclass, or a list of them"
LABELS = ("index", "priority_weight")  # of each record, beside its data


def as_transform(transform: object, *, invert: bool = False) -> Transform:
    """A transform, or any callable as one; inverted: what it does to what is read, it does to what is written, and vice versa.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if not isinstance(transform, Transform) and not callable(transform):
        raise ArgumentTypeError(name="transform", allowed="a torchrl Transform or a callable", found=transform)
    made = transform if isinstance(transform, Transform) else _Called(transform)
    made = _Inverted(made) if invert else made
    made.train(mode=False)
    return made


def compose(transform: object) -> Compose:
    """The same as a Compose that can be appended to; None: an empty one."""
    if transform is None:
        return Compose()
    made = as_transform(transform)
    return made if isinstance(made, Compose) else Compose(made)


class _Called(Transform):  # type: ignore[misc]
    """A plain callable, applied to what is sampled."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tensordict: Any) -> Any:
        """What the callable makes of a batch."""
        return self.function(tensordict)

    def _inv_call(self, tensordict: Any) -> Any:
        return tensordict


class _Inverted(Transform):  # type: ignore[misc]
    """A transform the other way round."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, tensordict: Any) -> Any:
        """The transform's inverse."""
        return self.transform.inv(tensordict)

    def _inv_call(self, tensordict: Any) -> Any:
        return self.transform(tensordict)


@dataclass
class Path:
    """The way in and out of one handle.

    Attributes:
        wrote: the tensorclass that all it wrote was of, in this process; else TensorDictBase, or None before any write.
    """

    transform: Compose = field(default_factory=Compose)
    collate_fn: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    device: torch.device | None = None
    wrote: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Without a class that no other process may know."""
        return vars(self) | {"wrote": None}

    def inward(self, data: Any) -> Any:
        """What is stored of `data`: None where a transform keeps it back.

        Raises:
            ArgumentTypeError: it is no TensorDict.
        """
        if not isinstance(data, (list, tuple)):
            return self._one_inward(data)
        kept = [self._one_inward(one) for one in data]
        return [one for one in kept if one is not None] or (kept if not kept else None)

    def _one_inward(self, data: Any) -> Any:
        if not isinstance(data, TensorDictBase) and not is_tensorclass(data):
            raise ArgumentTypeError(name="data", allowed=_ALLOWED, found=type(data).__name__)
        if len(self.transform):
            data = self.transform.inv(data.copy())
            if data is None:
                return None
        kind = TensorDictBase if isinstance(data, TensorDictBase) else type(data)
        self.wrote = kind if self.wrote in (None, kind) else TensorDictBase
        return plain(data)

    def _as_written(self, data: Any) -> Any:
        """A batch or a record as the tensorclass that this process wrote, if it has no others' leaves."""
        if self.wrote in (None, TensorDictBase):
            return data
        names, keys = {field.name for field in fields(self.wrote)}, set(data.keys())
        return data if keys - names - set(LABELS) else self.wrote.from_tensordict(data.select(*keys & names))

    def outward(self, data: Any, info: SampleInfo) -> Any:
        """What the caller gets of a drawn batch, with "index", and "priority_weight" of a draw by priority."""
        made = data if isinstance(data, TensorDictBase) else _labelled(_of_arrays(data, len(info.index)), info, LABELS)
        made = self.collate_fn(made) if self.collate_fn is not None else self._as_written(made)
        if len(self.transform):
            made = self.transform(made)
        if isinstance(made, TensorDictBase):
            made = _labelled(made, info, [key for key in LABELS if key not in made.keys()])  # noqa: SIM118 - it is no dict
        if self.pin_memory and torch.cuda.is_available():
            made = made.pin_memory()
        return made.to(self.device) if self.device is not None else made

    def shown(self, data: Any, index: Any) -> Any:
        """What was looked up: a batch of some indices, or the record of one; with "index"."""
        made = data if isinstance(data, TensorDictBase) else _of_arrays(data, len(index) if np.ndim(index) else None)
        made = self._as_written(_indexed(made, index))
        made = self.transform(made) if len(self.transform) else made
        return _indexed(made, index) if isinstance(made, TensorDictBase) and "index" not in made.keys() else made  # noqa: SIM118


def bounds(index: Any) -> tuple[int, float, int]:
    """A slice of indices, or `...` for all of them, as the first, the end (not in it, or inf), and the step.

    Raises:
        ArgumentError: a bound is negative: indices are no positions. ArgumentTypeError: one is no whole number.
    """
    named = index if isinstance(index, slice) else slice(None)

    def whole(value: object, least: int) -> int:
        return opt.whole_number("index", value, least, opt.MAX_VERSION)

    low = 1 if named.start is None else max(1, whole(named.start, 0))
    high = inf if named.stop is None else whole(named.stop, 0)
    return low, high, 1 if named.step is None else whole(named.step, 1)


def plain(data: Any) -> Any:
    """A tensorclass as a TensorDict."""
    return data.to_tensordict() if is_tensorclass(data) else data


def _indexed(data: TensorDictBase, index: Any) -> TensorDictBase:
    each = torch.as_tensor(np.asarray(index, np.int64))
    each = each.reshape(-1, *[1] * (data.batch_dims - 1)) if each.ndim else each
    return data.set("index", each.expand(data.batch_size).clone())


def _of_arrays(data: dict[str, Any], n: int | None) -> TensorDict:
    """What was written without torch, as a TensorDict of n records; None: a record."""
    return TensorDict({name: _of_array(value, n) for name, value in data.items()}, [] if n is None else [n])


def _of_array(value: Any, n: int | None) -> Any:
    if isinstance(value, dict):
        return _of_arrays(value, n)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return NonTensorStack(*value) if n is not None and isinstance(value, list) else value


def _labelled(data: TensorDictBase, info: SampleInfo, keys: Iterable[str]) -> TensorDictBase:
    """With those of these labels that the draw has: again after the transforms, which may have taken them away."""
    for key in keys:
        values = getattr(info, key)
        if values is None:
            continue
        each = torch.from_numpy(values).reshape(-1, *[1] * (data.batch_dims - 1))
        data.set(key, each.expand(data.batch_size).clone())
    return data


def told(info: SampleInfo) -> dict[str, Any]:
    """What `sample(return_info=True)` tells, as TorchRL does: a dict, arrays as tensors."""
    every = {name: value for name, value in vars(info).items() if value is not None}
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in every.items()}


def reduced(data: TensorDictBase, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One priority for each record: the largest of those under `key`, float64 (n,), or (1,) of a single record.

    Raises:
        ArgumentError: there are none.
    """
    values = data.get(key, None)
    if values is None:
        found = ", ".join(map(str, data.keys()))
        raise ArgumentError(name="data", allowed=f"a TensorDict with the priority key {key!r}", found=found)
    n = data.batch_size[0] if data.batch_dims else 1
    flat: np.ndarray[Any, np.dtype[np.float64]] = values.detach().to(torch.float64).reshape(n, -1).amax(1).cpu().numpy()
    return flat
