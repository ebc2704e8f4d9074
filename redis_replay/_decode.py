"""Bytes to records, column by column: one copy per leaf, whatever the number of records.

Nothing here is ever unpickled, and no bytes can make the decoder run code: a leaf is either a copy of raw values under
a checked dtype, UTF-8 text, or msgpack of plain values.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _plain, _schema
from redis_replay import _tensors as tensors
from redis_replay._schema import Layout, Schema, Slot, path_text
from redis_replay.exceptions import RecordDecodeError

Array = np.ndarray[Any, "np.dtype[Any]"]
Columns = dict[tuple[str, ...], Any]  # by the leaf's path


class Arriving:
    """Records of one size, taken apart as they come: large leaves go straight into the arrays of the batch."""

    def __init__(self, layout: Layout, n: int) -> None:
        self.columns = {slot.leaf.path: _column(slot, n) for slot in layout.slots if _lies_apart(layout, slot)}
        self.small = np.empty((n, layout.small), np.uint8)  # of each record, what lies before the large leaves
        self.wrong: dict[int, int] = {}  # row -> its size, where that is not the schema's
        self._size = layout.head
        apart = [slot for slot in layout.slots if slot.nbytes and slot.leaf.path in self.columns]
        self._parts = [(_rows_of(self.columns[s.leaf.path]), s.offset, s.offset + s.nbytes) for s in apart]
        if layout.small and not self._is_one_leaf(layout):
            self._parts.append((self.small, 0, layout.small))

    def _is_one_leaf(self, layout: Layout) -> bool:
        return len(self._parts) == 1 and self._parts[0][2] - self._parts[0][1] == layout.head

    def put(self, row: int, payload: bytes) -> None:
        """Takes the bytes of a record over; they may change afterwards."""
        if len(payload) != self._size:
            self.wrong[row] = len(payload)
            return
        self.put_block(np.array([row]), np.frombuffer(payload, np.uint8)[None])

    def put_block(self, rows: NDArray[np.int64], block: NDArray[np.uint8]) -> None:
        """Takes the bytes of many records over: (n, size)."""
        for column, start, end in self._parts:
            column[rows] = block[:, start:end]


def decode_arrived(schema: Schema, arrived: Arriving, index: Sequence[int]) -> Any:
    """As `decode_batch`, of records that were put into `arrived`, each in its row.

    Raises:
        RecordDecodeError: a record has another size than the schema's.
    """
    for row, size in sorted(arrived.wrong.items()):
        raise RecordDecodeError(index=int(index[row]), reason=f"{size} bytes, expected {schema.layout.head}")
    layout = schema.layout
    columns = _decode_fixed(layout, lambda: arrived.small.view(layout.small_dtype)[:, 0], index, arrived.columns)
    return _assemble(schema, columns, len(index), index)


def decode_batch(schema: Schema, payloads: Sequence[bytes], index: Sequence[int]) -> Any:
    """The records as one dict of columns (or TensorDict of batch size [n]), in the order of `payloads`.

    Arrays and tensors have shape (n, *shape) and their own writable memory. Python scalars become arrays of bool,
    int64, float64 or complex128; text, bytes and objects become lists (in a TensorDict: NonTensorStack).

    Args:
        schema: what the records are.
        payloads: the stored bytes of n records.
        index: their n indices, for the error.

    Raises:
        RecordDecodeError: the bytes of a record are not a record of the schema; it names the first such index.
    """
    layout = schema.layout
    cells = _cut(layout, payloads, index)
    columns = _decode_fixed(layout, partial(_small, layout, payloads), index, _gather_apart(layout, payloads))
    for slot in layout.variable:
        columns[slot.leaf.path] = _decode_cells(slot, cells[slot.order], index)
    return _assemble(schema, columns, len(payloads), index)


def decode_record(schema: Schema, payload: bytes, index: int) -> Any:
    """One record, as `encode_record` took it: Python scalars with their own type, numpy scalars as arrays of shape ().

    Raises:
        RecordDecodeError: the bytes are not a record of the schema.
    """
    layout = schema.layout
    cells = _cut(layout, [payload], [index])
    columns = _decode_fixed(layout, partial(_small, layout, [payload]), [index], _gather_apart(layout, [payload]))
    for slot in layout.slots:
        path = slot.leaf.path
        if slot.leaf.kind == "python":
            columns[path] = columns[path].item()
        elif slot.wire is not None:
            columns[path] = columns[path].reshape(slot.leaf.shape)
        elif slot.leaf.kind in _schema.VARIABLE:
            columns[path] = _decode_cells(slot, cells[slot.order], [index])[0]
    return _assemble(schema, columns, None, [index])


def _cut(layout: Layout, payloads: Sequence[bytes], index: Sequence[int]) -> list[list[bytes]]:
    """The bytes of each variable leaf in each record. Refuses payloads whose length is not what the record says."""
    if not layout.variable:
        if set(map(len, payloads)) - {layout.head}:
            at, size = next((i, len(p)) for i, p in enumerate(payloads) if len(p) != layout.head)
            raise RecordDecodeError(index=int(index[at]), reason=f"{size} bytes, expected {layout.head}")
        return []
    for at, payload in enumerate(payloads):
        if len(payload) < layout.head:
            reason = f"{len(payload)} bytes, expected at least {layout.head}"
            raise RecordDecodeError(index=int(index[at]), reason=reason)
    return _cut_cells(layout, payloads, index)


def _cut_cells(layout: Layout, payloads: Sequence[bytes], index: Sequence[int]) -> list[list[bytes]]:
    count = len(layout.variable)
    joined = b"".join([payload[: 4 * count] for payload in payloads])
    lengths = np.frombuffer(joined, "<u4").reshape(len(payloads), count).astype(np.int64)
    ends = layout.head + lengths.cumsum(axis=1)
    for at, (payload, end) in enumerate(zip(payloads, ends[:, -1].tolist(), strict=True)):
        if len(payload) != end:
            raise RecordDecodeError(index=int(index[at]), reason=f"{len(payload)} bytes, its lengths say {end}")
    starts = ends - lengths
    return [_slices(payloads, starts[:, k].tolist(), ends[:, k].tolist()) for k in range(count)]


def _slices(payloads: Sequence[bytes], starts: list[int], ends: list[int]) -> list[bytes]:
    return [payload[start:end] for payload, start, end in zip(payloads, starts, ends, strict=True)]


def _decode_fixed(layout: Layout, small_of: Callable[[], Array], index: Sequence[int], apart: Columns) -> Columns:
    """Every leaf of fixed size, as an array of its own: those in `apart`, and what the payloads begin with (`small_of`)."""
    columns: Columns = {}
    small = None
    for slot in layout.slots:
        if slot.wire is None:
            continue
        if (raw := apart.get(slot.leaf.path)) is None:
            small = small_of() if small is None else small
            raw = small[slot.field]
        columns[slot.leaf.path] = _own(raw, slot, index)
    return columns


def _small(layout: Layout, payloads: Sequence[bytes]) -> Array:
    if layout.variable or layout.head > layout.small:
        payloads = [payload[: layout.small] for payload in payloads]
    return np.frombuffer(b"".join(payloads), layout.small_dtype)


def _lies_apart(layout: Layout, slot: Slot) -> bool:
    """Whether the leaf's column is copied for itself: it is large, or all there is, or nothing."""
    return slot.wire is not None and (slot.nbytes in (0, layout.head) or slot.nbytes >= _schema.LARGE)


