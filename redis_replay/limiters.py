"""Rate limiters: how far writes may run ahead of draws, and draws of writes. Each is a small value that is stored with the
buffer as text. Names, arguments and arithmetic are Reverb's (`reverb.rate_limiters`), but that a batch is judged as a whole.

With inserts and samples as counted since the buffer was created, emptied, or given the limiter, and

    difference = inserts * samples_per_insert - samples

a draw of n records needs `min_size_to_sample` live records and a difference >= min_diff after it; a write of n records needs
a difference <= max_diff after it, or no more than `min_size_to_sample` live records after it.
"""

import ast
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from redis_replay.exceptions import ArgumentError

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

MOST = 2**52  # of what the scripts count with
PARTS = 10**6  # the denominator of samples_per_insert, or of its inverse, is at most this
MAX_SIZE = 4_000_000_000


class Law(NamedTuple):
    """A limiter as the scripts apply it: whole numbers, so that nothing is ever rounded. samples_per_insert is p / q, both 0
    where only the size counts; `low` and `high` bound the difference * q.
    """

    p: int
    q: int
    min_size: int
    low: int
    high: int
    start: int
    leaves: int

    @property
    def text(self) -> str:
        """As it is stored, and lua/include/limit.lua reads it."""
        return " ".join(str(number) for number in self)


@dataclass(frozen=True)
class RateLimiter(ABC):
    """What all rate limiters are. `repr()` of one is how the buffer shows it."""

    @property
    @abstractmethod
    def law(self) -> Law:
        """What the scripts go by."""

    def check(self, capacity: int) -> None:
        """Refuses what a buffer of this capacity could never meet.

        Raises:
            ArgumentError: it holds fewer records than are needed before the first draw.
        """
        if self.law.min_size > capacity:
            raise ArgumentError(
                name="min_size_to_sample", allowed=f"at most the capacity, {capacity:,}", found=self.law.min_size
            )


@dataclass(frozen=True)
class MinSize(RateLimiter):
    """Draws need so many live records; writes are never held back.

    Raises:
        ArgumentError: it is no whole number >= 1.
    """

    min_size_to_sample: int

    def __post_init__(self) -> None:
        _set_size(self, "min_size_to_sample")

    @property
    def law(self) -> Law:
        """Only the size counts."""
        return Law(0, 0, self.min_size_to_sample, 0, 0, 0, leaves=0)


@dataclass(frozen=True)
class SampleToInsertRatio(RateLimiter):
    """Each record is drawn `samples_per_insert` times on average: who runs too far ahead, readers or writers, waits.

    Args:
        samples_per_insert: > 0. Taken as a fraction whose denominator (or, below 1, that of its inverse) is at most a million.
        min_size_to_sample: live records before the first draw.
        error_buffer: how far the difference may be from its middle, samples_per_insert * min_size_to_sample; or its least
            and its largest value.

    Raises:
        ArgumentError: a number is out of range; or the range is so narrow (below 2 * max(1, samples_per_insert)), or so high,
            that draws or writes could be blocked for ever.
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        ratio = _finite("samples_per_insert", self.samples_per_insert)
        if ratio <= 0:
            raise ArgumentError(name="samples_per_insert", allowed="a finite number > 0", found=self.samples_per_insert)
        object.__setattr__(self, "samples_per_insert", ratio)
        _set_size(self, "min_size_to_sample")
        object.__setattr__(self, "error_buffer", self._buffer())
        self._check_range()

    def _buffer(self) -> float | tuple[float, float]:
        given: Any = self.error_buffer
        if not isinstance(given, (tuple, list)):
            return _finite("error_buffer", given)
        if len(given) != 2:
            raise ArgumentError(name="error_buffer", allowed="a number, or the least and the largest difference", found=given)
        return _finite("error_buffer", given[0]), _finite("error_buffer", given[1])

    def _bounds(self) -> tuple[Fraction, Fraction, Fraction]:
        middle = _fraction(self.samples_per_insert) * self.min_size_to_sample
        if isinstance(self.error_buffer, tuple):
            return Fraction(self.error_buffer[0]), Fraction(self.error_buffer[1]), middle
        return middle - Fraction(self.error_buffer), middle + Fraction(self.error_buffer), middle

    def _check_range(self) -> None:
        low, high, middle = self._bounds()
        narrowest = 2 * max(1.0, self.samples_per_insert)
        if high - low < narrowest:
            raise ArgumentError(
                name="error_buffer", allowed=f"such that the difference has a range of at least {narrowest:g}",
                found=self.error_buffer,
            )  # fmt: skip
        if low > middle:
            raise ArgumentError(
                name="error_buffer", allowed=f"such that the least difference is at most {float(middle):g}",
                found=self.error_buffer,
            )  # fmt: skip
        ratio = _fraction(self.samples_per_insert)
        largest: Fraction = max(abs(low), abs(high), middle, Fraction(20_000), 20_000 * ratio)
        if largest * ratio.denominator > MOST:
            raise ArgumentError(name="samples_per_insert", allowed="such that all can be counted exactly", found=self)

    @property
    def law(self) -> Law:
        """In units of 1 / q."""
        ratio, (low, high, middle) = _fraction(self.samples_per_insert), self._bounds()
        p, q = ratio.numerator, ratio.denominator
        start = min(middle, high)
        return Law(p, q, self.min_size_to_sample, math.ceil(low * q), math.floor(high * q), math.floor(start * q), leaves=0)


@dataclass(frozen=True)
class Queue(RateLimiter):
    """At most `size` records are written and not drawn: writers wait for readers. For the sampler Fifo() with
    consume_after_n_samples=1. A lease that is released may bring more back. What is removed or evicted without having been
    drawn makes room, too.

    Raises:
        ArgumentError: size is no whole number >= 1.
    """

    size: int

    def __post_init__(self) -> None:
        _set_size(self, "size")

    @property
    def law(self) -> Law:
        """One draw for each write."""
        return Law(1, 1, 1, 0, self.size, self.size, leaves=1)

    def check(self, capacity: int) -> None:
        """Refuses what would evict records that nobody has drawn.

        Raises:
            ArgumentError: the size is above the capacity.
        """
        if self.size > capacity:
            raise ArgumentError(name="size", allowed=f"at most the capacity, {capacity:,}", found=self.size)


@dataclass(frozen=True)
class Stack(Queue):
    """As `Queue`, for the sampler Lifo()."""


def _set_size(limiter: RateLimiter, name: str) -> None:
    value = getattr(limiter, name)
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value.__index__() <= MAX_SIZE:
        raise ArgumentError(name=name, allowed=f"a whole number from 1 to {MAX_SIZE:,}", found=value)
    object.__setattr__(limiter, name, value.__index__())


def _finite(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(name=name, allowed="a finite number", found=value)
    return number


def _fraction(ratio: float) -> Fraction:
    """What the caller has most likely meant: 0.1 is 1/10, and 1/3 is a third."""
    if ratio >= 1:
        return Fraction(ratio).limit_denominator(PARTS)
    return 1 / (1 / Fraction(ratio)).limit_denominator(PARTS)


KINDS = (MinSize, SampleToInsertRatio, Queue, Stack)


def parse(text: str) -> RateLimiter | None:
    """The rate limiter whose `repr()` is `text`; None for "None".

    Raises:
        ValueError: there is none in this version.
    """
    if text == "None":
        return None
    known = {kind.__name__: kind for kind in KINDS}
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in known:
        raise ValueError(f"no rate limiter of this version: {text}")
    return known[call.func.id](**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
