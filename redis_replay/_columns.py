"""From the user's data to columns: for each leaf of the record, the values of all records side by side.

A column's values are an array of shape (n, *shape), or a list with one value for each record.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from redis_replay import _tensors as tensors
from redis_replay._schema import MAX_DEPTH, MAX_STEP, Leaf, leaf, numpy_name, path_text, too_wide
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, LeafTypeError, SchemaError

Path = tuple[str, ...]
Column = tuple[Leaf, Any]

_PYTHON = {bool: "bool", int: "int", float: "float", complex: "complex"}
_ARRAYS = (np.ndarray, np.memmap)
# Types whose values are all the same leaf.
_SAME_LEAF = frozenset({
    bool, int, float, complex, str, bytes,
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
})  # fmt: skip


def of_records(records: Sequence[Any], name: str) -> tuple[str, list[Column]]:
    """The root's kind and the columns of records, each a dict or a TensorDict without a batch dimension of its own.

    Raises:
        ArgumentTypeError: a record is neither a dict nor a TensorDict (`name` says which argument held it).
        SchemaError: a value cannot be stored, or the records differ in a leaf.
    """
    for record in records:
        if not isinstance(record, dict) and not tensors.is_tensordict(record):
            raise not_data(name, record)
    columns: list[Column] = []
    if tensors.is_tensordict(records[0]):
        _tensordicts(records, (), (), columns)
        return "tensordict", columns
    _nodes(records, (), columns)
    return "dict", columns


def not_data(name: str, value: object) -> ArgumentTypeError:
    """The error for a value that is no record and no batch."""
    return ArgumentTypeError(name=name, allowed="a dict, a TensorDict or a list of them", found=type(value).__name__)


def of_batch(batch: Any) -> tuple[str, int, list[Column]]:
    """The root's kind, the number of records and the columns of a dict or TensorDict with a leading batch dimension.

    Raises:
        ArgumentError: there is no record in it.
        SchemaError: a value cannot be stored, or the leaves differ in their leading length.
    """
    columns: list[Column] = []
    if tensors.is_tensordict(batch):
        n = _tensordict_length(batch)
        _split_tensordict(batch, n, (), (), columns)
        return "tensordict", n, columns
    counts: list[tuple[Path, int]] = []
    _split_dict(batch, (), columns, counts)
    return "dict", _common_length(counts), columns


def leaf_of(value: Any, path: Path) -> Leaf:
    """The leaf that one record's value is. Raises SchemaError if it cannot be stored."""
    kind = type(value)
    if kind in _PYTHON:
        return leaf(path, "python", _PYTHON[kind])
    if isinstance(value, np.character):
        value = np.asarray(value)  # an empty np.str_ says U0 of itself, and is U1 in every array
    if isinstance(value, np.generic) or type(value) in _ARRAYS:
        return _numpy_leaf(value.dtype, value.shape, path)
    if kind is str or kind is bytes:
        return leaf(path, "text" if kind is str else "bytes")
    if tensors.is_tensor(value):
        return _torch_leaf(value, 0, path)
    if value is None or kind in (list, tuple):
        return leaf(path, "object")
    if isinstance(value, dict) and not value:
        return leaf(path, "empty")
    raise _refused(path, _value_words(value))


def _numpy_leaf(dtype: "np.dtype[Any]", shape: tuple[int, ...], path: Path) -> Leaf:
    name = numpy_name(dtype)
    if name is None:
        raise _refused(path, f"numpy {dtype} {shape}")
    if too_wide(shape):
        raise _too_wide(path, f"numpy {dtype} {shape}")
    return leaf(path, "numpy", name, shape)


def _torch_leaf(tensor: Any, lead: int, path: Path) -> Leaf:
    reason = tensors.refusal(tensor)
    if reason is not None:
        raise _refused(path, reason)
    shape = tuple(tensor.shape)[lead:]
    if too_wide(shape):
        raise _too_wide(path, f"torch {tensors.dtype_name(tensor.dtype)} {shape}")
    return leaf(path, "torch", tensors.dtype_name(tensor.dtype), shape)