def _column(slot: Slot, n: int) -> Array:
    return np.ndarray((n, *slot.leaf.shape), slot.wire)  # np.empty would turn U0 into U1


def _rows_of(column: Array) -> Array:
    """The bytes of each row: (n, bytes)."""
    return column.reshape(len(column), -1).view(np.uint8)


def _bytes_of(column: Array) -> memoryview:
    return column.reshape(-1).view(np.uint8).data


def _gather_apart(layout: Layout, payloads: Sequence[bytes]) -> Columns:
    slots = [s for s in layout.slots if _lies_apart(layout, s) or (s.wire is not None and not payloads)]
    return {s.leaf.path: _gather(layout, s, payloads) for s in slots}


def _gather(layout: Layout, slot: Slot, payloads: Sequence[bytes]) -> Array:
    """The column straight from the payloads, without a joined copy of them in between."""
    out = _column(slot, len(payloads))
    if not slot.nbytes or not payloads:
        return out
    if slot.nbytes == layout.head and not layout.variable:
        out.reshape(len(payloads), -1).view(f"V{slot.nbytes}")[:, 0] = payloads
        return out
    flat, end = _bytes_of(out), slot.offset + slot.nbytes
    for at, payload in zip(range(0, out.nbytes, slot.nbytes), payloads, strict=True):
        flat[at : at + slot.nbytes] = memoryview(payload)[slot.offset : end]
    return out


