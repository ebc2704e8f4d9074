"""What a process was about to do, and what it was told: one line each, in a file that outlives the process."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Ledger:
    """One process's own file. A line is one `write`, so that it is with the system before the next step, whatever ends us."""

    def __init__(self, directory: Path, who: str) -> None:
        self._fd = os.open(directory / f"{who}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **data: Any) -> float:
        """Writes a line. Gives its time, by the clock that all processes of the machine share."""
        at = time.monotonic()
        os.write(self._fd, json.dumps([at, event, data]).encode() + b"\n")
        return at


@dataclass(frozen=True)
class Line:
    """One line of a ledger."""

    at: float
    event: str
    data: dict[str, Any]


@dataclass
class Call:
    """A call as its process saw it.

    Attributes:
        who: the process.
        what: the name of the call; `data` is what was noted before it.
        began, ended: when; `ended` is that of the kill where the process was killed inside it, None where it never ended.
        result: what was noted after it; None where its process did not live to note it.
    """

    who: str
    what: str
    data: dict[str, Any]
    began: float
    ended: float | None = None
    result: dict[str, Any] | None = None

    @property
    def error(self) -> str | None:
        """The class of the error that it ended with."""
        return self.result.get("error") if self.result else None

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell what it did: its process was killed inside it, or it said so itself."""
        return self.result is None or self.error == "OutcomeUnknownError"


def read(directory: Path) -> dict[str, list[Line]]:
    """Every process's lines, in order."""
    return {path.stem: _lines(path) for path in sorted(directory.glob("*.jsonl"))}


def _lines(path: Path) -> list[Line]:
    return [Line(*json.loads(text)) for text in path.read_text().splitlines()]


OUTSIDE = ("retry", "log", "broke")  # lines that are neither the beginning nor the end of a call


def calls(who: str, lines: list[Line], killed_at: float | None) -> list[Call]:
    """A process's calls, in order. Only the last one may have no end."""
    out: list[Call] = []
    for line in lines:
        if line.event == "end":
            out[-1].ended, out[-1].result = line.at, line.data
        elif line.event not in OUTSIDE:
            out.append(Call(who, line.event, line.data, line.at))
    if out and out[-1].ended is None:
        out[-1].ended = killed_at
    return out
