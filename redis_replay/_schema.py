"""What a record looks like: the tree of its leaves, the canonical text of that tree, and each leaf's place in bytes.

A record's bytes are little-endian and have four parts, each in the order of the schema and without gaps:

    lengths     one u32 for each leaf of variable length
    small       the leaves of fixed size below 4 KiB
    large       the other leaves of fixed size
    variable    the bytes of the leaves of variable length

Kinds of leaves:

    numpy    an array or numpy scalar; `dtype` is numpy's text, such as "<f4"
    torch    a tensor; `dtype` is torch's name, such as "bfloat16"
    python   a bool, int, float or complex; `dtype` says which
    text     a str                          (variable length)
    bytes    a bytes object                 (variable length)
    object   None, or a list or tuple of plain values, as msgpack   (variable length)
    empty    a nested dict without keys     (no bytes)
    batch    a TensorDict whose batch size is not its parent's; `shape` is what follows the batch dimension   (no bytes)
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import numpy as np

from redis_replay.exceptions import RecordDecodeError, SchemaError

MAX_DEPTH = 64  # nested dicts, and nested lists in an object leaf: far below Python's recursion limit
MAX_DIMS = 31  # numpy 1 has 32 dimensions, and a batch needs one of them
MAX_RECORD = 512 * 1024 * 1024  # Redis' own limit for one string (proto-max-bulk-len)
MAX_STEP = 64 * 2**20  # bytes that one step of a write takes, and so a record; checked where it is sent
MAX_TEXT = 1024 * 1024

LARGE = 4096  # from here on a pass over the bytes costs more than a step of Python, so large leaves lie apart

VARIABLE = frozenset({"text", "bytes", "object"})
ROOTS = {"dict": "a dict", "tensordict": "a TensorDict"}

_PYTHON = {"bool": "|u1", "int": "<i8", "float": "<f8", "complex": "<c16"}
# Bools travel as u1 and are compared with 0 on the way out: a stray byte 2 must never become a bool that is neither.
_TORCH = {
    "bool": "|u1", "uint8": "|u1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "uint16": "<i2", "uint32": "<i4", "uint64": "<i8",
    "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    "bfloat16": "<i2", "complex32": "<i4",
    "float8_e4m3fn": "|u1", "float8_e4m3fnuz": "|u1", "float8_e5m2": "|u1", "float8_e5m2fnuz": "|u1",
    "float8_e8m0fnu": "|u1",
}  # fmt: skip
_IN_TENSORDICT = frozenset({"torch", "text", "bytes", "object", "empty", "batch"})
_NUMPY_NAME = re.compile(r"[<|][biufcSUmM][0-9]{1,9}(\[([1-9][0-9]{0,8})?[a-zA-Z]{1,2}\])?")
_FIXED_SIZES = {"f": (2, 4, 8), "c": (8, 16)}  # a long double differs from machine to machine


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: `path` of keys from the root, `kind` and `dtype` as above, `shape` without the batch dimension."""

    path: tuple[str, ...]
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def describe(self) -> str:
        """A few words for error messages, such as "numpy float32 (4,)"."""
        if self.kind == "numpy":
            return f"numpy {_dtype_words(self.dtype)} {self.shape}"
        if self.kind == "torch":
            return f"torch {self.dtype} {self.shape}"
        if self.kind == "python":
            return f"Python {self.dtype}"
        if self.kind == "batch":
            return f"a TensorDict of batch size {list(self.shape)}"
        return {"object": "plain object", "empty": "an empty dict"}.get(self.kind, self.kind)


# Interned, so that comparing the leaves of each write with the schema's is mostly a comparison of identities.
leaf = lru_cache(maxsize=4096)(Leaf)


@lru_cache(maxsize=1024)
def numpy_name(dtype: "np.dtype[Any]") -> str | None:
    """The stored name of a numpy dtype (little-endian), or None if arrays of it cannot be stored."""
    if dtype.kind not in "biufcSUmM" or dtype.itemsize not in _FIXED_SIZES.get(dtype.kind, (dtype.itemsize,)):
        return None
    return dtype.newbyteorder("<").str


@lru_cache(maxsize=1024)
def native_dtype(name: str) -> "np.dtype[Any]":
    """The numpy dtype of a stored name, in the byte order of this machine."""
    return np.dtype(name).newbyteorder("=")


def _dtype_words(name: str) -> str:
    return name[1:] if name[1:2] in ("U", "S") else np.dtype(name).name


@lru_cache(maxsize=4096)
def wire_dtype(kind: str, dtype: str) -> "np.dtype[Any] | None":
    """The numpy dtype in which the values of a leaf are stored, or None for leaves without fixed-size values."""
    if kind == "numpy":
        return np.dtype("|u1") if dtype == "|b1" else np.dtype(dtype)
    if kind == "torch":
        return np.dtype(_TORCH[dtype])
    return np.dtype(_PYTHON[dtype]) if kind == "python" else None