def _own(raw: Array, slot: Slot, index: Sequence[int]) -> Array:
    """The column's values in native byte order, in memory of its own."""
    if slot.leaf.dtype in ("|b1", "bool"):
        flags: Array = raw != 0
        return flags
    native = _schema.native_dtype(raw.dtype.str)
    own = raw if raw.flags.owndata and raw.dtype == native else np.array(raw, native, order="C")
    if own.dtype.kind == "U" and own.nbytes:
        bad = (own.reshape(len(own), -1).view(np.uint32) > sys.maxunicode).any(axis=1)
        if bad.any():  # numpy would fail, or worse, when somebody looks at the element
            reason = f"leaf {path_text(slot.leaf.path)!r}: not Unicode"
            raise RecordDecodeError(index=int(index[int(bad.argmax())]), reason=reason)
    return own


def _decode_cells(slot: Slot, cells: list[bytes], index: Sequence[int]) -> list[Any]:
    if slot.leaf.kind == "bytes":
        return cells
    out: list[Any] = []
    try:
        if slot.leaf.kind == "text":
            out.extend(str(cell, "utf-8", "surrogatepass") for cell in cells)
        else:
            out.extend(_plain.unpack(cell) for cell in cells)
    except ValueError as error:
        reason = f"leaf {path_text(slot.leaf.path)!r}: {error}"
        raise RecordDecodeError(index=int(index[len(out)]), reason=reason) from None
    return out


def _assemble(schema: Schema, columns: Columns, n: int | None, index: Sequence[int]) -> Any:
    """The tree of the columns: a batch of `n` records, or one record if `n` is None."""
    tree: dict[str, Any] = {}
    try:
        for slot in schema.layout.slots:
            if slot.leaf.kind == "empty" and not slot.leaf.path:
                continue
            if slot.leaf.kind != "batch":
                _insert(tree, slot.leaf.path, _finish(schema.root, slot, columns, n))
        if schema.root == "dict":
            return tree
        batches = [x for x in schema.leaves if x.kind == "batch"]
        return tensors.make_tensordict(tree, [] if n is None else [n], batches)
    except ValueError as error:
        raise RecordDecodeError(index=int(index[0]) if len(index) else 0, reason=str(error)) from None


def _insert(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _finish(root: str, slot: Slot, columns: Columns, n: int | None) -> Any:
    kind = slot.leaf.kind
    if kind == "empty":
        return {}
    value = columns[slot.leaf.path]
    if kind == "torch":
        return tensors.to_tensor(value, slot.leaf.dtype)
    if root == "dict" or kind not in _schema.VARIABLE:
        return value
    return tensors.wrap_non_tensor(value) if n is None else tensors.stack_non_tensors(value)
