"""What writers and learners do, each in a process of its own, over a sync or an async handle."""

import asyncio
import inspect
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from redis_replay import AsyncReplayBuffer, ReplayBuffer, _ops_lease, _ops_write, _requests
from redis_replay.exceptions import (
    ConnectionLostError,
    NotReadyError,
    OutcomeUnknownError,
    ReplayCancelledError,
    ReplayError,
    ReplayTimeoutError,
    ServerRefusedError,
)
from tests.chaos._ledger import Ledger

NAME = "chaos"
LEASE_S = 1.0
TAGS = 1_000_000  # of one process
LARGE = 700  # times 8 bytes: above what goes through a script
PATIENT_S, IMPATIENT_S = 5.0, 1.0  # how long a call goes on: as it is, and for some
ANSWERED = (NotReadyError, ReplayTimeoutError)
EXPECTED = (*ANSWERED, ReplayCancelledError, ConnectionLostError, ServerRefusedError, OutcomeUnknownError)
OVER_S = 2.0  # a call may end so long after its timeout: a last reply, or a connection, that does not come


@dataclass(frozen=True)
class Job:
    """What a worker is told. `first_tag`: of the records that it writes; `large_from`: when it begins to write large ones."""

    who: str
    url: str
    directory: str
    seed: int
    first_tag: int
    large_from: float
    is_async: bool
    impatient: bool


