"""Versions of what records were made with (a policy, say): those of a write, and the handle's part in raising the buffer's."""

import operator
import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from redis_replay import _ops_write as ops
from redis_replay._core import HOST, Core
from redis_replay._keys import check_word
from redis_replay._options import MAX_VERSION
from redis_replay._types import Origin
from redis_replay.exceptions import ArgumentError, ArgumentTypeError

ALLOWED = "a whole number from 0 to 2^53 - 1"


def origin(core: Core, version: object, n: int) -> Origin:
    """Who writes `n` records, and under which versions: one for all, one for each, or, for None, the buffer's when they arrive.

    Raises:
        ArgumentError: the buffer keeps no versions; there are neither one nor n; one is out of range: its name tells the
            position.
        ArgumentTypeError: one is no whole number.
    """
    if version is None:
        return Origin(writer_of(core)) if core.dates else Origin()
    check_kept(core, version)
    flat = _flat(version)
    if len(flat) not in (1, n):
        found = f"{len(flat)} of them"
        raise ArgumentError(name="version", allowed=f"one number, or one for each of {n} records", found=found)
    name = "version[{}]" if isinstance(version, (list, tuple)) or bool(getattr(version, "ndim", False)) else "version"
    numbers = [_version(name.format(i), one) for i, one in enumerate(flat)]
    if len(set(numbers)) == 1:
        numbers = numbers[:1]
    return Origin(writer_of(core), tuple(map(str, numbers)))


def check_kept(core: Core, version: object) -> None:
    """Before a call that gives a version.

    Raises:
        ArgumentError: the buffer keeps none.
    """
    if not core.dates:
        allowed = "left out where the buffer was created without max_staleness= and sampler=Freshest()"
        raise ArgumentError(name="version", allowed=allowed, found=version)


def buffers_version(core: Core, version: object) -> int:
    """The argument of `set_version`.

    Raises:
        ArgumentError, ArgumentTypeError: it is no version, or the buffer keeps none.
    """
    check_kept(core, version)
    flat = _flat(version)
    if len(flat) != 1:
        raise ArgumentTypeError(name="version", allowed=ALLOWED, found=version)
    return _version("version", flat[0])


def _flat(value: Any) -> list[Any]:
    """A number, an array, a tensor or a list of these, as a list."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, (list, tuple)):
        return [one.item() if getattr(one, "ndim", None) == 0 else one for one in value]
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1).tolist())
    return [value]


def _version(name: str, value: object) -> int:
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - whatever an argument does when it is looked at, it is no number
        number = None
    if number is None:
        raise ArgumentTypeError(name=name, allowed=ALLOWED, found=value)
    if not 0 <= number <= MAX_VERSION:
        raise ArgumentError(name=name, allowed=ALLOWED, found=value)
    return number


def writer_of(core: Core) -> str:
    """The name under which this handle's records are counted."""
    return core.writer or f"{HOST}:{os.getpid()}"


class Versioned(ABC):
    """What a handle does about versions."""

    @property
    @abstractmethod
    def _own(self) -> Core:
        """What this handle knows now."""

    @property
    def writer(self) -> str:
        """The name under which `stats()["by_writer"]` counts what this handle writes: HOST:PID, or what it is set to
        (1 to 64 characters of A-Z a-z 0-9 _ . - / : @ + =). Handles of one name are counted together.
        """
        return writer_of(self._own)

    @writer.setter
    def writer(self, value: str) -> None:
        self._own.writer = check_word("writer", value, 64)


class SetsVersion(Versioned):
    """The same, without await."""

    _run: Any

    def set_version(self, version: Any) -> int:
        """Raises the buffer's version, as a learner does after each update. With max_staleness=k what is older than
        `version - k` is dropped, and is never handed out from then on. Gives how many records that were.

        Many are dropped in steps of 5,000; the version is raised by the last one. The version that the buffer has is no error.

        Args:
            version: a whole number from 0 to 2^53 - 1.

        Raises:
            ArgumentError: the buffer has a higher one: it never falls; nothing was changed. Or it keeps no versions.
            OutcomeUnknownError: no reply came; call it again, or resolve() says whether it was raised. `done` of an error
                says how many were dropped before.
        """
        return int(self._run("set_version", ops.set_version, buffers_version(self._own, version)))
