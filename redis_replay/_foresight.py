"""Which records a draw will choose, where that can be known before the server is asked. No I/O.

A uniform draw with replacement goes by arithmetic where the live records are a range without a break: what it chooses follows
from its seeds, the first index, and how many there are. Where these have not changed for some draws, the commands that read the
records go out right before the script, in one trip; the script sends no payloads if the range is as foreseen. If it is not,
the reply is that of any other draw, and what was read is thrown away (docs/architecture.md, docs/benchmarks.md).
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

M1, M2 = 4294967087, 4294944443  # the moduli of MRG32k3a (L'Ecuyer 1999), as in lua/include/random.lua
STEADY = 4  # draws in a row with the same range, before the next is foreseen
SPARE = 16  # numbers more than records: those that would favour the first ones are drawn again


class Foreseen(NamedTuple):
    """What a draw will choose: int64 (n,); and from what, as the script is told: the first index, and how many there are."""

    chosen: NDArray[np.int64]
    range: str


class Foresight:
    """Of one handle. Threads may share it: what they foresee is judged by the script."""

    def __init__(self) -> None:
        self._seen = 0, 0, 0  # the first index, how many there are, and how many draws in a row were from these

    def note(self, first: int, live: int) -> None:
        """A draw was made from `live` records in a row, the first one being `first`; 0: it could not be foreseen."""
        before, there, same = self._seen
        self._seen = first, live, same + 1 if first > 0 and (first, live) == (before, there) else 0

    def look(self, seeds: Sequence[int], n: int) -> Foreseen | None:
        """What a draw of `n` records by these seeds will choose; None: nobody knows."""
        first, live, same = self._seen
        ranks = below(seeds, live, n) if same >= STEADY else None
        return None if ranks is None else Foreseen(ranks + first, f"{first} {live}")


def below(seeds: Sequence[int], limit: int, n: int) -> NDArray[np.int64] | None:
    """The first `n` whole numbers from 0 to `limit` - 1 that lua/include/random.lua makes of six seeds, int64 (n,); None where
    too many had to be drawn again.
    """
    a, b = _powers(-(-(n + SPARE) // 256) * 256)
    s = np.array(seeds, np.uint64)
    x = (a * s[:3] % M1).sum(1).astype(np.int64) - (b * s[3:] % M2).sum(1).astype(np.int64) % M2
    x = (x % M1)[: n + SPARE]
    x = x[x < M1 - M1 % limit][:n]
    return x % limit if len(x) == n else None


@cache
def _powers(n: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """By what the seeds are multiplied in each of the first `n` numbers of both halves of MRG32k3a: uint64 (n, 3) twice."""

    def powers(modulus: int, factors: tuple[int, int, int]) -> NDArray[np.uint64]:
        rows = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        for _ in range(n):
            last = rows[-3:]
            rows.append([sum(f * row[i] for f, row in zip(factors, last, strict=True)) % modulus for i in range(3)])
        return np.array(rows[3:], np.uint64)

    return powers(M1, (-810728, 1403580, 0)), powers(M2, (-1370589, 0, 527612))
