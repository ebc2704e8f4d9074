"""Files that hold arrays by name, one row a record: as they are, or in D4RL's names as transitions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from redis_replay._outbox import each, rows
from redis_replay._schema import numpy_name
from redis_replay.transfer._errors import TransferError
from redis_replay.transfer._flow import Chunk, Source, chunk_rows, joined, nested

Path = tuple[str, ...]

# D4RL's names, and those that Gymnasium's users write, by the leaf of a record that they become.
NAMES = {
    "observation": ("observations",), "action": ("actions",), "reward": ("rewards",),
    "terminated": ("terminals", "terminated", "terminations", "dones"),
    "truncated": ("timeouts", "truncated", "truncations"), "next_observation": ("next_observations",),
}  # fmt: skip
_NEEDED = ("observation", "action", "reward", "terminated")
_TYPES = {"reward": np.dtype(np.float32), "terminated": np.dtype(np.bool_), "truncated": np.dtype(np.bool_)}
_TEXT_BYTES = 64  # what a text is taken for where the size of a chunk is planned


class Rows(ABC):
    """An array of a file, read from its first row on. `dtype` is None where its rows are texts."""

    dtype: "np.dtype[Any] | None"
    shape: tuple[int, ...]

    @abstractmethod
    def read(self, n: int) -> Any:
        """The next `n` rows: an array (n, ...), or a list of texts."""

    def row_bytes(self) -> int:
        """Of one row."""
        return _TEXT_BYTES if self.dtype is None else self.dtype.itemsize * math.prod(self.shape[1:])


class ArraySource(Source):
    """What .npz and HDF5 share.

    Raises:
        TransferError: there is no array, an array has a type that no buffer stores or no rows, or their lengths differ.
    """

    def __init__(self, where: str, arrays: dict[Path, Rows]) -> None:
        self.where = where
        self._leaves = self._roles(arrays)
        self._arrays = {path: arrays[path] for path in (self._leaves or arrays)}
        self._check()
        self.total = next(iter(self._arrays.values())).shape[0]

    def _wrong(self, reason: str) -> TransferError:
        return TransferError(where=self.where, reason=reason)

    def _roles(self, arrays: dict[Path, Rows]) -> dict[Path, Path]:
        """The path in a record of each array that is read, where the names are D4RL's; else nothing."""
        roles = {name: leaf for leaf, names in NAMES.items() for name in names}
        leaves = {path: (roles[path[0]], *path[1:]) for path in arrays if path[0] in roles}
        there = {leaf[0] for leaf in leaves.values()}
        return leaves if there >= set(_NEEDED) else {}

    def _check(self) -> None:
        if not self._arrays:
            raise self._wrong("there is no array in it")
        for path, array in self._arrays.items():
            name = "/".join(path)
            if array.dtype is not None and numpy_name(array.dtype) is None:
                raise self._wrong(f"{name} is of type {array.dtype}, which no buffer stores")
            if not array.shape:
                raise self._wrong(f"{name} is a single value: each array needs a row for each record")
        lengths = {"/".join(path): array.shape[0] for path, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise self._wrong("the arrays differ in length: " + ", ".join(f"{name} {n}" for name, n in lengths.items()))
        try:
            tree = nested((self._leaves.get(path, path), array) for path, array in self._arrays.items())
        except ValueError as error:
            raise self._wrong(str(error)) from error
        if self._leaves:
            self._check_transitions(tree)

    def _check_transitions(self, tree: dict[str, Any]) -> None:
        for leaf in _TYPES:
            if leaf in tree and not _is_number(tree[leaf]):
                raise self._wrong(f"{self._given(leaf)} must be one number for each record")
        if "truncated" not in tree and "next_observation" not in tree:
            reason = "it has neither timeouts (or truncated) nor next_observations: nothing tells where episodes were cut"
            raise self._wrong(reason)

    def _given(self, leaf: str) -> str:
        return next("/".join(path) for path, role in self._leaves.items() if role[0] == leaf)

    def chunks(self) -> Iterator[Chunk]:
        """As Source.chunks."""
        return self._transitions() if self._leaves else (Chunk(data, n) for data, n in self._raw())

    def _raw(self) -> Iterator[tuple[dict[str, Any], int]]:
        most = chunk_rows(sum(array.row_bytes() for array in self._arrays.values()))
        for at in range(0, self.total, most):
            n = min(most, self.total - at)
            yield nested((self._leaves.get(path, path), array.read(n)) for path, array in self._arrays.items()), n

    def _transitions(self) -> Iterator[Chunk]:
        whole = (self._typed(data, n) for data, n in self._raw())
        first = next(whole, None)
        if first is None:
            return
        if "next_observation" in first:
            yield Chunk(first, len(first["reward"]))
            yield from (Chunk(data, len(data["reward"])) for data in whole)
            return
        yield from _with_next(first, whole)

    def _typed(self, data: dict[str, Any], n: int) -> dict[str, Any]:
        for leaf, dtype in _TYPES.items():
            given = data[leaf] if leaf in data else np.zeros(n, np.bool_)
            data[leaf] = given.reshape(n).astype(dtype)
        return data


def _is_number(array: Any) -> bool:
    if isinstance(array, dict) or array.dtype is None:
        return False
    return array.dtype.kind in "biuf" and math.prod(array.shape[1:]) == 1


def _with_next(held: dict[str, Any], more: Iterator[dict[str, Any]]) -> Iterator[Chunk]:
    """Each step's next observation is the following row's. The last row of a chunk waits for the next chunk."""
    for data in more:
        following = each(lambda one, other: joined([one[1:], other[:1]]), held["observation"], data["observation"])
        yield from _stepped(held, following)
        held = data
    following = each(lambda leaf: joined([leaf[1:], leaf[-1:]]), held["observation"])
    held["truncated"][-1] |= not held["terminated"][-1]  # the file ends: nobody knows what came next
    yield from _stepped(held, following)


def _stepped(data: dict[str, Any], following: Any) -> Iterator[Chunk]:
    """A terminated step keeps its own observation as the next one, which nothing is learnt from. One that was truncated without
    it is left out, as D4RL's own reader does: what came next is not in the file.
    """
    own = data["terminated"]

    def leaf(new: Any, old: Any) -> Any:
        if isinstance(old, np.ndarray):
            return np.where(own.reshape(-1, *[1] * (old.ndim - 1)), old, new)
        return [b if there else a for there, a, b in zip(own, new, old, strict=True)]

    data = data | {"next_observation": each(leaf, following, data["observation"])}
    kept = own | ~data["truncated"]
    n = int(kept.sum())
    if n:
        yield Chunk(data if n == len(kept) else rows(data, kept), n)
