"""What a script says of the rate limiter that it went by: judged and told."""

from dataclasses import dataclass
from typing import Self

from redis_replay.exceptions import ArgumentError
from redis_replay.limiters import Law

SIDES = {"r": "sample", "w": "insert"}  # of a wait, as scripts and as users call them


@dataclass(frozen=True)
class Limited:
    """A limiter at work: its law, the difference in units of 1 / q, and the live records."""

    law: Law
    diff: int
    live: int

    @classmethod
    def of(cls, word: str, live: int) -> Self:
        """Of the word that lua/include/limit.lua makes.

        Raises:
            ValueError: none of our scripts made it.
        """
        *law, diff = map(int, word.split(","))
        if len(law) != len(Law._fields):
            raise ValueError(word)
        return cls(Law(*law), diff, live)

    @property
    def difference(self) -> float:
        """Inserts * samples_per_insert - samples."""
        return self.diff / max(1, self.law.q)

    def never(self, side: str, n: int, *, consumes: bool) -> ArgumentError | None:
        """Why a call for `n` records will never get through, if so: the difference cannot move so far. Writes of up to
        min_size may, where records leave.
        """
        law = self.law
        if not law.q:
            return None
        most = (law.high - law.low) // (law.q if side == "r" else law.p)
        if n <= most or (side == "w" and n <= law.min_size and (consumes or self.live + n <= law.min_size)):
            return None
        what = "min_items (or batch_size)" if side == "r" else "the batch"
        allowed = f"at most {most:,}, which is what the rate limiter lets through at once"
        return ArgumentError(name=what, allowed=allowed, found=n)

    def against(self, side: str, n: int) -> str:
        """Why a call for `n` records does not get through; empty: the limiter is not why."""
        law, q = self.law, max(1, self.law.q)
        if side == "r" and self.live < law.min_size:
            return f"the rate limiter blocks sample calls until {law.min_size} records are live ({self.live} are): insert more"
        if not law.q:
            return ""
        free = (self.diff - law.low) // q if side == "r" else max(law.min_size - self.live, (law.high - self.diff) // law.p)
        if free >= n:
            return "" if side == "r" else "there is room, and others that came before wait for it"
        blocked, other = SIDES[side], SIDES["w" if side == "r" else "r"]
        return (
            f"the rate limiter blocks {blocked} calls until more {other} calls come: inserts * samples_per_insert - samples is "
            f"{self.difference:g}, and has to stay in {law.low / q:g} to {law.high / q:g} (samples_per_insert: {law.p / q:g})"
        )
