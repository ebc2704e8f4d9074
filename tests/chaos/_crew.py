"""The processes of a run: each is killed, stopped, and started again under a new name."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos import _workers
from tests.chaos._ledger import Ledger

JOIN_S = 20.0  # for a last call: longer than any bound
KINDS = {"writer": _workers.Writer, "learner": _workers.Learner}


@dataclass
class _Place:
    """One of the crew: number `number` of its kind, and who is there now."""

    kind: str
    number: int
    process: BaseProcess | None = None
    who: str = ""


class Crew:
    """Four writers and four learners. The last one of each kind has an async handle, two have little patience."""

    def __init__(self, url: str, directory: Path, generator: random.Random, large_from: float, ledger: Ledger) -> None:
        self._url, self._directory, self._random, self._large_from = url, directory, generator, large_from
        self._ledger = ledger
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos._workers"])
        self._places = [_Place(kind, number) for kind in KINDS for number in range(4)]
        self._started = 0
        for place in self._places:
            self.start(place)

    def start(self, place: _Place) -> None:
        """Somebody new takes the place."""
        self._started += 1
        place.who = f"{place.kind}-{place.number}-{self._started:03}"
        job = _workers.Job(
            who=place.who, url=self._url, directory=str(self._directory), seed=self._random.getrandbits(32),
            first_tag=self._started * _workers.TAGS, large_from=self._large_from,
            is_async=place.number == 3, impatient=place.number in (1, 2),
        )  # fmt: skip
        place.process = self._context.Process(target=_workers.run, args=(KINDS[place.kind], job), name=place.who, daemon=True)
        place.process.start()

    def one(self, kind: str) -> _Place | None:
        """One that is at work, by chance."""
        there = [p for p in self._places if p.kind == kind and p.process is not None and p.process.is_alive()]
        return self._random.choice(there) if there else None

    def kill(self, place: _Place) -> None:
        """SIGKILL."""
        assert place.process is not None
        place.process.kill()
        place.process.join()
        self._ledger.note("killed", who=place.who)
        place.process = None

    def freeze(self, place: _Place) -> str:
        """SIGSTOP. Gives who it was."""
        assert place.process is not None
        self._ledger.note("frozen", who=place.who)
        os.kill(place.process.pid, signal.SIGSTOP)
        return place.who

    def thaw(self, place: _Place, who: str) -> None:
        """SIGCONT, unless somebody else is there by now."""
        if place.process is not None and place.who == who and place.process.pid is not None:
            os.kill(place.process.pid, signal.SIGCONT)
            self._ledger.note("thawed", who=who)

    def end(self) -> list[str]:
        """Lets each finish its call. Gives those that did not, or ended by an error."""
        processes = [p for p in self._places if p.process is not None]
        for place in processes:
            place.process.terminate()
        until = time.monotonic() + JOIN_S
        bad = []
        for place in processes:
            place.process.join(max(0.0, until - time.monotonic()))
            code = place.process.exitcode
            if code is None:
                bad.append(f"{place.who} hangs")
                place.process.kill()
            elif code not in (0, -signal.SIGTERM):  # that one had only just been started
                bad.append(f"{place.who} ended with {code}")
        return bad
