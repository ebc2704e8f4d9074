"""For plain PyTorch: batches of a replay buffer out of a DataLoader.

    dataset = ReplayDataset(url, "cartpole", batch_size=256, num_batches=10_000)
    for batch in DataLoader(dataset, batch_size=None, num_workers=2): ...

It is another module than torch, and imports that.
"""

import dataclasses
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from redis_replay._extras import extra

with extra("torch", __name__):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

from redis_replay import ReplayBuffer
from redis_replay._tensors import is_tensordict
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, BufferShutDownError, ReplayError

__all__ = ["ReplayDataset"]

_MOST_WORKERS = 1024


class ReplayDataset(IterableDataset[Any]):
    """Batches of a buffer that somebody creates, perhaps later; each is waited for. Use it with DataLoader(batch_size=None).

    Each worker of the DataLoader (or the process itself, with num_workers=0) opens a handle of its own and draws from a random
    stream of its own. What a worker has drawn ahead (prefetch_factor) has been drawn: of a buffer that consumes, it is lost
    when the iteration is left. Under a lease a batch is acknowledged when its worker draws the next one, trained on or not.

    Args:
        url, name, poll_interval: as redis_replay.ReplayBuffer.attach. With start method spawn a URL, not a client.
        batch_size: records of a batch.
        num_batches: batches of one iteration, of all workers together; None: without end. It ends early when the buffer is shut
            down (and drained).
        timeout: seconds that a batch, or the buffer's creation, is waited for; None is without end.
        stall_timeout, min_items: as ReplayBuffer.sample.
        return_info: give (batch, info): a dict of the fields of redis_replay.SampleInfo, arrays as tensors.
        seed: of the draws: each worker's stream follows from it, its number, and how many iterations there were: another one in
            each of them. None is fresh entropy.
        cache_bytes: as redis_replay.ReplayBuffer, of each worker: it has a cache of its own, for one iteration.

    An item is a dict of tensors (B, ...), also where TensorDicts were written; texts are lists.

    Raises:
        ArgumentError, ArgumentTypeError: num_batches, batch_size or seed is not allowed. While iterating, what
        ReplayBuffer.attach and ReplayBuffer.sample raise, but for BufferShutDownError, which is the end. From a worker process,
        DataLoader makes the error anew from its text: a TimeoutError, a ConnectionError, a ValueError or a RuntimeError.
    """

    def __init__(
        self, url: object, name: str, *, batch_size: int, num_batches: int | None = None, timeout: float | None = None,
        stall_timeout: float | None = None, min_items: int | None = None, return_info: bool = False, seed: int | None = None,
        cache_bytes: int = 0, poll_interval: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        _check("batch_size", batch_size, 1)
        self._num_batches = None if num_batches is None else _check("num_batches", num_batches, 0)
        self._seed = None if seed is None else _check("seed", seed, 0)
        self._where = {
            "url": url, "name": name, "timeout": timeout, "batch_size": batch_size, "cache_bytes": cache_bytes,
            "poll_interval": poll_interval,
        }  # fmt: skip
        self._draw = {"timeout": timeout, "stall_timeout": stall_timeout, "min_items": min_items}
        self._return_info = return_info
        # Iterations begun by each worker: their processes may be new ones each time, so it lies in memory that all share.
        self._begun = None if seed is None else torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        """num_batches.

        Raises:
            TypeError: it is without end.
        """
        if self._num_batches is None:
            raise TypeError("a ReplayDataset without num_batches has no length")
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        """The batches of this worker."""
        info = get_worker_info()
        try:
            yield from self._batches(*((info.id, info.num_workers) if info else (0, 1)))
        except BufferShutDownError:
            return
        except ReplayError as error:
            if info is None:
                raise
            raise _plain(error)(f"{type(error).__name__}: {error}") from error

    def _batches(self, worker: int, workers: int) -> Iterator[Any]:
        turns = count() if self._num_batches is None else range(worker, self._num_batches, workers)
        with ReplayBuffer.attach(**self._where, seed=self._stream(worker)) as buffer:  # type: ignore[arg-type]
            for _ in turns:
                data, info = buffer.sample(return_info=True, wait=True, **self._draw)  # type: ignore[arg-type]
                yield (_tensors(data), _tensors(_fields(info))) if self._return_info else _tensors(data)

    def _stream(self, worker: int) -> int | None:
        if self._begun is None:
            return None
        if worker >= _MOST_WORKERS:
            raise ArgumentError(name="num_workers", allowed=f"at most {_MOST_WORKERS} with a seed", found=worker + 1)
        begun = int(self._begun[worker])
        self._begun[worker] += 1
        words = np.random.SeedSequence([self._seed or 0, worker, begun]).generate_state(4)
        return int.from_bytes(words.tobytes(), "little")


def _check(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(name=name, allowed="a whole number", found=value)
    if value < least:
        raise ArgumentError(name=name, allowed=f"at least {least}", found=value)
    return int(value)


def _plain(error: ReplayError) -> type[Exception]:
    """What an error is outside of this package: DataLoader can make that anew from a text."""
    ours = [kind for kind in (TimeoutError, ConnectionError, ValueError, TypeError, LookupError) if isinstance(error, kind)]
    return ours[0] if ours else RuntimeError


def _fields(info: Any) -> dict[str, Any]:
    return {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}


def _tensors(value: Any) -> Any:
    """Arrays as tensors that share their memory, a TensorDict as a dict; everything else as it is."""
    if is_tensordict(value):
        return value.to_dict()
    if isinstance(value, dict):
        return {name: _tensors(leaf) for name, leaf in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    try:
        return torch.from_numpy(value)
    except TypeError:  # torch has no such dtype
        return value
