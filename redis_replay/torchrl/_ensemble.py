"""Several buffers as one to read from."""

import copy
import random
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from tensordict import LazyStackedTensorDict, TensorDict

from redis_replay import _options as opt
from redis_replay._clock import monotonic
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from redis_replay.samplers import not_negative
from redis_replay.torchrl import _path as path
from redis_replay.torchrl._buffer import NONE, RedisReplayBuffer
from redis_replay.torchrl._ensemble_saving import SavesAll
from redis_replay.torchrl._members import Members
from redis_replay.torchrl._process import PerProcess

_SUMMED = ("size", "storage_size", "sampleable_size", "write_count", "sample_calls", "samples_returned", "capacity", "waiters",
           "evicted", "consumed", "removed")  # fmt: skip


class ReplayBufferEnsemble(SavesAll):
    """Several RedisReplayBuffers, on one server or on several, as one to sample from. Writes go to the members.

    A sample is `num_buffer_sampled` batches, stacked: batch size [num_buffer_sampled, batch_size / num_buffer_sampled], with
    ("index", "buffer_ids") and ("index", "index"), as TorchRL's. Members that have too few records are not drawn from, so what
    `can_sample` and the waits say is what `sample` does. What was drawn of one member while another failed is given out next.

    Args:
        *rbs: the members.
        batch_size: default of `sample`; a multiple of num_buffer_sampled.
        p: how members are chosen: a number >= 0 for each; None: evenly; "sampleable": by how many records they have;
            "in_turn": one after another.
        sample_from_all: draw from each member, every time; not together with p.
        num_buffer_sampled: batches of one sample; all members by default.
        transform: as RedisReplayBuffer, applied to the stacked batch.
        call_timeout: seconds that bound a wait of the ensemble which is given no `timeout`; calls to a member are bound by its
            own.
        skip_down: leave out members whose server does not answer, until it does; False: MemberDownError.
        seed: of the choice of members.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is not allowed.
    """

    def __init__(
        self, *rbs: RedisReplayBuffer, batch_size: int | None = None, p: Any = None, sample_from_all: bool = False,
        num_buffer_sampled: int | None = None, transform: Any = None, call_timeout: float | None = None,
        skip_down: bool = False, seed: int | None = None,
    ) -> None:  # fmt: skip
        if not rbs or not all(isinstance(rb, RedisReplayBuffer) for rb in rbs):
            raise ArgumentTypeError(name="rbs", allowed="one RedisReplayBuffer or more", found=rbs)
        self._all = opt.flag("sample_from_all", sample_from_all)
        if self._all and (p is not None or num_buffer_sampled not in (None, len(rbs))):
            raise ArgumentError(name="sample_from_all", allowed="given without p and num_buffer_sampled", found=True)
        self._p = _weights(p, len(rbs))
        self._n = opt.whole_number("num_buffer_sampled", num_buffer_sampled or len(rbs), 1, 4096)
        self.batch_size = batch_size
        if batch_size is not None:
            self._share(batch_size)
        self.transform = path.compose(transform)
        self._call_timeout = opt.call_seconds(call_timeout)
        self._skip, self._random, self._turn = opt.flag("skip_down", skip_down), random.Random(seed), 0
        self._begin(rbs)

    def _begin(self, rbs: Sequence[RedisReplayBuffer]) -> None:
        self._members = Members(rbs, skip=self._skip)
        self._kept = PerProcess[list[tuple[int, Any]]](list)  # drawn, and not given out yet

    def _share(self, batch_size: int | None) -> int:
        """Records of one batch."""
        wanted = self.batch_size if batch_size is None else batch_size
        if wanted is None:
            raise ArgumentError(name="batch_size", allowed="given here or to the constructor", found=None)
        number = opt.whole_number("batch_size", wanted, 1, opt.MAX_CAPACITY)
        if number % self._n:
            raise ArgumentError(name="batch_size", allowed=f"a multiple of num_buffer_sampled, {self._n}", found=number)
        return number // self._n

    def _limit(self, timeout: float | None) -> float:
        """Seconds that a wait may take; inf: without end."""
        return opt.seconds("timeout", self._call_timeout if timeout is None else timeout)

    # Drawing

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, *, wait: bool = False, timeout: float | None = None,
        cancel_event: Any = None,
    ) -> Any:  # fmt: skip
        """A batch of several members. Arguments as RedisReplayBuffer.sample.

        Raises:
            NotReadyError: too few members have enough. ReplayTimeoutError, ReplayCancelledError: of a wait. MemberDownError.
            What a member's `sample` raises.
        """
        share, limit, stop = self._share(batch_size), self._limit(timeout), opt.cancel(cancel_event)
        until = monotonic() + limit
        while (drawn := self._draw(share)) is None:
            if not wait:
                raise self._too_few(NotReadyError, share)
            if not self._members.wait(share, max(0.0, until - monotonic()), stop, self._able, every=self._all):
                if stop is not None and stop.is_set():
                    raise self._too_few(ReplayCancelledError, share)
                raise self._too_few(ReplayTimeoutError, share, timeout_s=limit, what="records")
        try:
            return self._stacked(drawn, return_info=return_info)
        except BaseException:
            self._kept.get().extend(drawn)
            raise

    def _too_few(self, kind: Any, share: int, **more: Any) -> Exception:
        names = ", ".join(member.buffer.name for member in self.members)
        error: Exception = kind(name=names, have=len(self), need=share * self._n, **more)
        return error

    def _draw(self, share: int) -> list[tuple[int, Any]] | None:
        """Batches of a sample, each with its member's position; None where too few have enough. What a failed draw took of some
        members is kept for the next one.
        """
        drawn, short = self._take_kept(share), set[int]()
        try:
            while chosen := self._choose(drawn, short):
                self._draw_from(chosen, share, drawn, short)
        except BaseException:
            self._kept.get().extend(drawn)
            raise
        if chosen is None:
            self._kept.get().extend(drawn)
            return None
        return drawn

    def _draw_from(self, chosen: list[int], share: int, drawn: list[tuple[int, Any]], short: set[int]) -> None:
        """Adds what these members give to `drawn`, and those that have too few to `short`."""
        errors = []
        for position, got in self._members.each(lambda member: _draw_one(member, share), chosen):
            if isinstance(got, NotReadyError):
                short.add(position)
            elif isinstance(got, BaseException):
                errors.append(got)
            else:
                drawn.append((position, got))
        if errors:
            raise errors[0]

    def _take_kept(self, share: int) -> list[tuple[int, Any]]:
        kept = self._kept.get()
        taken = [one for one in kept if len(one[1][1].index) == share][: self._n]
        kept[:] = [one for one in kept if all(one is not other for other in taken)]
        return taken

    def _choose(self, drawn: list[tuple[int, Any]], short: set[int]) -> list[int] | None:
        """Who is to be drawn from next: nobody, it is complete; None: it cannot be."""
        if self._all:
            missing = [i for i in self._able if i not in {position for position, _ in drawn}]
            return None if short & set(missing) else missing
        n, able = self._n - len(drawn), [i for i in self._able if i not in short]
        if n == 0 or not able:
            return [] if n == 0 else None
        if self._p == "in_turn":
            self._turn += n
            return [able[(self._turn - n + i) % len(able)] for i in range(n)]
        weights = self._weights_of(able)
        return self._random.choices(able, weights, k=n) if sum(weights) > 0 else None

    def _weights_of(self, positions: list[int]) -> list[float]:
        if self._p == "sampleable":
            sizes = self._members.every(len, positions)
            return [sizes.get(i, 0) for i in positions]
        return [self._p[i] for i in positions]

    @property
    def _able(self) -> list[int]:
        """Members that answer and may be chosen."""
        return [i for i in self._members.up if isinstance(self._p, str) or self._p[i] > 0]

    def _stacked(self, drawn: list[tuple[int, Any]], *, return_info: bool) -> Any:
        batches = [path.plain(data) for _, (data, _) in drawn]
        made = LazyStackedTensorDict.maybe_dense_stack(batches, 0)
        index = torch.stack([torch.from_numpy(info.index) for _, (_, info) in drawn])
        who = torch.tensor([position for position, _ in drawn])[:, None].expand(index.shape).clone()
        label = TensorDict({"buffer_ids": who, "index": index}, index.shape)
        made = self.transform(made) if len(self.transform) else made
        made.set("index", label)
        return (made, {"index": label}) if return_info else made

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample(batch_size)` would give a batch now."""
        share = self._share(batch_size)
        ready = self._members.every(lambda member: member.buffer.can_sample(_floor(member, share)), self._able).values()
        return all(ready) if self._all else any(ready)

    def wait_until_sampleable(
        self, min_items: int | None = None, timeout: float | None = None, cancel_event: Any = None
    ) -> bool:  # fmt: skip
        """Blocks until members have `min_items` records, `batch_size` by default: one of them its share, or each with
        sample_from_all. Waits on all at once. True then; False at the timeout or when cancelled.

        Raises:
            MemberDownError, and what the wait of a member raises.
        """
        limit, stop = self._limit(timeout), opt.cancel(cancel_event)
        return self._members.wait(self._share(min_items), limit, stop, self._able, every=self._all)

    def __iter__(self) -> Iterator[Any]:
        """Batches, without end."""
        while True:
            yield self.sample()

    def update_tensordict_priority(self, data: Any) -> None:
        """As RedisReplayBuffer's: each batch of the stack goes to the member that it is from."""
        for batch in data.unbind(0):
            member = self.members[int(batch.get(("index", "buffer_ids"))[0])]
            plain = batch.exclude("index").set("index", batch.get(("index", "index")))
            member.update_tensordict_priority(plain)

    # Looking

    @property
    def members(self) -> tuple[RedisReplayBuffer, ...]:
        """The buffers it is made of."""
        return self._members.buffers

    def stats(self) -> dict[str, int | float | bool | str]:
        """The sums of the members' counters, `num_buffers` and `utilization`."""
        every = self._members.every(lambda member: member.stats()).values()
        sums: dict[str, Any] = {name: sum(one[name] for one in every) for name in _SUMMED}
        return sums | {
            "utilization": sums["storage_size"] / sums["capacity"], "num_buffers": len(self.members), "initialized": True,
        }  # fmt: skip

    def __len__(self) -> int:
        """Records that may be drawn now, of all members: `size`, and `sampleable_size`."""
        return sum(self._members.every(len).values())

    def __bool__(self) -> bool:
        """True: an empty buffer is a buffer."""
        return True

    @property
    def write_count(self) -> int:
        """The sum of the members'."""
        return sum(self._members.every(lambda member: member.write_count).values())

    # Life

    def client(self) -> Self:
        """Another ensemble, of clients of the members."""
        made = copy.copy(self)
        made._begin([member.client() for member in self.members])
        return made

    def shutdown(self, timeout: float | None = None) -> None:
        """As each member's."""
        self._members.every(lambda member: member.shutdown(timeout))

    def close(self) -> None:
        """Closes the members' handles. Idempotent."""
        self._members.close()

    def __repr__(self) -> str:
        members = textwrap.indent(",\n".join(map(repr, self.members)), "    ")
        return f"{type(self).__name__}(\n{members},\n    batch_size={self.batch_size})"

    def __getstate__(self) -> dict[str, Any]:
        """The members' addresses: no data, no socket, no thread."""
        return {name: value for name, value in vars(self).items() if name not in ("_members", "_kept")} | {"rbs": self.members}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rbs = state.pop("rbs")
        self.__dict__.update(state)
        self._begin(rbs)


def _floor(member: RedisReplayBuffer, share: int) -> int:
    """Records without which a member gives no full share."""
    return (member._floor(share) or share) if member.buffer.draws_again else share


def _draw_one(member: RedisReplayBuffer, share: int) -> Any:
    """A member's batch, through its transform, and the info of the draw."""
    return member.buffer._draw(member._decode, share, _floor(member, share), wait=False, patience=NONE)


def _weights(p: Any, n: int) -> Any:
    if isinstance(p, str):
        if p not in ("sampleable", "in_turn"):
            raise ArgumentError(name="p", allowed="None, numbers, 'sampleable' or 'in_turn'", found=p)
        return p
    weights = [1.0] * n if p is None else [not_negative(f"p[{i}]", one) for i, one in enumerate(p)]
    if len(weights) != n or sum(weights) <= 0:
        raise ArgumentError(name="p", allowed=f"{n} numbers >= 0, not all 0", found=p)
    return weights
