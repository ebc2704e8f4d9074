"""What redis-replay shall reach, and what files of figures say of it."""

from collections.abc import Mapping
from typing import NamedTuple

Figure = tuple[str, int, str]
"""Workload, size, name of the figure."""

OURS, RAW, REVERB, STORE = "redis-replay", "raw redis", "reverb", "torchrl StoreStorage"


class Goal(NamedTuple):
    """A bound of one figure, or of its ratio to that of `peer`; `theirs`: where the peer has it, if not under the same name.
    At least so much, or with `most` at most.
    """

    workload: str
    size: int
    figure: str
    bound: float
    peer: str | None = None
    most: bool = False
    theirs: Figure | None = None


class Verdict(NamedTuple):
    """A goal beside what was measured: ours, the peer's, and what the bound is of. None: it is in no file."""

    goal: Goal
    ours: float | None
    peers: float | None
    reached: float | None

    @property
    def met(self) -> bool | None:
        """None: nobody can tell."""
        if self.reached is None:
            return None
        return self.reached <= self.goal.bound if self.goal.most else self.reached >= self.goal.bound


_INSERT = {100: 10, 1024: 8, 28224: 2}
_SAMPLE = {100: 2, 1024: 2, 28224: 1}
GOALS = [
    *(Goal("insert", size, "items_per_s", bound, REVERB) for size, bound in _INSERT.items()),
    *(Goal("insert", size, "items_per_s", 0.7, RAW) for size in _INSERT),
    *(Goal("sample", size, "items_per_s", bound, REVERB) for size, bound in _SAMPLE.items()),
    *(Goal("sample", size, "items_per_s", 0.8, RAW) for size in _SAMPLE),
    Goal("both", 100, "items_per_s", 3, REVERB),
    Goal("both", 1024, "items_per_s", 2, REVERB),
    Goal("both", 28224, "items_per_s", 0.8, RAW),
    Goal("add", 100, "items_per_s", 30_000),
    Goal("add", 100, "at_once_of_raw", 0.7),
    Goal("prioritized", 100, "items_per_s", 1.5, REVERB),
    Goal("prioritized", 100, "items_per_s", 1.1, STORE),
    Goal("cached", 28224, "items_per_s", 2, REVERB, theirs=("sample", 28224, "items_per_s")),
    *(Goal("train", size, "waits_percent_prefetch_2", 5, most=True) for size in _SAMPLE),
    Goal("wake", 100, "p50_ms", 2, RAW, most=True),
    Goal("wake", 100, "p99_ms", 5, most=True),
    Goal("crowd", 100, "crowd_64_of_best", 0.8),
    Goal("crowd", 100, "paced_64_p99_of_alone", 5, most=True),
    Goal("growth", 100, "insert_ratio", 2, most=True),
    Goal("growth", 100, "sample_ratio", 2, most=True),
    Goal("memory", 100, "bytes_per_item", 160, most=True),
    Goal("prioritized", 100, "bytes_per_item", 300, most=True),
    Goal("turnover", 100, "of_fresh", 2, most=True),
    Goal("decode", 28224, "of_memcpy", 1.5, most=True),
    Goal("start", 100, "import_ms", 150, most=True),
]


def judge(figures: Mapping[Figure, Mapping[str, float]]) -> list[Verdict]:
    """Each goal, in their order."""
    return [_verdict(goal, figures) for goal in GOALS]


def _verdict(goal: Goal, figures: Mapping[Figure, Mapping[str, float]]) -> Verdict:
    at = (goal.workload, goal.size, goal.figure)
    ours = figures.get(at, {}).get(OURS)
    if goal.peer is None:
        return Verdict(goal, ours, None, ours)
    peers = figures.get(goal.theirs or at, {}).get(goal.peer)
    return Verdict(goal, ours, peers, ours / peers if ours is not None and peers else None)
