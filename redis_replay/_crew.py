"""The processes of one run: started together, watched, and ended whatever happens."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

GRACE_S = 5.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Failure:
    """A process that ended before it was told to."""

    who: str
    what: str
    trace: str = ""


@dataclass(frozen=True)
class _Member:
    who: str
    process: SpawnProcess
    pipe: Connection

    def failure(self) -> Failure | None:
        """Why it is no longer there, or None while it is."""
        if self.process.is_alive():
            return None
        try:
            what, trace = self.pipe.recv() if self.pipe.poll() else ("", "")
        except EOFError:
            what, trace = "", ""
        code = self.process.exitcode
        return Failure(self.who, what or f"it ended too early, with exit code {code}", trace)


class Crew:
    """Child processes that end with this one. Use it in `with`: at its end they have gone."""

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def start(self, who: str, target: Callable[..., object], *args: Any) -> None:
        """Run `target(*args)` in a process of its own, called `who` in messages."""
        ours, theirs = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=_main, args=(theirs, target, args), name=who, daemon=True)
        with _interrupts_ignored():  # Ctrl-C reaches the whole group: the parent alone acts on it
            process.start()
        theirs.close()
        self._members.append(_Member(who, process, ours))

    def watch(self, seconds: float) -> Failure | None:
        """The first process found to have ended, at once; None if all are there after so many seconds."""
        wait([member.process.sentinel for member in self._members], seconds)
        return next(filter(None, (member.failure() for member in self._members)), None)

    def end(self, grace_s: float = GRACE_S) -> None:
        """Give each so many seconds to end by itself, then end it."""
        processes = [member.process for member in self._members]
        _join(processes, grace_s)
        for stop in (SpawnProcess.terminate, SpawnProcess.kill):
            for process in processes:
                if process.is_alive():
                    stop(process)
            _join(processes, 1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _join(processes: list[SpawnProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a started program inherits this
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _main(pipe: Connection, target: Callable[..., object], args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        target(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells the user
        pipe.send((f"{type(error).__name__}: {error}", traceback.format_exc()))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()  # returns also when the parent was killed
        os._exit(1)
