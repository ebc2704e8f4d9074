"""Samplers: which records a draw takes, or, as a remover, which go when the buffer is full. Each is a small value that is
stored with the buffer as text.
"""

import ast
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redis_replay.exceptions import ArgumentError

__all__ = ["Fifo", "Freshest", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Sampler", "Uniform"]

Floats = NDArray[np.float64]

MAX_RANDOM = 8_192  # random draws of one script
MAX_ENDS = 20_000  # records of one step, and draws from an end
MAX_CHOSEN = 2_500  # records of one step of a write where a remover chooses who goes
MAX_NOTED = 5_000  # records of one step where they have priorities or versions


class Whole(NamedTuple):
    """What a draw by priority says of all that could be drawn: the sum of their weights is `total` * 2^`exponent`; `least` is
    the least priority among them; `alpha` the exponent in force. None: the sampler does not ask for it.
    """

    total: float | None
    exponent: int | None
    least: float | None
    alpha: float | None


@dataclass(frozen=True)
class Sampler:
    """What all samplers are. `repr()` of one is how the buffer stores it, and what `redis-cli` shows.

    Attributes:
        max_batch: records that one draw may take.
        random: whether it needs random numbers.
        bins: whether draws are in proportion to priorities.
        heap: whether draws are from an end of the order of priorities.
        dates: whether draws go by the versions of records.
    """

    max_batch: ClassVar[int] = MAX_ENDS
    random: ClassVar[bool] = False
    bins: ClassVar[bool] = False
    heap: ClassVar[bool] = False
    dates: ClassVar[bool] = False

    @property
    def ranks(self) -> bool:
        """Whether the least or the largest priority is asked for."""
        return self.heap

    @property
    def weighs(self) -> bool:
        """Whether records have priorities."""
        return self.bins or self.ranks

    def weighing_by(self, alpha: float) -> "Sampler":  # noqa: ARG002
        """The same with another exponent of priorities, if it has one."""
        return self

    def annealed(self, beta: float) -> "Sampler":  # noqa: ARG002
        """The same with another exponent of importance weights, if it has one."""
        return self

    def probability(self, n: int, live: int, priority: Floats | None, whole: Whole | None) -> Floats:  # noqa: ARG002
        """With which one draw gives each of the `n` records that it gave, of `live` ones: float64 (n,). Of an end: 1."""
        return np.ones(n)


@dataclass(frozen=True)
class Uniform(Sampler):
    """Every live record is equally likely.

    Args:
        replacement: draw with replacement (the default), so that a batch may hold a record more than once. False holds
            within a batch and not over epochs, unlike TorchRL's SamplerWithoutReplacement. In a buffer that consumes, a
            batch never holds a record twice, whatever is said here.
    """

    max_batch: ClassVar[int] = MAX_RANDOM
    random: ClassVar[bool] = True

    replacement: bool = True

    def probability(self, n: int, live: int, priority: Floats | None, whole: Whole | None) -> Floats:  # noqa: ARG002
        """1 / live."""
        return np.full(n, 1.0 / live)


@dataclass(frozen=True)
class Prioritized(Sampler):
    """In proportion to weights: w = (priority + eps) ** alpha, and P = w / the sum of all (Schaul et al. 2016, "Prioritized
    Experience Replay", proportional variant; names and defaults as TorchRL's PrioritizedSampler). A record of priority 0 is
    hidden: it is never drawn and not in `sampleable_size`.

    `info.priority_weight` is (N * P) ** -beta, divided by the largest one (the same, section 3.4).

    Args:
        alpha: >= 0. 0 draws evenly. `set_alpha` changes that of a buffer.
        beta: >= 0. Where a handle begins; its attribute `beta` may be set at any time, for that handle alone.
        eps: >= 0, added to each priority.
        replacement: draw with replacement (the default). A buffer that consumes never draws a record twice in a batch.
            Without it, each next record is drawn from the rest.
        max_priority_within_buffer: a new record without a priority has the largest of those in the buffer; False: the largest
            one ever set. 1.0 before any.
        normalize: "batch": weights are divided by the largest of the batch; "buffer": by that of all live records, as
            TorchRL does.

    Raises:
        ArgumentError: a number is out of range.
    """

    max_batch: ClassVar[int] = MAX_RANDOM
    random: ClassVar[bool] = True
    bins: ClassVar[bool] = True

    alpha: float
    beta: float
    eps: float = 1e-8
    replacement: bool = True
    max_priority_within_buffer: bool = False
    normalize: str = "batch"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "eps"):
            object.__setattr__(self, name, not_negative(name, getattr(self, name)))
        for name in ("replacement", "max_priority_within_buffer"):
            if not isinstance(value := getattr(self, name), bool):
                raise ArgumentError(name=name, allowed="True or False", found=value)
        if self.normalize not in ("batch", "buffer"):
            raise ArgumentError(name="normalize", allowed="'batch' or 'buffer'", found=self.normalize)

    @property
    def ranks(self) -> bool:
        """Whether the least or the largest priority is asked for."""
        return self.max_priority_within_buffer or self.normalize == "buffer"

    def weighing_by(self, alpha: float) -> Sampler:
        """The same with another alpha."""
        return self if alpha == self.alpha else replace(self, alpha=alpha)

    def annealed(self, beta: float) -> Sampler:
        """The same with another beta."""
        return self if beta == self.beta else replace(self, beta=beta)

    def probability(self, n: int, live: int, priority: Floats | None, whole: Whole | None) -> Floats:  # noqa: ARG002
        """Weight / the sum of all weights."""
        assert priority is not None
        assert whole is not None
        assert whole.total is not None
        assert whole.exponent is not None
        share: Floats = np.ldexp(self._weight(priority, whole), -whole.exponent) / whole.total
        return share

    def priority_weight(self, priority: Floats, beta: float, whole: Whole) -> NDArray[np.float32]:
        """Importance weights, float32 (n,), the largest of them (of the batch, or of the buffer) 1."""
        weight = np.log2(self._weight(priority, whole))  # weights may be further apart than a float reaches
        of_buffer = self.normalize == "buffer" and whole.least is not None
        least = np.log2(self._weight(np.array([whole.least]), whole))[0] if of_buffer else weight.min()
        with np.errstate(under="ignore"):
            relative: NDArray[np.float32] = np.exp2(beta * (least - weight)).astype(np.float32)
        return relative

    def _weight(self, priority: Floats, whole: Whole) -> Floats:
        """By the alpha of the draw, which may be another than when the handle was opened."""
        alpha = self.alpha if whole.alpha is None else whole.alpha
        with np.errstate(over="ignore", under="ignore"):
            return np.clip((priority + self.eps) ** alpha, 2.0**-1022, 2.0**1023)


