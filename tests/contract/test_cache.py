"""`cache_bytes`: batches are those of a handle without a cache, and what was drawn before is not fetched again."""

import threading

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay._cache import OVERHEAD
from redis_replay.exceptions import ArgumentError, BufferGoneError, ReplayError
from redis_replay.samplers import Fifo, Prioritized, Uniform
from tests._contract import LARGE, SMALL, Records, numbers
from tests._server import turns
from tests._waiting import open_handle

MIB = 2**20
RECORDS = {
    "small": Records(SMALL).many,
    "large": Records(LARGE).many,
    "ragged": lambda low, high: [{"i": i, "text": "x" * i, "b": bytes(i)} for i in range(low, high)],
    "dtypes": lambda low, high: {
        "i": np.arange(low, high), "half": np.linspace(0, 1, high - low).astype(np.float16),
        "flag": np.arange(low, high) % 2 == 0,
        "nan": np.full((high - low, 3), np.nan), "names": np.array([f"n{i}" for i in range(low, high)]),
    },
}  # fmt: skip


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and b.flags.writeable
    return a == b


@pytest.mark.parametrize("what", RECORDS)
@pytest.mark.parametrize("sampler", [Uniform(), Uniform(replacement=False), Prioritized(alpha=1.0, beta=1.0)], ids=repr)
def test_batches_are_those_without_a_cache(server, make_buffer, name, what, sampler):
    """By the same seed: with what is told of them, while records leave and new ones come, and caches are too small for all."""
    buffer = make_buffer(capacity=40, sampler=sampler)
    buffer.extend(RECORDS[what](0, 40))
    size = buffer.stats()["bytes_total"] // 40
    plain, cached = (
        ReplayBuffer(server.target(), name, seed=5, batch_size=16, cache_bytes=n) for n in (0, 20 * (size + OVERHEAD))
    )
    with plain, cached:
        for low in range(40, 100, 10):
            for _ in range(3):
                (a, told_a), (b, told_b) = (handle.sample(return_info=True) for handle in (plain, cached))
                assert equal(a, b)
                assert told_a.index.tolist() == told_b.index.tolist()
            buffer.extend(RECORDS[what](low, low + 10))
        info = cached.cache_info()
        assert info.hits > 50
        assert info.hits + info.misses == 18 * 16
        assert 0 < info.bytes <= 20 * (size + OVERHEAD)
        assert plain.cache_info() == (0, 0, 0, 0)


@pytest.mark.parametrize(("kind", "server"), turns(), indirect=["server"])
def test_what_is_there_is_not_fetched(server, make_buffer, name, kind):
    """By either handle; a batch is the caller's own, whatever he does to it."""
    make_buffer(sampler=Fifo()).extend(Records(LARGE).many(0, 20))
    handle = open_handle(kind, server, name, batch_size=10, cache_bytes=MIB)
    try:
        for _ in range(3):
            batch = handle.run("sample")
            assert numbers(batch) == list(range(10))
            for leaf in batch.values():
                leaf[...] = 0
        assert handle.run("sample", 12)
        assert handle.buffer.cache_info()[:3] == (30, 12, 12)
    finally:
        handle.end()


def test_nothing_of_another_buffer_is_given_out(server, make_buffer, name):
    """Emptied, its indices go on; deleted and created anew under the same name, its handles end."""
    buffer = make_buffer(sampler=Fifo())
    with ReplayBuffer(server.target(), name, batch_size=4, cache_bytes=MIB) as cached:
        for low in (0, 50):
            buffer.empty()
            buffer.extend(Records(SMALL).many(low, low + 4))
            assert numbers(cached.sample()) == list(range(low, low + 4))
        with ReplayBuffer(server.target(), name, capacity=9, sampler=Fifo(), fresh=True) as fresh:
            fresh.extend(Records(SMALL).many(7, 11))
            with pytest.raises(BufferGoneError):
                cached.sample()
            with ReplayBuffer(server.target(), name, batch_size=4, cache_bytes=MIB) as other:
                assert numbers(other.sample()) == [7, 8, 9, 10]


def test_a_load_changes_what_an_index_means_for_nobody(server, make_buffer, name, tmp_path):
    buffer = make_buffer(sampler=Fifo())
    buffer.extend(Records(SMALL).many(0, 4))
    buffer.dumps(tmp_path / "c")
    with ReplayBuffer(server.target(), name, batch_size=4, cache_bytes=MIB) as cached:
        cached.sample()
        buffer.empty()
        buffer.loads(tmp_path / "c")
        assert numbers(cached.sample()) == [0, 1, 2, 3]
        assert cached.cache_info().hits == 4


def test_what_was_removed_is_not_drawn(server, make_buffer, name):
    """However much of it is in the cache."""
    buffer = make_buffer()
    buffer.extend(Records(SMALL).many(0, 20))
    with ReplayBuffer(server.target(), name, batch_size=20, cache_bytes=MIB) as cached:
        for _ in range(5):
            cached.sample()
        buffer.remove(list(range(1, 20)))
        assert set(numbers(cached.sample(8, min_items=1))) == {19}


def test_threads_share_it(server, make_buffer, name):
    make_buffer().extend(Records(SMALL).many(0, 50))
    wrong = []
    with ReplayBuffer(server.target(), name, batch_size=8, cache_bytes=20 * (8 * SMALL + OVERHEAD)) as cached:

        def draw():
            try:
                for _ in range(30):
                    batch, info = cached.sample(return_info=True)
                    wrong.extend(set(numbers(batch)) ^ {i - 1 for i in info.index.tolist()})
            except ReplayError as error:
                wrong.append(error)

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert wrong == []
        assert sum(cached.cache_info()[:2]) == 4 * 30 * 8


def test_it_is_an_option_of_each_handle(real_server, make_buffer, name):
    """It pickles as such, without what it holds; nonsense is refused."""
    make_buffer().extend(Records(SMALL).many(0, 20))
    copy = open_handle("unpickled", real_server, name, batch_size=8, cache_bytes=MIB)
    copy.run("sample")
    assert sum(copy.buffer.cache_info()[:2]) == 8
    copy.end()
    with pytest.raises(ArgumentError, match="cache_bytes"):
        ReplayBuffer(real_server.target(), name, cache_bytes=-1)


def test_nothing_is_kept_over_an_outage(real_server, make_buffer, name):
    """What a server that was away has lost, and given again, is not to be told from what it had."""
    make_buffer(sampler=Fifo()).extend(Records(LARGE).many(0, 20))
    with ReplayBuffer(real_server.target(), name, batch_size=10, cache_bytes=MIB) as cached:
        cached.sample()
        real_server.client().client_kill_filter(_type="normal", skipme=True)
        assert numbers(cached.sample()) == list(range(10))
        assert cached.cache_info()[:2] == (0, 20)
