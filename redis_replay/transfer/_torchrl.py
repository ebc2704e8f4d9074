"""TorchRL's dumps: the directories that `ReplayBuffer.dumps(path)` writes, read through tensordict. Nothing is unpickled."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay._sync import ReplayBuffer
from redis_replay.samplers import Prioritized
from redis_replay.transfer._errors import TransferError, need, reading
from redis_replay.transfer._flow import Chunk, Progress, Source, chunk_rows, fill, nested

_TYPES = ("TensorDict", "NonTensorStack", "NonTensorData")  # those that are read without a class of the user's
_SINGLE = "_-single-tensor-_"  # TorchRL's name for a storage of bare tensors
_COMPACT = "its storage has no row for each record: compact checkpoints (Flat, Nested) are for TorchRL alone"
_LEAST_PRIORITY = 1e-12  # TorchRL draws a record of priority 0 now and then; here 0 would hide it


class TorchRLSource(Source):
    """The records of a dump, in the order in which they were written: where the storage was full, from its cursor on.

    Records keep TorchRL's names, and are TensorDicts; of a storage of bare tensors they have the leaf `data`. "index", a slot
    of the dumped storage, is left. A storage of several dimensions gives its rows one behind the other.
    Priorities are read from a prioritized sampler's sum tree; `sampler` is one with its alpha, beta and eps.

    Raises:
        TransferError: it is no dump; it is cut, or a file of it is missing; it is one of a consuming buffer, or has values that
        are kept by pickle: reading it would need unpickling. MissingExtraError: tensordict is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self.where = Path(path).absolute(), str(path)
        self._tensordict = need("a TorchRL dump", "tensordict", "torch")
        with reading(path):
            meta = self._storage_meta()
            self._writer = self._json("writer/metadata.json")
            self._refuse_pickles()
            self._data = self._mapped(meta) if meta["is_pytree"] else self._loaded()
            self._measure(int(meta["len"]))
            self._priorities = self._read_priorities()

    def _wrong(self, reason: str) -> TransferError:
        return TransferError(where=self.where, reason=reason)

    def _json(self, name: str) -> dict[str, Any]:
        file = self._path / name
        found = json.loads(file.read_text()) if file.is_file() else {}
        if not isinstance(found, dict):
            raise self._wrong(f"{name} is no JSON object")
        return found

    def _storage_meta(self) -> dict[str, Any]:
        if not self._path.is_dir():
            raise self._wrong("there is no such directory")
        meta = self._json("storage/storage_metadata.json")
        if not meta:
            raise self._wrong("it has no storage/storage_metadata.json: not the dump of a TorchRL buffer with a tensor storage")
        return meta

    def _refuse_pickles(self) -> None:
        """What is pickled is either not needed (batches drawn ahead, transforms), or the dump is refused."""
        if (self._path / "sampler/consuming_sampler.pt").exists():
            raise self._wrong(
                "what its consuming sampler has handed out is stored by pickle, and nothing is unpickled here; "
                "load it in TorchRL, and extend the buffer from there"
            )
        for file in sorted((self._path / "storage").rglob("*")):
            if file.suffix in (".pickle", ".pkl", ".pt"):
                name = file.relative_to(self._path)
                raise self._wrong(f"{name} holds values that are stored by pickle, and nothing is unpickled here")

    def _mapped(self, meta: dict[str, Any]) -> Any:
        """A storage of tensors, dicts, tuples or lists of them: TorchRL keeps a file for each, named by its path."""
        import torch
        from tensordict import MemoryMappedTensor, TensorDict

        leaves = []
        for name, leaf in meta["metadata"].items():
            dtype, shape = getattr(torch, leaf["dtype"].removeprefix("torch.")), torch.Size(leaf["shape"])
            file = self._path / "storage" / (name.replace(".", "/") + ".memmap")
            self._check_within(file)
            if file.stat().st_size < shape.numel() * dtype.itemsize:
                raise self._wrong(f"{file.relative_to(self._path)} is cut")
            path = ("data",) if name == _SINGLE else tuple(part.replace("_<dot>_", ".") for part in name.split("."))
            leaves.append((path, MemoryMappedTensor.from_filename(file, dtype=dtype, shape=shape)))
        lengths = {leaf.shape[0] for _, leaf in leaves if leaf.ndim}
        if len(lengths) != 1:
            raise self._wrong("its tensors differ in length")
        return TensorDict(nested(leaves), [lengths.pop()])

    def _check_within(self, file: Path) -> None:
        if not file.resolve().is_relative_to(self._path.resolve()):
            raise self._wrong(f"{file.name} lies outside of the dump")

    def _loaded(self) -> Any:
        self._check_node(self._path / "storage")
        data = self._tensordict.TensorDict.load_memmap(self._path / "storage")
        self._check_keys(self._path / "storage", data)
        return data

    def _check_node(self, node: Path) -> None:
        """A file that is too short would be made longer by mapping it, so the sizes are looked at first."""
        import torch

        meta = json.loads((node / "meta.json").read_text())
        kind = str(meta.get("_type", "")).rpartition(".")[2].rstrip("'>")
        if kind not in _TYPES:
            raise self._wrong(f"it is made of {kind or 'an unknown class'}, and only TensorDicts are read")
        if kind != "TensorDict":
            return
        wanted = []
        for entry in meta.values():
            if isinstance(entry, dict) and "dtype" in entry and "shape" in entry:
                if entry.get("is_nested"):
                    raise self._wrong(_COMPACT)
                wanted.append(math.prod(entry["shape"]) * getattr(torch, entry["dtype"].removeprefix("torch.")).itemsize)
        there = sorted((file.stat().st_size for file in node.glob("*.memmap")), reverse=True)
        for need_bytes in sorted(filter(None, wanted), reverse=True):
            if need_bytes not in there:
                raise self._wrong(f"a file of {need_bytes} bytes is missing or cut in {node.relative_to(self._path)}")
            there.remove(need_bytes)
        for child in sorted(node.iterdir()):
            if child.is_dir():
                self._check_node(child)

    def _check_keys(self, node: Path, data: Any) -> None:
        """What is missing is left out by the reader, without a word."""
        meta = json.loads((node / "meta.json").read_text())
        keys = {key for key, entry in meta.items() if isinstance(entry, dict) and ("dtype" in entry or "type" in entry)}
        missing = keys - set(data.keys())
        if missing:
            raise self._wrong(f"{', '.join(sorted(missing))} of its {node.relative_to(self._path)} cannot be read")

    def _measure(self, records: int) -> None:
        """How many rows are written, how many records a row holds, and where the oldest is."""
        shape = tuple(self._data.batch_size)
        if not shape:
            raise self._wrong(_COMPACT)
        inner, written = math.prod(shape[1:]), self._writer.get("write_count")
        self._flat = len(shape) > 1 and (records > shape[0] or (written is not None and written < records))
        if len(shape) > 1 and not self._flat and written is None:
            raise self._wrong(f"its storage has the shape {list(shape)}, and no write_count tells what a record is")
        self._rows = records // inner if self._flat else records
        if not 0 <= self._rows <= shape[0] or (self._flat and records % inner):
            raise self._wrong(f"it claims {records} records, and its storage has the shape {list(shape)}")
        self.total = records
        cursor = int(self._writer.get("cursor", 0))
        self._first = cursor % shape[0] if self._rows == shape[0] else 0

    def _read_priorities(self) -> NDArray[np.float64] | None:
        """(stored value) ** (1 / alpha) - eps, by slot."""
        meta = self._json("sampler/sampler_metadata.json")
        if "_alpha" not in meta:
            return None
        alpha, beta, eps = (float(meta[name]) for name in ("_alpha", "_beta", "_eps"))
        self.sampler = Prioritized(alpha=alpha, beta=beta, eps=eps)
        file = self._path / "sampler/sumtree.memmap"
        if not alpha or self._flat or not file.exists():
            return None
        stored = np.fromfile(file, np.float64)[: self._rows]
        raw: NDArray[np.float64] = np.maximum(stored ** (1 / alpha) - eps, _LEAST_PRIORITY)
        if len(raw) < self._rows or not np.isfinite(raw).all():
            raise self._wrong("the priorities in sampler/sumtree.memmap are cut, or no numbers")
        return raw

    def chunks(self) -> Iterator[Chunk]:
        """As Source.chunks."""
        if not self._rows:
            return
        size = sum(leaf.nbytes for leaf in self._data.values(True, True) if hasattr(leaf, "nbytes")) / self._data.batch_size[0]
        inner = math.prod(self._data.batch_size[1:]) if self._flat else 1
        most = max(1, chunk_rows(size / inner) // inner)
        for start, stop in ((self._first, self._rows), (0, self._first)):
            for low in range(start, stop, most):
                yield self._chunk(low, min(low + most, stop))

    def _chunk(self, low: int, high: int) -> Chunk:
        part = self._data[low:high]
        if self._flat:
            part = part.reshape(-1)
        part = part.exclude("index").clone()
        priority = None if self._priorities is None else self._priorities[low:high]
        return Chunk(part, len(part), priority)


def import_torchrl(
    buffer: ReplayBuffer, path: str | Path, *, progress: Progress | None = None, timeout: float | None = None,
    cancel_event: Any = None,
) -> int:  # fmt: skip
    """Writes the records of a TorchRL dump to a buffer. Gives how many. Arguments and errors as `fill` and TorchRLSource."""
    with TorchRLSource(path) as source:
        return fill(buffer, source, progress=progress, timeout=timeout, cancel_event=cancel_event)
