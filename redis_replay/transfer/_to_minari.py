"""Minari data sets out: episodes are put together from transitions."""

import os
from collections.abc import Iterator
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from redis_replay._outbox import each, rows
from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._errors import TransferError, need, reading
from redis_replay.transfer._flow import Progress, joined
from redis_replay.transfer._pages import pages
from redis_replay.transfer._whole import whole

_NEEDED = ("observation", "action", "next_observation", "reward", "terminated", "truncated")
_MOST_OPEN = 1_024


def export_minari(
    buffer: ReplayBuffer, dataset: str | Path, *, env: Any = None, observation_space: Any = None, action_space: Any = None,
    progress: Progress | None = None,
) -> int:  # fmt: skip
    """Writes the transitions of a buffer as a Minari data set, without loss. Gives how many. The buffer goes on meanwhile.

    What is needed of the records: the leaves of redis_replay.gymnasium's recorders, in the order in which each actor made them.
    A record goes on with the episode whose last `next_observation` is its `observation`, of several that are under way too, and
    else begins one; `terminated` or `truncated` ends it. Episodes that are still under way at the end are written as they are.
    Memory holds the episodes that are under way. The data set is there whole, or not at all.

    Args:
        dataset: its id ("name-v0", "space/name-v0"), or a directory: a Path, or a text that begins with "/" or ".".
        env: the environment, its spec or its id: kept with the data set, and gives the spaces.
        observation_space, action_space: without them and `env` they are made of the types of the records: Box and Dict.
        progress: called with (records written, records stored at the start).

    Raises:
        TransferError: it is there already, the buffer is empty, records lack a leaf or do not fit the spaces, two episodes are
        at the same observation, or more than 1,024 are under way. MissingExtraError: Minari is not installed. What
        ReplayBuffer.records raises.
    """
    need("a Minari data set", "minari", "minari")
    need("a Minari data set", "PIL.Image", "minari")
    need("a Minari data set", "h5py", "minari")
    with reading(dataset):
        name, path = _target(dataset)
        spaces = _Spaces(str(dataset), env, observation_space, action_space)
    with whole(path) as part:
        done = _Writer(buffer, part, name, spaces, progress).run(str(dataset))
    with reading(dataset):
        _register(name, path)
    return done


def _target(dataset: str | Path) -> tuple[str, Path]:
    from minari.dataset.minari_dataset import DATASET_ID_RE, parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    text = os.fspath(dataset)
    if not isinstance(dataset, str) or text.startswith(("/", ".")):
        path = Path(text).absolute()
        fits = DATASET_ID_RE.fullmatch(path.name)
        return (path.name if fits and fits["version"] else f"{path.name}-v0"), path
    fits = DATASET_ID_RE.fullmatch(text)
    if not fits or not fits["version"]:
        raise TransferError(where=text, reason='an id ends with its version, as "name-v0"; a directory begins with "/" or "."')
    parse_dataset_id(text)
    return text, Path(get_dataset_path(text)).absolute()


def _register(name: str, path: Path) -> None:
    """An id's namespace, as Minari keeps it."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage.datasets_root_dir import get_dataset_path

    namespace = parse_dataset_id(name)[0]
    if namespace and path == Path(get_dataset_path(name)).absolute() and namespace not in list_local_namespaces():
        create_namespace(namespace)


class _Spaces:
    """What observations and actions are."""

    def __init__(self, where: str, env: Any, observation_space: Any, action_space: Any) -> None:
        self._where = where
        self.spec: Any = None
        self.observation, self.action = observation_space, action_space
        if env is not None:
            self._ask(env)

    def _ask(self, env: Any) -> None:
        import gymnasium

        made = env if isinstance(env, gymnasium.Env) else gymnasium.make(env)
        self.spec = made.spec
        self.observation = self.observation or made.observation_space
        self.action = self.action or made.action_space
        if made is not env:
            made.close()

    def fit(self, columns: dict[str, Any]) -> None:
        """Makes the spaces that were not given, and holds the records against those that were."""
        for leaf in _NEEDED:
            if leaf not in columns:
                raise TransferError(where=self._where, reason=f"its records have no leaf {leaf}, and a transition needs it")
        self.observation = self.observation or _space_of(columns["observation"], self._where)
        self.action = self.action or _space_of(columns["action"], self._where)
        for leaf, space in (("observation", self.observation), ("next_observation", self.observation), ("action", self.action)):
            self._check(leaf, space, columns[leaf])

    def _check(self, leaf: str, space: Any, columns: Any) -> None:
        from redis_replay._spaces import Layout

        wanted = Layout(f"the space of {leaf}", space).one(deepcopy(space).sample())
        found, allowed = _described(columns), _described(wanted)
        if found != allowed:
            raise TransferError(where=self._where, reason=f"its {leaf} is {found}, and the space has {allowed}")


def _described(columns: Any) -> Any:
    if isinstance(columns, dict):
        return {key: _described(columns[key]) for key in sorted(columns)}
    return f"{columns.dtype} {columns.shape[1:]}" if isinstance(columns, np.ndarray) else "text"


def _space_of(columns: Any, where: str) -> Any:
    from gymnasium import spaces

    if isinstance(columns, dict):
        return spaces.Dict({key: _space_of(part, where) for key, part in columns.items()})
    if not isinstance(columns, np.ndarray) or columns.dtype.kind not in "biuf":
        reason = f"no space can be made of a leaf of {_described(columns)}: give env, or observation_space and action_space"
        raise TransferError(where=where, reason=reason)
    if columns.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, columns.shape[1:], columns.dtype.type)
    if columns.dtype.kind == "b":
        return spaces.Box(0, 1, columns.shape[1:], np.bool_)
    limits = np.iinfo(columns.dtype)
    return spaces.Box(limits.min, limits.max, columns.shape[1:], columns.dtype.type)


def _valued(space: Any, columns: Any) -> Any:
    """Columns as a space's own values: the parts of a Tuple as a tuple."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return tuple(_valued(part, columns[str(i)]) for i, part in enumerate(space.spaces))
    return {key: _valued(space[key], columns[key]) for key in space} if isinstance(space, spaces.Dict) else columns


