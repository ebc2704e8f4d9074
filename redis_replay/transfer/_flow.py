"""From a source to a buffer: chunk by chunk, so that memory does not grow with the file."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from redis_replay._outbox import each, rows
from redis_replay._sync import ReplayBuffer
from redis_replay.exceptions import ReplayError
from redis_replay.samplers import Sampler
from redis_replay.transfer._errors import reading

Progress = Callable[[int, int], None]  # records written, records of the source at most

CHUNK_BYTES = 8 * 2**20
CHUNK_RECORDS = 2_000  # below what any buffer takes in one step: a chunk is written whole, or not at all


class Chunk(NamedTuple):
    """Records on their way: `data` is a batch, as `extend` takes it, of `n` records; `priority` float64 (n,), or None."""

    data: Any
    n: int
    priority: NDArray[np.float64] | None = None


class Source(ABC):
    """Records of a file. What can be seen to be wrong with it is raised when the source is made, before anything is written.

    Attributes:
        where: the path or the id.
        total: records that it has at most.
        sampler: what the buffer that it was made from drew by, where that is known.
    """

    where: str
    total: int
    sampler: Sampler | None = None

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The records in their order, in chunks of at most 2,000 records and about 8 MiB.

        Raises:
            TransferError: what follows cannot be read.
        """

    def close(self) -> None:  # noqa: B027 - not every source has something open
        """Ends it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chunk_rows(nbytes: float, most_bytes: int = CHUNK_BYTES, most: int = CHUNK_RECORDS) -> int:
    """How many records of `nbytes` bytes go together."""
    return max(1, min(most, int(most_bytes // max(nbytes, 1))))


def fill(
    buffer: ReplayBuffer, source: Source, *, progress: Progress | None = None, timeout: float | None = None,
    cancel_event: Any = None,
) -> int:  # fmt: skip
    """Writes all records of a source to a buffer, in order. Gives how many.

    Priorities go along where the source has them and the buffer's sampler goes by them.

    Args:
        progress: called with (records written, `source.total`) after each write.
        timeout, cancel_event: of each write, as ReplayBuffer.extend.

    Raises:
        TransferError: the rest of the source cannot be read. What ReplayBuffer.extend raises. `done` of the error is the number
        of records that were written: the first ones of the source.
    """
    done, chunks = 0, _read(source)
    try:
        for chunk in chunks:
            priority = chunk.priority if buffer.sampler.weighs else None
            buffer.extend(chunk.data, priority=priority, timeout=timeout, cancel_event=cancel_event)
            done += chunk.n
            if progress is not None:
                progress(done, source.total)
    except ReplayError as error:
        error.done = done + getattr(error, "done", 0)
        raise
    return done


def _read(source: Source) -> Iterator[Chunk]:
    with reading(source.where):
        chunks = iter(source.chunks())
    while True:
        with reading(source.where):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


def regroup(parts: Iterable[tuple[Any, int]], most: int) -> Iterator[tuple[Any, int]]:
    """Columns of any length, each with its number of rows, as columns of exactly `most` rows, but for the last."""
    waiting: list[Any] = []
    have = 0
    for columns, n in parts:
        at = 0
        while at < n:
            take = min(n - at, most - have)
            waiting.append(columns if take == n else rows(columns, slice(at, at + take)))
            at, have = at + take, have + take
            if have == most:
                yield joined(waiting), have
                waiting, have = [], 0
    if have:
        yield joined(waiting), have


def joined(parts: list[Any]) -> Any:
    """Columns of one form, one behind the other."""
    return parts[0] if len(parts) == 1 else each(_join, *parts)


def _join(*leaves: Any) -> Any:
    return np.concatenate(leaves) if isinstance(leaves[0], np.ndarray) else [value for leaf in leaves for value in leaf]


def nested(leaves: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """A tree of dicts, by the leaves' paths.

    Raises:
        ValueError: a path leads through another one's leaf.
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves:
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or path[-1] in node:
            raise ValueError(f"{'/'.join(path)} is there twice, or a group and an array")
        node[path[-1]] = leaf
    return tree


def row_bytes(columns: Any) -> int:
    """Bytes of the first row of columns, roughly: of texts their length."""
    if isinstance(columns, dict):
        return sum(map(row_bytes, columns.values()))
    return int(columns[:1].nbytes) if isinstance(columns, np.ndarray) else len(str(columns[0]))
