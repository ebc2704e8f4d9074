"""What the person at the terminal sees: a live table, or plain lines, and a closing table."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from redis_replay._demo.board import Progress

GOAL = 150.0
LAST = 20  # episodes that a mean return is taken over
_LINE_S = 1.0

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Snapshot:
    """One look at a run."""

    elapsed_s: float = 0.0
    returns: Sequence[float] = ()
    write_count: int = 0
    sampleable_size: int = 0
    writing_s: float = 0.0
    learner: Progress = field(default_factory=Progress)

    @property
    def mean(self) -> float:
        """Mean return of the last episodes; 0.0 before the first."""
        return statistics.fmean(self.returns[-LAST:]) if self.returns else 0.0

    @property
    def reached(self) -> bool:
        """Whether the goal is reached."""
        return len(self.returns) >= LAST and self.mean >= GOAL


class View(Protocol):
    """Shows a run while it goes on."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest state."""

    def stop(self) -> None:
        """Leave the terminal as it was."""

    def close(self, rows: Rows) -> None:
        """Show the closing table."""


def _running_rows(snapshot: Snapshot) -> Rows:
    learner = snapshot.learner
    return [
        (f"mean return, last {LAST} episodes", f"{snapshot.mean:.1f} of {GOAL:.0f}"),
        ("episodes", f"{len(snapshot.returns):,}"),
        ("write_count", f"{snapshot.write_count:,}"),
        ("sampleable_size", f"{snapshot.sampleable_size:,}"),
        ("updates", f"{learner.updates:,}"),
        ("waits", f"{learner.waits:,}"),
        ("wakeups by notice / by poll", f"{learner.wakeups_by_notice:,} / {learner.wakeups_by_poll:,}"),
        ("seconds", f"{snapshot.elapsed_s:.0f}"),
    ]


def closing_rows(snapshot: Snapshot, outcome: str, verdict: str) -> Rows:
    """What the run came to."""
    first, learner = snapshot.returns[:LAST], snapshot.learner
    before = statistics.fmean(first) if first else 0.0
    rate = snapshot.write_count / snapshot.writing_s if snapshot.writing_s else 0.0
    wait = f"{statistics.median(learner.wait_ms):.2f} ms" if learner.wait_ms else "no waits"
    return [
        ("outcome", outcome),
        (f"mean return before (first {LAST} episodes)", f"{before:.1f}"),
        (f"mean return after (last {LAST} episodes)", f"{snapshot.mean:.1f}"),
        ("transitions", f"{snapshot.write_count:,}"),
        ("transitions/s", f"{rate:,.0f}"),
        ("updates", f"{learner.updates:,}"),
        ("wakeups by notice / by poll", f"{learner.wakeups_by_notice:,} / {learner.wakeups_by_poll:,}"),
        ("wait p50", wait),
        ("doctor", verdict),
        ("seconds", f"{snapshot.elapsed_s:.1f}"),
    ]


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title, self._console = title, console or Console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        """Redraw."""
        table = _table(self._title, _running_rows(snapshot))
        table.add_row("progress", ProgressBar(total=GOAL, completed=min(snapshot.mean, GOAL), width=30))
        self._live.update(table)

    def stop(self) -> None:
        """Take the table away."""
        self._live.stop()

    def close(self, rows: Rows) -> None:
        """Print the closing table."""
        self._console.print(_table(self._title, rows))


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


class PlainView:
    """One line about once a second."""

    def __init__(self, title: str, write: Callable[[str], object]) -> None:
        self._write, self._next = write, 0.0
        write(title)

    def show(self, snapshot: Snapshot) -> None:
        """Print a line, unless the last was less than a second ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_S
        learner = snapshot.learner
        wakeups = f"notice {learner.wakeups_by_notice}, poll {learner.wakeups_by_poll}"
        self._write(
            f"{snapshot.elapsed_s:4.0f} s  return {snapshot.mean:5.1f}  episodes {len(snapshot.returns)}"
            f"  write_count {snapshot.write_count}  sampleable_size {snapshot.sampleable_size}"
            f"  updates {learner.updates}  waits {learner.waits} ({wakeups})"
        )

    def stop(self) -> None:
        """Nothing to put back."""

    def close(self, rows: Rows) -> None:
        """Print the closing table as lines."""
        for name, value in rows:
            self._write(f"{name}: {value}")
