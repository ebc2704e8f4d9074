"""Writing: indices, the ring and its eviction, exact sizes, large batches. Over both ways that records go in."""

import threading

import numpy as np
import pytest

from redis_replay import _ops_write as write
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, BufferDamagedError, LimitError, SchemaError
from redis_replay.samplers import Fifo
from tests._contract import ANY_SIZE, SMALL, Records, nothing_changes, numbers, refused, stored_numbers
from tests.limits._pinger import Pinger, in_time

CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])


def test_add_gives_the_record_its_index(server, make_buffer, records):
    """Indices start at 1 and go up by one with each record; they are plain ints."""
    buffer = make_buffer()
    assert [buffer.add(records.one(i)) for i in range(3)] == [1, 2, 3]
    assert type(buffer.add(records.one(3))) is int


def test_extend_gives_consecutive_int64_indices(server, make_buffer, records):
    """One int64 index for each record, in the order of the batch, behind what was written before."""
    buffer = make_buffer()
    buffer.add(records.one(0))
    indices = buffer.extend(records.many(1, 5))
    assert indices.dtype == np.int64
    assert indices.tolist() == [2, 3, 4, 5]


def test_a_list_of_records_is_a_batch(server, make_buffer, records):
    """A list gives the same as leaves with a leading dimension."""
    buffer = make_buffer()
    assert buffer.extend([records.one(7), records.one(8)]).tolist() == [1, 2]
    assert numbers(buffer.get([1, 2])) == [7, 8]


def test_what_comes_out_is_what_went_in(server, make_buffer, records):
    """Every record is under the index that its write gave."""
    buffer = make_buffer()
    indices = buffer.extend(records.many(50, 90))
    assert numbers(buffer.get(indices)) == list(range(50, 90))


@CONSUMES
def test_the_oldest_records_are_evicted(server, make_buffer, records, consume):
    """A full buffer holds the newest records, whatever the sizes of the writes."""
    buffer = make_buffer(capacity=10, consume_after_n_samples=consume)
    for low, high in ((0, 7), (7, 8), (8, 17), (17, 25)):
        buffer.extend(records.many(low, high))
    assert stored_numbers(buffer) == list(range(15, 25))
    stats = buffer.stats()
    assert (stats["size"], stats["storage_size"], stats["write_count"], stats["evicted"]) == (10, 10, 25, 15)
    assert buffer.doctor().ok


@CONSUMES
def test_a_batch_above_capacity_keeps_its_tail(server, make_buffer, records, consume):
    """The rest counts as written and evicted, and has its indices."""
    buffer = make_buffer(capacity=4, consume_after_n_samples=consume)
    assert buffer.extend(records.many(0, 10)).tolist() == list(range(1, 11))
    assert stored_numbers(buffer) == [6, 7, 8, 9]
    assert (buffer.stats()["write_count"], buffer.stats()["evicted"]) == (10, 6)
    assert buffer.doctor().ok


@pytest.mark.parametrize("total", range(298, 303))
def test_the_size_is_exact_at_the_wrap(server, make_buffer, records, total):
    """The size is the number of records written, up to the capacity and not beyond."""
    buffer = make_buffer(capacity=300)
    for low in range(0, total, 50):
        buffer.extend(records.many(low, min(low + 50, total)))
    assert (len(buffer), buffer.storage_size, buffer.write_count) == (min(total, 300), min(total, 300), total)
    assert stored_numbers(buffer) == list(range(max(0, total - 300), total))


