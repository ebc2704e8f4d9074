"""Randomness: every record as likely as the next one, and the same seed gives the same sample on every server."""

import copy
import math
import pickle
from collections import Counter

import pytest

from redis_replay.samplers import Uniform
from tests._contract import LARGE, Records, numbers
from tests._mrg import M1, Mrg32k3a
from tests._server import in_turn

REPLACEMENT = pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
FIRST_EIGHT = [50, 50, 32, 52, 13, 59, 82, 3]  # of 100 records, by the handle's seed 7: on any server, for ever


def is_uniform(counts, cells, spread=1.0):
    """Whether counts over `cells` equally likely cells are as far from equal as chance makes them, and no nearer.

    Chi-square by Wilson and Hilferty's cube root, which makes it normal: 4.9 deviations are one case in a million.
    `spread`: of the variance, what a draw without replacement leaves.
    """
    expected = sum(counts.values()) / cells
    statistic = sum((counts.get(cell, 0) - expected) ** 2 for cell in range(cells)) / expected / spread
    degrees = cells - 1
    deviation = ((statistic / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees))
    return abs(deviation) < 4.9


def test_the_judge_of_uniformity_can_fail():
    """Counts that lean, and counts that are too equal, are both found out."""
    assert not is_uniform(Counter(dict.fromkeys(range(40), 200) | {0: 400}), 40)
    assert not is_uniform(Counter(dict.fromkeys(range(40), 200)), 40)


def test_draws_with_replacement_are_uniform(server, make_buffer, small):
    """8,192 draws over 50 records."""
    buffer = make_buffer(seed=1)
    buffer.extend(small.many(0, 50))
    assert is_uniform(Counter(numbers(buffer.sample(8192, min_items=50))), 50)


def test_draws_around_holes_are_uniform(server, make_buffer, small):
    """Where every third record was removed, and the head was evicted, the others are equally likely."""
    buffer = make_buffer(capacity=90, seed=2)
    indices = buffer.extend(small.many(0, 90))
    buffer.remove(indices[::3])
    buffer.extend(small.many(90, 130))
    left = sorted(int(record["i"]) for record in buffer.records())
    drawn = Counter(left.index(number) for number in numbers(buffer.sample(8192, min_items=1)))
    assert len(left) == 90
    assert is_uniform(drawn, 90)


@pytest.mark.parametrize("real_server", ["valkey"], indirect=True)
def test_batches_without_replacement_are_uniform(real_server, make_buffer, small):
    """Over 200 batches of 10 of 40 records, each record is in as many as any other."""
    buffer, drawn = make_buffer(sampler=Uniform(replacement=False), seed=3), Counter()
    buffer.extend(small.many(0, 40))
    for _ in range(200):
        drawn.update(numbers(buffer.sample(10)))
    assert is_uniform(drawn, 40, spread=30 / 39)


@pytest.mark.parametrize("real_server", ["redis"], indirect=True)
def test_places_in_a_batch_are_uniform(real_server, make_buffer, small):
    """Without replacement a record's place in the batch is as random as its being there."""
    buffer, first, last = make_buffer(sampler=Uniform(replacement=False), seed=4), Counter(), Counter()
    buffer.extend(small.many(0, 10))
    for _ in range(300):
        batch = numbers(buffer.sample(5))
        first[batch[0]] += 1
        last[batch[4]] += 1
    assert is_uniform(first, 10)
    assert is_uniform(last, 10)


@pytest.mark.parametrize(("real_server", "replacement"), in_turn([(True,), (False,)]), indirect=["real_server"])
def test_consuming_draws_are_uniform(real_server, make_buffer, small, replacement):
    """Which half of 20 records a buffer that consumes gives out first, over 150 fillings."""
    buffer, drawn = make_buffer(sampler=Uniform(replacement), consume_after_n_samples=1, seed=5), Counter()
    for _ in range(150):
        buffer.extend(small.many(0, 20))
        drawn.update(numbers(buffer.sample(10)))
        buffer.empty()
    assert is_uniform(drawn, 20, spread=10 / 19)


