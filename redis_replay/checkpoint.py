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
from redis_replay import _contents as contents
from redis_replay import _stored as stored
from redis_replay._decode import decode_record
from redis_replay._keys import Keys
from redis_replay._schema import Schema
from redis_replay.exceptions import BufferDamagedError, CheckpointError, ReplayError

SETTINGS = ("capacity", "sampler", "remover", "rate_limiter", "consume_after_n_samples", "lease", "max_staleness")


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
        numbers = {name: getattr(self, name).tobytes() for name in contents.COLUMNS}
        return numbers | {"payload": self.payload}

    @classmethod
    def unpacked(cls, body: Mapping[str, Any]) -> "Page":
        """Of a block's body."""
        numbers = {name: contents.column(body, name) for name in contents.COLUMNS}
        return cls(payload=body["payload"], **numbers)


class Checkpoint:
    """A file that is whole: it was read and proven from its begin to its end when it was opened.

    Attributes:
        path: where it lies.
        name: of the buffer that was dumped.
        epoch: which one of that name.
        first: its lowest index; above `last` where it has no record.
        last: the newest index that it had given.
        counters: int by name, as `stats()` tells them.
        config: the settings as they are stored, text by name.
        shares: what each writer wrote, as it is stored.
    """

    def __init__(self, source: blocks.Source) -> None:
        self._file = blocks.File(source)  # held open: what is read later is what was proven, whatever lies at the path by then
        self.path = self._file.name
        try:
            head = self._prove()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            if isinstance(error, ReplayError):
                raise
            raise CheckpointError(path=self.path, reason=str(error) or type(error).__name__) from error
        self._n: int = head["records"]

    def _prove(self) -> dict[str, Any]:
        kinds = blocks.read(self._file)
        head = contents.head(next(kinds)[1])
        self.name, self.epoch, self.last = head["name"], head["epoch"], head["last"]
        self.counters: Mapping[str, int] = head["counters"]
        self.config: Mapping[str, str] = head["config"]
        self.shares: Mapping[str, str] = head["shares"]
        schema, n, index, self.first = self.schema, 0, 0, self.last + 1
        for kind, body in kinds:
            if kind == "rows":
                self.first = self.first if n else int(contents.column(body, "index")[0])
                index = contents.check_page(body, index, self.last, schema.record_size if schema is not None else None)
                n += len(body["payload"])
        if n != head["records"]:
            raise ValueError(f"it has {n} records, and its head says {head['records']}")
        return head

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

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path!r}: {len(self):,} records of buffer {self.name!r}>"

    def __len__(self) -> int:
        """How many records it has."""
        return self._n

    def pages(self) -> Iterator[Page]:
        """Its records with all that belongs to them, at most a few MiB at a time, in order of index."""
        for kind, body in blocks.read(self._file):
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


def open(path: blocks.Source) -> Checkpoint:  # noqa: A001 - as gzip.open and others
    """The checkpoint at `path` (or in bytes), once all of it is proven: about a second for each GB.

    Raises:
        CheckpointNotFoundError: there is no such file. CheckpointError: it is no whole checkpoint of this version.
    """
    return Checkpoint(path)
