"""RedisReplayBuffer: TorchRL's names, arguments and meanings over redis_replay.ReplayBuffer."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict

from redis_replay import ReplayBuffer, Updated
from redis_replay import _arguments as args
from redis_replay import _ops_read as read
from redis_replay import _options as opt
from redis_replay._clock import sleep
from redis_replay._core import Core
from redis_replay._decode import decode_batch
from redis_replay._handle import Patience, decoder
from redis_replay._ops_sample import Drawn
from redis_replay._types import SampleInfo
from redis_replay.exceptions import ArgumentError, BufferShutDownError, NotReadyError
from redis_replay.samplers import Sampler
from redis_replay.torchrl import _path as path
from redis_replay.torchrl._saving import Saves

NONE = Patience(None, None, None)
DECODE = decoder(return_info=True)


class RedisReplayBuffer(Saves):
    """A replay buffer in Redis or Valkey with TorchRL's interface: TensorDicts in and out. For `replay_buffer=` of collectors
    and trainers, in any number of processes and machines. What it is made of is `buffer`, a redis_replay.ReplayBuffer.

    Args:
        url, name, capacity, batch_size, sampler, remover, rate_limiter, consume_after_n_samples, lease, max_staleness, seed,
            cache_bytes, poll_interval, fresh: as redis_replay.ReplayBuffer. `capacity` stands for TorchRL's `storage`; samplers
            are those of redis_replay.samplers.
        priority_key: where `extend` and `update_tensordict_priority` find priorities, if the sampler goes by them.
        transform: a torchrl Transform, or a callable: applied to batches that are sampled, and its inverse to data that is
            written. Of this handle and its copies alone.
        transform_factory: a callable that makes it.
        collate_fn: a callable, applied to a batch before the transform.
        pin_memory: pin what is sampled, where there is a CUDA device.
        device: where batches go.
        prefetch: batches drawn ahead in threads. Needs batch_size; not for a buffer that consumes.
        call_timeout: as redis_replay.ReplayBuffer: seconds that bound each call which is given no `timeout`, as those of
            collectors and trainers are. Of this handle and its copies, in every process.

    Raises:
        as redis_replay.ReplayBuffer; ArgumentError: arguments exclude each other.
    """

    def __init__(
        self, url: object, name: str, *, capacity: object = opt.UNSET, batch_size: int | None = None,
        sampler: object = opt.UNSET, remover: object = opt.UNSET, rate_limiter: object = opt.UNSET,
        consume_after_n_samples: object = opt.UNSET, lease: object = opt.UNSET, max_staleness: object = opt.UNSET,
        priority_key: str = "td_error", transform: object = None, transform_factory: Callable[[], object] | None = None,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, device: Any = None,
        prefetch: int | None = None, cache_bytes: int = 0, seed: int | None = None, poll_interval: float = 1.0,
        call_timeout: float | None = None, fresh: bool = False,
    ) -> None:  # fmt: skip
        self._prepare(priority_key, transform, transform_factory, collate_fn, pin_memory, device)
        self._plan(prefetch, batch_size, consume_after_n_samples)
        made = ReplayBuffer(
            url, name, capacity=capacity, batch_size=batch_size, sampler=sampler, remover=remover, rate_limiter=rate_limiter,
            consume_after_n_samples=consume_after_n_samples, lease=lease, max_staleness=max_staleness, seed=seed,
            cache_bytes=cache_bytes, poll_interval=poll_interval, call_timeout=call_timeout, fresh=fresh,
        )  # fmt: skip
        self._take(made, owner=True)
        self._opened()

    @classmethod
    def attach(
        cls, url: object, name: str, *, timeout: float | None = None, batch_size: int | None = None,
        priority_key: str = "td_error", transform: object = None, transform_factory: Callable[[], object] | None = None,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, device: Any = None,
        prefetch: int | None = None, cache_bytes: int = 0, seed: int | None = None, poll_interval: float = 1.0,
        call_timeout: float | None = None,
    ) -> Self:  # fmt: skip
        """A client of a buffer that somebody creates, perhaps later. Arguments and errors as the constructor, and as
        redis_replay.ReplayBuffer.attach.
        """
        self = cls.__new__(cls)
        self._prepare(priority_key, transform, transform_factory, collate_fn, pin_memory, device)
        self._plan(prefetch, batch_size, None)
        made = ReplayBuffer.attach(
            url, name, timeout=timeout, batch_size=batch_size, seed=seed, cache_bytes=cache_bytes, poll_interval=poll_interval,
            call_timeout=call_timeout,
        )  # fmt: skip
        self._take(made, owner=False)
        self._opened()
        return self

    # Writing

    def add(self, data: Any, *, timeout: float | None = None, cancel_event: Any = None) -> int | None:
        """Writes one TensorDict. Gives its index; None where a transform kept it back.

        Args:
            timeout, cancel_event: as redis_replay.ReplayBuffer.extend.
        """
        record = self._path.inward(data)
        if record is None:
            return None
        with self._count.get().write() as counted:
            index: int = self.buffer.add(
                record, priority=self._priority_of(record), timeout=timeout, cancel_event=cancel_event
            )  # fmt: skip
            counted(1)
        return index

    def extend(
        self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None, cancel_event: Any = None
    ) -> torch.Tensor:  # fmt: skip
        """Writes a TensorDict of batch size [n, ...], or a list of n (a lazy stack, too). Gives their indices, int64 (n,).

        Args:
            update_priority: False leaves what is under `priority_key` alone; else it is the records' priority, largest of each.
            timeout, cancel_event: as redis_replay.ReplayBuffer.extend, with its errors.

        Raises:
            ArgumentError: also for a TensorDict without batch dimensions.
        """
        if getattr(data, "batch_size", None) == torch.Size([]):
            raise ArgumentError(name="data", allowed="of a batch size [n, ...]: `add` writes one record", found="batch_size=[]")
        rows = self._path.inward(data)
        if rows is None or not len(rows):
            return torch.zeros(0, dtype=torch.long)
        given = None if update_priority is False else self._priority_of(rows)
        with self._count.get().write() as counted:
            index = self.buffer.extend(rows, priority=given, timeout=timeout, cancel_event=cancel_event)
            counted(len(index))
        return torch.from_numpy(index)

    def _priority_of(self, data: Any) -> Any:
        """Of what is written: None where nothing says so."""
        if not self.sampler.weighs:
            return None
        if isinstance(data, list):
            each = [self._priority_of(one) for one in data]
            return None if any(one is None for one in each) else np.concatenate(each)
        return path.reduced(data, self.priority_key) if data.get(self.priority_key, None) is not None else None

    def update_priority(self, index: Any, priority: Any) -> Updated | None:
        """As redis_replay.ReplayBuffer.update_priority: what is not stored any more is ignored, and counted. Does nothing where
        the sampler has no priorities, as TorchRL.
        """
        return self.buffer.update_priority(index, priority) if self.sampler.weighs else None

    def update_tensordict_priority(self, data: Any) -> Updated | None:
        """Sets the priorities that a sampled TensorDict holds under `priority_key`, the largest of each record, by its "index".
        Does nothing where the sampler has no priorities, as TorchRL.

        Raises:
            ArgumentError (a ValueError): "index" or `priority_key` is not there; a priority is negative, infinite or NaN.
        """
        if not self.sampler.weighs:
            return None
        priority, index = path.reduced(data, self.priority_key), data.get("index", None)
        if index is None:
            raise ArgumentError(name="data", allowed='a TensorDict with "index", as sampled', found=str(list(data.keys())))
        return self.buffer.update_priority(index.reshape(len(priority), -1)[:, 0], priority)

    def empty(self, empty_write_count: bool = True) -> None:
        """Takes all records out, for everyone. Batches drawn ahead are forgotten, in every process."""
        self.buffer.empty(empty_write_count)
        self._forget()

    # Drawing and waiting

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None, *,
        wait: bool = False, timeout: float | None = None, cancel_event: Any = None,
    ) -> Any:  # fmt: skip
        """A batch, as a TensorDict of batch size [n, ...] with "index", and "priority_weight" of a draw by priority.

        Args:
            batch_size: the handle's by default.
            return_info: give (data, info), a dict with "index" and the rest of redis_replay.SampleInfo, arrays as tensors.
            include_info: False leaves "index" and "priority_weight" out of the data.
            wait: block until batch_size records are there; the batch is reserved, and full. Without it one record is enough:
                a draw with replacement gives a full batch, any other a short one.
            timeout, cancel_event: of a wait, as redis_replay.ReplayBuffer.sample, with its errors.
        """
        patience = Patience(timeout, cancel_event, None)
        data, info = self._next_ahead(batch_size) or self._draw(batch_size, opt.flag("wait", wait), patience)
        if include_info is False:
            data = data.exclude(*path.LABELS)
        return (data, path.told(info)) if return_info else data

    def _draw(self, batch_size: int | None, wait: bool, patience: Patience) -> Any:
        floor = None if wait else self._floor(batch_size)
        return self.buffer._draw(self._decode, batch_size, floor, wait=wait, patience=patience)

    def _draw_full(self) -> Any:
        return self.buffer._draw(self._decode, None, None, wait=False, patience=NONE)

    def _decode(self, core: Core, drawn: Drawn) -> tuple[Any, SampleInfo]:
        """What the caller gets of a batch: made within the draw, so that a transform that fails loses nothing."""
        data, info = DECODE(core, drawn)
        return self._path.outward(data, info), info

    def _floor(self, batch_size: int | None) -> int | None:  # noqa: ARG002 - others ask for the whole batch
        """Records without which `sample` does not draw. None: as many as it shall draw."""
        return 1

    def wait_until_sampleable(
        self, min_items: int | None = None, timeout: float | None = None, cancel_event: Any = None
    ) -> bool:  # fmt: skip
        """As redis_replay.ReplayBuffer.wait_until_sampleable: for `min_items` records, `batch_size` by default."""
        return self.buffer.wait_until_sampleable(min_items, timeout, cancel_event)

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample(batch_size)` would give something now."""
        if batch_size is None and self.batch_size is None:
            raise ArgumentError(name="batch_size", allowed="given here or to the constructor", found=None)
        return self.buffer.can_sample(self._floor(batch_size) or batch_size)

    def wait_until_writable(self, n: int = 1, timeout: float | None = None, cancel_event: Any = None) -> bool:
        """As redis_replay.ReplayBuffer.wait_until_writable."""
        return self.buffer.wait_until_writable(n, timeout, cancel_event)

    def __iter__(self) -> Iterator[Any]:
        """Batches of `batch_size`, without waiting; in a buffer that consumes, until nothing is left, the last one short. (For
        batches that are waited for, iterate over `buffer`.)

        Raises:
            NotReadyError: nothing is there, in a buffer that does not consume.
        """
        while True:
            try:
                batch = self.sample()
            except NotReadyError:
                if self.buffer.consume_after_n_samples is None:
                    raise
                return
            yield batch

    def next(self) -> Any:
        """The next batch of an iteration that this handle keeps; None at its end."""
        self._iterator = self._iterator or iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # Looking

    def __getitem__(self, index: Any) -> Any:
        """The record stored under an index, or the batch under many, with "index", through the transform. Draws nothing.

        Args:
            index: one or many, as `extend` gave them; a slice of them: what is stored of these, `[:]` everything; or a key:
                that leaf of everything.

        Raises:
            ArgumentError: an index below 1, as they are no positions. RecordNotFoundError: one is not stored any more.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(key, str) for key in index)):
            return self[:].get(index)
        if isinstance(index, slice) or index is Ellipsis:
            return self._between(*path.bounds(index))
        if isinstance(index, torch.Tensor):
            index = index.cpu().numpy()
        wanted = args.indices(index)
        return self._path.shown(self.buffer.get(index), wanted if np.ndim(index) else wanted[0])

    def _between(self, low: int, high: float, step: int) -> Any:
        """What is stored from index `low` on, below `high`."""
        found: dict[int, bytes] = {}
        after = low - 1
        while True:
            page = self.buffer._read("records", read.page, after)
            found |= {i: payload for i, payload in zip(*page[1:], strict=True) if i < high}
            after = page[0]
            if not after or after >= high - 1:
                break
        index = list(found)[::step]
        schema = self.buffer._own.schema
        data = decode_batch(schema, [found[i] for i in index], index) if schema is not None else TensorDict({}, [0])
        return self._path.shown(data, index)

    def __len__(self) -> int:
        """Records that may be drawn now: `size`, and `sampleable_size`."""
        return len(self.buffer)

    def __bool__(self) -> bool:
        """True: an empty buffer is a buffer."""
        return True

    def stats(self) -> dict[str, int | float | bool | str]:
        """Every counter in one round trip, as flat scalars: TorchRL's keys, and those of redis_replay.ReplayBuffer."""
        every = self.buffer.stats()
        flat = {name: value for name, value in every.items() if isinstance(value, (bool, int, float, str))}
        return flat | {"prefetch_queue_size": self._drawn_ahead}

    def subscribe_stats(self, poll_interval: float = 1.0) -> Iterator[dict[str, int | float | bool | str]]:
        """`stats()` now, and again whenever a counter has changed, looked at every `poll_interval` seconds (0.01 to 600). Ends
        once the buffer is shut down, which the last one tells.
        """
        pause, last = opt.poll_seconds(poll_interval), None
        while True:
            now = self.stats()
            told = {name: value for name, value in now.items() if name != "seconds_since_write"}
            if told != last:
                yield now
            if now["state"] == "shut":
                return
            last = told
            sleep(pause)

    @property
    def sampler(self) -> Sampler:
        """How records are drawn."""
        return self.buffer.sampler

    @property
    def batch_size(self) -> int | None:
        """Default of `sample` and `wait_until_sampleable`."""
        return self.buffer.batch_size

    @property
    def transform(self) -> Any:
        """The Compose that batches go through."""
        return self._path.transform

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Adds a transform at the end: of this handle, its clients in this process, and copies pickled from now on.

        Args:
            invert: apply it to what is written, and its inverse to what is read.
        """
        self._path.transform.append(path.as_transform(transform, invert=opt.flag("invert", invert)))
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """Adds a transform at a place: as `append_transform`."""
        self._path.transform.insert(index, path.as_transform(transform, invert=opt.flag("invert", invert)))
        return self

    # Life

    def start(self) -> Self:
        """The handle itself: the server runs already.

        Raises:
            BufferShutDownError: the buffer was shut down.
        """
        if not self._is_open():
            raise BufferShutDownError(name=self.buffer.name)
        return self