def _refused(path: Path, found: str) -> SchemaError:
    allowed = "an array, a dense tensor, a Python scalar, str, bytes, None, or a list or tuple of plain values"
    return LeafTypeError(path=path_text(path), expected=allowed, found=found)


def _too_wide(path: Path, found: str) -> SchemaError:
    return LeafTypeError(path=path_text(path), expected=f"a record of at most {MAX_STEP:,} bytes", found=found)


def _value_words(value: Any) -> str:
    if isinstance(value, dict):
        return "a dict"
    return "a TensorDict" if tensors.is_tensordict(value) else f"a value of type {type(value).__name__}"


def _nodes(values: Sequence[Any], path: Path, columns: list[Column]) -> None:
    first = values[0]
    if not isinstance(first, dict) or not first:
        columns.append(_column(values, path))
        return
    _check_keys(first, path)
    for number, value in enumerate(values):
        if not isinstance(value, dict) or value.keys() != first.keys():
            raise _unlike(first, value, path, number)
    for key in first:
        _nodes([value[key] for value in values], (*path, key), columns)


def _check_keys(node: dict[Any, Any], path: Path) -> None:
    if len(path) >= MAX_DEPTH:
        raise SchemaError(path=path_text(path[:3]) + "/…", expected=f"at most {MAX_DEPTH} nested dicts", found="more")
    for key in node:
        if type(key) is not str:
            raise SchemaError(path=path_text(path), expected="keys of type str", found=f"the key {key!r:.50}")


def _unlike(first: Any, value: Any, path: Path, number: int) -> SchemaError:
    if not isinstance(value, dict):
        return _differs(path, "a dict", _describe(value, path), number)
    key = min(first.keys() ^ value.keys(), key=str)
    sides = [_describe(x[key], path) if key in x else "nothing" for x in (first, value)]
    return _differs((*path, str(key)), sides[0], sides[1], number)


def _describe(value: Any, path: Path) -> str:
    if tensors.is_tensordict(value):
        return f"a TensorDict of batch size {list(value.batch_size)}"
    try:
        return leaf_of(value, path).describe()
    except SchemaError as error:
        return error.found


def _column(values: Sequence[Any], path: Path) -> Column:
    expected = leaf_of(values[0], path)
    if not _alike(values):
        for number, value in enumerate(values):
            _check_alike(expected, value, path, number)
    if expected.kind == "torch":
        return expected, tensors.gather(values)
    return expected, values


def _check_alike(expected: Leaf, value: Any, path: Path, number: int) -> None:
    nested = (isinstance(value, dict) and value) or tensors.is_tensordict(value)
    found = None if nested else leaf_of(value, path)
    if found != expected:
        words = _value_words(value) if found is None else found.describe()
        raise _differs(path, expected.describe(), words, number)


def _differs(path: Path, expected: str, found: str, number: int) -> SchemaError:
    return SchemaError(path=path_text(path), expected=expected, found=f"{found} (record {number} of the batch)")


def _alike(values: Sequence[Any]) -> bool:
    """Whether a cheap look is enough to see that all values are the same leaf as the first."""
    if len(values) == 1:
        return True
    kinds = set(map(type, values))
    if len(kinds) > 1:
        return False
    kind = kinds.pop()
    if tensors.is_tensor(values[0]):
        return tensors.alike(values)
    return kind in _SAME_LEAF or (kind is np.ndarray and len({(v.dtype, v.shape) for v in values}) == 1)


def _tensordicts(values: Sequence[Any], path: Path, above: tuple[int, ...], columns: list[Column]) -> None:
    """As `_nodes`, for one TensorDict of each record. `above` is the batch size of the TensorDict around it."""
    first = values[0]
    keys = set(first.keys())
    for number, value in enumerate(values):
        if not tensors.is_tensordict(value) or set(value.keys()) != keys or value.batch_size != first.batch_size:
            raise _unlike_tensordict(first, value, path, number)
    size = _open_tensordict(keys, tuple(first.batch_size), path, above, columns)
    for key in keys:
        column = [tensors.non_tensor(value.get(key), None) for value in values]
        if tensors.is_tensordict(column[0]):
            _tensordicts(column, (*path, key), size, columns)
        else:
            columns.append(_in_tensordict(column, (*path, key)))


