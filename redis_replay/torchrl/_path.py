"""What happens to data on its way into the buffer and out of it: transforms, collation, memory, device. No I/O."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, is_tensorclass
from torchrl.envs.transforms import Compose, Transform

from redis_replay._types import SampleInfo
from redis_replay.exceptions import ArgumentError, ArgumentTypeError

_ALLOWED = "a TensorDict, a tensorclass, or a list of them"
LABELS = ("index", "priority_weight")  # of each record, beside its data


def as_transform(transform: object) -> Transform:
    """A transform, or any callable as one.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if not isinstance(transform, Transform) and not callable(transform):
        raise ArgumentTypeError(name="transform", allowed="a torchrl Transform or a callable", found=transform)
    made = transform if isinstance(transform, Transform) else _Called(transform)
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


@dataclass
class Path:
    """The way in and out of one handle."""

    transform: Compose = field(default_factory=Compose)
    collate_fn: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    device: torch.device | None = None

    def inward(self, data: Any) -> Any:
        """What is stored of `data`: None where a transform keeps it back.

        Raises:
            ArgumentTypeError: it is no TensorDict.
        """
        if isinstance(data, (list, tuple)):
            data = [_tensordict(one) for one in data]
            kept = [self.transform.inv(one) for one in data] if len(self.transform) else data
            return [one for one in kept if one is not None] or (kept if not kept else None)
        data = _tensordict(data)
        return self.transform.inv(data.copy()) if len(self.transform) else data

    def outward(self, data: Any, info: SampleInfo) -> Any:
        """What the caller gets of a drawn batch, with "index", and "priority_weight" of a draw by priority."""
        made = data if isinstance(data, TensorDictBase) else _labelled(_of_arrays(data, len(info.index)), info, LABELS)
        if self.collate_fn is not None:
            made = self.collate_fn(made)
        if len(self.transform):
            made = self.transform(made)
        if isinstance(made, TensorDictBase):
            made = _labelled(made, info, [key for key in LABELS if key not in made.keys()])  # noqa: SIM118 - it is no dict
        if self.pin_memory and torch.cuda.is_available():
            made = made.pin_memory()
        return made.to(self.device) if self.device is not None else made

    def shown(self, data: Any, n: int | None) -> Any:
        """A batch of n that was looked up; None: a record."""
        made = data if isinstance(data, TensorDictBase) else _of_arrays(data, n)
        return self.transform(made) if len(self.transform) else made


def _tensordict(data: Any) -> Any:
    if is_tensorclass(data):
        return data.to_tensordict()
    if not isinstance(data, TensorDictBase):
        raise ArgumentTypeError(name="data", allowed=_ALLOWED, found=type(data).__name__)
    return data


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
