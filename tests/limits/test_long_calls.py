"""Long calls: cut into steps, or refused with the limit; and the server answers others in time meanwhile."""

import numpy as np
import pytest

from redis_replay.exceptions import ArgumentError
from redis_replay.samplers import MAX_CHOSEN, Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform
from tests._contract import SMALL, Records, numbers, refused
from tests.limits._pinger import TRIES, Pinger, in_time

RECORDS = Records(SMALL)
SIZES = [1, 1_000, 7_999, 8_000, 8_001, 20_000, pytest.param(200_000, marks=pytest.mark.slow)]
KINDS = {
    "ring": {},
    "fifo ring": {"sampler": Fifo()},
    "lifo ring": {"sampler": Lifo()},
    "queue": {"sampler": Fifo(), "consume_after_n_samples": 1},
    "queue, 3 uses": {"sampler": Fifo(), "consume_after_n_samples": 3},
    "uniform, 1 use": {"consume_after_n_samples": 1},
}


@pytest.fixture
def pinger(real_server):
    """A client that pings all the time."""
    with Pinger(real_server.url, real_server.pid) as one:
        yield one


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_writing_and_taking_any_number(real_server, make_buffer, pinger, kind, n):
    """extend, get and remove of n records are done whole; a sample is, up to its limit, and is refused above it."""
    buffer = make_buffer(capacity=200_000, **KINDS[kind])
    low = n * np.arange(TRIES + 1)
    indices = in_time(pinger, lambda i: buffer.extend(RECORDS.many(low[i], low[i + 1])))
    assert (np.diff(indices) == 1).all()
    got = in_time(pinger, lambda _: numbers(buffer.get(indices)))
    assert got == [i - 1 for i in indices.tolist()]
    limit = KINDS[kind].get("sampler", Uniform()).max_batch
    if n > limit:
        with refused(ArgumentError) as caught:
            buffer.sample(n)
        assert f"{limit:,}" in str(caught.value)
    else:
        assert len(in_time(pinger, lambda _: _drawn(buffer, n))["i"]) == n
    left = [int(record["i"]) + 1 for record in buffer.records()]
    removed = in_time(pinger, lambda _: buffer.remove(left[:n]))
    assert removed in (len(left[:n]), 0)  # 0 where it was tried again
    assert buffer.doctor().ok


def _drawn(buffer, n):
    if len(buffer) < n:
        buffer.extend(RECORDS.many(0, n))
    return buffer.sample(n)


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_evicts_20000(real_server, make_buffer, pinger, kind):
    """A write into a full buffer makes room for all of it in one step; also with holes, and with a batch that is held."""
    buffer, reader = make_buffer(capacity=20_000, **KINDS[kind]), make_buffer(attach=True)
    buffer.extend(RECORDS.many(0, 20_000))
    reader.sample(100)
    buffer.remove(np.arange(2_001, 18_001, 2))

    def write(_):
        before = buffer.stats()["evicted"]
        last = int(buffer.extend(RECORDS.many(0, 20_000))[-1])
        evicted = buffer.stats()["evicted"] - before
        buffer.remove(np.arange(last - 15_000, last, 2))
        return evicted

    assert in_time(pinger, write) >= 11_000
    assert buffer.doctor().ok


BY_WEIGHT = Prioritized(alpha=0.6, beta=0.4)
WEIGHED = {"by weight": {"sampler": BY_WEIGHT}, "heap": {"sampler": MaxHeap()}}


@pytest.mark.parametrize("kind", WEIGHED)
def test_calls_for_20000_with_priorities(real_server, make_buffer, pinger, kind):
    """Written, given others, weighed by another alpha and removed: in steps that keep nobody waiting."""
    buffer, rng = make_buffer(capacity=40_000, **WEIGHED[kind]), np.random.default_rng(1)
    buffer.extend(RECORDS.many(0, 40_000), priority=rng.uniform(0.1, 10, 40_000))
    wrote = []
    in_time(pinger, lambda _: wrote.append(buffer.extend(RECORDS.many(0, 20_000), priority=rng.uniform(0.1, 10, 20_000))))
    index = wrote[-1]
    in_time(pinger, lambda _: buffer.update_priority(index, rng.uniform(0.1, 10, 20_000)))
    if "by weight" in kind:
        in_time(pinger, lambda i: buffer.set_alpha(i % 2 + 1.0))
    assert in_time(pinger, lambda _: buffer.remove(index)) in (20_000, 0)  # with the tries
    assert (len(buffer), buffer.doctor().findings) == (20_000, ())


REMOVERS = {
    "uniform": {"remover": Uniform()},
    "by weight": {"remover": BY_WEIGHT},
    "least first, drawn by weight": {"sampler": BY_WEIGHT, "remover": MinHeap()},
}


@pytest.mark.parametrize("kind", REMOVERS)
def test_a_remover_chooses_as_many_as_a_step_has(real_server, make_buffer, pinger, kind):
    """As many as one step may have where a remover chooses, from a buffer of many more."""
    buffer, rng = make_buffer(capacity=40_000, **REMOVERS[kind]), np.random.default_rng(1)
    priorities = lambda n: rng.uniform(0.1, 10, n) if buffer._now.core.weighs else None  # noqa: E731
    buffer.extend(RECORDS.many(0, 40_000), priority=priorities(40_000))
    in_time(pinger, lambda _: buffer.extend(RECORDS.many(0, MAX_CHOSEN), priority=priorities(MAX_CHOSEN)))
    assert buffer.stats()["evicted"] in (MAX_CHOSEN, 2 * MAX_CHOSEN, 3 * MAX_CHOSEN)  # with the tries
    assert (len(buffer), buffer.doctor().findings) == (40_000, ())


