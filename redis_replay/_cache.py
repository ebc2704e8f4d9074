"""Payloads that a handle has fetched before. An index never means other bytes, so none of them is ever out of date."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

OVERHEAD = 320  # bytes of memory that an entry takes beside its payload, where the table has just grown


class CacheInfo(NamedTuple):
    """What the cache of a handle did and holds: records found in it and fetched, since the handle was made; records in it, and
    the bytes of memory that they take.
    """

    hits: int
    misses: int
    records: int
    bytes: int


class Cache:
    """The payloads that were drawn last, of one buffer, as far as `limit` bytes reach. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._payloads: OrderedDict[int, bytes] = OrderedDict()
        self._hits = self._misses = self._bytes = 0
        self._lock = threading.Lock()

    def look(self, indices: Sequence[int]) -> list[bytes | None]:
        """The payload of each; None: it is not here."""
        with self._lock:
            found = [self._payloads.get(index) for index in indices]
            for index, payload in zip(indices, found, strict=True):
                if payload is not None:
                    self._payloads.move_to_end(index)
            return found

    def count(self, hits: int, misses: int) -> None:
        """So many of a batch were here, and so many were fetched."""
        with self._lock:
            self._hits, self._misses = self._hits + hits, self._misses + misses

    def keep(self, index: int, payload: bytes) -> None:
        """It was fetched."""
        size = len(payload) + OVERHEAD
        with self._lock:
            if size > self.limit or index in self._payloads:
                return
            self._payloads[index] = payload
            self._bytes += size
            while self._bytes > self.limit:
                self._bytes -= len(self._payloads.popitem(last=False)[1]) + OVERHEAD

    def clear(self) -> None:
        """Holds nothing. The server was away: one that does not say which process it is may have lost indices, and give them
        again (docs/guarantees.md).
        """
        with self._lock:
            self._payloads.clear()
            self._bytes = 0

    def info(self) -> CacheInfo:
        """The figures."""
        with self._lock:
            return CacheInfo(self._hits, self._misses, len(self._payloads), self._bytes)