def is_torch_dtype(name: str) -> bool:
    """Whether tensors of this torch dtype, named without "torch.", can be stored."""
    return name in _TORCH


def path_text(path: tuple[str, ...]) -> str:
    """The path as "a/b", with "/" in a key as "~1" and "~" as "~0" (as in a JSON pointer); the root is "(record)"."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in path) if path else "(record)"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a leaf lies: `nbytes` bytes of the head from `offset` on, or place `order` among the variable leaves."""

    leaf: Leaf
    wire: "np.dtype[Any] | None"
    offset: int
    nbytes: int
    order: int
    field: str  # its name in the layout's dtypes, "" if it has no bytes there


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all leaves.

    `head` is the size of all but the variable section, `small` that of the first two parts; the dtypes view these.
    """

    slots: tuple[Slot, ...]
    variable: tuple[Slot, ...]
    dtype: "np.dtype[Any]"
    small_dtype: "np.dtype[Any]"
    head: int
    small: int


@dataclass(frozen=True)
class Schema:
    """The tree of a record's leaves. The order in which leaves are given does not matter: they are kept sorted by path.

    `root` is "dict" or "tensordict": what a record is, and what a sample comes back as.
    """

    root: str
    leaves: tuple[Leaf, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaves", tuple(sorted(self.leaves, key=_order)))

    @cached_property
    def text(self) -> str:
        """The canonical JSON text: equal schemas have equal texts. ASCII only."""
        rows = [[list(x.path), x.kind, x.dtype, list(x.shape)] for x in self.leaves]
        return json.dumps({"root": self.root, "leaves": rows}, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the text's SHA-256."""
        return sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def layout(self) -> Layout:
        """Where each leaf lies in a record's bytes."""
        return _lay_out(self.leaves)

    @property
    def record_size(self) -> int | None:
        """Bytes of every record, or None if a leaf has a variable length."""
        return None if self.layout.variable else self.layout.head

    @classmethod
    def from_text(cls, text: str | bytes) -> "Schema":
        """The schema whose canonical text this is. Only JSON is parsed, and nothing in it is executed or imported.

        Raises:
            RecordDecodeError: (index 0) the text is not the canonical text of a schema.
        """
        try:
            return _parse(text)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, SchemaError) as error:
            raise RecordDecodeError(index=0, reason=f"malformed schema: {str(error)[:200]}") from None


@lru_cache(maxsize=256)
def build(root: str, leaves: tuple[Leaf, ...]) -> Schema:
    """The schema of these leaves. Raises SchemaError if a record of it could not be stored or its text not be read."""
    schema = Schema(root, leaves)
    size = sum(_nbytes(x) for x in leaves)
    if size > MAX_RECORD:
        raise too_large(size)
    if len(schema.text) > MAX_TEXT:
        allowed = f"a schema of at most {MAX_TEXT} bytes"
        raise SchemaError(path=path_text(()), expected=allowed, found=f"{len(schema.text)} bytes")
    return schema


def too_large(size: int) -> SchemaError:
    """The error for a record of `size` bytes."""
    return SchemaError(path=path_text(()), expected=f"at most {MAX_STEP:,} bytes", found=f"{size} bytes")


def _order(x: Leaf) -> tuple[tuple[str, ...], str]:
    return x.path, x.kind


def _nbytes(x: Leaf) -> int:
    wire = wire_dtype(x.kind, x.dtype)
    return 0 if wire is None else wire.itemsize * math.prod(x.shape)


def _lay_out(leaves: tuple[Leaf, ...]) -> Layout:
    variable = [x for x in leaves if x.kind in VARIABLE]
    offset = 4 * len(variable)
    slots: dict[Leaf, Slot] = {}
    small = 0
    for large in (False, True):
        for x in leaves:
            nbytes = _nbytes(x)
            if (nbytes >= LARGE) is large:
                field = f"leaf{len(slots)}" if nbytes else ""
                order = variable.index(x) if x.kind in VARIABLE else -1
                slots[x] = Slot(x, wire_dtype(x.kind, x.dtype), offset, nbytes, order, field)
                offset += nbytes
        small = small if large else offset
    ordered = tuple(slots[x] for x in leaves)
    fields = [s for s in ordered if s.field]
    whole = _view(fields, len(variable), offset)
    part = _view([s for s in fields if s.offset < small], len(variable), small)
    return Layout(ordered, tuple(slots[x] for x in variable), whole, part, offset, small)