@pytest.mark.parametrize("kind", ["ring", "queue, 3 uses"])
def test_one_call_drops_20000(real_server, make_buffer, pinger, kind):
    """A version that is raised drops what is too old in steps, also where that lies among what stays."""
    buffer = make_buffer(capacity=100_000, max_staleness=0, **KINDS[kind])

    def drop(_):
        version = int(buffer.stats()["version"])
        for low in (0, 20_000):
            buffer.extend(RECORDS.many(low, low + 20_000), version=version + np.arange(20_000) % 2)
        return buffer.set_version(version + 1)

    assert in_time(pinger, drop) >= 20_000
    assert buffer.doctor().ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_draws_through_many_holes(real_server, make_buffer, pinger, seed, kind):
    """A buffer of which 60 of 100 records were removed, at random: a full draw takes no longer than promised."""
    buffer = make_buffer(capacity=100_000, **KINDS[kind])
    indices = buffer.extend(RECORDS.many(0, 100_000))
    gone = np.random.default_rng(seed).permutation(indices)[:60_000]
    buffer.remove(gone)
    n = min(buffer._now.core.sampler.max_batch, 12_000)
    drawn = in_time(pinger, lambda _: numbers(buffer.sample(n)))
    assert not set(drawn) & set((gone - 1).tolist())
    assert buffer.doctor().ok


@pytest.mark.slow
@pytest.mark.parametrize(("width", "n"), [(250, 20_000), (1_000, 16_000), (7_000, 2_300)], ids=["1 KB", "4 KB", "28 KB"])
@pytest.mark.parametrize("consume", [None, 1], ids=["ring", "queue"])
def test_steps_of_64_mebibytes(real_server, make_buffer, pinger, consume, width, n):
    """As many bytes as one step may have, written, drawn and evicted: they do not pass through Lua."""
    buffer, records = make_buffer(capacity=n, sampler=Fifo(), consume_after_n_samples=consume), Records(width)
    batch = records.many(0, n)

    def turn(_):
        buffer.extend(batch)
        buffer.extend(batch)
        drawn = buffer.sample(n)["i"]
        buffer.can_sample(1)
        return drawn

    assert in_time(pinger, turn).tolist() == list(range(n))


@pytest.mark.parametrize("consume", [None, 1], ids=["ring", "queue"])
def test_a_large_buffer_goes_on_after_it_was_emptied(server, make_buffer, consume):
    """Its stream is thrown away whole and made anew: the next index is the one that it would have been."""
    n = 10_050 if server.is_real else 200
    buffer = make_buffer(capacity=20_000, consume_after_n_samples=consume)
    buffer.extend(RECORDS.many(0, n))
    for i in range(2):
        buffer.empty()
        assert (len(buffer), buffer.storage_size, list(buffer.records())) == (0, 0, [])
        assert buffer.doctor().ok
        assert buffer.add(RECORDS.one(7)) == n + 1 + i
    assert numbers(buffer.sample(1)) == [7]


@pytest.mark.slow
def test_emptying_and_deleting_a_large_buffer(real_server, make_buffer, pinger):
    """What is freed is freed piece by piece, or behind the server's back."""
    buffer = make_buffer(capacity=400_000)
    buffer.extend(RECORDS.many(0, 400_000))
    in_time(pinger, lambda _: buffer.empty())
    buffer.extend(RECORDS.many(0, 200_000))
    in_time(pinger, lambda _: buffer.delete())


@pytest.mark.parametrize("n", [20_000, 200_000])
def test_a_limit_is_named_before_anything_is_touched(server, make_buffer, n):
    """A ValueError names what a draw may take, for every sampler, before the buffer is asked."""
    buffer = make_buffer(capacity=1_000_000)
    with pytest.raises(ValueError, match="8,192"):
        buffer.sample(n)
    fifo = make_buffer("another-" + buffer.name, capacity=1_000_000, sampler=Fifo())
    with pytest.raises(ValueError, match="20,000"):
        fifo.sample(n + 1)
    assert buffer.stats()["sample_calls"] == 0


@pytest.mark.parametrize("kind", ["ring", *WEIGHED])
def test_a_checkpoint_keeps_nobody_waiting(real_server, make_buffer, pinger, kind, tmp_path):
    """Case 25: saved, loaded and looked through by pages; a ring that has lost most of what was in it, too."""
    buffer = make_buffer(capacity=40_000, **(KINDS | WEIGHED)[kind])
    index = buffer.extend(RECORDS.many(0, 40_000))
    if kind == "ring":
        buffer.remove(index[index % 10 > 0])
    n = len(buffer)
    assert in_time(pinger, lambda _: buffer.dumps(tmp_path / "c")) == n
    assert in_time(pinger, lambda _: buffer.loads(tmp_path / "c")) == n
    assert in_time(pinger, lambda _: buffer.doctor()).ok
