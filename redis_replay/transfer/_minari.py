"""Minari data sets in: each step of each episode becomes a record, as redis_replay.gymnasium's recorders write it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from redis_replay._outbox import each, rows
from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._errors import TransferError, need, reading
from redis_replay.transfer._flow import Chunk, Progress, Source, chunk_rows, fill, regroup, row_bytes


class MinariSource(Source):
    """The transitions of a Minari data set, episode by episode.

    A record has the leaves `observation`, `action`, `next_observation` (each as its space), `reward` (float32), `terminated`
    and `truncated`; infos are left. Memory holds an episode at a time, as Minari gives them.

    Args:
        dataset: a minari.MinariDataset, the id of one that is on this machine, or its directory. Nothing is downloaded.

    Raises:
        TransferError: there is none, or its metadata lack the spaces. ArgumentTypeError: some values of its spaces have no
        fixed shape. MissingExtraError: Minari, or a library that the data set is stored by, is not installed.
    """

    def __init__(self, dataset: Any) -> None:
        minari = need("a Minari data set", "minari", "minari")
        need("a Minari data set", "PIL.Image", "minari")  # its storages need it, and do not say so
        from redis_replay._spaces import Layout

        if isinstance(dataset, str | os.PathLike):
            self.where = os.fspath(dataset)
            with reading(dataset):
                self._dataset = minari.MinariDataset(_directory(self.where))
        else:
            self.where, self._dataset = str(dataset.id), dataset
        self.total = int(self._dataset.total_steps)
        self._observations = Layout("observation_space", self._dataset.observation_space)
        self._actions = Layout("action_space", self._dataset.action_space)

    def chunks(self) -> Iterator[Chunk]:
        """As Source.chunks."""
        first = next(self._steps(), None)
        if first is not None:
            yield from (Chunk(data, n) for data, n in regroup(self._steps(), chunk_rows(row_bytes(first[0]))))

    def _steps(self) -> Iterator[tuple[dict[str, Any], int]]:
        """One episode at a time: the library reads it whole."""
        for number in self._dataset.episode_indices:
            episode = next(iter(self._dataset.iterate_episodes([int(number)])))
            n = len(episode.rewards)
            seen, taken = self._observations.batch(episode.observations), self._actions.batch(episode.actions)
            self._check(int(number), n, seen, taken, episode)
            if n:
                yield _transitions(seen, rows(taken, slice(n)), episode, n), n

    def _check(self, number: int, n: int, seen: Any, taken: Any, episode: Any) -> None:
        given = (n, len(episode.terminations), len(episode.truncations))
        if _lengths(seen) != {n + 1} or min(_lengths(taken)) < n or len(set(given)) > 1:
            found = f"{sorted(_lengths(seen))} observations, {sorted(_lengths(taken))} actions, {n} rewards"
            raise TransferError(where=self.where, reason=f"episode {number} has {found}")


def _lengths(columns: Any) -> set[int]:
    found: set[int] = set()
    each(lambda leaf: found.add(len(leaf)), columns)
    return found


def _transitions(seen: Any, taken: Any, episode: Any, n: int) -> dict[str, Any]:
    return {
        "observation": rows(seen, slice(n)), "action": taken, "next_observation": rows(seen, slice(1, None)),
        "reward": np.asarray(episode.rewards).astype(np.float32).reshape(n),
        "terminated": np.asarray(episode.terminations).astype(np.bool_).reshape(n),
        "truncated": np.asarray(episode.truncations).astype(np.bool_).reshape(n),
    }  # fmt: skip


def _directory(dataset: str) -> Path:
    """Where the data of a path or an id lie."""
    from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage
    from minari.storage.datasets_root_dir import get_dataset_path

    given = [Path(dataset), Path(dataset, "data")]
    places = given if given[0].is_dir() else [Path(get_dataset_path(dataset), "data")]
    found = next((place for place in places if (place / METADATA_FILE_NAME).is_file()), None)
    if found is None:
        reason = "there is no such data set on this machine; `minari list local` names them, `minari download ID` brings one"
        raise TransferError(where=dataset, reason=reason)
    lacking = {"observation_space", "action_space"} - set(MinariStorage.read_raw_metadata(found))
    if lacking:  # Minari would make the environment instead, by whatever module the file names
        raise TransferError(where=dataset, reason=f"its metadata lack the {' and the '.join(sorted(lacking))}")
    return found


def import_minari(
    buffer: ReplayBuffer, dataset: Any, *, progress: Progress | None = None, timeout: float | None = None,
    cancel_event: Any = None,
) -> int:  # fmt: skip
    """Writes a Minari data set's transitions to a buffer. Gives how many. Arguments and errors as `fill` and MinariSource."""
    with MinariSource(dataset) as source:
        return fill(buffer, source, progress=progress, timeout=timeout, cancel_event=cancel_event)
