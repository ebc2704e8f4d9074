"""Records to bytes, column by column: one strided copy per leaf, whatever the number of records.

A leaf is a copy of raw values, UTF-8 text, or msgpack of plain values.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from redis_replay import _columns, _plain, _schema
from redis_replay import _tensors as tensors
from redis_replay._schema import Layout, Schema, Slot, path_text
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, SchemaError

PIECE_BYTES = 262144

Array = np.ndarray[Any, "np.dtype[Any]"]


class Rows:
    """Encoded records: `schema`, their number by `len()`, and their bytes as `payloads` or `packed`."""

    __slots__ = ("_heads", "_tails", "schema")

    def __init__(self, schema: Schema, heads: Array, tails: list[bytes] | None) -> None:
        self.schema = schema
        self._heads = heads  # uint8 (n, head)
        self._tails = tails  # the variable section of each record, if the schema has one

    def __len__(self) -> int:
        return len(self._heads)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each payload."""
        head = self._heads.shape[1]
        return [head] * len(self) if self._tails is None else [head + len(tail) for tail in self._tails]

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads together."""
        return int(self._heads.size) + sum(map(len, self._tails or ()))

    @property
    def largest(self) -> int:
        """The bytes of the largest payload."""
        return int(self._heads.shape[1]) + max(map(len, self._tails or (b"",)))

    def payloads(self, lo: int = 0, hi: int | None = None) -> list[bytes]:
        """The bytes of records `lo` to `hi` (as in a slice), one object for each."""
        heads = _split(self._heads[lo:hi])
        return heads if self._tails is None else [h + t for h, t in zip(heads, self._tails[lo:hi], strict=True)]

    def packed(self, prefix: bytes, lo: int = 0, hi: int | None = None) -> bytes:
        """For each record of `lo` to `hi`: `prefix`, and its payload as a RESP bulk string; all in one string."""
        heads = self._heads[lo:hi]
        size = heads.shape[1]
        if self._tails is not None:
            return _pack_each(self.payloads(lo, hi), prefix)
        before = b"%b$%d\r\n" % (prefix, size)
        if size >= _schema.LARGE:
            return _pack_large(heads, before)
        return _pack_columns(heads, before)

    def pieces(self, prefix: bytes, lo: int, hi: int) -> Iterator[bytes]:
        """As `packed`, in pieces that are made while the one before is on its way, and stay in a processor's cache."""
        step = max(1, PIECE_BYTES * len(self) // max(1, self.nbytes))
        for at in range(lo, hi, step):
            yield self.packed(prefix, at, min(hi, at + step))


def joined(rows: Sequence[Rows]) -> Rows:
    """Rows of one schema as one."""
    tails = None if rows[0]._tails is None else [tail for each in rows for tail in each._tails or ()]
    return Rows(rows[0].schema, np.concatenate([each._heads for each in rows]), tails)


def encode_record(record: Any, schema: Schema | None) -> Rows:
    """One record as Rows of length 1.

    Args:
        record: a dict (nested dicts with str keys) of leaves without batch dimension, or a TensorDict.
        schema: the buffer's schema, or None if the record is the first.

    Raises:
        ArgumentTypeError: the record is neither a dict nor a TensorDict.
        SchemaError: a leaf cannot be stored, or the record does not fit the schema; it names path and both sides.
    """
    if not isinstance(record, dict) and not tensors.is_tensordict(record):
        raise ArgumentTypeError(name="record", allowed="a dict or a TensorDict", found=type(record).__name__)
    root, columns = _columns.of_records([record], "record")
    return _encode(root, 1, columns, schema)


def encode_batch(batch: Any, schema: Schema | None) -> Rows:
    """All records of a batch as Rows.

    Args:
        batch: a dict whose leaves have a leading batch dimension n (arrays, tensors, or lists of n values), or a
            TensorDict of batch size [n, ...], or a list or tuple of n records as `encode_record` takes them.
        schema: the buffer's schema, or None if these are the first records.

    Raises:
        ArgumentTypeError: the batch, or a record of the list, is something else.
        ArgumentError: the batch has no record.
        SchemaError: a leaf cannot be stored, leaves differ in their leading length, records of a list differ in a leaf
            (shape, dtype, kind, or whether it is there), or the records do not fit the schema.
    """
    if tensors.is_lazy_stack(batch) and batch.batch_size:
        batch = batch.unbind(0)  # its records may differ in shape, and here that is found and named
    if isinstance(batch, list | tuple):
        n = len(batch)
        root, columns = _columns.of_records(_not_empty(batch, n), "batch")
    elif isinstance(batch, dict) or tensors.is_tensordict(batch):
        root, n, columns = _columns.of_batch(batch)
        _not_empty(batch, n)
    else:
        raise _columns.not_data("batch", batch)
    return _encode(root, n, columns, schema)


def _not_empty(batch: Any, n: int) -> Any:
    if not n:
        raise ArgumentError(name="batch", allowed="at least one record", found=n)
    return batch


def _encode(root: str, n: int, columns: list[_columns.Column], schema: Schema | None) -> Rows:
    columns.sort(key=_path_and_kind)
    leaves = tuple(leaf for leaf, _ in columns)
    if schema is None or schema.leaves != leaves or schema.root != root:
        found = _schema.build(root, leaves)
        if schema is not None:
            _schema.check(schema, found)
        schema = found
    layout = schema.layout
    rows = np.empty(n, layout.dtype)
    for slot, (_, values) in zip(layout.slots, columns, strict=True):
        if slot.field:
            _fill(rows[slot.field], slot, values)
    tails = _encode_cells(layout, rows, [v for leaf, v in columns if leaf.kind in _schema.VARIABLE])
    return Rows(schema, _as_bytes(rows, layout.head), tails)


def _path_and_kind(column: _columns.Column) -> tuple[tuple[str, ...], str]:
    return column[0].path, column[0].kind


def _as_bytes(rows: Array, size: int) -> Array:
    return rows.view(np.uint8).reshape(len(rows), size) if size else np.empty((len(rows), 0), np.uint8)


def _fill(field: Array, slot: Slot, values: Any) -> None:
    if isinstance(values, np.ndarray):
        field[...] = values
    elif slot.leaf.kind == "python":
        try:
            field[...] = np.array(values, slot.wire)
        except OverflowError:
            raise SchemaError(path=path_text(slot.leaf.path), expected="an int64", found="a larger int") from None
    else:
        for number, value in enumerate(values):
            field[number] = value


def _encode_cells(layout: Layout, rows: Array, columns: list[Any]) -> list[bytes] | None:
    if not columns:
        return None
    cells = [_encode_column(slot, values) for slot, values in zip(layout.variable, columns, strict=True)]
    sizes = np.array([list(map(len, column)) for column in cells], np.int64)
    largest = layout.head + int(sizes.sum(axis=0).max())
    if largest > _schema.MAX_RECORD:
        raise _schema.too_large(largest)
    rows["lengths"] = sizes.T
    return cells[0] if len(cells) == 1 else [b"".join(parts) for parts in zip(*cells, strict=True)]


def _encode_column(slot: Slot, values: Sequence[Any]) -> list[bytes]:
    if slot.leaf.kind == "text":
        return [value.encode("utf-8", "surrogatepass") for value in values]
    if slot.leaf.kind == "bytes":
        return list(values)
    try:
        return _plain.pack(values)
    except ValueError as error:
        raise SchemaError(path=path_text(slot.leaf.path), expected="plain values", found=str(error)) from None


def _split(rows: Array) -> list[bytes]:
    size = rows.shape[1]
    if not size:
        return [b""] * len(rows)
    # A void scalar's Python value is its bytes, all of them: numpy cuts the list without a Python step for each record.
    cut: list[bytes] = rows.view(f"V{size}").reshape(-1).tolist()
    return cut


def _pack_each(payloads: list[bytes], prefix: bytes) -> bytes:
    return b"".join([part for p in payloads for part in (b"%b$%d\r\n" % (prefix, len(p)), p, b"\r\n")])


def _pack_large(rows: Array, before: bytes) -> bytes:
    parts: list[bytes | memoryview] = []
    for row in rows:
        parts += (before, row.data, b"\r\n")
    return b"".join(parts)


def _pack_columns(rows: Array, before: bytes) -> bytes:
    n, size = rows.shape
    start, end = len(before), len(before) + size
    out = np.empty((n, end + 2), np.uint8)
    out[:, :start] = np.frombuffer(before, np.uint8)
    out[:, start:end] = rows
    out[:, end:] = np.frombuffer(b"\r\n", np.uint8)
    return out.tobytes()
