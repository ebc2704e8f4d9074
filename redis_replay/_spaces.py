"""What Gymnasium's spaces hold, as columns: nested dicts of arrays with a leading dimension, all of them copies."""

from typing import Any

import numpy as np
from gymnasium import spaces

from redis_replay.exceptions import ArgumentTypeError

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_ALLOWED = "made of Box, Discrete, MultiBinary, MultiDiscrete, Text, Dict and Tuple"


class Layout:
    """How the values of a space are stored. A Tuple's parts are named "0", "1", …

    Args:
        name: what the space is, for the error.
        space: of one environment.

    Raises:
        ArgumentTypeError: some values of it have no fixed shape: a Sequence, Graph or OneOf, or a space of another library.
    """

    def __init__(self, name: str, space: Any) -> None:
        self._space = space
        _check(name, space)

    def one(self, value: Any) -> Any:
        """A value, as columns with one row."""
        return _columns(self._space, value, batched=False)

    def batch(self, value: Any) -> Any:
        """The values of n environments, as a vector environment gives and takes them, as columns with n rows."""
        return _columns(self._space, value, batched=True)


def _parts(space: Any) -> dict[Any, Any] | None:
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def _check(name: str, space: Any) -> None:
    parts = _parts(space)
    if parts is not None:
        for key, part in parts.items():
            _check(f"{name}[{key!r}]", part)
    elif not isinstance(space, (*_ARRAYS, spaces.Text)):
        raise ArgumentTypeError(name=name, allowed=_ALLOWED, found=type(space).__name__)


def _columns(space: Any, value: Any, *, batched: bool) -> Any:
    parts = _parts(space)
    if parts is not None:
        return {str(key): _columns(part, value[key], batched=batched) for key, part in parts.items()}
    if isinstance(space, spaces.Text):
        return list(value) if batched else [value]
    copied = np.array(value, dtype=space.dtype)
    return copied if batched else copied[None]
