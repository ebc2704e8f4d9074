"""Draws selection.svg: drawn against exact probabilities, for each sampler that draws at random; the others are certain."""

from itertools import permutations
from pathlib import Path

import numpy as np

from redis_replay import ReplayBuffer
from redis_replay.samplers import Prioritized, Sampler, Uniform

RECORDS, DRAWS, ALPHA, BATCH = 16, 200_000, 0.6, 3
WIDTH, HEIGHT, EDGE = 320, 200, 36
PRIORITIES = 2.0 ** np.arange(RECORDS) / 1000


def drawn(sampler: Sampler, batch: int, **how: int) -> np.ndarray:
    """How often each record comes, as a part of all that were drawn: float64 (RECORDS,)."""
    counts = np.zeros(RECORDS)
    with ReplayBuffer("embedded://", "picture", capacity=RECORDS, sampler=sampler, seed=0) as buffer:
        buffer.extend({"i": np.arange(RECORDS)}, priority=PRIORITIES if sampler.weighs else None)
        while counts.sum() < DRAWS:
            np.add.at(counts, buffer.sample(batch, **how)["i"], 1)
    return counts / counts.sum()


def without_replacement(weight: np.ndarray) -> np.ndarray:
    """The part of each record in batches of BATCH, each next one drawn from the rest: float64 (RECORDS,)."""
    part = np.zeros(RECORDS)
    for chosen in permutations(range(RECORDS), BATCH):
        p, left = 1.0, weight.sum()
        for i in chosen:
            p, left = p * weight[i] / left, left - weight[i]
        part[list(chosen)] += p / BATCH
    return part


def panel(title: str, exact: np.ndarray, seen: np.ndarray, left: int, top: int) -> list[str]:
    """Bars of the exact probabilities, points of the seen ones, both on a logarithmic scale."""
    low, high = np.log10(exact.min() / 2), np.log10(exact.max() * 2)
    step, base = (WIDTH - 2 * EDGE) / RECORDS, top + HEIGHT - EDGE

    def y(value: float) -> float:
        return base - (np.log10(value) - low) / (high - low) * (HEIGHT - 2 * EDGE)

    parts = [f'<text x="{left + WIDTH / 2}" y="{top + 22}" text-anchor="middle">{title}</text>']
    for i, (p, q) in enumerate(zip(exact, seen, strict=True)):
        x = left + EDGE + i * step
        parts.append(f'<rect x="{x:.1f}" y="{y(p):.1f}" width="{step - 3:.1f}" height="{base - y(p):.1f}" fill="#9bbcdb"/>')
        parts.append(f'<circle cx="{x + step / 2 - 1.5:.1f}" cy="{y(q):.1f}" r="2.5" fill="#b03030"/>')
        parts.append(f'<text x="{x + step / 2 - 1.5:.1f}" y="{base + 12}" text-anchor="middle">{i}</text>')
    powers = range(int(np.ceil(low)), int(np.floor(high)) + 1)
    return parts + [f'<text x="{left + EDGE - 4}" y="{y(10.0**k) + 4:.1f}" text-anchor="end">1e{k}</text>' for k in powers]


def picture() -> str:
    """A panel for each."""
    weight, even = (PRIORITIES + 1e-8) ** ALPHA, np.full(RECORDS, 1 / RECORDS)
    by_weight = Prioritized(alpha=ALPHA, beta=0.0)
    once = Prioritized(alpha=ALPHA, beta=0.0, replacement=False)
    panels = [
        ("Uniform()", even, drawn(Uniform(), 8000, min_items=1)),
        (f"Uniform(replacement=False), {BATCH} a batch", even, drawn(Uniform(replacement=False), BATCH)),
        ("Prioritized(alpha=0.6)", weight / weight.sum(), drawn(by_weight, 8000, min_items=1)),
        (f"Prioritized(alpha=0.6, replacement=False), {BATCH} a batch", without_replacement(weight), drawn(once, BATCH)),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}"',
        ' font-family="sans-serif" font-size="9">',
        f'<rect width="{2 * WIDTH}" height="{2 * HEIGHT}" fill="white"/>',
    ]
    for k, each in enumerate(panels):
        parts += panel(*each, left=k % 2 * WIDTH, top=k // 2 * HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
