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


class Paced:
    """What a model of a buffer does about its rate limiter."""

    def there(self):
        """How many records may be drawn, without replacement."""
        if not self.pace or self.state == "draining":
            return len(self.live)
        return self._most(self.pace.can_sample, len(self.live))

    def never(self, side, n):
        """Whether the rate limiter will never let a batch through."""
        return self.pace is not None and self.pace.never(side, n, consumes=self.consume is not None)

    def set_rate_limiter(self, lane, limiter):
        self.request(lane)
        self.pace = rule_of(limiter) if limiter else None
        self.keeps_unread = isinstance(limiter, Queue) and self.consume == 1
        self._begin_pace()
        self._end()

    def _most(self, may, n):
        """The largest number up to n that the rate limiter lets through."""
        self.pace.size = len(self.live)
        return next((k for k in range(n, 0, -1) if may(k)), 0)

    def _room(self, n):
        """For how many of n records there is, as the rate limiter has it."""
        if not self.pace:
            return n
        free = self.capacity - len(self.leased) - len(self.live) if self.keeps_unread else n
        return max(0, min(free, self._most(self.pace.can_insert, n)))

    def _begin_pace(self):
        self.era += 1
        if self.pace:
            self.pace.begin(len(self.live), counts_all=self.keeps_unread)

    def _count_draw(self, n):
        self._count(sample_calls=1, samples_returned=n)
        if self.pace:
            self.pace.sampled(n)

    def _uncount_draw(self, n, back, era):
        """Of which so many came back."""
        self._count(sample_calls=-1, samples_returned=-n)
        if self.pace and (self.keeps_unread or era == self.era):
            self.pace.sampled(-back if self.keeps_unread else -n)

    def _pass_over(self, n):
        """So many go without having been drawn."""
        if self.keeps_unread:
            self.pace.sampled(n)