@dataclass(frozen=True)
class MaxHeap(Sampler):
    """The records of the largest priorities, largest first; of equals the newest."""

    heap: ClassVar[bool] = True


@dataclass(frozen=True)
class MinHeap(Sampler):
    """The records of the least priorities, least first; of equals the oldest."""

    heap: ClassVar[bool] = True


def not_negative(name: str, value: Any) -> float:
    """`value` as a finite float >= 0.

    Raises:
        ArgumentError: it is none.
    """
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ArgumentError(name=name, allowed="a finite number >= 0", found=value)
    return number


@dataclass(frozen=True)
class Fifo(Sampler):
    """The oldest live records, oldest first. With consume_after_n_samples=1 the buffer is a queue."""


@dataclass(frozen=True)
class Lifo(Sampler):
    """The newest live records, newest first. With consume_after_n_samples=1 the buffer is a stack."""


@dataclass(frozen=True)
class Freshest(Sampler):
    """The records of the highest versions (`extend(version=)`), highest first; of equals the newest."""

    dates: ClassVar[bool] = True


KINDS = (Uniform, Prioritized, MaxHeap, MinHeap, Fifo, Lifo, Freshest)


def parse(text: str) -> Sampler:
    """The sampler whose `repr()` is `text`.

    Raises:
        ValueError: there is none in this version.
    """
    known = {kind.__name__: kind for kind in KINDS}
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in known:
        raise ValueError(f"no sampler of this version: {text}")
    return known[call.func.id](**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
