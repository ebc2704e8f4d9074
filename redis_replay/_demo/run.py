"""The job as a whole: its beginning, its goal, its end."""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from redis_replay import ReplayBuffer
from redis_replay._crew import GRACE_S, Crew, Failure
from redis_replay._demo import actor, learner
from redis_replay._demo.actor import Job
from redis_replay._demo.board import Board
from redis_replay._demo.view import GOAL, LAST, LiveView, PlainView, Snapshot, View, closing_rows
from redis_replay.embedded import EmbeddedServer, resolve
from redis_replay.exceptions import BufferDamagedError, BufferNotFoundError, ConnectionLostError, FormatError, ReplayError

TIME_LIMIT_S = 110.0  # the whole command takes at most 120 s: the rest is for its end
_LOOK_S = 0.2
_SHARED_NAME = "demo"


@dataclass(frozen=True)
class Options:
    """The command line of `redis-replay demo`."""

    url: str | None = None
    name: str | None = None
    actors: int = 2
    seed: int = 0
    steps: int = 100_000
    headless: bool = False
    role: str = "all"
    actor_id: int = 0
    resume: Path | None = None
    fresh: bool = False
    time_limit_s: float = TIME_LIMIT_S

    def job(self, url: str) -> Job:
        """What the processes are told. Only those that are started apart have to know a name beforehand."""
        unique = f"{_SHARED_NAME}-{os.getpid()}-{secrets.token_hex(3)}"
        name = self.name or (unique if self.role == "all" else _SHARED_NAME)
        return Job(url=url, name=name, seed=self.seed, steps=self.steps)


class Interrupted(Exception):  # noqa: N818 - the wish of the user or of the system, not an error
    """Ctrl-C or SIGTERM."""


class Conductor:
    """One run, seen from the process that the user started."""

    def __init__(self, job: Job, options: Options, buffer: ReplayBuffer, view: View) -> None:
        self._job, self._options, self._buffer, self._view = job, options, buffer, view
        self._board, self._crew = Board(job.url, job.name), Crew()
        self._returns: list[float] = []
        self._started, self._first_write = time.monotonic(), 0.0

    def run(self) -> tuple[str, Snapshot]:
        """Why the run is over, "" for the goal, and what it had come to. All processes have ended by then."""
        try:
            self._board.clear()
            self._crew.start("the learner", learner.run, self._job)
            if self._options.role == "all":
                for number in range(self._options.actors):
                    self._crew.start(f"actor {number}", actor.run, self._job, number)
            return self._attend()
        finally:
            with _interrupts_put_off():
                self._finish()

    def _attend(self) -> tuple[str, Snapshot]:
        while True:
            failure = self._crew.watch(_LOOK_S)
            snapshot = self._look()
            self._view.show(snapshot)
            over = self._over(snapshot, failure)
            if over is not None:
                return over, snapshot

    def _over(self, snapshot: Snapshot, failure: Failure | None) -> str | None:
        if snapshot.reached:
            return ""
        if failure:
            return f"{failure.who} failed: {failure.what}\n{failure.trace}".rstrip()
        short = f"the mean return is {snapshot.mean:.1f}, not {GOAL:.0f}, after "
        if snapshot.write_count >= self._options.steps:
            return short + f"{self._options.steps:,} steps"
        if snapshot.elapsed_s >= self._options.time_limit_s:
            return short + f"{self._options.time_limit_s:.0f} s"
        return None

    def _look(self) -> Snapshot:
        stats: dict[str, Any] = self._buffer.stats()
        now = time.monotonic()
        written, live = int(stats["write_count"]), int(stats["sampleable_size"])
        self._returns += [episode.total for episode in self._board.episodes(len(self._returns))]
        if written and not self._first_write:
            self._first_write = now
        return Snapshot(
            elapsed_s=now - self._started,
            returns=tuple(self._returns),
            write_count=written,
            sampleable_size=live,
            writing_s=now - self._first_write if self._first_write else 0.0,
            learner=self._board.progress(),
        )

    def _finish(self) -> None:
        """End every process: each finds the buffer shut, and one that does not is ended by force."""
        self._view.stop()
        lost = _server_is_lost()
        with suppress(ReplayError, RedisError):
            if not lost:
                self._buffer.shutdown()
                self._board.halt()
        hurry = isinstance(sys.exception(), (KeyboardInterrupt, Interrupted))
        self._crew.end(0.0 if lost else 1.0 if hurry else GRACE_S)
        with suppress(RedisError):
            if self._options.role != "all":
                self._board.halt()  # again: the learner may have published after the first time
            self._board.clear(policy=self._options.role == "all")  # actors elsewhere have yet to read it
        self._board.close()


def run(options: Options, write: Callable[[str], object] = print) -> int:
    """Do what `options` ask for, and give the exit code: 0 only if the goal was reached and every invariant holds."""
    with _sigterm_interrupts():
        try:
            with _server(options.url) as url:
                job = options.job(url)
                return _act(job, options, write) if options.role == "actor" else _conduct(job, options, write)
        except (KeyboardInterrupt, Interrupted):
            write("interrupted: all processes were ended")
            return 130


def _act(job: Job, options: Options, write: Callable[[str], object]) -> int:
    write(f"actor {options.actor_id}: waiting for buffer {job.name}")
    written = actor.run(job, options.actor_id)
    write(f"actor {options.actor_id}: the buffer was shut down after {written:,} transitions")
    return 0


def _conduct(job: Job, options: Options, write: Callable[[str], object]) -> int:
    if not options.fresh and _exists(job):
        write(f"buffer {job.name!r} exists: a demo replaces it, and deletes it at its end; take another --name, or --fresh")
        return 1
    title = f"redis-replay demo: CartPole-v1, buffer {job.name}, seed {job.seed}"
    with ReplayBuffer(job.url, job.name, capacity=job.settings.capacity, seed=job.seed, fresh=True) as buffer:
        try:
            if options.resume is not None:
                loaded = buffer.loads(options.resume)
                write(f"resumed from {options.resume}: {loaded:,} transitions of {buffer.write_count:,}")
            plain = options.headless or not sys.stdout.isatty()
            view: View = PlainView(title, write) if plain else LiveView(title)
            why, snapshot = Conductor(job, options, buffer, view).run()
            sound, verdict = _examine(buffer)
            outcome = why.splitlines()[0] if why else f"the last {LAST} episodes reached {GOAL:.0f}"
            view.close(closing_rows(snapshot, outcome, verdict))
            if why:
                write(f"goal not reached: {why}")
            return 0 if sound and not why else 1
        finally:
            with _interrupts_put_off(), suppress(ReplayError):
                if not _server_is_lost():
                    buffer.delete()


def _exists(job: Job) -> bool:
    try:
        ReplayBuffer(job.url, job.name).close()
    except BufferNotFoundError:
        return False
    except (BufferDamagedError, FormatError):
        return True
    return True


def _server_is_lost() -> bool:
    """Whether the error under way says so: then every further call would only wait for its time limit."""
    return isinstance(sys.exception(), (ConnectionLostError, RedisConnectionError))


def _examine(buffer: ReplayBuffer) -> tuple[bool, str]:
    report = buffer.doctor()
    if report.ok:
        return True, f"I1 to I5 hold; {sum(report.checked.values()):,} entries looked at"
    first = report.findings[0]
    return False, f"{first.invariant} is broken: {first.key} should be {first.expected}, is {first.found}"


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url and not url.startswith("embedded:"):
        yield url
        return
    with resolve(url) if url else EmbeddedServer() as server:
        yield server.url


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Let the clean-up be done: it takes at most the crew's grace."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
