"""HDF5: D4RL's files, and any others whose data sets have a row for each record."""

from pathlib import Path
from typing import Any

from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._arrays import ArraySource, Rows
from redis_replay.transfer._errors import TransferError, need, reading
from redis_replay.transfer._flow import Progress, fill


class _Dataset(Rows):
    def __init__(self, dataset: Any, text: bool) -> None:
        self._dataset = dataset.asstr() if text else dataset
        self.dtype, self.shape = None if text else dataset.dtype, tuple(dataset.shape or ())
        self._at = 0

    def read(self, n: int) -> Any:
        """The next `n` rows."""
        at, self._at = self._at, self._at + n
        found = self._dataset[at : at + n]
        return found.tolist() if self.dtype is None else found


class Hdf5Source(ArraySource):
    """The data sets of an HDF5 file, one row a record; groups nest.

    In D4RL's names (observations, actions, rewards, terminals, timeouts, next_observations) they become the records of
    redis_replay.gymnasium's recorders, and whatever else is in the file is left; otherwise all are read, each a leaf.

    Raises:
        TransferError: it is no HDF5 file or a cut one, a data set has a type that no buffer stores or lies in another file, or
        their lengths differ. MissingExtraError: h5py is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        h5py = need("HDF5", "h5py", "hdf5")
        with reading(path):
            self._file = h5py.File(path, "r")
        try:
            with reading(path):
                arrays = _datasets(h5py, self._file, str(path))
            super().__init__(str(path), arrays)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._file.close()


def _datasets(h5py: Any, file: Any, where: str) -> dict[tuple[str, ...], Rows]:
    found: dict[tuple[str, ...], Rows] = {}

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset):
            return
        if node.is_virtual or node.external:
            raise TransferError(where=where, reason=f"the data of {name} lie in another file")
        text = h5py.check_string_dtype(node.dtype) is not None and node.dtype.kind == "O" and node.ndim == 1
        found[tuple(name.split("/"))] = _Dataset(node, text)

    file.visititems(visit)
    return found


def import_hdf5(
    buffer: ReplayBuffer, path: str | Path, *, progress: Progress | None = None, timeout: float | None = None,
    cancel_event: Any = None,
) -> int:  # fmt: skip
    """Writes the records of an HDF5 file to a buffer. Gives how many. Arguments and errors as `fill` and Hdf5Source."""
    with Hdf5Source(path) as source:
        return fill(buffer, source, progress=progress, timeout=timeout, cancel_event=cancel_event)
