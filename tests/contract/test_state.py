"""Looking at a buffer and taking out of it: get, remove, empty, records, stats."""

import json

import numpy as np
import pytest

from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferClosedError,
    NotReadyError,
    RecordNotFoundError,
    SchemaError,
)
from redis_replay.samplers import Fifo
from tests._contract import AGE, contents, nothing_changes, numbers, refused, stored_numbers

CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])

# get


def test_get_gives_the_record_of_an_index(server, make_buffer, records):
    """One index gives one record, many give a batch in their order."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 9))
    assert buffer.get(4)["i"] == 3
    assert numbers(buffer.get([9, 1, 1, 5])) == [8, 0, 0, 4]
    assert numbers(buffer.get(np.array([2, 3], np.uint8))) == [1, 2]


@CONSUMES
def test_get_changes_nothing(server, make_buffer, client, records, consume):
    """Looking at a record counts no use and takes nothing."""
    buffer = make_buffer(consume_after_n_samples=consume)
    indices = buffer.extend(records.many(0, 5))
    with nothing_changes(client, ()):
        buffer.get(indices)
        list(buffer.records())


@pytest.mark.parametrize("index", [4, 2**53 - 1, [1, 4]], ids=str)
def test_get_of_no_record_says_which(server, make_buffer, records, index):
    """RecordNotFoundError, a LookupError, has the first index that is not there."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 3))
    with refused(RecordNotFoundError) as caught:
        buffer.get(index)
    assert isinstance(caught.value, LookupError)
    assert caught.value.index == (index if isinstance(index, int) else 4)


def test_get_finds_nothing_that_left(server, make_buffer, records):
    """Evicted, removed and consumed records are not found, also while their bytes are kept for a reader."""
    buffer = make_buffer(capacity=5, sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 6))
    buffer.remove(3)
    buffer.sample(1)
    for gone in (1, 2, 3):
        with refused(RecordNotFoundError):
            buffer.get(gone)
    assert numbers(buffer.get([4, 5, 6])) == [3, 4, 5]


@pytest.mark.parametrize("nothing", [[], np.zeros(0, np.int64)], ids=["list", "array"])
def test_no_indices_are_no_error(server, make_buffer, small, nothing):
    """Nothing asked for is nothing found and nothing removed."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    assert len(buffer.get(nothing)["i"]) == 0
    assert buffer.remove(nothing) == 0


def test_get_of_nothing_before_the_first_write(server, make_buffer):
    """A buffer without a schema has no batch to give, not even an empty one, and says so by a typed error."""
    with refused(ArgumentError):
        make_buffer().get([])


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)  # judged before a server is asked
@pytest.mark.parametrize("verb", ["get", "remove"])
@pytest.mark.parametrize(
    ("index", "kind"),
    [
        (0, ArgumentError),
        (-1, ArgumentError),
        (2**53, ArgumentError),
        ([1, 0], ArgumentError),
        (1.0, ArgumentTypeError),
        (True, ArgumentTypeError),
        ("1", ArgumentTypeError),
        (None, ArgumentTypeError),
        ([1, "2"], ArgumentTypeError),
    ],
    ids=repr,
)
def test_a_bad_index_is_refused(server, make_buffer, client, small, verb, index, kind):
    """An index is a whole number from 1 to 2^53 - 1, and the error says so."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    with nothing_changes(client, ()), refused(kind) as caught:
        getattr(buffer, verb)(index)
    assert str(caught.value).startswith("index must be whole numbers from 1 to 2^53 - 1")


@pytest.mark.parametrize("n", [1000, 7999, 8000, 8001, 20_000, 30_000])
def test_get_and_remove_take_any_number(real_server, make_buffer, small, n):
    """Long lists of indices go in steps, in order."""
    buffer = make_buffer(capacity=n)
    indices = buffer.extend(small.many(0, n))
    assert numbers(buffer.get(indices[::-1])) == list(range(n - 1, -1, -1))
    assert (buffer.remove(indices), len(buffer), buffer.doctor().ok) == (n, 0, True)


# remove


@CONSUMES
def test_remove_takes_records_out(server, make_buffer, records, consume):
    """It gives how many were there, and counts them."""
    buffer = make_buffer(consume_after_n_samples=consume)
    buffer.extend(records.many(0, 6))
    assert buffer.remove([2, 4, 4, 99]) == 2
    stats = buffer.stats()
    assert (stored_numbers(buffer), len(buffer), stats["removed"], stats["storage_size"]) == ([0, 2, 4, 5], 4, 2, 4)
    assert buffer.doctor().ok


