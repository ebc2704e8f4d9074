"""Several files of figures as Markdown: what was to be reached, and all figures side by side; and as pictures."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redis_replay._bench.goals import OURS, Figure, Verdict, judge

Row = dict[str, Any]
Figures = dict[Figure, dict[str, float]]
"""By figure, then by peer."""


def read(files: Sequence[Path]) -> Figures:
    """Every figure; where the files have several of one, the last counts."""
    figures: Figures = {}
    for row in _rows(files):
        for name, value in _figures(row):
            figures.setdefault((row["workload"], row["size"], name), {})[row["peer"]] = value
    return figures


def targets(figures: Figures) -> str:
    """A line for each goal of which there is a figure of ours."""
    head = ["workload", "size", "figure", "measured", "beside", "ratio", "target", "met"]
    verdicts = [verdict for verdict in judge(figures) if verdict.ours is not None]
    return _markdown(head, [_judged(verdict) for verdict in verdicts])


def table(figures: Figures) -> str:
    """A line for each figure that some peer has."""
    found = {peer for values in figures.values() for peer in values}
    others = sorted(found - {OURS})
    head = ["workload", "size", "figure", OURS, *others, *(f"{OURS} / {peer}" for peer in others)]
    workloads = list(dict.fromkeys(workload for workload, _, _ in figures))
    places = sorted(figures, key=lambda at: (workloads.index(at[0]), at[1]))
    return _markdown(head, [_line(at, figures[at], others) for at in places])


def _rows(files: Iterable[Path]) -> Iterator[Row]:
    for path in files:
        for line in path.read_text().splitlines():
            if line.strip():
                yield json.loads(line)


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    """Every single number of a row, by a name that the peers share."""
    for name in ("items_per_s", "p50_ms", "p99_ms"):
        if row[name] is not None:
            yield name, row[name]
    for name, value in row["extra"].items():
        if isinstance(value, int | float) and name not in ("load1", "items", "payload_bytes", "waits"):
            yield name, value
    for kind, (p50, _) in _kinds(row).items():
        yield f"{kind} p50_ms", p50


def _kinds(row: Row) -> dict[str, list[float]]:
    """Beside its first kind of wait, a peer may have others, such as a plain round trip."""
    kinds: dict[str, list[float]] = row["extra"].get("p50_p99_ms", {})
    return dict(list(kinds.items())[1:])


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * 3 + ["---:"] * (len(head) - 3)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *lines])


def _judged(verdict: Verdict) -> list[str]:
    goal = verdict.goal
    beside = f"{goal.peer.removeprefix('torchrl ')} {_number(verdict.peers)}" if goal.peer and verdict.peers else ""
    ratio = f"{verdict.reached:.2f}" if goal.peer and verdict.reached is not None else ""
    target = f"{'≤' if goal.most else '≥'} {_number(goal.bound)}" + (
        f" × {goal.peer.removeprefix('torchrl ')}" if goal.peer else ""
    )
    met = {None: "?", True: "yes", False: "no"}[verdict.met]
    return [goal.workload, str(goal.size), goal.figure, _number(verdict.ours), beside, ratio, target, met]


def _line(at: Figure, values: dict[str, float], others: Sequence[str]) -> list[str]:
    workload, size, name = at
    ours = values.get(OURS)
    ratios = (_ratio(ours, values.get(peer)) for peer in others)
    return [workload, str(size), name, _number(ours), *(_number(values.get(peer)) for peer in others), *ratios]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or isinstance(value, int) else f"{value:.3g}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours is not None and theirs else ""
