"""Checkpoints without a server: what `dumps` wrote is looked at, proven, and its records are read.

```python
from redis_replay import checkpoint

saved = checkpoint.open("buffer.ckpt")
print(saved.name, len(saved), saved.counters["write_count"])
for record in saved:
    ...
```
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _blocks as blocks
from redis_replay import _stored as stored
from redis_replay._decode import decode_record
from redis_replay._keys import Keys
from redis_replay._schema import Schema
from redis_replay.exceptions import BufferDamagedError, CheckpointError

FORMAT, VERSION = "redis-replay checkpoint", 1
SETTINGS = ("capacity", "sampler", "remover", "rate_limiter", "consume_after_n_samples", "lease", "max_staleness")
GONE = ("consumed", "evicted", "removed", "stale")  # counters of records that are there no more
NONE = -1  # of a number that a record does not have


@dataclass(frozen=True)
class Page:
    """Some records, in order of index.

    Attributes:
        index: int64 (n,).
        payload: the bytes of each record.
        uses: int64 (n,), times handed out; -1 where they are not counted.
        priority: float64 (n,); -1 where records have none.
        version: int64 (n,); -1 where records have none.
        writer: int64 (n,), the number of who wrote it in `shares`; -1 where it was handed out, or nobody asks.
    """

    index: NDArray[np.int64]
    payload: list[bytes]
    uses: NDArray[np.int64]
    priority: NDArray[np.float64]
    version: NDArray[np.int64]
    writer: NDArray[np.int64]

    def packed(self) -> dict[str, Any]:
        """As a block holds it."""
        numbers = {name: getattr(self, name).tobytes() for name in ("index", "uses", "priority", "version", "writer")}
        return numbers | {"payload": self.payload}

    @classmethod
    def unpacked(cls, body: Mapping[str, Any]) -> "Page":
        """Of a block's body."""
        numbers = {name: np.frombuffer(body[name], "<f8" if name == "priority" else "<i8") for name in _COLUMNS}
        return cls(payload=body["payload"], **numbers)


_COLUMNS = ("index", "uses", "priority", "version", "writer")


class Checkpoint:
    """A file that is whole: it was read and proven from its begin to its end when it was opened.

    Attributes:
        path: where it lies.
        name: of the buffer that was dumped.
        epoch: which one of that name.
        last: the newest index that it had given.
        counters: int by name, as `stats()` tells them.
        config: the settings as they are stored, text by name.
        shares: what each writer wrote, as it is stored.
    """

    def __init__(self, source: blocks.Source) -> None:
        self.source = source
        self.path = blocks.name_of(source)
        kinds = blocks.read(source, keep=False)
        head = self._head(next(kinds)[1])
        end: Mapping[str, Any] = {}
        for kind, body in kinds:
            end = body if kind == "end" else end
        self._n = end.get("records")
        self.name, self.epoch = head["name"], head["epoch"]
        self.last = int(head["last"])
        self.counters: Mapping[str, int] = _counters(head["counters"], int(self._n or 0))
        self.config: Mapping[str, str] = head["config"]
        self.shares: Mapping[str, str] = head["shares"]
        if self._n != head["records"]:
            raise CheckpointError(path=self.path, reason=f"it has {self._n} records, and its head says {head['records']}")

    def _head(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if body.get("format") != FORMAT:
            raise CheckpointError(path=self.path, reason=f"it is no {FORMAT}")
        if body.get("version") != VERSION:
            found = body.get("version")
            raise CheckpointError(path=self.path, reason=f"it has format version {found}, and this one reads {VERSION}")
        return body

    @property
    def settings(self) -> dict[str, object]:
        """The buffer's settings, as they are passed when it is created."""
        return {name: stored.setting(name, self.config[name]) for name in SETTINGS if name in self.config}

    @property
    def schema(self) -> Schema | None:
        """What each record looks like; None where nothing was ever written.

        Raises:
            CheckpointError: it is no schema.
        """
        if "schema" not in self.config:
            return None
        try:
            return stored.schema(Keys(self.name), self.config["schema"], self.config.get("schema_hash"))
        except BufferDamagedError as error:
            raise CheckpointError(path=self.path, reason=f"it {error.found}, expected {error.expected}") from error

    def __len__(self) -> int:
        """How many records it has."""
        return int(self._n or 0)

    def pages(self) -> Iterator[Page]:
        """Its records with all that belongs to them, at most a few MiB at a time, in order of index."""
        for kind, body in blocks.read(self.source):
            if kind == "rows":
                yield Page.unpacked(body)

    def __iter__(self) -> Iterator[Any]:
        """Its records in order of index, each as it was written.

        Raises:
            RecordDecodeError: one is no record of its schema.
        """
        schema = self.schema
        for page in self.pages():
            for index, payload in zip(page.index, page.payload, strict=True):
                assert schema is not None
                yield decode_record(schema, payload, int(index))


def _counters(written: Mapping[str, int], records: int) -> dict[str, int]:
    """As they are in the file; those that it has not are 0, and every record was written once."""
    every = dict.fromkeys((*GONE, "sample_calls", "samples_returned"), 0) | dict(written)
    return {"write_count": records + sum(every[name] for name in GONE)} | every


def open(path: blocks.Source) -> Checkpoint:  # noqa: A001 - as gzip.open and others
    """The checkpoint at `path` (or in bytes), once all of it is proven: about a second for each GB.

    Raises:
        CheckpointNotFoundError: there is no such file. CheckpointError: it is no whole checkpoint of this version.
    """
    return Checkpoint(path)