def test_one_seed_gives_one_sample_everywhere(server, make_buffer, small):
    """The digits are the same on fakeredis, Valkey and Redis, in every version."""
    buffer = make_buffer(seed=7)
    buffer.extend(small.many(0, 100))
    assert numbers(buffer.sample(8)) == FIRST_EIGHT


@REPLACEMENT
@pytest.mark.parametrize("consume", [None, 1, 2])
def test_one_seed_on_equal_contents_repeats(server, make_buffer, records, replacement, consume):
    """Two buffers with the same records, and handles of the same seed: the same batches, one after another."""
    batches = []
    for name in ("first", "second"):
        buffer = make_buffer(name, sampler=Uniform(replacement), consume_after_n_samples=consume, seed=11)
        buffer.extend(records.many(0, 60))
        batches.append([numbers(buffer.sample(12)) for _ in range(4)])
    assert batches[0] == batches[1]


def test_another_seed_gives_another_sample(server, make_buffer, small):
    """Seeds tell streams apart, and without one each handle has fresh entropy."""
    make_buffer().extend(small.many(0, 100))
    batches = [tuple(numbers(make_buffer(attach=True, seed=seed).sample(20))) for seed in (1, 2, None, None)]
    assert len(set(batches)) == 4


def test_one_handles_batches_differ(server, make_buffer, small):
    """A seeded handle does not give the same batch again and again."""
    buffer = make_buffer(seed=1)
    buffer.extend(small.many(0, 100))
    assert numbers(buffer.sample(20)) != numbers(buffer.sample(20))


def test_an_unpickled_handle_has_its_own_stream(real_server, make_buffer, small):
    """A seeded handle that goes to other processes does not make them all draw alike."""
    buffer = make_buffer(seed=1)
    buffer.extend(small.many(0, 100))
    text = pickle.dumps(buffer)
    with pickle.loads(text) as first, pickle.loads(text) as second:
        batches = {tuple(numbers(handle.sample(20))) for handle in (buffer, first, second)}
    assert len(batches) == 3


def test_a_copied_handle_has_its_own_stream(server, make_buffer, small):
    """deepcopy gives a handle that draws otherwise."""
    buffer = make_buffer(seed=1)
    buffer.extend(small.many(0, 100))
    with copy.deepcopy(buffer) as other:
        assert numbers(buffer.sample(20)) != numbers(other.sample(20))


@REPLACEMENT
@pytest.mark.parametrize("consume", [None, 1])
@pytest.mark.parametrize("seeds", [(1, 2, 3, 4, 5, 6), (M1 - 1, 1, M1 - 1, 7, 1, 4294944442)], ids=["low", "high"])
def test_the_script_draws_what_the_model_does(server, make_buffer, make_raw, small, replacement, consume, seeds):
    """MRG32k3a in Lua's doubles gives the numbers that whole numbers give, around holes, too.

    On every server: so the law of many draws need be seen on one alone.
    """
    buffer = make_buffer(sampler=Uniform(replacement), consume_after_n_samples=consume)
    indices = buffer.extend(small.many(0, 50))
    buffer.remove(indices[[0, 7, 8, 30]])
    left = [index for index in range(1, 51) if index not in (1, 8, 9, 31)]
    raw = make_raw()
    raw.seeds = list(seeds)
    random = Mrg32k3a(seeds)
    distinct = consume or not replacement
    ranks = random.different(20, 46) if distinct else [random.below(46) for _ in range(20)]
    assert raw.sample(20)[7] == " ".join(str(left[rank]) for rank in ranks)


def test_draws_over_billions_favour_nobody(server, make_buffer, make_raw, client, name):
    """Of 3 billion records the first ones are not drawn more often: a number that would do that is drawn again."""
    buffer, live = make_buffer(capacity=4_000_000_000), 3_000_000_000
    buffer.extend(Records(LARGE).many(0, 2))
    client.hset(f"rr:{{{name}}}:counters", mapping={"first": 1, "last": live, "sampleable_size": live})
    raw, random = make_raw(), Mrg32k3a((1, 2, 3, 4, 5, 6))
    assert raw.sample(50)[7] == " ".join(str(1 + random.below(live)) for _ in range(50))
