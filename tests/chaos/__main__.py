"""Runs it: `python -m tests.chaos --seconds 60 --seed 7`. The exit code is 0 if every promise was kept."""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from redis_replay import ReplayBuffer, samplers
from redis_replay.exceptions import ReplayError, ReplayTimeoutError
from tests import _server
from tests._proxy import Proxy
from tests.chaos import _crash, _judge
from tests.chaos._crew import Crew
from tests.chaos._faults import Faults
from tests.chaos._ledger import Ledger, read
from tests.chaos._server import DurableServer
from tests.chaos._workers import LEASE_S, NAME, OVER_S, drawn

SAMPLERS = [samplers.Fifo(), samplers.Lifo(), samplers.Uniform()]
CAPACITY = 10_000_000  # nothing is evicted: what is missing was lost
DRAIN_S = 30.0
SLACK_S = 2.0  # that a busy machine may take above a bound, beside the stalls that the run itself saw


class Run:
    """One run, from an empty server to the last record drained."""

    def __init__(self, seconds: float, seed: int, binary: str, directory: Path) -> None:
        self._seconds, self._random, self._directory = seconds, random.Random(seed), directory
        self._books = directory / "ledgers"
        self._books.mkdir()
        self._server = DurableServer(binary, directory / "data", "always")
        self._sampler = self._random.choice(SAMPLERS)
        with ReplayBuffer(
            self._server.url, NAME, capacity=CAPACITY, sampler=self._sampler, consume_after_n_samples=1, lease=LEASE_S
        ):
            pass
        self._proxy = Proxy(self._server.url)
        self._own = Ledger(directory, "faults")
        self.wrong: list[str] = []

    def run(self) -> None:
        """Chaos, then order."""
        large_from = time.monotonic() + self._seconds / 2
        crew = Crew(self._proxy.url, self._books, random.Random(self._random.getrandbits(32)), large_from, self._own)
        self._faults = Faults(self._random.getrandbits(32), self._server, self._proxy, crew, self._own)
        self._faults.run(self._seconds)
        self.wrong += crew.end()
        self._now = time.monotonic()
        self._stats = self._drain()
        self.wrong += self._faults.findings + self._server.examine(NAME)
        self._evidence = _judge.gather(read(self._books), read(self._directory)["faults"])

    def _drain(self) -> dict[str, Any]:
        """Takes what is left, when what dead readers had has come back. Gives the buffer's counters then."""
        book, taken = Ledger(self._books, "drain"), 0
        with ReplayBuffer(self._server.url, NAME) as buffer:
            until = time.monotonic() + DRAIN_S
            while (stats := buffer.stats())["size"] + stats["leased"] and time.monotonic() < until:
                if taken > stats["write_count"]:
                    self.wrong.append(f"the last drain drew {taken} records of {stats['write_count']}, and there are more")
                    break
                try:
                    taken += self._take(buffer, book)
                except ReplayError as error:
                    self.wrong.append(f"the last drain failed: {error}")
                    break
            return stats

    def _take(self, buffer: ReplayBuffer, book: Ledger) -> int:
        book.note("draw", bound=LEASE_S + OVER_S, acks=[])
        try:
            batch, info = buffer.sample(5000, True, wait=True, min_items=1, timeout=LEASE_S, lease=60)
        except ReplayTimeoutError as error:
            book.note("end", error=type(error).__name__)
            return 0
        book.note("end", **drawn((batch, info)))
        book.note("ack", bound=5 + OVER_S, lease=info.lease)
        ended = buffer.ack(info.lease)
        book.note("end", applied=ended.applied, late=ended.late)
        return len(info.index)

    def judge(self) -> None:
        """Adds every broken promise to `wrong`."""
        self.wrong += self._evidence.broken
        self.wrong += _judge.breaches(self._evidence, LEASE_S)
        self.wrong += _judge.totals(self._evidence, self._stats)
        allowed = SLACK_S + self._faults.stall_s
        self._waits = _judge.waits(self._evidence, self._now)
        for what, found in self._waits.items():
            if found.over > allowed:
                self.wrong.append(f"{what} took {found.longest:.2f} s, bound {found.bound:.2f} s: {found.worst}")

    def report(self) -> None:
        """Prints what happened."""
        evidence, stats = self._evidence, self._stats
        print(f"sampler {self._sampler!r}, lease {LEASE_S:g} s")
        print("faults:", ", ".join(f"{what} {n}" for what, n in sorted(self._faults.counts.items())))
        outcomes = Counter((c.what, c.error or ("killed inside" if c.result is None else "")) for c in evidence.calls)
        for what, found in sorted(self._waits.items()):
            ends = ", ".join(f"{n} {how}" for (kind, how), n in sorted(outcomes.items()) if kind == what and how)
            print(f"  {what}: {found.calls} calls; nearest to its bound: {found.longest:.2f} of {found.bound:.2f} s; {ends}")
        leases = evidence.leases.values()
        print(f"retries {evidence.retries}, unknown outcomes {sum(c.unknown for c in evidence.calls)}")
        print(
            f"records {stats['write_count']}, leases seen {len(leases)}: {sum(a.acknowledged for a in leases)} acknowledged,"
            f" {sum(a.doubtful and not a.acknowledged for a in leases)} doubtful;"
            f" records reclaimed {stats['reclaimed']}, late acks {stats['late']}"
        )
        print(f"the run itself was late by {self._faults.stall_s:.2f} s at most")

    def close(self) -> None:
        """Ends the server."""
        self._proxy.close()
        self._server.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of faults, 60 by default")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the faults; chance by default"
    )
    parser.add_argument("--server", choices=_server.REAL, default="valkey")
    parser.add_argument(
        "--kills", type=int, default=5, help="of the second part, for each way of keeping data; 0 leaves it out"
    )
    return parser.parse_args()


def _first_part(options: argparse.Namespace, binary: str, directory: Path) -> list[str]:
    print(f"chaos: {options.seconds:g} s on {options.server}, --seed {options.seed}", flush=True)
    run = Run(options.seconds, options.seed, binary, directory)
    try:
        run.run()
        run.judge()
        run.report()
    finally:
        run.close()
    return run.wrong


def _second_part(options: argparse.Namespace, binary: str, directory: Path) -> list[str]:
    print(f"what {options.kills} crashes of a server lose, in records, by how it keeps data:", flush=True)
    wrong: list[str] = []
    for loss in _crash.losses(binary, directory, options.kills):
        print(_crash.report(loss), flush=True)
        wrong += _crash.breaches(loss)
    return wrong


def main() -> int:
    """Parses, runs, prints, and keeps the ledgers of a run that went wrong."""
    options = _options()
    binary = _server.find(options.server)
    if binary is None:
        sys.exit(f"no {options.server} server: {_server.HOW[options.server]}")
    logging.getLogger("redis_replay").addHandler(logging.NullHandler())
    directory = Path(tempfile.mkdtemp(prefix="rr-chaos-"))
    wrong = _first_part(options, binary, directory)
    if options.kills:
        wrong += _second_part(options, binary, directory)
    if wrong:
        print(f"BROKEN, --seed {options.seed}; the ledgers are in {directory}:", *wrong[:20], sep="\n  ")
        print(f"  ({len(wrong)} in all)")
        return 1
    shutil.rmtree(directory)
    print(f"KEPT: every promise, --seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
