"""The figures as one SVG picture: rates side by side, and how far each goal was reached. Both on logarithmic scales."""

from collections.abc import Iterator
from math import log10

from redis_replay._bench.goals import OURS, RAW, REVERB, STORE, Verdict, judge
from redis_replay._bench.report import Figures

COLOURS = {OURS: "#b03030", RAW: "#999999", REVERB: "#5b8db8", STORE: "#d9a441"}
WIDTH, ROW, LABEL, SPACE = 760, 13, 250, 70  # pixels
_LEAST, _MOST = 0.1, 10.0  # of what was to be reached: beyond, a bar is cut


def draw(figures: Figures) -> str:
    """The picture: a bar for each rate of `insert`, `sample` and `both`, then one for each goal that was measured."""
    body, height = list[str](), 10
    for panel in (_rates(figures), _goals(judge(figures))):
        for text, top in panel:
            body.append(f'<g transform="translate(0 {height})">{text}</g>')
            height += top
        height += 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *body, "</svg>\n"])


Panel = Iterator[tuple[str, int]]
"""Pieces from top to bottom, each with its height."""


def _rates(figures: Figures) -> Panel:
    shown = {at: figures[at] for at in figures if at[0] in ("insert", "sample", "both") and at[2] == "items_per_s"}
    most = max((rate for values in shown.values() for rate in values.values()), default=1.0)
    yield _text(LABEL, "records per second, batches of 256"), ROW + 4
    for (workload, size, _), values in shown.items():
        for place, (peer, colour) in enumerate((peer, colour) for peer, colour in COLOURS.items() if peer in values):
            share = max(0.0, log10(values[peer] / most * 1000) / 3)  # from a thousandth of the largest
            name = f"{workload}, {size:,} B" if place == 0 else ""
            yield _bar(name, share, colour, f"{peer} {values[peer]:,.0f}"), ROW
        yield "", 5


def _goals(verdicts: list[Verdict]) -> Panel:
    known = [verdict for verdict in verdicts if verdict.reached]
    yield _text(LABEL, "of what was to be reached: 1 is the line"), ROW + 4
    for verdict in known:
        goal, reached = verdict.goal, verdict.reached or 0.0
        part = goal.bound / reached if goal.most else reached / goal.bound
        share = log10(min(max(part, _LEAST), _MOST) / _LEAST) / log10(_MOST / _LEAST)
        name = f"{goal.workload}, {goal.size:,} B, {goal.figure}" + (f" / {goal.peer}" if goal.peer else "")
        yield _bar(name, share, "#4c9a5b" if verdict.met else "#b03030", f"{part:.2f}"), ROW
    line = LABEL + (WIDTH - LABEL - SPACE) * log10(1 / _LEAST) / log10(_MOST / _LEAST)
    yield f'<line x1="{line:.0f}" x2="{line:.0f}" y1="{-ROW * len(known)}" y2="0" stroke="black" stroke-dasharray="2"/>', 0


def _text(x: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{ROW - 3}">{text}</text>'


def _bar(name: str, share: float, colour: str, value: str) -> str:
    """`share`: of the room there is, 0 to 1."""
    long = share * (WIDTH - LABEL - SPACE)
    label = f'<text x="{LABEL - 6}" y="{ROW - 3}" text-anchor="end">{name}</text>'
    bar = f'<rect x="{LABEL}" y="1" width="{long:.1f}" height="{ROW - 2}" fill="{colour}"/>'
    return label + bar + _text(LABEL + long + 4, value)