class _Episode:
    def __init__(self, first: int) -> None:
        self.first, self.parts, self.rows = first, [], []  # type: int, list[Any], list[int]

    def take(self, columns: dict[str, Any]) -> None:
        """Its rows of a page, copied."""
        if self.rows:
            self.parts.append(rows_at(columns, self.rows))
            self.rows = []


def rows_at(columns: Any, which: list[int]) -> Any:
    """Rows by number."""
    return each(lambda leaf: leaf[which] if isinstance(leaf, np.ndarray) else [leaf[i] for i in which], columns)


class _Writer:
    def __init__(self, buffer: ReplayBuffer, part: Path, name: str, spaces: _Spaces, progress: Progress | None) -> None:
        self._buffer, self._part, self._name, self._spaces, self._progress = buffer, part, name, spaces, progress
        self._open: dict[bytes, list[_Episode]] = {}
        self._storage: Any = None
        self._done, self._total = 0, buffer.storage_size

    def run(self, where: str) -> int:
        """Writes all. Gives how many records."""
        for index, columns in pages(self._buffer, where):
            if self._storage is None:
                with reading(where):
                    self._spaces.fit(columns)
                    self._storage = self._begin()
            ended = list(self._sort(index, columns, where))
            for episode in (*ended, *self._under_way()):
                episode.take(columns)
            for episode in ended:
                self._write(episode)
        if self._storage is None:
            raise TransferError(where=where, reason=f"buffer {self._buffer.name!r} holds no record")
        for episode in sorted(self._under_way(), key=lambda one: one.first):
            self._write(episode)
        return self._done

    def _under_way(self) -> list[_Episode]:
        return [episode for episodes in self._open.values() for episode in episodes]

    def _begin(self) -> Any:
        import minari
        from minari.dataset.minari_storage import MinariStorage

        self._part.mkdir()
        storage = MinariStorage.new(
            self._part / "data", observation_space=self._spaces.observation, action_space=self._spaces.action,
            env_spec=self._spaces.spec, jpeg_encoding=False,
        )  # fmt: skip
        storage.update_metadata({"dataset_id": self._name, "minari_version": minari.__version__})
        return storage

    def _sort(self, index: Any, columns: dict[str, Any], where: str) -> Iterator[_Episode]:
        """Gives each row to its episode, and the episodes that end."""
        before, after = _marks(columns["observation"]), _marks(columns["next_observation"])
        over = np.logical_or(columns["terminated"], columns["truncated"]).reshape(len(index))
        for row, (now, then) in enumerate(zip(before, after, strict=True)):
            episode = self._continued(now, int(index[row]), where)
            episode.rows.append(row)
            if over[row]:
                yield episode
            else:
                self._open.setdefault(then, []).append(episode)
                if len(self._open) > _MOST_OPEN:
                    reason = (
                        f"more than {_MOST_OPEN} episodes are under way at record {index[row]}: its records are in no order"
                    )
                    raise TransferError(where=where, reason=reason)

    def _continued(self, mark: bytes, index: int, where: str) -> _Episode:
        candidates = self._open.pop(mark, [])
        if len(candidates) > 1:
            reason = f"{len(candidates)} episodes are at the observation of record {index}: they cannot be told apart"
            raise TransferError(where=where, reason=reason)
        return candidates[0] if candidates else _Episode(index)

    def _write(self, episode: _Episode) -> None:
        from minari.data_collector import EpisodeBuffer

        steps = joined(episode.parts)
        seen = joined([steps["observation"], rows(steps["next_observation"], slice(-1, None))])
        n = len(steps["reward"])
        made = EpisodeBuffer(
            observations=_valued(self._spaces.observation, seen), actions=_valued(self._spaces.action, steps["action"]),
            rewards=steps["reward"].reshape(n), terminations=steps["terminated"].reshape(n),
            truncations=steps["truncated"].reshape(n),
        )  # fmt: skip
        with reading(self._part):
            self._storage.update_episodes([made])
        self._done += n
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _marks(columns: Any) -> list[bytes]:
    """A digest of each row."""
    leaves: list[list[bytes]] = []

    def put(leaf: Any) -> None:
        leaves.append([str(row).encode() for row in leaf] if isinstance(leaf, list) else [row.tobytes() for row in leaf])

    each(put, columns)
    return [blake2b(b"\0".join(cells), digest_size=16).digest() for cells in zip(*leaves, strict=True)]
