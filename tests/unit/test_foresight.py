"""What a draw will choose: the script's own random numbers, and when it is known from what it will choose."""

import random

import numpy as np
import pytest

from redis_replay._foresight import M1, STEADY, Foresight, below
from tests._mrg import Mrg32k3a


@pytest.mark.parametrize("limit", [1, 2, 3, 255, 10_000, 1_000_003, 2**31 + 1, M1])
def test_the_numbers_are_those_of_the_scripts(limit, seed):
    """Whole batches, for seeds up to the largest; those that are drawn again are left out in both."""
    chance = random.Random(seed)
    for n in (1, 2, 256, 257, 8_192):
        seeds = [chance.choice([1, M1 // 3, 4294944442, chance.randrange(1, 4294944443)]) for _ in range(6)]
        found, expected = below(seeds, limit, n), Mrg32k3a(seeds)
        if found is None:  # so many are drawn again only where nearly half of them must be
            assert limit > 2**31
        else:
            assert found.tolist() == [expected.below(limit) for _ in range(n)]


def test_it_is_known_when_nothing_has_changed_for_some_draws():
    """A change, and a draw that cannot be foreseen, begin the count anew."""
    sight, seeds = Foresight(), [1, 2, 3, 4, 5, 6]
    for first, live in [(1, 10), (2, 10), (2, 11), (0, 11), (5, 100)]:
        for _ in range(STEADY):
            sight.note(first, live)
            assert sight.look(seeds, 3) is None
        sight.note(first, live)
        found = sight.look(seeds, 3)
        assert (found is None) == (first == 0)
        if found:
            assert found.range == f"{first} {live}"
            assert found.chosen.tolist() == [first + Mrg32k3a(seeds).below(live), *found.chosen.tolist()[1:]]
            assert ((first <= found.chosen) & (found.chosen < first + live)).all()
            assert found.chosen.dtype == np.int64
