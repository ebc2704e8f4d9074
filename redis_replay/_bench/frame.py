"""One way to time. Workers are spawned processes; each warms up, and all meet at a barrier before every round."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Event
from typing import Any

import numpy as np

from redis_replay._crew import Crew

SPAWN = multiprocessing.get_context("spawn")
_WARM_UP_S = 1.0
_MEET_S = 300.0  # importing, connecting and warming up on a busy machine

Step = Callable[[], int]
"""One batch: does it, and gives the number of records."""


@dataclass(frozen=True)
class Round:
    """What one worker did in one round: records, seconds, and the seconds of each step."""

    items: int
    seconds: float
    steps: list[float]

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.items / self.seconds

    @property
    def quantiles(self) -> tuple[float, float]:
        """p50 and p99 of one step, in milliseconds."""
        return quantiles(self.steps)


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return round(float(p50), 3), round(float(p99), 3)


def repeat(step: Step, seconds: float) -> Round:
    """Do steps one after another for so long. The last one is let finish, and its time counts."""
    items, steps = 0, list[float]()
    start = now = time.perf_counter()
    while now < start + seconds:
        items += step()
        before, now = now, time.perf_counter()
        steps.append(now - before)
    return Round(items, now - start, steps)


@dataclass(frozen=True)
class Pace:
    """How long and how often, and how the workers meet."""

    seconds: float
    rounds: int
    barrier: Barrier
    done: Event
    results: Any  # a SimpleQueue of (worker, round, Round)


def work(make: Callable[..., Step], args: tuple[Any, ...], number: int, pace: Pace) -> None:
    """A worker's life: `make(*args)` gives its step."""
    step = make(*args)
    repeat(step, min(_WARM_UP_S, pace.seconds))
    for each in range(pace.rounds):
        pace.barrier.wait(_MEET_S)
        pace.results.put((number, each, repeat(step, pace.seconds)))
    pace.done.wait(_MEET_S)  # nobody leaves while another still measures


@dataclass(frozen=True)
class Measured:
    """The best round, by the sum of the rates: one Round for each worker; and the sums of all rounds."""

    best: list[Round]
    sums: list[int]

    @property
    def rate(self) -> float:
        """Records per second of all workers."""
        return sum(one.rate for one in self.best)


def measure(
    workers: Sequence[tuple[Callable[..., Step], tuple[Any, ...]]], seconds: float, rounds: int, judges: int | None = None
) -> Measured:  # fmt: skip
    """Run one process for each (make, args) at once. `judges`: only the rates of the first so many say which round is best.

    Raises:
        WorkerError: a worker failed.
    """
    pace = Pace(seconds, rounds, SPAWN.Barrier(len(workers)), SPAWN.Event(), SPAWN.SimpleQueue())
    with Crew() as crew:
        for number, (make, args) in enumerate(workers):
            crew.start(f"{make.__name__} {number}", work, make, args, number, pace)
        got = _collect(crew, pace, len(workers))
        pace.done.set()
    sums = [sum(got[number, each].rate for number in range(len(workers))[:judges]) for each in range(rounds)]
    best = int(np.argmax(sums))
    return Measured([got[number, best] for number in range(len(workers))], [round(total) for total in sums])


class WorkerError(RuntimeError):
    """A worker ended before it had given all its rounds."""


def _collect(crew: Crew, pace: Pace, workers: int) -> dict[tuple[int, int], Round]:
    got: dict[tuple[int, int], Round] = {}
    while len(got) < workers * pace.rounds:
        failure = crew.watch(0.0 if not pace.results.empty() else 0.02)
        if failure:
            raise WorkerError(f"{failure.who} failed: {failure.what}\n{failure.trace}".rstrip())
        while not pace.results.empty():
            number, each, one = pace.results.get()
            got[number, each] = one
    return got