def _view(slots: list[Slot], lengths: int, size: int) -> "np.dtype[Any]":
    names, offsets = [s.field for s in slots], [s.offset for s in slots]
    formats: list[Any] = [(s.wire, s.leaf.shape) for s in slots]
    if lengths:
        names, offsets, formats = [*names, "lengths"], [*offsets, 0], [*formats, ("<u4", (lengths,))]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def check(expected: Schema, found: Schema) -> None:
    """Nothing if the two are equal. `expected` is the buffer's schema, `found` the one of a write.

    Raises:
        SchemaError: they differ; it names the first differing leaf in the order of paths, with both sides in words.
    """
    if expected.root != found.root:
        raise SchemaError(path=path_text(()), expected=ROOTS[expected.root], found=ROOTS[found.root])
    for path, wanted, given in _pairs(expected, found):
        if wanted != given:
            sides = _words(wanted, expected, path), _words(given, found, path)
            raise SchemaError(path=path_text(path), expected=sides[0], found=sides[1])


def _pairs(expected: Schema, found: Schema) -> Iterator[tuple[tuple[str, ...], Leaf | None, Leaf | None]]:
    wanted, given = ({(x.path, x.kind == "batch"): x for x in schema.leaves} for schema in (expected, found))
    for key in sorted(wanted.keys() | given.keys()):
        yield key[0], wanted.get(key), given.get(key)


def _words(x: Leaf | None, schema: Schema, path: tuple[str, ...]) -> str:
    if x is not None:
        return x.describe()
    return "a dict" if any(other.path[: len(path)] == path for other in schema.leaves) else "nothing"


def _parse(text: str | bytes) -> Schema:
    if len(text) > MAX_TEXT:
        raise ValueError(f"text of {len(text)} bytes, more than {MAX_TEXT}")
    text = text if isinstance(text, str) else text.decode("ascii")
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.keys() != {"root", "leaves"} or tree["root"] not in ("dict", "tensordict"):
        raise ValueError("not an object with root and leaves")
    schema = build(tree["root"], tuple(map(_parse_leaf, tree["leaves"])))
    # One text for one schema: otherwise two clients could disagree on the hash of what is the same to both.
    if schema.text != text:
        raise ValueError("not in canonical form")
    _check_tree(schema)
    return schema


def _parse_leaf(row: Any) -> Leaf:
    if not (isinstance(row, list) and len(row) == 4):
        raise ValueError("bad leaf")
    path, kind, dtype, shape = row
    if not (isinstance(path, list) and all(isinstance(key, str) for key in path) and len(path) <= MAX_DEPTH):
        raise ValueError("bad path")
    if not (isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape) and len(shape) <= MAX_DIMS):
        raise ValueError("bad shape")
    if not (isinstance(kind, str) and isinstance(dtype, str) and _known(kind, dtype, shape)):
        raise ValueError("unknown kind or dtype")
    if kind in ("numpy", "torch", "batch") and too_wide(tuple(shape)):
        raise ValueError("shape too large")
    return Leaf(tuple(path), kind, dtype, tuple(shape))


def too_wide(shape: tuple[int, ...]) -> bool:
    """Whether numpy might refuse a batch of this shape, even where a dimension of 0 makes it hold nothing."""
    return len(shape) > MAX_DIMS or math.prod(d for d in shape if d) > MAX_RECORD


def _known(kind: str, dtype: str, shape: list[int]) -> bool:
    if kind == "numpy":
        return _NUMPY_NAME.fullmatch(dtype) is not None and numpy_name(np.dtype(dtype)) == dtype
    if kind == "torch":
        return dtype in _TORCH
    if kind == "python":
        return dtype in _PYTHON and not shape
    return dtype == "" and (kind == "batch" or (kind in VARIABLE | {"empty"} and not shape))


def _check_tree(schema: Schema) -> None:
    values = [x.path for x in schema.leaves if x.kind != "batch"]
    nodes = {path[:depth] for path in values for depth in range(len(path))}
    if len(set(values)) < len(values) or not nodes.isdisjoint(values) or not values:
        raise ValueError("two leaves in one place, or none")
    if schema.root == "tensordict" and not all(x.kind in _IN_TENSORDICT for x in schema.leaves):
        raise ValueError("a leaf that no TensorDict holds")
    batches = {x.path: x for x in schema.leaves if x.kind == "batch"}
    if (batches and schema.root != "tensordict") or len(batches) + len(values) < len(schema.leaves):
        raise ValueError("batch sizes out of place")
    empty = {x.path for x in schema.leaves if x.kind == "empty"}
    if not batches.keys() <= nodes | empty:
        raise ValueError("a batch size of no TensorDict")
    for x in schema.leaves:
        _check_batch(x, batches)


def _check_batch(x: Leaf, batches: dict[tuple[str, ...], Leaf]) -> None:
    above = [batches[x.path[:depth]] for depth in range(len(x.path)) if x.path[:depth] in batches]
    if above and x.kind in ("torch", "batch") and x.shape[: len(above[-1].shape)] != above[-1].shape:
        raise ValueError("a shape that does not fit its batch size")
