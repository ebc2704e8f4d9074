"""Small values that calls give back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Stats = dict[str, int | float | str | bool | dict[int, int] | dict[str, dict[str, int]]]


class Origin(NamedTuple):
    """Who writes records (empty: the buffer does not ask), and under which versions: one for each, one for all, or none."""

    writer: str = ""
    versions: Sequence[str] = ()

    def text(self, low: int, high: int, n: int) -> str:
        """Of the records from `low` to `high` of `n`, as scripts take it."""
        return " ".join((self.writer, *(self.versions if len(self.versions) < n else self.versions[low:high])))


def as_text(value: object) -> str:
    """What the server sent, as text. Bytes that are none are shown as such: anybody may have written them."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class SampleInfo:
    """What `sample(return_info=True)` tells beside the data.

    Attributes:
        index: int64 (n,), the identity of each record.
        probability: float64 (n,), with which one draw gives this record: 1 / live for Uniform, 1 for an end.
        priority: float64 (n,), of each record when it was drawn; None where records have none.
        priority_weight: float32 (n,), importance weights of a draw by priority; None of any other.
        version: int64 (n,), under which each record was written; None where the buffer keeps no versions.
        times_sampled: int64 (n,), hand-outs of each record, this one included; None in a buffer that does not count them.
        lease: the name of the batch's lease, for `ack` and `release`; None where it was not lent.
        last: whether a draining buffer gave out the last of its records.
    """

    index: NDArray[np.int64]
    probability: NDArray[np.float64]
    times_sampled: NDArray[np.int64] | None
    last: bool
    lease: str | None = None
    priority: NDArray[np.float64] | None = None
    priority_weight: NDArray[np.float32] | None = None
    version: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Updated:
    """What `update_priority` did: records that have the priority now, and indices that are not in the buffer (any more)."""

    applied: int
    ignored: int


@dataclass(frozen=True)
class LeasesEnded:
    """What `ack` and `release` did: leases that they ended, and those that had ended before (ran out, or twice named)."""

    applied: int
    late: int


@dataclass(frozen=True)
class Outcome:
    """What became of a write whose reply never came: `resolve()` of an OutcomeUnknownError.

    Attributes:
        applied: whether it was, once. False: it was not, and never will be.
        index: int64 (n,), what a write of records was given; empty otherwise.
        removed: how many records a `remove` took out.
    """

    applied: bool
    index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    removed: int = 0


@dataclass(frozen=True)
class Finding:
    """A breach that the doctor found: of which invariant, at which key, and what it saw; of which record, where it is one."""

    invariant: str
    key: str
    expected: str
    found: str
    index: str | None = None


@dataclass(frozen=True)
class Report:
    """The doctor's verdict.

    Attributes:
        findings: each breach.
        checked: how much was looked at, by key.
        unchecked: invariants that could not be judged, since what they go by is damaged.
        lost: records that the counters know and whose bytes are not there.
    """

    findings: tuple[Finding, ...]
    checked: Mapping[str, int] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    lost: int = 0

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Reply:
    """A script's answer: its word, what became of the lane's open number, and the data behind them."""

    word: str
    became: str
    data: list[Any]
    along: Any = None  # the Reading of what was read in the same trip, if all of it was there

    def texts(self) -> list[str]:
        """The data as text."""
        return [as_text(d) for d in self.data]