@pytest.mark.parametrize("chunk", [7, 50, 100])
def test_four_writers_never_pass_the_capacity(server, make_buffer, records, chunk):
    """As any reader sees it, the size is never above the capacity; at rest it is equal to it, and no write was lost."""
    buffer = make_buffer(capacity=300)
    writers = [
        threading.Thread(target=lambda: [buffer.extend(records.many(0, chunk)) for _ in range(200 // chunk)]) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    seen = []
    while any(writer.is_alive() for writer in writers):
        stats = buffer.stats()
        seen.append(max(stats["size"], stats["storage_size"]))
    assert max(seen, default=0) <= 300
    assert (len(buffer), buffer.write_count) == (300, 4 * (200 // chunk) * chunk)
    assert buffer.doctor().ok


def test_writers_get_indices_of_their_own(server, make_buffer, records):
    """Of records that threads write at once, each has an index of its own, and each call consecutive ones."""
    buffer, results = make_buffer(capacity=1000), []
    writers = [
        threading.Thread(target=lambda w=w: results.append(buffer.extend(records.many(100 * w, 100 * w + 50))))
        for w in range(6)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(np.concatenate(results).tolist()) == list(range(1, 301))
    assert all((np.diff(indices) == 1).all() for indices in results)


@CONSUMES
def test_capacity_one_holds_the_newest(server, make_buffer, records, consume):
    """A buffer of one record takes single ones and batches."""
    buffer = make_buffer(capacity=1, consume_after_n_samples=consume)
    buffer.add(records.one(0))
    buffer.extend(records.many(1, 6))
    assert (stored_numbers(buffer), len(buffer), buffer.stats()["evicted"]) == ([5], 1, 5)


def test_records_of_both_ways_mix(server, make_buffer):
    """In one buffer a write of small records, one of large ones and a mixed one keep order and bytes."""
    buffer, sizes = make_buffer(), [10, 20, 5000, 9000, 4096, 0, 70_000, 1]
    written = [{"b": bytes([n % 251]) * n} for n in sizes]
    buffer.extend(written[:2])
    buffer.extend(written[2:4])
    buffer.extend(written[4:])
    assert [record["b"] for record in buffer.records()] == [record["b"] for record in written]
    assert buffer.doctor().ok


@ANY_SIZE
def test_a_batch_of_any_size_goes_in(server, make_buffer, small, n):
    """Neither Lua's stack nor the number of arguments limits a batch, nor what it evicts."""
    buffer = make_buffer(capacity=20_000)
    assert buffer.extend(small.many(0, n)).tolist() == list(range(1, n + 1))
    assert (len(buffer), buffer.write_count) == (n, n)


@ANY_SIZE
def test_a_consuming_buffer_takes_large_batches(server, make_buffer, small, n):
    """Where the live indices are listed a large batch and the eviction of one work, too."""
    buffer = make_buffer(capacity=n, consume_after_n_samples=1)
    buffer.extend(small.many(0, n))
    buffer.extend(small.many(n, 2 * n))
    stats = buffer.stats()
    assert (stats["size"], stats["storage_size"], stats["evicted"]) == (n, n, n)


def test_a_longer_extend_goes_in_steps(server, make_buffer, small):
    """Above 20,000 records the indices are still consecutive, and all is there."""
    buffer = make_buffer(capacity=30_000)
    assert buffer.extend(small.many(0, 20_001)).tolist() == list(range(1, 20_002))
    assert len(buffer) == 20_001


def test_a_long_extend_stops_nobody(real_server, make_buffer, small):
    """200,000 records by one call go in, and others are answered within 250 ms meanwhile."""
    buffer, rows = make_buffer(capacity=150_000), small.many(0, 200_000)
    with Pinger(real_server.url, real_server.pid) as pinger:
        indices = in_time(pinger, lambda _: buffer.extend(rows))
    assert (np.diff(indices) == 1).all()
    assert (len(indices), indices[-1], len(buffer)) == (200_000, buffer.write_count, 150_000)


def test_a_step_holds_at_most_64_mib(real_server, make_buffer):
    """A batch above that is cut into steps, too; all of it goes in."""
    buffer = make_buffer()
    indices = buffer.extend({"x": np.arange(70, dtype=np.uint8)[:, None].repeat(2**20, 1)})
    assert indices.tolist() == list(range(1, 71))
    assert (buffer.get(70)["x"] == 69).all()


def test_a_record_above_64_mib_is_refused(server, make_buffer, client):
    """An ArgumentError names the limit in bytes, and nothing is written."""
    buffer, record = make_buffer(), {"x": np.zeros(write.STEP_BYTES + 1, np.uint8)}
    with nothing_changes(client, ()), refused(ArgumentError) as caught:
        buffer.add(record)
    assert f"{write.STEP_BYTES:,}" in str(caught.value)


NOTHING = [[], {"i": np.zeros(0, np.int64), "x": np.zeros((0, SMALL), np.float32)}]


@pytest.mark.parametrize("empty", NOTHING, ids=["list", "leaves"])
def test_an_empty_batch_is_refused(server, make_buffer, client, small, empty):
    """extend of nothing is a typed error, before and after the schema is known."""
    buffer = make_buffer()
    with nothing_changes(client, ()), refused(ArgumentError):
        buffer.extend(empty)
    buffer.add(small.one(1))
    with nothing_changes(client, ()), refused(ArgumentError):
        buffer.extend(empty)


MISFITS = {
    "missing": (lambda n: {"i": np.zeros(n, np.int64)}, "x"),
    "extra": (lambda n: {"i": np.zeros(n, np.int64), "x": np.zeros((n, SMALL), np.float32), "y": np.zeros(n)}, "y"),
    "dtype": (lambda n: {"i": np.zeros(n, np.int32), "x": np.zeros((n, SMALL), np.float32)}, "i"),
    "shape": (lambda n: {"i": np.zeros(n, np.int64), "x": np.zeros((n, SMALL + 1), np.float32)}, "x"),
    "object": (lambda n: {"i": np.zeros(n, np.int64), "x": np.full((n, SMALL), None, object)}, "x"),
    "kind": (lambda n: {"i": ["text"] * n, "x": np.zeros((n, SMALL), np.float32)}, "i"),
}


@pytest.mark.parametrize(("misfit", "path"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("knows", [True, False], ids=["knows-the-schema", "has-not-seen-it"])
def test_a_record_that_does_not_fit_is_refused(server, make_buffer, client, small, misfit, path, knows):
    """SchemaError names the leaf, whether the client knew the schema or learns it from the server; nothing changes."""
    blind = make_buffer()
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    with nothing_changes(client), refused(SchemaError) as caught:
        (buffer if knows else blind).extend(misfit(2))
    assert path in caught.value.path
    assert (len(buffer), buffer.write_count) == (3, 3)


def test_a_bad_record_in_a_list_is_refused_whole(server, make_buffer, client, small):
    """One record of a list that does not fit keeps out all of it."""
    buffer = make_buffer()
    buffer.add(small.one(0))
    with nothing_changes(client), refused(SchemaError):
        buffer.extend([small.one(1), {"i": np.int64(2)}])


@pytest.mark.parametrize("bad", [5, "text", None, [1, 2]], ids=repr)
def test_what_is_no_record_is_refused(server, make_buffer, client, bad):
    """A record is a dict; anything else is a typed error."""
    buffer = make_buffer()
    with nothing_changes(client, ()), refused((ArgumentError, ArgumentTypeError, SchemaError)):
        buffer.add(bad)


def test_an_object_array_never_fixes_the_schema(server, make_buffer, client):
    """The first write, too, refuses what would have to be pickled."""
    buffer = make_buffer()
    with nothing_changes(client, ()), refused(SchemaError) as caught:
        buffer.add({"o": np.array([{}, None], object)})
    assert "o" in caught.value.path


def test_an_error_says_what_was_done(server, make_buffer, client, name, small):
    """When the second step of an extend is refused, `done` counts the records of the first."""
    buffer = make_buffer(capacity=30_000)
    buffer.add(small.one(0))
    client.hset(f"rr:{{{name}}}:counters", "write_count", 2**63 - 1 - 20_005)
    with refused(LimitError, 10) as caught:
        buffer.extend(small.many(0, 20_010))
    assert (caught.value.done, len(buffer)) == (20_000, 20_001)


def test_fifo_shows_the_order_of_writes(server, make_buffer, records):
    """Two handles' writes lie in the order in which they were answered."""
    first, second = make_buffer(sampler=Fifo()), make_buffer(attach=True)
    for i in range(6):
        (first, second)[i % 2].add(records.one(i))
    assert numbers(first.sample(6)) == [0, 1, 2, 3, 4, 5]


def test_a_refused_write_raises_no_index(server, make_buffer, small):
    """The index after a refused write is the one that it would have had."""
    buffer = make_buffer()
    buffer.add(small.one(0))
    with refused(SchemaError):
        buffer.add({"i": np.int64(1)})
    assert buffer.add(Records(SMALL).one(2)) == 2


def test_damage_is_what_a_vanished_stream_is(server, make_buffer, client, name, records):
    """A write into a buffer whose stream was deleted by hand is refused, and makes no new stream."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 3))
    client.delete(f"rr:{{{name}}}:records")
    with nothing_changes(client, ()), refused(BufferDamagedError):
        buffer.extend(records.many(3, 6))
