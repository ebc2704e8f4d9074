"""What happens in each workload, and which figures it gives."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from redis_replay._bench import costs
from redis_replay._bench import target as on
from redis_replay._bench.figures import Figures, Options, capacity
from redis_replay._bench.frame import SPAWN, Measured, Round, WorkerError, measure, quantiles
from redis_replay._bench.target import BATCH, Target, reader, writer
from redis_replay._crew import Crew
from redis_replay.limiters import SampleToInsertRatio
from redis_replay.samplers import Fifo, Prioritized

_GROWTH_SIZE = 100
_PRIORITIZED = 1_000_000  # records
_RATIO, _FIRST = 4.0, 1024  # samples for each insert; records before the first draw
_BY_PRIORITY = Prioritized(alpha=0.6, beta=0.4)
_QUEUE: dict[str, Any] = {"sampler": Fifo(), "consume_after_n_samples": 1}
_DELAY = 0.01  # seconds that an added record waits for others
_CACHED = 0.9  # of the records
_DROPPED = 0.1  # of the waits, the first ones: connections, schema, caches


def insert(options: Options, size: int) -> Figures:
    """One process writes into a buffer that is or becomes full."""
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        return _one(measure([(writer, (target,))], options.seconds, options.rounds))


def add(options: Options, size: int) -> Figures:
    """One process writes record by record, each at once; then behind, which is the rate of the line. Beside it, as the limit
    of a write at once: XADD, packed beforehand, on a plain socket.
    """
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        at_once = measure([(on.adder, (target, 0.0))], options.seconds, options.rounds)
        behind = _one(measure([(on.adder, (target, _DELAY))], options.seconds, options.rounds))
        bare = measure([(on.bare_adder, (target,))], options.seconds, options.rounds)
    rates = {"at_once_items_per_s": max(at_once.sums), "raw_round_trips_per_s": max(bare.sums)}
    return replace(behind, extra=behind.extra | rates | {"at_once_of_raw": round(at_once.rate / bare.rate, 2)})


def sample(options: Options, size: int) -> Figures:
    """One process draws from a full buffer."""
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        on.fill(target, capacity(options, size))
        return _one(measure([(reader, (target,))], options.seconds, options.rounds))


def _one(measured: Measured) -> Figures:
    p50, p99 = measured.best[0].quantiles
    return Figures(measured.rate, p50, p99, {"rounds_items_per_s": measured.sums})


def cached(options: Options, size: int) -> Figures:
    """As `sample`, of a reader whose cache of payloads holds nine records of ten."""
    records = capacity(options, size)
    with on.buffer(options.url, size, options.reward, records) as target:
        on.fill(target, records)
        return _one(measure([(on.remembering_reader, (target, records, _CACHED))], options.seconds, options.rounds))


def train(options: Options, size: int) -> Figures:
    """One process draws a batch of a full buffer after each training step of 5 ms, at once and ahead: the share of its time
    in which it waits.
    """
    extra: dict[str, Any] = {}
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        on.fill(target, capacity(options, size))
        for depth in (0, 2):
            measured = measure([(on.learner, (target, depth))], options.seconds, options.rounds)
            waited = min(measured.sums)  # microseconds of a second
            extra[f"waits_percent_prefetch_{depth}"] = round(waited / 1e4, 1)
    return Figures(extra=extra)


def both(options: Options, size: int) -> Figures:
    """A writer and a reader at once; p50 and p99 are the reader's."""
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        on.fill(target, capacity(options, size))
        measured = measure([(writer, (target,)), (reader, (target,))], options.seconds, options.rounds)
    wrote, read = measured.best
    extra = {
        "rounds_items_per_s": measured.sums,
        "insert_items_per_s": round(wrote.rate),
        "sample_items_per_s": round(read.rate),
        "insert_p50_p99_ms": wrote.quantiles,
    }
    return Figures(measured.rate, *read.quantiles, extra)


def workers(options: Options, size: int) -> Figures:
    """1, 2 and 4 processes write at once; then 1, 2 and 4 read at once."""
    extra: dict[str, Any] = {}
    with on.buffer(options.url, size, options.reward, capacity(options, size)) as target:
        on.fill(target, capacity(options, size))
        for name, role in (("insert", writer), ("sample", reader)):
            for n in (1, 2, 4):
                measured = measure([(role, (target,))] * n, options.seconds, options.rounds)
                extra[f"{name}_{n}"] = max(measured.sums)
                extra[f"{name}_{n}_p50_p99_ms"] = last = measured.best[0].quantiles
    return Figures(extra["sample_4"], *last, extra)


def prioritized(options: Options, size: int) -> Figures:
    """One process draws by priority from a full buffer, and updates what it drew."""
    records = options.capacity or _PRIORITIZED
    with on.buffer(options.url, size, options.reward, records, sampler=_BY_PRIORITY) as target:
        base = target.bytes_used()
        on.fill(target, records)
        each = round((target.bytes_used() - base) / records)
        figures = _one(measure([(on.prioritizer, (target,))], options.seconds, options.rounds))
    return replace(figures, extra=figures.extra | {"stored_items": records, "bytes_per_item": each})


