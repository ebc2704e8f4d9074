"""Parquet out: one file, a row for each record, through pyarrow."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._errors import TransferError, need, reading
from redis_replay.transfer._flow import Progress, chunk_rows, regroup, row_bytes
from redis_replay.transfer._pages import pages
from redis_replay.transfer._whole import whole

_GROUP_BYTES = 32 * 2**20
_GROUP_RECORDS = 65_536


def export_parquet(buffer: ReplayBuffer, path: str | Path, *, progress: Progress | None = None) -> int:
    """Writes every stored record to a Parquet file, in order of index. Gives how many. The buffer goes on meanwhile.

    Columns: `index` (int64), `priority` (float64; where the sampler goes by priority; null of a record that came while this
    ran), and the leaves of the record: arrays of one dimension as fixed-size lists, of more as fixed_shape_tensor, nested dicts
    as structs, texts as strings. A row group has at most 65,536 records and about 32 MiB. Where a record has a leaf named
    `index` or `priority` itself, ours are `redis_replay.index` and `redis_replay.priority`. The file is there whole, or not at
    all.

    Args:
        progress: called with (records written, records stored at the start).

    Raises:
        TransferError: the file is there already, the buffer is empty, or a leaf has a type that Parquet does not know.
        MissingExtraError: pyarrow is not installed. What ReplayBuffer.records raises.
    """
    arrow, parquet = need("Parquet", "pyarrow", "parquet"), need("Parquet", "pyarrow.parquet", "parquet")
    total, done, writer = buffer.storage_size, 0, None
    with whole(Path(path)) as part:
        try:
            for columns, n in _groups(buffer, str(path)):
                with reading(path):
                    table = _Table(arrow, str(path)).of(columns)
                    writer = writer or parquet.ParquetWriter(part, table.schema)
                    writer.write_table(table)
                done += n
                if progress is not None:
                    progress(done, max(total, done))
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise TransferError(where=str(path), reason=f"buffer {buffer.name!r} holds no record: nothing tells the columns")
    return done


def _groups(buffer: ReplayBuffer, where: str) -> Iterator[tuple[dict[str, Any], int]]:
    first = next(pages(buffer, where), None)
    if first is not None:
        most = chunk_rows(row_bytes(first[1]), _GROUP_BYTES, _GROUP_RECORDS)
        yield from regroup(_numbered(buffer, where), most)


def _numbered(buffer: ReplayBuffer, where: str) -> Iterator[tuple[dict[str, Any], int]]:
    known = buffer.priorities() if buffer.sampler.weighs else None
    for index, columns in pages(buffer, where):
        ours = {"index": index}
        if known is not None:
            ours["priority"] = _looked_up(*known, index)
        labels = {f"redis_replay.{name}" if name in columns else name: column for name, column in ours.items()}
        yield labels | columns, len(index)


def _looked_up(indices: Any, priorities: Any, wanted: Any) -> Any:
    """The priority of each index; NaN where it is not known."""
    at = np.searchsorted(indices, wanted)
    there = np.append(indices, -1)[at] == wanted
    return np.where(there, np.append(priorities, np.nan)[at], np.nan)


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, dict) and all(map(_is_empty, leaf.values()))


class _Table:
    """Columns as pyarrow's."""

    def __init__(self, arrow: Any, where: str) -> None:
        self._arrow, self._where = arrow, where

    def of(self, columns: dict[str, Any]) -> Any:
        """The table."""
        arrays = {name: self._array(name, leaf) for name, leaf in columns.items() if not _is_empty(leaf)}
        for name in ("priority", "redis_replay.priority"):
            if name in arrays and f"redis_replay.{name}" not in arrays:
                arrays[name] = self._arrow.array(columns[name], from_pandas=True)  # NaN is null
        return self._arrow.table(arrays)

    def _array(self, name: str, leaf: Any) -> Any:
        if isinstance(leaf, dict):
            parts = {key: self._array(f"{name}/{key}", part) for key, part in leaf.items() if not _is_empty(part)}
            return self._arrow.StructArray.from_arrays(list(parts.values()), names=list(parts))
        if isinstance(leaf, list):
            return self._texts(name, leaf)
        if leaf.dtype.kind in "US" and leaf.ndim == 1:
            return self._texts(name, leaf.tolist())
        if leaf.dtype.kind in "USc" or not math.prod(leaf.shape[1:]):
            raise self._refused(name, f"an array of {leaf.dtype} {leaf.shape[1:]}")
        return self._numbers(leaf)

    def _numbers(self, leaf: Any) -> Any:
        values = self._arrow.array(np.ascontiguousarray(leaf).reshape(-1))
        if leaf.ndim == 1:
            return values
        rows = self._arrow.FixedSizeListArray.from_arrays(values, math.prod(leaf.shape[1:]))
        if leaf.ndim == 2:
            return rows
        return self._arrow.ExtensionArray.from_storage(self._arrow.fixed_shape_tensor(values.type, leaf.shape[1:]), rows)

    def _texts(self, name: str, values: list[Any]) -> Any:
        kinds = set(map(type, values))
        if kinds == {str}:
            return self._arrow.array(values, self._arrow.string())
        if kinds == {bytes}:
            return self._arrow.array(values, self._arrow.binary())
        raise self._refused(name, "None, lists or tuples")

    def _refused(self, name: str, what: str) -> TransferError:
        return TransferError(where=self._where, reason=f"Parquet has no type for the leaf {name}: {what}")
