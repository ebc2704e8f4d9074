"""Arguments that name or weigh records: checked, and as the scripts take them. No I/O."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay._core import Core
from redis_replay.exceptions import ArgumentError, ArgumentTypeError
from redis_replay.samplers import not_negative

MAX_INDEX = 2**53 - 1


def lease_names(lease: object) -> list[str]:
    """One lease or many.

    Raises:
        ArgumentTypeError: it is neither a str nor a list, tuple or set of them.
        ArgumentError: it cannot be the name of a lease.
    """
    names: list[Any] = list(lease) if isinstance(lease, list | tuple | set) else [lease]
    for name in names:
        if not isinstance(name, str):
            raise ArgumentTypeError(name="lease", allowed="info.lease of a draw, or several of them", found=name)
        if not re.fullmatch(r"\w+\.\d+", name):
            raise ArgumentError(name="lease", allowed="info.lease of a draw, or several of them", found=name)
    return names


def indices(value: object) -> list[int]:
    """One index or many (a sequence, an array, a tensor) as ints from 1 to 2^53 - 1."""
    allowed = "whole numbers from 1 to 2^53 - 1, as writes and draws gave them"
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        raise ArgumentTypeError(name="index", allowed=allowed, found=value) from None
    if array.size == 0:  # an empty list has no dtype of its own
        return []
    if array.dtype == object or array.dtype.kind not in "iu":
        raise ArgumentTypeError(name="index", allowed=allowed, found=value)
    flat: list[int] = array.reshape(-1).tolist()
    if not 1 <= min(flat) <= max(flat) <= MAX_INDEX:
        raise ArgumentError(name="index", allowed=allowed, found=value)
    return flat


def priorities(core: Core, value: object, n: int) -> list[str]:
    """The priorities of `n` new records as text: one for all, one for each, or none for None.

    Raises:
        ArgumentError: as `new_priorities`.
    """
    return [] if value is None else list(map(repr, new_priorities(core, value, n).tolist()))


def new_priorities(core: Core, value: object, n: int) -> NDArray[np.float64]:
    """One priority for all of `n` records, or one for each: float64 (1,) or (n,).

    Raises:
        ArgumentError: neither the buffer's sampler nor its remover has priorities; there are neither one nor n; one is not a
            finite number >= 0.
    """
    if not core.weighs:
        allowed = f"left out where neither sampler nor remover goes by it: {core.sampler!r}, {core.remover!r}"
        raise ArgumentError(name="priority", allowed=allowed, found=value)
    flat = np.array(_floats(value), np.float64)
    if len(flat) not in (1, n):
        raise ArgumentError(
            name="priority", allowed=f"one number, or one for each of {n} records", found=f"{len(flat)} of them"
        )
    wrong = ~((flat >= 0) & (flat < np.inf))
    if wrong.any():
        i = int(wrong.argmax())
        raise ArgumentError(name=f"priority[{i}]", allowed="a finite number >= 0", found=float(flat[i]))
    return flat


def alpha(core: Core, value: object) -> float:
    """The argument of `set_alpha`.

    Raises:
        ArgumentError: neither the buffer's sampler nor its remover is `Prioritized`; it is no finite number >= 0.
    """
    if not (core.sampler.bins or core.remover.bins):
        allowed = f"set only where the sampler or the remover is Prioritized, not {core.sampler!r} and {core.remover!r}"
        raise ArgumentError(name="alpha", allowed=allowed, found=value)
    return not_negative("alpha", value)


def _floats(value: Any) -> list[float] | NDArray[np.float64]:
    """Numbers, arrays, tensors, or lists of these, as floats; what is no number stays for the error as NaN would."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    if isinstance(value, np.ma.MaskedArray):
        value = np.where(np.ma.getmaskarray(value), np.nan, value.data)  # a hidden number is none
    array = np.asarray(value) if not isinstance(value, list | tuple) else None
    if array is not None and array.dtype.kind in "iuf":
        return array.astype(np.float64).reshape(-1)
    each = value if array is None else array.reshape(-1).tolist()
    return [_float(i, one) for i, one in enumerate(each)]


def _float(i: int, value: Any) -> float:
    try:
        return float("no number" if isinstance(value, (bool, np.bool_, str, bytes)) else value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(name=f"priority[{i}]", allowed="a finite number >= 0", found=value) from None