def blob(tag: int) -> bytes:
    """The bytes that belong to a tag: odd ones are large."""
    return tag.to_bytes(8, "big") * (LARGE if tag % 2 else 1 + tag // 2 % 7)


def records(tags: list[int]) -> list[dict[str, Any]]:
    """The records of tags."""
    return [{"i": np.int64(tag), "blob": blob(tag)} for tag in tags]


class Worker:
    """A process at work: each call is noted before and after it. The same code drives both kinds of handle."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ledger = Ledger(Path(job.directory), job.who)
        self.random = random.Random(job.seed)
        self.stopping = False
        self.buffer: Any = None
        self.patience = IMPATIENT_S if job.impatient else PATIENT_S

    async def call(self, what: str, bound: float, make: Any, *, then: Any = lambda _: {}, **data: Any) -> Any:
        """One call, between two lines. Gives its result, or the error that it may end with."""
        self.ledger.note(what, bound=bound + OVER_S, **data)
        try:
            result = make()
            if inspect.isawaitable(result):
                result = await result
        except EXPECTED as error:
            self.ledger.note("end", error=type(error).__name__, text=str(error)[:300])
            return error
        self.ledger.note("end", **then(result))
        return result

    async def pause(self, seconds: float) -> None:
        """Does nothing for a while."""
        if self.job.is_async:
            await asyncio.sleep(seconds)
        else:
            threading.Event().wait(seconds)

    async def open(self) -> None:
        """A new handle, however long that takes."""
        kind = AsyncReplayBuffer if self.job.is_async else ReplayBuffer
        while not self.stopping:
            made = await self.call("open", 3.0, lambda: kind.attach(self.job.url, NAME, timeout=3, poll_interval=0.3))
            if not isinstance(made, ReplayError):
                self.buffer = made
                return
            await self.pause(0.05)

    async def work(self) -> None:
        """Until it is told to stop."""
        await self.open()
        while not self.stopping:
            await self.turn()
        if self.buffer is not None:
            await self.end()

    async def turn(self) -> None:
        """One round of work."""
        raise NotImplementedError

    async def end(self) -> None:
        """What a process does at last."""
        raise NotImplementedError


class Writer(Worker):
    """Writes records that nobody else writes."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._next = job.first_tag

    def _fresh(self) -> list[int]:
        """New tags; once the time for it has come, large ones among them."""
        large = time.monotonic() >= self.job.large_from and self.random.random() < 0.3
        n = self.random.randint(1, 8)
        tags = [2 * (self._next + i) + (large and self.random.random() < 0.7) for i in range(n)]
        self._next += n
        return tags

    async def turn(self) -> None:
        """One write."""
        tags = self._fresh()
        await self.call(
            "write", self.patience, lambda: self.buffer.extend(records(tags)), then=lambda i: {"index": i.tolist()}, tags=tags
        )
        await self.pause(self.random.uniform(0, 0.1))

    async def end(self) -> None:
        """Closes its handle."""
        await self.call("close", 3.0, self.buffer.close)


class Learner(Worker):
    """Draws batches on lease, keeps each a while, and ends its lease in one of all possible ways."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._mine: list[str] = []  # leases that this process has, as far as it knows

    async def turn(self) -> None:
        """One draw, and what follows."""
        await self._draw()
        if self._mine:
            await self.pause(
                self.random.uniform(0, 0.05) if self.random.random() < 0.95 else self.random.uniform(1, 2) * LEASE_S
            )
            await self.random.choices([self._ack, self._next, self._release, self.end, self._leave], [45, 25, 14, 8, 8])[0]()
        if self.buffer is None:
            await self.open()

    async def _draw(self) -> None:
        n, timeout = self.random.randint(1, 64), self.random.uniform(0.05, 2)
        least = n if self.random.random() < 0.5 else self.random.randint(1, n)
        cancel = threading.Event()
        cancelled = self.random.random() < 0.2
        timer = threading.Timer(timeout, cancel.set)  # a wait without an end, which is cancelled
        wish = {"cancel_event": cancel} if cancelled else {"timeout": timeout}
        timer.start()
        drew = await self.call(
            "draw", timeout, lambda: self.buffer.sample(n, True, wait=True, min_items=least, **wish),
            then=drawn, acks=self._mine, n=n, cancelled=cancelled,
        )  # fmt: skip
        timer.cancel()
        if not isinstance(drew, ReplayError):
            self._mine = [drew[1].lease]
        elif isinstance(drew, ANSWERED):
            self._mine = []

    async def _end_leases(self, verb: str) -> None:
        ended = await self.call(
            verb, self.patience, lambda: getattr(self.buffer, verb)(self._mine[-1]),
            then=lambda e: {"applied": e.applied, "late": e.late}, lease=self._mine[-1],
        )  # fmt: skip
        if not isinstance(ended, ReplayError):
            self._mine.pop()
        elif self.random.random() < 0.5:  # asks again; else the next draw does
            await self._end_leases(verb)

    async def _ack(self) -> None:
        await self._end_leases("ack")

    async def _release(self) -> None:
        await self._end_leases("release")

    async def _next(self) -> None:
        """Nothing: the next draw acknowledges."""

    async def end(self) -> None:
        """Closes the handle, which acknowledges."""
        await self.call("close", 3.0, self.buffer.close, acks=self._mine)
        self._mine, self.buffer = [], None

    async def _leave(self) -> None:
        """Leaves `with` by an exception, which releases."""
        leave = getattr(self.buffer, "__aexit__" if self.job.is_async else "__exit__")
        await self.call("close", 3.0, lambda: leave(KeyError, None, None), releases=self._mine)
        self._mine, self.buffer = [], None


def drawn(drew: Any) -> dict[str, Any]:
    """What is noted of a batch, after a look at its bytes."""
    batch, info = drew
    tags = batch["i"].tolist()
    wrong = [tag for tag, found in zip(tags, batch["blob"], strict=True) if found != blob(tag)]
    return {"lease": info.lease, "tags": tags, "index": info.index.tolist(), "wrong": wrong}


def run(kind: type[Worker], job: Job) -> None:
    """A worker's whole life. SIGTERM lets it finish what it does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = kind(job)
    signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
    _count_retries(worker.ledger)
    logging.getLogger("redis_replay").addHandler(_Logged(worker.ledger))
    if job.impatient:
        set_patience(IMPATIENT_S)
    try:
        _drive(worker)
    except BaseException:
        worker.ledger.note("broke", error=traceback.format_exc())
        sys.exit(1)


def set_patience(seconds: float) -> None:
    """How long the calls of this process go on before they give up. Where that is soon, their outcomes stay unknown."""
    for module in (_requests, _ops_write, _ops_lease):
        module.CALL_SECONDS = seconds


class _Logged(logging.Handler):
    """What the library logs goes into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        """Notes it."""
        self._ledger.note("log", text=record.getMessage())


def _drive(worker: Worker) -> None:
    if worker.job.is_async:
        asyncio.run(worker.work())
        return
    try:
        worker.work().send(None)  # a sync handle never suspends
    except StopIteration:
        return


def _count_retries(ledger: Ledger) -> None:
    sleep = _requests.Sleep

    def noted(seconds: float) -> Any:
        ledger.note("retry")
        return sleep(seconds)

    _requests.Sleep = noted


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