@CONSUMES
@pytest.mark.parametrize("index", [1, 3, 5], ids=["first", "middle", "last"])
def test_remove_of_one_works_anywhere(server, make_buffer, records, consume, index):
    """The oldest, one in the middle and the newest record go alike, once each."""
    buffer = make_buffer(consume_after_n_samples=consume)
    buffer.extend(records.many(0, 5))
    assert [buffer.remove(index), buffer.remove(index)] == [1, 0]
    assert stored_numbers(buffer) == [n for n in range(5) if n != index - 1]
    assert buffer.doctor().ok


@CONSUMES
def test_remove_of_all_leaves_a_working_buffer(server, make_buffer, records, consume):
    """After the last record has gone the next ones are written, evicted and drawn as ever."""
    buffer = make_buffer(capacity=4, sampler=Fifo(), consume_after_n_samples=consume)
    buffer.remove(buffer.extend(records.many(0, 4)))
    buffer.extend(records.many(4, 10))
    assert numbers(buffer.sample(4)) == [6, 7, 8, 9]
    assert buffer.doctor().ok


def test_removed_room_is_filled_before_eviction(server, make_buffer, records):
    """In a full buffer the record after a removal evicts nothing."""
    buffer = make_buffer(capacity=4)
    buffer.extend(records.many(0, 4))
    buffer.remove(3)
    buffer.add(records.one(4))
    assert (stored_numbers(buffer), buffer.stats()["evicted"]) == ([0, 1, 3, 4], 0)
    buffer.add(records.one(5))
    assert (stored_numbers(buffer), buffer.stats()["evicted"]) == ([1, 3, 4, 5], 1)


def test_many_holes_keep_the_size_exact(server, make_buffer, records):
    """Writing and removing in turn, for longer than the ring is: size, order and doctor agree at each turn."""
    buffer, alive, value = make_buffer(capacity=12, sampler=Fifo()), [], 0
    for turn in range(25):
        indices = buffer.extend(records.many(value, value + 5))
        value += 5
        alive = (alive + indices.tolist())[-12:]
        gone = alive[turn % 7 :: 4]
        assert buffer.remove(gone) == len(gone)
        alive = [index for index in alive if index not in gone]
        assert numbers(buffer.sample(len(alive))) == [index - 1 for index in alive]
    assert buffer.doctor().ok


# empty


@CONSUMES
def test_empty_takes_everything_out(server, make_buffer, client, records, consume):
    """No record and no entry of a side key is left; write_count and what left start at 0."""
    buffer = make_buffer(consume_after_n_samples=consume)
    buffer.extend(records.many(0, 9))
    buffer.remove([2, 3])
    buffer.sample(3)
    buffer.empty()
    stats = buffer.stats()
    names = ("size", "storage_size", "write_count", "consumed", "evicted", "removed", "parting")
    assert {stats[name] for name in names} == {0}
    assert (stats["records_total"], list(buffer.records()), buffer.doctor().ok) == (9, [], True)


@CONSUMES
def test_empty_can_keep_the_write_count(server, make_buffer, records, consume):
    """What goes counts as removed then."""
    buffer = make_buffer(consume_after_n_samples=consume)
    buffer.extend(records.many(0, 9))
    buffer.sample(3)
    left = len(buffer)
    buffer.empty(empty_write_count=False)
    stats = buffer.stats()
    assert (stats["write_count"], stats["removed"], stats["consumed"]) == (9, left, 9 - left)
    assert buffer.doctor().ok


@CONSUMES
def test_indices_go_on_after_empty(server, make_buffer, records, consume):
    """No index ever means other bytes: what was written before is not found, and is not the new record."""
    buffer = make_buffer(consume_after_n_samples=consume)
    old = buffer.extend(records.many(0, 3))
    buffer.empty()
    new = buffer.extend(records.many(3, 6))
    assert new.tolist() == [4, 5, 6]
    with refused(RecordNotFoundError):
        buffer.get(old)
    assert buffer.remove(old) == 0


def test_the_schema_goes_on_after_empty(server, make_buffer, small):
    """The first write fixed it for the buffer's life."""
    buffer = make_buffer()
    buffer.add(small.one(0))
    buffer.empty()
    with refused(SchemaError):
        buffer.add({"other": 1})


def test_empty_of_an_empty_buffer_works(server, make_buffer, small):
    """Twice, and before the first write, it is no error."""
    buffer = make_buffer()
    buffer.empty()
    buffer.empty(empty_write_count=False)
    assert (buffer.add(small.one(1)), len(buffer)) == (1, 1)


def test_an_emptied_buffer_refuses_draws(server, make_buffer, records):
    """Nothing of what was there is drawn."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 9))
    buffer.empty()
    with refused(NotReadyError) as caught:
        buffer.sample(1)
    assert caught.value.have == 0


def test_sample_counts_survive_empty(server, make_buffer, small):
    """What was given out was given out."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 4))
    buffer.sample(3)
    buffer.empty()
    assert (buffer.stats()["sample_calls"], buffer.stats()["samples_returned"]) == (1, 3)


