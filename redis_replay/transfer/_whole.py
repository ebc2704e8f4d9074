"""Files that are there whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis_replay.transfer._errors import TransferError, reading


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Another name beside `path`, which what was written there gets at the end; after an error nothing is left of it.

    Raises:
        TransferError: something is there already, or the system does not let it be written.
    """
    if path.exists():
        raise TransferError(where=str(path), reason="it is there already, and nothing is written over")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with reading(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        with reading(path):
            _sync(part)
            part.rename(path)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def _sync(part: Path) -> None:
    for file in [part] if part.is_file() else [f for f in part.rglob("*") if f.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