def _open_tensordict(
    keys: set[Any], size: tuple[int, ...], path: Path, above: tuple[int, ...], columns: list[Column]
) -> tuple[int, ...]:
    _check_keys(dict.fromkeys(keys), path)
    if size != above:
        columns.append((leaf(path, "batch", "", size), None))
    if not keys:
        columns.append((leaf(path, "empty"), None))
    return size


def _unlike_tensordict(first: Any, value: Any, path: Path, number: int) -> SchemaError:
    if tensors.is_tensordict(value) and set(value.keys()) != set(first.keys()):
        return _unlike(dict(first.items()), dict(value.items()), path, number)
    return _differs(path, _describe(first, path), _describe(value, path), number)


def _in_tensordict(values: list[Any], path: Path) -> Column:
    """A column of a TensorDict: tensors, str, bytes, or whatever else it holds as plain objects."""
    found, source = _column(values, path)
    if found.kind == "python":
        return leaf(path, "object"), source
    if found.kind in ("numpy", "empty"):
        allowed = "a tensor or a plain value in a TensorDict"
        raise SchemaError(path=path_text(path), expected=allowed, found=found.describe())
    return found, source


def _tensordict_length(batch: Any) -> int:
    if not batch.batch_size:
        raise ArgumentError(name="batch", allowed="a TensorDict with a batch dimension", found="batch_size=[]")
    return int(batch.batch_size[0])


def _split_tensordict(batch: Any, n: int, path: Path, above: tuple[int, ...], columns: list[Column]) -> None:
    keys = set(batch.keys())
    size = _open_tensordict(keys, tuple(batch.batch_size)[1:], path, above, columns)
    for key in keys:
        here = (*path, key)
        value = tensors.non_tensor(_get(batch, key, here), n)
        if tensors.is_tensordict(value):
            _split_tensordict(value, n, here, size, columns)
        elif isinstance(value, list):
            columns.append(_in_tensordict(value, here))
        else:
            columns.append((_torch_leaf(value, 1, here), tensors.to_numpy(value)))


def _get(batch: Any, key: str, path: Path) -> Any:
    try:
        return batch.get(key)
    except RuntimeError as error:  # a lazy stack, whose records differ in shape
        raise SchemaError(path=path_text(path), expected="one shape in all records", found=str(error)[:200]) from None


def _split_dict(batch: dict[Any, Any], path: Path, columns: list[Column], counts: list[tuple[Path, int]]) -> None:
    _check_keys(batch, path)
    if not batch and path:
        columns.append((leaf(path, "empty"), None))
    for key, value in batch.items():
        here = (*path, key)
        if isinstance(value, dict):
            _split_dict(value, here, columns, counts)
            continue
        n = _length(value, here)
        counts.append((here, n))
        _check_count(here, n, *counts[0])
        if n:
            _split_leaf(value, here, columns)


def _check_count(path: Path, n: int, first: Path, expected: int) -> None:
    if n != expected:
        allowed = f"{expected} records, as in {path_text(first)!r}"
        raise SchemaError(path=path_text(path), expected=allowed, found=f"{n} records")


def _length(value: Any, path: Path) -> int:
    if isinstance(value, list | tuple):
        return len(value)
    if (type(value) in _ARRAYS or tensors.is_tensor(value)) and value.ndim:
        return len(value)
    allowed = "a leading batch dimension, or a list"
    raise SchemaError(path=path_text(path), expected=allowed, found=_describe(value, path))


def _split_leaf(value: Any, path: Path, columns: list[Column]) -> None:
    if isinstance(value, list | tuple):
        _nodes(value, path, columns)
    elif type(value) in _ARRAYS:
        columns.append((_numpy_leaf(value.dtype, value.shape[1:], path), value))
    else:
        columns.append((_torch_leaf(value, 1, path), tensors.to_numpy(value)))


def _common_length(counts: list[tuple[Path, int]]) -> int:
    if not counts or not counts[0][1]:
        raise ArgumentError(name="batch", allowed="at least one record", found=0)
    return counts[0][1]