# records


def test_records_come_in_order_of_index(server, make_buffer, records):
    """All stored ones, each whole, around what was removed and consumed."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 20))
    buffer.remove([5, 9])
    buffer.sample(2)
    assert stored_numbers(buffer) == [n for n in range(2, 20) if n not in (4, 8)]


def test_records_come_over_pages(server, make_buffer, small):
    """More records than a page holds."""
    buffer = make_buffer(capacity=3000)
    buffer.extend(small.many(0, 2500))
    assert stored_numbers(buffer) == list(range(2500))


def test_records_over_a_page_of_holes(server, make_buffer, small):
    """A long stretch without any record is passed over."""
    buffer = make_buffer(capacity=3000)
    indices = buffer.extend(small.many(0, 2500))
    buffer.remove(indices[100:2400])
    assert stored_numbers(buffer) == [*range(100), *range(2400, 2500)]


def test_records_go_on_while_others_write(server, make_buffer, small):
    """What is written and evicted meanwhile makes no error and repeats no record."""
    buffer = make_buffer(capacity=1500)
    buffer.extend(small.many(0, 1500))
    seen = []
    for record in buffer.records():
        seen.append(int(record["i"]))
        if len(seen) == 10:
            buffer.extend(small.many(1500, 2600))
    assert seen == sorted(set(seen))
    assert set(range(1100, 1500)) <= set(seen)


def test_records_of_an_empty_buffer_are_none(server, make_buffer):
    """Before the first write, too."""
    assert list(make_buffer().records()) == []


# stats

KEYS = {
    "capacity", "consumed", "evicted", "foreign", "hidden", "holds", "initialized", "lanes", "lapsed", "leased", "notices",
    "parting", "records_total", "removed", "sample_calls", "sampleable_size", "samples_returned", "size", "state",
    "storage_size", "utilization", "waiters", "write_count",
}  # fmt: skip


def test_stats_are_scalars_by_name(server, make_buffer, records):
    """A dict of numbers, bools and text, that JSON gives back the same; but for who waits, and how old what is there is."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 5))
    stats = buffer.stats()
    assert set(stats) >= KEYS
    nested = {"blocked", "lag", "by_writer"}
    assert {type(value) for name, value in stats.items() if name not in nested} <= {int, float, str, bool}
    assert json.loads(json.dumps(stats)) == stats


@CONSUMES
def test_size_has_one_meaning(server, make_buffer, records, consume):
    """stats()["size"], len() and sampleable_size are the live records, on every kind of buffer."""
    buffer = make_buffer(capacity=8, consume_after_n_samples=consume)
    buffer.extend(records.many(0, 11))
    buffer.sample(5)
    buffer.remove(9)
    sizes = (buffer.stats()["size"], buffer.stats()["sampleable_size"], len(buffer), buffer.sampleable_size)
    assert len(set(sizes)) == 1
    assert buffer.storage_size == buffer.stats()["storage_size"] >= len(buffer)


def test_utilization_is_a_part_of_capacity(server, make_buffer, small):
    """Stored records over capacity, from 0 to 1."""
    buffer = make_buffer(capacity=8)
    assert buffer.stats()["utilization"] == 0.0
    buffer.extend(small.many(0, 6))
    assert buffer.stats()["utilization"] == 0.75


def test_stats_change_nothing(server, make_buffer, client, records):
    """Looking twice shows the same, and leaves the same."""
    buffer = make_buffer(consume_after_n_samples=2)
    buffer.extend(records.many(0, 9))
    buffer.sample(4)
    with nothing_changes(client, ()):
        assert buffer.stats() | AGE == buffer.stats() | AGE


def test_counters_survive_the_handle(server, make_buffer, small):
    """A handle that is made later sees the counters of the one that has gone."""
    with make_buffer(consume_after_n_samples=1) as first:
        first.extend(small.many(0, 9))
        first.sample(4)
        before = first.stats()
    after = make_buffer(attach=True).stats()
    names = ("write_count", "consumed", "sample_calls", "samples_returned", "size")
    assert [after[name] for name in names] == [before[name] for name in names] == [9, 4, 1, 4, 5]


def test_a_closed_handle_leaves_its_counts_readable(server, make_buffer, client, name, small):
    """redis-cli shows the counters as exact numbers."""
    with make_buffer() as buffer:
        buffer.extend(small.many(0, 3))
    assert client.hget(f"rr:{{{name}}}:counters", "write_count") == b"3"
    with refused(BufferClosedError):
        buffer.stats()
    assert f"rr:{{{name}}}:records" in contents(client)
