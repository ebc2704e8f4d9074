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


def read(source: Source, *, keep: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and body of each block, each proven before it is given. `keep` False: prove them, and give empty bodies.

    Raises:
        CheckpointNotFoundError, CheckpointError. OSError: the file cannot be read.
    """
    with _opened(source) as (file, size):
        kind, number = "", 0
        unpacker = msgpack.Unpacker(
            file, read_size=READ, max_buffer_size=MAX_BLOCK, max_str_len=16, max_bin_len=MAX_BLOCK, max_array_len=4,
            max_map_len=0, max_ext_len=0,
        )  # fmt: skip
        while kind != "end":
            kind, body = _next(unpacker, number, source)
            if (kind == "head") != (number == 0):
                raise _wrong(source, f"block {number} is a {kind!r}, which is not in its place")
            yield kind, msgpack.unpackb(body) if keep or kind != "rows" else {}
            number += 1
        if unpacker.tell() != size:
            raise _wrong(source, f"there are {size - unpacker.tell()} bytes behind its end")


def name_of(source: Source) -> str:
    """As errors call it."""
    return f"<{len(source):,} bytes>" if isinstance(source, bytes) else os.fspath(source)


def _wrong(source: Source, reason: str) -> CheckpointError:
    return CheckpointError(path=name_of(source), reason=reason)


@contextmanager
def _opened(source: Source) -> Iterator[tuple[IO[bytes], int]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source)
        return
    path = Path(source)
    try:
        file = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointNotFoundError(path=os.fspath(source), reason="there is no such file") from None
    except IsADirectoryError:
        raise _wrong(source, "it is a directory; a checkpoint is a file") from None
    with file:
        yield file, os.fstat(file.fileno()).st_size


def _next(unpacker: Any, number: int, source: Source) -> tuple[str, bytes]:
    try:
        block = unpacker.unpack()
    except msgpack.OutOfData:
        raise _wrong(source, "it is empty" if not number else f"it is cut off in block {number}") from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _wrong(source, f"block {number} is no block ({str(error) or type(error).__name__})") from None
    parts = block if isinstance(block, list) and len(block) == 4 else [None] * 4
    found, kind, body, digest = parts
    if not (type(found) is int and isinstance(kind, str) and isinstance(body, bytes) and isinstance(digest, bytes)):
        raise _wrong(source, f"block {number} is no block")
    if found != number or digest != _digest(number, kind, body):
        raise _wrong(source, f"block {number} is not as it was written")
    return kind, body


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` at the end, whole and on the disk; after an error, and after a kill, what was there
    before is there still. Until then it is `<path>.part`, which the next one overwrites.

    Raises:
        UnderWayError: another process writes there now. OSError: it cannot be written; IsADirectoryError.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a directory; a checkpoint is a file: name one in it")
    part = target.with_name(target.name + ".part")
    with _locked(part) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
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
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=READ)
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
