"""The payloads of a batch on their way: which are to be read, and where they go. No I/O."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay._cache import Cache
from redis_replay._decode import Arriving
from redis_replay._schema import Schema


class Gathered:
    """Payloads as bytes."""

    def __init__(self, n: int) -> None:
        self.payloads: list[bytes] = [b""] * n

    def put(self, row: int, payload: bytes) -> None:
        """The payload of a row."""
        self.payloads[row] = bytes(payload)

    def put_block(self, rows: NDArray[np.int64], block: NDArray[np.uint8]) -> None:
        """The payloads of many rows: (n, size)."""
        for row, line in zip(rows.tolist(), block, strict=True):
            self.payloads[row] = line.tobytes()


class Reading:
    """Of the records `index`, int64 (n,), in this order.

    Attributes:
        wanted: int64 (m,), those to be read: all that are not in the cache.
        into: where they go, the i-th of `wanted` in row i.
    """

    def __init__(self, schema: Schema, index: NDArray[np.int64], cache: Cache | None) -> None:
        self.index, self.wanted, self._cache = index, index, cache
        self.into: Gathered | Arriving
        if cache is not None:
            self._found = cache.look(index.tolist())
            self._rows = [row for row, payload in enumerate(self._found) if payload is None]
            self.wanted = index[self._rows]
            self.into = Gathered(len(self._rows))
        else:
            self.into = Gathered(len(index)) if schema.record_size is None else Arriving(schema.layout, len(index))

    def payloads(self) -> list[Any] | Arriving:
        """All of them, when those that were wanted are there. The cache has them from now on."""
        if self._cache is None:
            return self.into.payloads if isinstance(self.into, Gathered) else self.into
        assert isinstance(self.into, Gathered)
        self._cache.count(len(self._found) - len(self._rows), len(self._rows))
        for row, payload in zip(self._rows, self.into.payloads, strict=True):
            self._found[row] = payload
            self._cache.keep(int(self.index[row]), payload)
        return self._found
