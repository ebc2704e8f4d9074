"""Draws selection.svg: drawn against exact probabilities of a draw by priority."""

from pathlib import Path

import numpy as np

from redis_replay import ReplayBuffer
from redis_replay.samplers import Prioritized

RECORDS, DRAWS, ALPHA = 16, 200_000, 0.6
WIDTH, HEIGHT, EDGE = 640, 320, 40
PRIORITIES = 2.0 ** np.arange(RECORDS) / 1000


def drawn() -> np.ndarray:
    """How often each record comes, as a part of all draws: float64 (RECORDS,)."""
    counts = np.zeros(RECORDS)
    with ReplayBuffer("embedded://", "picture", capacity=RECORDS, sampler=Prioritized(alpha=ALPHA, beta=0.0), seed=0) as buffer:
        buffer.extend({"i": np.arange(RECORDS)}, priority=PRIORITIES)
        while counts.sum() < DRAWS:
            np.add.at(counts, buffer.sample(8000, min_items=1)["i"], 1)
    return counts / counts.sum()


def picture(exact: np.ndarray, seen: np.ndarray) -> str:
    """Bars of the exact probabilities, points of the seen ones, both on a logarithmic scale."""
    low, high = np.log10(exact.min() / 2), np.log10(exact.max() * 1.5)
    step, base = (WIDTH - 2 * EDGE) / RECORDS, HEIGHT - EDGE

    def y(value: float) -> float:
        return base - (np.log10(value) - low) / (high - low) * (HEIGHT - 2 * EDGE)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, (p, q) in enumerate(zip(exact, seen, strict=True)):
        x = EDGE + i * step
        parts.append(f'<rect x="{x:.1f}" y="{y(p):.1f}" width="{step - 4:.1f}" height="{base - y(p):.1f}" fill="#9bbcdb"/>')
        parts.append(f'<circle cx="{x + step / 2 - 2:.1f}" cy="{y(q):.1f}" r="3" fill="#b03030"/>')
        parts.append(f'<text x="{x + step / 2 - 2:.1f}" y="{base + 14}" text-anchor="middle">{i}</text>')
    for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        parts.append(f'<text x="{EDGE - 4}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">1e{power}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">record; its priority is 2^record / 1000</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    weight = (PRIORITIES + 1e-8) ** ALPHA
    Path(__file__).with_suffix(".svg").write_text(picture(weight / weight.sum(), drawn()))