def ratio(options: Options, size: int) -> Figures:
    """A writer and a reader at once, whom a rate limiter holds to 4 samples for each insert; p50 and p99 are the reader's."""
    limiter = SampleToInsertRatio(_RATIO, _FIRST, 16.0 * BATCH)
    with on.buffer(options.url, size, options.reward, capacity(options, size), rate_limiter=limiter) as target:
        measured = measure([(on.held_writer, (target,)), (on.held_reader, (target,))], options.seconds, options.rounds)
        with target.attach() as buffer:
            counted: dict[str, Any] = buffer.stats()
    wrote, read = measured.best
    extra = {
        "rounds_items_per_s": measured.sums,
        "insert_items_per_s": round(wrote.rate),
        "sample_items_per_s": round(read.rate),
        "samples_per_insert": round(counted["samples_returned"] / counted["write_count"], 3),
    }
    return Figures(measured.rate, *read.quantiles, extra)


def crowd(options: Options, size: int) -> Figures:
    """A learner draws by priority and updates what it drew, alone, and beside ever more writers: as fast as they can, then at
    half the best rate of them all. p50 and p99 are the learner's pairs, beside most of the latter.
    """
    extra: dict[str, Any] = {}
    learner, alone, best, total = Round(0, 1.0, []), 0.0, 0.0, 0.0
    with on.buffer(options.url, size, options.reward, capacity(options, size), sampler=_BY_PRIORITY) as target:
        on.fill(target, capacity(options, size))
        for name, paces in (("crowd", [0, *options.writers]), ("paced", options.writers)):
            for n in paces:
                learner, wrote = _beside(options, target, n, best / 2 if name == "paced" else 0.0)
                alone = alone or learner.quantiles[1]
                if name == "crowd":
                    best, total = max(best, wrote), max(total, learner.rate + wrote)
                extra[f"{name}_{n}_p50_p99_ms"] = learner.quantiles
                extra[f"{name}_{n}_learner_items_per_s"] = round(learner.rate)
                extra[f"{name}_{n}_insert_items_per_s"] = round(wrote)
                extra[f"{name}_{n}_of_best"] = round((learner.rate + wrote) / total, 2)
                extra[f"{name}_{n}_p99_of_alone"] = round(learner.quantiles[1] / alone, 2)
    return Figures(learner.rate, *learner.quantiles, extra)


def _beside(options: Options, target: Target, writers: int, rate: float) -> tuple[Round, float]:
    """The learner's best round beside so many writers in two processes, and the records that these wrote per second."""
    shares = [share for share in (writers - writers // 2, writers // 2) if share]
    crowds = [(on.crowd, (target, share, rate * share / writers)) for share in shares]
    measured = measure([(on.prioritizer, (target,)), *crowds], options.seconds, options.rounds, judges=1)
    learner, *others = measured.best
    return learner, sum(other.rate for other in others)


def wake(options: Options, size: int) -> Figures:
    """From before the call that writes one record to after the return of the reader that was blocked on it."""
    with on.buffer(options.url, size, options.reward, 1024, **_QUEUE) as target, Crew() as crew:
        results = SPAWN.SimpleQueue()
        crew.start("the reader", on.wait_for_each, target, options.waits, results)
        _await(crew, results)
        sent = _send(target, options.waits)
        back = _await(crew, results)
    late = [after - before for before, after in zip(sent, back, strict=True)][int(_DROPPED * options.waits) :]
    p50, p99 = quantiles(late)
    return Figures(None, p50, p99, {"p50_p99_ms": {"wake": [p50, p99]}, "waits": options.waits})


def _send(target: Target, records: int) -> list[float]:
    rng, batch = np.random.default_rng(0), {name: values[:1] for name, values in target.batches()[0].items()}
    sent = []
    with target.attach() as buffer:
        for _ in range(records):
            time.sleep(rng.uniform(0.010, 0.020))  # the reader is blocked again by then
            sent.append(time.perf_counter())
            buffer.extend(batch)
    return sent


def _await(crew: Crew, results: Any) -> Any:
    """The reader's next message: it may end right after its last one."""
    while results.empty():
        failure = crew.watch(0.02)
        if failure and results.empty():
            raise WorkerError(f"{failure.who} failed: {failure.what}\n{failure.trace}".rstrip())
    return results.get()


def growth(options: Options, _size: int) -> Figures:
    """Milliseconds of a batch written to and drawn from full buffers of 100 B records, the small and the large one."""
    extra: dict[str, Any] = {}
    for records in options.growth:
        with on.buffer(options.url, _GROWTH_SIZE, options.reward, records) as target:
            on.fill(target, records)
            for name, role in (("insert", writer), ("sample", reader)):
                measured = measure([(role, (target,))], options.seconds, options.rounds)
                extra[f"{name}_{records}_p50_p99_ms"] = measured.best[0].quantiles
    for name in ("insert", "sample"):
        small, large = (extra[f"{name}_{n}_p50_p99_ms"][0] for n in (options.growth[0], options.growth[-1]))
        extra[f"{name}_ratio"] = round(large / small, 2)
    return Figures(extra=extra)


Workload = Callable[[Options, int], Figures]
WORKLOADS: dict[str, Workload] = {
    one.__name__: one
    for one in (insert, add, sample, cached, train, both, ratio, prioritized, crowd, workers, wake, growth,
                costs.memory, costs.turnover, costs.decode, costs.start)
}  # fmt: skip
ONE_SIZE = ("ratio", "prioritized", "crowd", "wake", "growth", "start")  # the first of --sizes only, or a size of its own
