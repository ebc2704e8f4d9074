"""Buffers that hold readers or writers back, as TorchRL's."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from redis_replay.exceptions import ArgumentError, ArgumentTypeError
from redis_replay.limiters import MOST, PARTS, Queue, SampleToInsertRatio, parse
from redis_replay.torchrl._buffer import RedisReplayBuffer


class RateLimitedReplayBuffer(RedisReplayBuffer):
    """At most `samples_per_insert` sampled records for each one that was written, whoever samples and writes, on any machine.
    Writers are never held back. A batch comes whole or not at all: `sample` and `can_sample` need its records and its budget.

    Args:
        samples_per_insert: finite, > 0.
        **options: as RedisReplayBuffer, but `rate_limiter` and `prefetch`.

    Raises:
        as RedisReplayBuffer; ArgumentError, ArgumentTypeError: no such ratio; an option that is not allowed.
    """

    def __init__(self, url: object, name: str, *, samples_per_insert: float, **options: Any) -> None:
        _refuse(options, "rate_limiter")
        super().__init__(url, name, rate_limiter=at_most(ratio(samples_per_insert)), **options)

    _may_draw_ahead = False  # what was drawn ahead would spend the budget of others
    _limiter = SampleToInsertRatio
    _waited = 0  # before the state that was loaded

    def _floor(self, batch_size: int | None) -> int | None:
        return batch_size if batch_size is not None else self.batch_size

    def stats(self) -> dict[str, int | float | bool | str]:
        """As RedisReplayBuffer.stats, and TorchRL's keys of a ratio. `sample_budget`: records that may be drawn before the
        next write; `reserved_samples`: 0, as a draw reserves and takes in one step; `sample_wait_count`: waits of this handle.
        """
        every: dict[str, Any] = super().stats()
        written, drawn = int(every["write_count"]), int(every["samples_returned"])
        return every | {
            "target_samples_per_insert": getattr(parse(every["rate_limiter"]), "samples_per_insert", math.inf),
            "samples_per_insert": drawn / written if written else 0.0,
            "sample_budget": math.floor(every["limiter_difference"]),
            "reserved_samples": 0,
            "sample_wait_count": self._waited + self.buffer.local_stats.waits,
        }

    def state_dict(self, *, include_data: bool = True) -> dict[str, Any]:
        """As RedisReplayBuffer.state_dict, with `sample_wait_count`."""
        waits = self._waited + self.buffer.local_stats.waits
        return super().state_dict(include_data=include_data) | {"sample_wait_count": waits}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As RedisReplayBuffer.load_state_dict; `sample_wait_count` goes on."""
        super().load_state_dict(state_dict)
        self._waited = int(state_dict.get("sample_wait_count", 0)) - self.buffer.local_stats.waits


class BlockingReplayBuffer(RedisReplayBuffer):
    """A bounded buffer that consumes, whose writers wait instead of evicting what nobody has drawn: in arrival order, a batch
    whole or not at all, until `timeout` or `cancel_event` of `add` and `extend` ends the wait.

    Args:
        capacity: records that may be written and not drawn yet.
        **options: as RedisReplayBuffer, but `rate_limiter`, `consume_after_n_samples` (1) and `prefetch`.
    """

    def __init__(self, url: object, name: str, *, capacity: int, **options: Any) -> None:
        _refuse(options, "rate_limiter", "consume_after_n_samples")
        super().__init__(
            url, name, capacity=capacity, rate_limiter=Queue(capacity), consume_after_n_samples=1, **options
        )  # fmt: skip

    _limiter = Queue


def _refuse(options: dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name) is not None:
            raise ArgumentError(name=name, allowed="left out: the class sets it", found=options[name])


def ratio(samples_per_insert: Any) -> float:
    """A finite number > 0."""
    allowed = "a finite number > 0"
    if isinstance(samples_per_insert, (bool, str)) or not hasattr(samples_per_insert, "__float__"):
        raise ArgumentTypeError(name="samples_per_insert", allowed=allowed, found=samples_per_insert)
    if not 0 < float(samples_per_insert) < math.inf:
        raise ArgumentError(name="samples_per_insert", allowed=allowed, found=samples_per_insert)
    return float(samples_per_insert)


def at_most(samples_per_insert: float) -> SampleToInsertRatio:
    """The limiter that only ever blocks readers: the difference is bound by 0 below, and above by what can be counted."""
    denominator = Fraction(samples_per_insert).limit_denominator(PARTS).denominator
    return SampleToInsertRatio(samples_per_insert, 1, (0.0, float(MOST // denominator)))
