"""Reverb's RateLimiter in plain Python, and what a buffer's history does to it."""

import math
from dataclasses import dataclass
from fractions import Fraction

from redis_replay.limiters import MinSize, Queue


@dataclass
class Rule:
    """As reverb/cc/rate_limiter.cc has it; 14,400 answers of dm-reverb 0.14.0 were the same. `size`: records that are live."""

    samples_per_insert: Fraction
    min_size: int
    low: float
    high: float
    start: float  # the most that records count for which are there when the rule begins
    size: int = 0
    difference: Fraction = Fraction(0)

    def can_sample(self, n):
        return self.size >= self.min_size and self.difference - n >= self.low

    def can_insert(self, n):
        return self.size + n <= self.min_size or self.difference + n * self.samples_per_insert <= self.high

    def inserted(self, n):
        self.difference += n * self.samples_per_insert

    def sampled(self, n):
        self.difference -= n

    def begin(self, size, *, counts_all):
        """Nobody owes anything. `counts_all`: what is there counts, however much it is."""
        self.size = size
        self.difference = min(size if counts_all else self.start, size * self.samples_per_insert)

    def never(self, side, n, *, consumes):
        """Whether a batch of n will never get through: its range is narrower."""
        if self.high == math.inf:
            return False
        if n <= (self.high - self.low) / (1 if side == "r" else self.samples_per_insert):
            return False
        return side == "r" or n > self.min_size or not (consumes or self.size + n <= self.min_size)


def rule_of(limiter):
    """What a limiter of the library is in Reverb."""
    if isinstance(limiter, MinSize):
        return Rule(Fraction(1), limiter.min_size_to_sample, -math.inf, math.inf, 0)
    if isinstance(limiter, Queue):
        return Rule(Fraction(1), 1, 0, limiter.size, limiter.size)
    ratio, buffer = Fraction(str(limiter.samples_per_insert)), limiter.error_buffer
    middle = ratio * limiter.min_size_to_sample
    low, high = buffer if isinstance(buffer, tuple) else (middle - Fraction(buffer), middle + Fraction(buffer))
    return Rule(ratio, limiter.min_size_to_sample, low, high, min(middle, high))
