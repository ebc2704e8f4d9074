"""What goes wrong with a file of another project. Both are ReplayErrors: they carry data, pickle and copy."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from redis_replay.exceptions import ReplayError


class TransferError(ReplayError):
    """A file or data set cannot be read, is not what it should be, or cannot hold what the buffer holds. `where` is the path or
    the id; `done`, where it is set, says how many records were written to the buffer before.
    """

    text = "{where}: {reason}"
    where: str
    reason: str


class MissingExtraError(TransferError, ImportError):
    """A library that a format needs is not installed; the extra `extra` of redis-replay brings it."""

    text = "{where} needs {module}: pip install 'redis-replay[{extra}]'"
    where: str
    module: str
    extra: str


def need(where: str, module: str, extra: str) -> Any:
    """A module of another project.

    Raises:
        MissingExtraError: it, or what it needs itself, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = getattr(error, "name", None) or module
        raise MissingExtraError(where=where, module=missing.partition(".")[0], extra=extra) from error


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Whatever another project's library raises at a file that is not in order comes out as a TransferError."""
    try:
        yield
    except (ReplayError, MemoryError):
        raise
    except Exception as error:  # a file decides what a library stumbles over: no list of kinds is whole
        reason = " ".join(str(error).split()) or "it cannot be read"
        raise TransferError(where=str(where), reason=f"{reason} ({type(error).__name__})") from error
