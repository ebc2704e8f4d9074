"""Checkpoints of an ensemble: a directory with a file for each member, and a list of them that is replaced at last."""

import json
import secrets
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from redis_replay import _blocks as blocks
from redis_replay.exceptions import (
    ArgumentTypeError,
    BufferShutDownError,
    CheckpointError,
    CheckpointNotFoundError,
    PartlyLoadedError,
    ReplayError,
)
from redis_replay.torchrl._members import Members
from redis_replay.torchrl._saving import bytes_of, transforms_of

LIST = "ensemble.json"
FORMAT = "redis-replay ensemble checkpoint"


class SavesAll:
    """Checkpoints of several buffers as one: all or nothing, as far as servers that know nothing of each other allow."""

    _members: Members
    _kept: Any
    transform: Any

    def dumps(self, path: str | PathLike[str]) -> int:
        """Writes each member's checkpoint to a file of its own in the directory `path`, which is made. Gives how many records.
        Each is of one moment; those of two members are not the same. What was there before counts until all are whole.

        Raises:
            as RedisReplayBuffer.dumps, with `member`, the position of who raised it; MemberDownError, also with skip_down.
        """
        folder = Path(path)
        folder.mkdir(exist_ok=True)
        with blocks.replacing(folder / LIST) as file:
            before = _sweep(folder)
            token = secrets.token_hex(4)
            files = [f"member-{i}-{token}.ckpt" for i in range(len(self._members.buffers))]
            counts = self._members.all(lambda i, member: member.dumps(folder / files[i]))
            file.write(json.dumps({"format": FORMAT, "version": 1, "files": files}).encode())
        for old in before:
            old.unlink(missing_ok=True)
        return sum(counts)

    def loads(self, path: str | PathLike[str]) -> int:
        """Loads each member's file: all are proven before the first is loaded. Gives how many records.

        Raises:
            as RedisReplayBuffer.loads, with `member`, the position of who raised it: then no member is changed.
            PartlyLoadedError: one could not be loaded although it was proven, and others are. MemberDownError, also with
            skip_down.
        """
        folder = Path(path)
        return self._load([folder / name for name in _listed(folder)], str(folder))

    dump = save = dumps
    load = loads

    def state_dict(self, *, include_data: bool = True) -> dict[str, Any]:
        """Each member's state, in order, under "members", as RedisReplayBuffer.state_dict; and that of the transforms."""
        members = self._members.all(lambda _, member: member.state_dict(include_data=include_data))
        return {"members": members, "transforms": dict(self.transform.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Loads each member's state, as `loads`; a list of states will do."""
        states = state_dict.get("members") if isinstance(state_dict, Mapping) else state_dict
        if not isinstance(states, Sequence):
            raise ArgumentTypeError(name="state_dict", allowed="what state_dict() gave", found=type(state_dict).__name__)
        transforms = transforms_of(state_dict, self.transform) if isinstance(state_dict, Mapping) else {}
        self._load(list(states), "the state")
        if transforms:
            self.transform.load_state_dict(transforms)

    def _load(self, sources: list[Any], path: str) -> int:
        if len(sources) != len(self._members.buffers):
            reason = f"it is of {len(sources)} buffers, and the ensemble has {len(self._members.buffers)}"
            raise CheckpointError(path=path, reason=reason)
        self._members.all(lambda i, member: _prove(member, sources[i], i))
        loaded: dict[int, int] = {}
        try:
            self._members.all(lambda i, member: loaded.update({i: _load(member, sources[i])}))
        except ReplayError as error:
            if not loaded:
                raise
            raise _partly(self._members, error, sorted(loaded)) from error
        finally:
            kept, replaced = self._kept.get(), {i for i in loaded if _has_data(sources[i])}
            kept[:] = [one for one in kept if one[0] not in replaced]
        return sum(loaded.values())


def _prove(member: Any, source: Any, position: int) -> None:
    if isinstance(source, Path):
        member._prove(source)
        return
    data = bytes_of(source)
    if data is None:
        if not member.is_alive:
            raise BufferShutDownError(name=member.buffer.name)
        return
    try:
        member._prove(data)
    except CheckpointError as error:
        raise error.restate(path=f"state {position} of the ensemble") from None


def _has_data(source: Any) -> bool:
    return isinstance(source, Path) or "data" in source


def _load(member: Any, source: Any) -> int:
    if isinstance(source, Path):
        return int(member.loads(source))
    member.load_state_dict(source)
    return 0


def _partly(members: Members, error: ReplayError, loaded: list[int]) -> PartlyLoadedError:
    position: int = error.member  # type: ignore[attr-defined]
    name = members.buffers[position].buffer.name
    return PartlyLoadedError(name=name, member=position, loaded=tuple(loaded), reason=str(error))


def _listed(folder: Path) -> list[str]:
    """The members' files.

    Raises:
        CheckpointNotFoundError, CheckpointError.
    """
    path = folder / LIST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointNotFoundError(path=str(path), reason="there is no such file") from None
    try:
        found = json.loads(text)
        if found["format"] == FORMAT and found["version"] == 1:
            return [Path(name).name for name in found["files"]]
    except (ValueError, TypeError, KeyError):
        pass
    raise CheckpointError(path=str(path), reason=f"it is no {FORMAT} of version 1")


def _sweep(folder: Path) -> list[Path]:
    """Members' files that no list names go: of dumps that were killed. Gives the others."""
    try:
        named = set(_listed(folder))
    except CheckpointError:
        named = set()
    found = list(folder.glob("member-*-*.ckpt*"))
    for file in found:
        if file.name not in named:
            file.unlink(missing_ok=True)
    return [file for file in found if file.name in named]
