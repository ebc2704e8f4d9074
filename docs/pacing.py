"""Draws pacing.svg: the rate limiter's difference, as a writer and a reader go on by chance, each whenever it may."""

import random
from pathlib import Path

from redis_replay import ReplayBuffer
from redis_replay.limiters import SampleToInsertRatio

LIMITER = SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=100, error_buffer=96.0)
CALLS, WRITE, DRAW = 400, 16, 32
WIDTH, HEIGHT, EDGE = 640, 240, 40


def differences() -> list[float]:
    """After each of CALLS calls, refused or not."""
    out, rng = [], random.Random(0)
    with ReplayBuffer("embedded://", "picture", capacity=10_000, rate_limiter=LIMITER, seed=0) as buffer:
        while len(out) < CALLS:
            if rng.random() < 0.35 and buffer.can_insert(WRITE):
                buffer.extend({"i": list(range(WRITE))})
            elif buffer.can_sample(DRAW):
                buffer.sample(DRAW)
            out.append(buffer.stats()["limiter_difference"])
    return out


def picture(seen: list[float]) -> str:
    """The difference over the calls, and the range that the limiter keeps it in once there are enough records."""
    law = LIMITER.law
    low, high = law.low / law.q, law.high / law.q

    def x(call: float) -> float:
        return EDGE + call / len(seen) * (WIDTH - 2 * EDGE)

    def y(value: float) -> float:
        return HEIGHT - EDGE - value / (high * 1.1) * (HEIGHT - 2 * EDGE)

    line = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(seen))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<rect x="{EDGE}" y="{y(high):.1f}" width="{WIDTH - 2 * EDGE}" height="{y(low) - y(high):.1f}" fill="#dbe7f2"/>',
        f'<polyline points="{line}" fill="none" stroke="#b03030"/>',
        *(f'<text x="{EDGE - 4}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>' for v in (0, low, high)),
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">calls; {LIMITER}</text>',
    ]
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(differences()))
