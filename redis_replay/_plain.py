"""Plain values as msgpack: None, bool, int, float, str, bytes, and lists, tuples and str-keyed dicts of them.

msgpack has no tuples: one is stored as a list whose first element is a mark (extension type 1, without data).
"""

from collections.abc import Iterable
from typing import Any

import msgpack

from redis_replay._schema import MAX_DEPTH

_MARK = msgpack.ExtType(1, b"")
_MARK_BYTES = msgpack.packb(_MARK)
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
# A list's header claims a length for which the parser makes room at once. Up to this size no claim can do harm.
_TRUSTED = 1024


def pack(values: Iterable[object]) -> list[bytes]:
    """The bytes of each plain value. Raises ValueError, with the reason, for what is not plain or too deeply nested."""
    # One packer for the column, as making one costs more than packing; not one for all, as threads must not share it.
    packer = msgpack.Packer(default=_mark_tuple, strict_types=True, unicode_errors="surrogatepass")
    packed = []
    for value in values:
        check_plain(value)
        packed.append(packer.pack(value))
    return packed


def unpack(data: bytes) -> Any:
    """The value that `pack` made into `data`. Raises ValueError, with the reason, for any other bytes."""
    try:
        if len(data) > _TRUSTED:
            _skip(data)
        hook = _tuple_hook if _MARK_BYTES in data else None
        value = msgpack.unpackb(data, list_hook=hook, ext_hook=_ext_hook, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ValueError(f"bad msgpack: {str(error) or type(error).__name__}") from None
    check_plain(value)
    return value


def check_plain(value: object, depth: int = 0) -> None:
    """Nothing if the value is plain. Raises ValueError, with the reason, if it is not, or is nested too deep."""
    kind = type(value)
    if kind in _ATOMS:
        return
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict) and kind is dict:
        if not all(type(key) is str for key in value):
            raise ValueError("a dict with keys that are not str")
        _check_all(value.values(), depth)
    elif isinstance(value, list | tuple) and kind in (list, tuple):
        _check_all(value, depth)
    else:
        raise ValueError(f"a value of type {kind.__name__}")


def _check_all(values: Any, depth: int) -> None:
    if not _ATOMS.issuperset(map(type, values)):  # long flat lists of numbers are settled here, without a Python loop
        for value in values:
            check_plain(value, depth + 1)


def _mark_tuple(value: object) -> list[object]:
    if not isinstance(value, tuple):  # the values are known to be plain: all else that msgpack cannot take is this
        raise ValueError("an int of more than 64 bits")  # noqa: TRY004 - the type is right
    return [_MARK, *value]


def _tuple_hook(values: list[object]) -> object:
    return tuple(values[1:]) if values and values[0] is _MARK else values


def _ext_hook(code: int, data: bytes) -> object:
    if code != 1 or data:
        raise ValueError(f"extension type {code}")
    return _MARK


def _skip(data: bytes) -> None:
    # Skipping makes no objects. If it reaches the end, all lengths are true, and the data's size bounds what unpacking
    # will need.
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()
    if unpacker.tell() != len(data):
        raise ValueError("bytes after the value")
