"""The blocks of a checkpoint file: msgpack arrays [number, kind, body, digest], one behind another.

number    0, 1, 2, …: none is missing, none comes twice
kind      "head", "rows" or "end"
body      bytes: the block's own msgpack
digest    16 bytes: BLAKE2b of the msgpack of [number, kind, length of body], and of body

The first block is the head, the last one the end, and there is nothing behind it. docs/checkpoint.md says what is in them.
"""

import fcntl
import io
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import msgpack

from redis_replay.exceptions import CheckpointError, CheckpointNotFoundError, UnderWayError

MAX_BLOCK = 192 * 2**20  # bytes; a record has at most 64 MiB
READ = 2**20  # bytes
Source = str | os.PathLike[str] | bytes


def _digest(number: int, kind: str, body: bytes) -> bytes:
    seal = blake2b(msgpack.packb([number, kind, len(body)]), digest_size=16)
    seal.update(body)
    return seal.digest()


class Writer:
    """Appends blocks to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._number = 0

    def write(self, kind: str, body: dict[str, Any]) -> None:
        """One more block."""
        packed = msgpack.packb(body, use_bin_type=True)
        self._file.write(msgpack.packb([self._number, kind, packed, _digest(self._number, kind, packed)]))
        self._number += 1


def name_of(source: Source) -> str:
    """As errors call it."""
    return f"<{len(source):,} bytes>" if isinstance(source, bytes) else os.fspath(source)


class File:
    """A checkpoint that is read, as it was when it was opened.

    Raises:
        CheckpointNotFoundError, CheckpointError: there is no file. OSError: it cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self._data = source if isinstance(source, bytes) else None
        self.name = name_of(source)
        self.size = len(source) if isinstance(source, bytes) else self._open(source)

    def _open(self, path: str | os.PathLike[str]) -> int:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody writes to is not waited for
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointNotFoundError(path=self.name, reason="there is no such file") from None
        weakref.finalize(self, os.close, self._handle)
        about = os.fstat(self._handle)
        if not stat.S_ISREG(about.st_mode):
            what = "a directory" if stat.S_ISDIR(about.st_mode) else "no file"
            raise self.wrong(f"it is {what}; a checkpoint is a file")
        return about.st_size

    def reader(self) -> IO[bytes]:
        """From its begin on; several do not disturb each other."""
        return io.BytesIO(self._data) if self._data is not None else io.BufferedReader(_At(self._handle), READ)

    def wrong(self, reason: str) -> CheckpointError:
        """The error for what it is not."""
        return CheckpointError(path=self.name, reason=reason)


class _At(io.RawIOBase):
    """A file that is open, read with a position of one's own."""

    def __init__(self, handle: int) -> None:
        self._handle, self._at = handle, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = os.preadv(self._handle, [buffer], self._at)
        self._at += n
        return n


def read(file: File) -> Iterator[tuple[str, Any]]:
    """Kind and body of each block, each proven before it is given.

    Raises:
        CheckpointError. OSError: the file cannot be read.
    """
    kind, number = "", 0
    unpacker = msgpack.Unpacker(
        file.reader(), read_size=READ, max_buffer_size=MAX_BLOCK, max_str_len=16, max_bin_len=MAX_BLOCK, max_array_len=4,
        max_map_len=0, max_ext_len=0,
    )  # fmt: skip
    while kind != "end":
        kind, body = _next(unpacker, number, file)
        if (kind == "head") != (number == 0):
            raise file.wrong(f"block {number} is a {kind!r}, which is not in its place")
        yield kind, msgpack.unpackb(body)
        number += 1
    if unpacker.tell() != file.size:
        raise file.wrong(f"there are {file.size - unpacker.tell()} bytes behind its end")


def _next(unpacker: Any, number: int, file: File) -> tuple[str, bytes]:
    try:
        block = unpacker.unpack()
    except msgpack.OutOfData:
        raise file.wrong("it is empty" if not number else f"it is cut off in block {number}") from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise file.wrong(f"block {number} is no block ({str(error) or type(error).__name__})") from None
    parts = block if isinstance(block, list) and len(block) == 4 else [None] * 4
    found, kind, body, digest = parts
    if not (type(found) is int and isinstance(kind, str) and isinstance(body, bytes) and isinstance(digest, bytes)):
        raise file.wrong(f"block {number} is no block")
    if found != number or digest != _digest(number, kind, body):
        raise file.wrong(f"block {number} is not as it was written")
    return kind, body


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` at the end, whole and on the disk; after an error, and after a kill, what was there
    before is there still. Until then it is `<path>.part`, which the next one overwrites. It has the rights of what was there.

    Raises:
        UnderWayError: another process writes there now. OSError: it cannot be written; IsADirectoryError.
    """
    target = Path(os.path.realpath(path))  # a link goes on to lead there
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a directory; a checkpoint is a file: name one in it")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is no file; a checkpoint is a file: name one in a directory")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be written: there is no directory {target.parent}")
    part = target.with_name(target.name + ".part")
    with _locked(part) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
        except BaseException:
            with suppress(FileNotFoundError):
                part.unlink()
            raise
    _sync_folder(target.parent)


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """An empty file that nobody else writes to; the lock goes with the process."""
    while True:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=READ)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if part.stat().st_ino == os.fstat(file.fileno()).st_ino:  # else it has just been renamed
                    break
        except BlockingIOError:
            file.close()
            raise UnderWayError(name=part.name.removesuffix(".part"), what="dump to this file", seconds=0) from None
        file.close()
    with file:
        file.truncate()
        yield file


def _sync_folder(folder: Path) -> None:
    """The new name is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
