"""How errors show what they are about: briefly, whatever it is, and so that it can go to another process."""

import reprlib
import string
from collections.abc import Mapping
from typing import Any

import numpy as np

_PLAIN = (str, bytes, bytearray, bool, int, float, complex, range, type(None))
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200  # characters


class _Shown(str):
    """A text that stands for a value: it is its own `repr()`."""

    __slots__ = ()
    __repr__ = str.__str__


class _Fill(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return brief(value) if conversion == "r" else super().convert_field(value, conversion)


def brief(value: object) -> str:
    """The `repr()` of a value, cut where it is long; its type where it has none."""
    try:
        return _REPR.repr(value) if not isinstance(value, _Shown) else str(value)
    except Exception:  # noqa: BLE001 - whatever a caller's object does when it is looked at, this is about another error
        return f"a value of type {type(value).__name__}"


def fill(text: str, data: Mapping[str, Any]) -> str:
    """`text` with the data in its braces; where it says `!r`, what is long is cut."""
    return _Fill().vformat(text, (), data)


def portable(value: Any) -> Any:
    """A value as another process may have it: what may not pickle (a lock, a lambda) goes as its `repr()`."""
    return value if _is_plain(value) else _Shown(brief(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return all(map(_is_plain, (*value, *value.values()) if isinstance(value, dict) else value))
    if isinstance(value, (np.ndarray, np.generic)):
        return not value.dtype.hasobject
    return type(value) in _PLAIN or type(value).__module__.startswith("redis_replay.")
