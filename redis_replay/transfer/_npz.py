"""`.npz`: numpy's archives of arrays. Rows are read from the archive as they are needed; nothing is unpickled."""

from pathlib import Path
from typing import Any, BinaryIO
from zipfile import is_zipfile

import numpy as np

from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._arrays import ArraySource, Rows
from redis_replay.transfer._errors import reading
from redis_replay.transfer._flow import Progress, fill


class _Member(Rows):
    """An array of the archive. One in Fortran's order cannot be read by rows, and is read whole."""

    def __init__(self, archive: Any, name: str) -> None:
        self._file: BinaryIO = archive.zip.open(f"{name}.npy")
        version = np.lib.format.read_magic(self._file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name} is of a type that no buffer stores")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = read(self._file)
        if self.dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are read by unpickling alone, and nothing is unpickled here")
        size = archive.zip.getinfo(f"{name}.npy").file_size - self._file.tell()
        if size != self.dtype.itemsize * int(np.prod(self.shape, dtype=object)):
            raise ValueError(f"{name} has {size} bytes, and its header says another number")
        self._whole = archive[name] if fortran and len(self.shape) > 1 else None
        self._at = 0

    def read(self, n: int) -> Any:
        """The next `n` rows."""
        assert self.dtype is not None
        at, self._at = self._at, self._at + n
        if self._whole is not None:
            return self._whole[at : at + n]
        got = np.frombuffer(self._file.read(n * self.row_bytes()), np.uint8)
        column: np.ndarray[Any, Any] = np.empty((n, *self.shape[1:]), self.dtype)
        if got.size != column.nbytes:
            raise ValueError("the archive ends too early")
        column.reshape(-1).view(np.uint8)[:] = got
        return column

    def close(self) -> None:
        self._file.close()


class NpzSource(ArraySource):
    """The arrays of an `.npz` file, one row a record.

    In D4RL's names (observations, actions, rewards, terminals, timeouts, next_observations) they become the records of
    redis_replay.gymnasium's recorders; otherwise each array is a leaf under its own name, and a "/" in a name nests.

    Raises:
        TransferError: it is no `.npz`, its checksums are wrong, it holds Python objects, or its arrays differ in length.
    """

    def __init__(self, path: str | Path) -> None:
        self._members: list[_Member] = []
        with reading(path):
            if not is_zipfile(path):
                raise TypeError("it is no archive of arrays" if Path(path).exists() else "there is no such file")
            self._archive = np.load(path, allow_pickle=False)
        try:
            with reading(path):
                arrays = self._open()
            super().__init__(str(path), arrays)
        except BaseException:
            self.close()
            raise

    def _open(self) -> dict[tuple[str, ...], Rows]:
        wrong = self._archive.zip.testzip()
        if wrong is not None:
            raise ValueError(f"the checksum of {wrong} is wrong")
        for name in self._archive.files:
            self._members.append(_Member(self._archive, name))
        return {tuple(name.split("/")): member for name, member in zip(self._archive.files, self._members, strict=True)}

    def close(self) -> None:
        """Ends it. Idempotent."""
        for member in self._members:
            member.close()
        self._archive.close()


def import_npz(
    buffer: ReplayBuffer, path: str | Path, *, progress: Progress | None = None, timeout: float | None = None,
    cancel_event: Any = None,
) -> int:  # fmt: skip
    """Writes the records of an `.npz` file to a buffer. Gives how many. Arguments and errors as `fill` and NpzSource."""
    with NpzSource(path) as source:
        return fill(buffer, source, progress=progress, timeout=timeout, cancel_event=cancel_event)
