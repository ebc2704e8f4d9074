"""The cache of payloads: what was drawn last stays, within its bytes."""

import tracemalloc

from redis_replay._cache import OVERHEAD, Cache

SIZE = 1000


def test_what_was_drawn_last_stays():
    cache = Cache(3 * (SIZE + OVERHEAD))
    for index in (1, 2, 3):
        cache.keep(index, bytes(SIZE))
    assert cache.look([1, 4]) == [bytes(SIZE), None]
    cache.keep(4, bytes(SIZE))
    assert [payload is not None for payload in cache.look([1, 2, 3, 4])] == [True, False, True, True]
    cache.count(4, 2)
    assert cache.info() == (4, 2, 3, 3 * (SIZE + OVERHEAD))


def test_what_is_larger_than_the_cache_is_not_kept():
    cache = Cache(SIZE)
    cache.keep(1, bytes(SIZE))
    assert cache.info() == (0, 0, 0, 0)


def test_an_index_is_kept_once():
    """Two threads may have fetched it."""
    cache = Cache(10 * SIZE)
    for _ in range(2):
        cache.keep(1, bytes(SIZE))
    assert cache.info().bytes == SIZE + OVERHEAD


def test_it_takes_no_more_memory_than_it_says():
    cache, n = Cache(2**30), 20_000
    tracemalloc.start()
    for index in range(10**6, 10**6 + n):
        cache.keep(index, bytes(100))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used <= cache.info().bytes
    assert used >= cache.info().bytes / 2


def test_a_cleared_one_begins_anew():
    cache = Cache(10 * SIZE)
    cache.keep(1, bytes(SIZE))
    cache.clear()
    assert cache.look([1]) == [None]
    cache.keep(2, bytes(SIZE))
    assert cache.info()[2:] == (1, SIZE + OVERHEAD)
