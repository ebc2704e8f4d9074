"""Errors of checkpoints: dumps, loads and the files between. Their public place is redis_replay.exceptions."""

from typing import Any

from redis_replay._error import ReplayError


class CheckpointError(ReplayError, ValueError):
    """What lies at `path` is no whole checkpoint that this version reads. `reason` says what is wrong; nothing was changed."""

    text = "checkpoint {path!r}: {reason}; nothing was changed"
    path: str
    reason: str


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at `path`."""


class DumpError(ReplayError):
    """A dump could not be finished. `reason` says why. The file that was there before is as it was."""

    text = "buffer {name!r}: the dump ended without a file: {reason}"
    name: str
    reason: str


class LoadError(ReplayError):
    """A load could not be finished. `reason` says why; nothing was changed."""

    text = "buffer {name!r}: the load ended: {reason}; nothing was changed"
    name: str
    reason: str


class PartlyLoadedError(LoadError):
    """Of an ensemble: its member `member` (0 is the first), the buffer `name`, is as it was; those of `loaded` are loaded."""

    text = "{listing}, and member {member} of the ensemble, buffer {name!r}, is not: {reason}"
    member: int
    loaded: tuple[int, ...]

    def _message(self, **data: Any) -> str:
        which = ", ".join(map(str, data["loaded"]))
        listing = f"member {which} is loaded" if len(data["loaded"]) == 1 else f"members {which} are loaded"
        return super()._message(listing=listing, **data)


class RepairError(ReplayError):
    """A buffer could not be repaired without inventing data. `key` is what is lost there, `reason` says what it is.

    Nothing was changed, unless `reason` says so.
    """

    text = "buffer {name!r} cannot be repaired: key {key!r} {reason}; nothing was invented in its place: delete it (`redis-replay delete`, or fresh=True), and load a dump"
    name: str
    key: str
    reason: str


class UnderWayError(ReplayError):
    """Another dump, load or repair of the buffer (`what`) is under way; one that was killed ends after `seconds`."""

    text = "buffer {name!r}: another {what} is under way; if nobody goes on with it, it ends in {seconds} s"
    name: str
    what: str
    seconds: int
