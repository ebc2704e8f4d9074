"""Records on their way to a buffer: gathered in columns, and each written once, whatever becomes of a write."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from redis_replay.exceptions import ArgumentTypeError, OutcomeUnknownError

Columns = dict[str, Any]  # nested dicts; leaves are arrays (n, ...), or lists of n texts


def each(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Nested dicts of one form, with `function` applied to the leaves of the same place."""
    if isinstance(first, dict):
        return {name: each(function, leaf, *(other[name] for other in others)) for name, leaf in first.items()}
    return function(first, *others)


def rows(columns: Any, which: Any) -> Any:
    """The rows that a slice or a mask (bool, (n,)) names."""
    if isinstance(which, slice):
        return each(lambda leaf: leaf[which], columns)
    return each(lambda leaf: leaf[which] if isinstance(leaf, np.ndarray) else list(np.array(leaf, object)[which]), columns)


def _joined(*leaves: Any) -> Any:
    return np.concatenate(leaves) if isinstance(leaves[0], np.ndarray) else [text for leaf in leaves for text in leaf]


class Outbox:
    """What is to be written, in order. A write that fails leaves here what is not known to be stored, and the next `flush` goes
    on with it: a write without a reply is asked after first. Of one process: a forked child has an empty one.

    Args:
        buffer: has `extend(columns)`, or else `add(record)`.
        terms: keyword arguments of each write.

    Raises:
        ArgumentTypeError: it has neither, or they are coroutines.
    """

    def __init__(self, buffer: Any, **terms: Any) -> None:
        write = getattr(buffer, "extend", None) or getattr(buffer, "add", None)
        if not callable(write) or inspect.iscoroutinefunction(write):
            raise ArgumentTypeError(name="buffer", allowed="a ReplayBuffer, or has extend or add", found=type(buffer).__name__)
        self.buffer, self._terms = buffer, terms
        self._chunks: list[Columns] = []
        self._versions: list[int | None] = []  # of each record
        self._count = 0
        self._unknown: OutcomeUnknownError | None = None  # of the first rows
        self._pid = os.getpid()

    def __len__(self) -> int:
        """Records that are not known to be stored."""
        return self._count if self._pid == os.getpid() else 0

    def put(self, columns: Columns, n: int, version: int | None = None) -> None:
        """Takes `n` records, the caller's no more, and the version that they were made with."""
        self._leave_to_parent()
        self._chunks.append(columns)
        self._versions += [version] * n
        self._count += n

    def flush(self) -> None:
        """Writes all. Raises what the buffer raises; what is stored by then is not written again."""
        self._leave_to_parent()
        self._settle()
        while self._count:
            if hasattr(self.buffer, "extend"):
                n = self._alike()
                data = self._gathered() if n == self._count else rows(self._gathered(), slice(n))
                self._attempt(self.buffer.extend, data, n, self._versions[:n])
            else:
                self._attempt(self.buffer.add, each(lambda leaf: leaf[0], self._gathered()), 1, self._versions[0])

    def _alike(self) -> int:
        """How many of the first records have a version, or have none: one write takes one for each, or none."""
        none = self._versions[0] is None
        return next((i for i, version in enumerate(self._versions) if (version is None) != none), self._count)

    def discard(self) -> Columns | None:
        """Forgets what is not known to be stored, and gives it: columns, or None."""
        self._leave_to_parent()
        left = self._gathered() if self._count else None
        self._clear()
        return left

    def _clear(self) -> None:
        self._chunks, self._versions, self._count, self._unknown = [], [], 0, None

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():
            self._clear()
            self._pid = os.getpid()

    def _gathered(self) -> Columns:
        if len(self._chunks) > 1:
            self._chunks = [each(_joined, *self._chunks)]
        return self._chunks[0]

    def _attempt(self, write: Callable[..., Any], data: Any, n: int, version: Any) -> None:
        terms = self._terms if self._versions[0] is None else self._terms | {"version": version}
        try:
            write(data, **terms)
        except OutcomeUnknownError as error:
            self._drop(getattr(error, "done", 0))
            self._unknown = error
            raise
        except Exception as error:  # refused: in is what the steps before it wrote
            self._drop(getattr(error, "done", 0))
            raise
        except BaseException:  # interrupted, and nobody can tell: at most once
            self._drop(n)
            raise
        self._drop(n)

    def _settle(self) -> None:
        if self._unknown is not None:
            outcome = self._unknown.resolve()
            self._unknown = None
            if outcome.applied:
                self._drop(len(outcome.index))

    def _drop(self, n: int) -> None:
        """The first `n` are stored."""
        if n:
            self._chunks = [rows(self._gathered(), slice(n, None))] if n < self._count else []
            del self._versions[:n]
            self._count = len(self._versions)
