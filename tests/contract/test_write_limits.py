"""Counters and indices far out: exact past 2^53, refused before they would be wrong."""

import pytest

from redis_replay.exceptions import LimitError
from redis_replay.samplers import Fifo, Lifo
from tests._contract import nothing_changes, numbers, refused, stored_numbers

FAR = 2**53 - 2  # the doubles that Lua counts with end two further on
LAST_COUNT = 2**63 - 1
LAST_INDEX = 2**53 - 1


@pytest.fixture
def set_counters(client, name):
    """Gives `set(value, *names)`: the buffer's counters as if it had run for an age."""

    def set_them(value, *names):
        for counter in names:
            client.hset(f"rr:{{{name}}}:counters", counter, value)

    return set_them


@pytest.fixture
def set_last_index(real_server, client, name):
    """Gives `set(buffer, index)`: as if the buffer's records up to `index` had all come and gone."""

    def set_it(buffer, index):
        buffer.empty()
        client.execute_command("XSETID", f"rr:{{{name}}}:records", f"0-{index}")
        client.hset(f"rr:{{{name}}}:counters", mapping={"first": index + 1, "last": index})

    return set_it


def test_written_records_count_past_two_to_53(server, make_buffer, set_counters, records):
    """Four writes after 2^53 - 2 give 2^53 + 2, which no double holds apart from its neighbours, in every counter."""
    buffer = make_buffer(capacity=3)
    set_counters(FAR, "write_count", "records_total", "evicted")
    for i in range(4):
        buffer.add(records.one(i))
    stats = buffer.stats()
    assert (stats["write_count"], stats["records_total"], stats["evicted"]) == (FAR + 4, FAR + 4, FAR + 1)
    assert buffer.write_count == 2**53 + 2
    assert buffer.doctor().ok


def test_consumed_records_count_past_two_to_53(server, make_buffer, set_counters, records):
    """What readers take is counted exactly, too."""
    buffer = make_buffer(consume_after_n_samples=1)
    set_counters(FAR, "write_count", "consumed", "sample_calls", "samples_returned")
    buffer.extend(records.many(0, 9))
    for size in (2, 2, 1):
        buffer.sample(size)
    stats = buffer.stats()
    assert (stats["consumed"], stats["samples_returned"], stats["sample_calls"]) == (FAR + 5, FAR + 5, FAR + 3)
    assert buffer.doctor().ok


def test_removed_records_count_past_two_to_53(server, make_buffer, set_counters, small):
    """So is what is removed by name, and what empty() takes."""
    buffer = make_buffer()
    set_counters(FAR, "write_count", "removed")
    indices = buffer.extend(small.many(0, 9))
    buffer.remove(indices[:3])
    buffer.empty(empty_write_count=False)
    assert buffer.stats()["removed"] == FAR + 9
    assert buffer.doctor().ok


def test_an_undone_draw_counts_back_past_two_to_53(server, make_buffer, make_raw, set_counters, small):
    """Going back subtracts exactly, on the far side of 2^53."""
    buffer = make_buffer(consume_after_n_samples=1)
    set_counters(FAR + 10, "write_count", "consumed", "samples_returned", "sample_calls")
    buffer.extend(small.many(0, 5))
    raw = make_raw()
    raw.sample(5)
    raw.settle(open_number=raw.number)
    counters = raw.counters()
    assert [counters[c] for c in ("consumed", "samples_returned", "sample_calls")] == [FAR + 10] * 3


@pytest.mark.parametrize("counter", ["write_count", "records_total"])
def test_a_counter_is_filled_to_its_end(server, make_buffer, set_counters, records, counter):
    """The write that reaches 2^63 - 1 exactly is accepted."""
    buffer = make_buffer()
    set_counters(LAST_COUNT - 9, counter)
    buffer.extend(records.many(0, 9))
    assert buffer.stats()[counter] == LAST_COUNT


@pytest.mark.parametrize("counter", ["write_count", "records_total"])
def test_a_counter_is_never_passed(server, make_buffer, client, set_counters, records, counter):
    """The write that would pass 2^63 - 1 is refused whole, with the counter, its value and the limit."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 2))
    set_counters(LAST_COUNT - 9, counter)
    with nothing_changes(client), refused(LimitError) as caught:
        buffer.extend(records.many(2, 12))
    error = caught.value
    assert (error.what, error.value, error.n, error.limit) == (counter, LAST_COUNT - 9, 10, LAST_COUNT)
    assert all(str(part) in str(error) for part in (counter, LAST_COUNT - 9, LAST_COUNT))


def test_a_full_counter_stops_no_draw(server, make_buffer, set_counters, small):
    """What counts the draws stays at 2^63 - 1; the draw is whole, and so are those after it."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 6))
    set_counters(LAST_COUNT - 2, "samples_returned")
    assert len(numbers(buffer.sample(4)) + numbers(buffer.sample(2))) == 6
    assert (buffer.stats()["samples_returned"], buffer.stats()["consumed"], len(buffer)) == (LAST_COUNT, 6, 0)
    assert buffer.doctor().ok


def test_a_reset_lets_a_full_counter_go_on(server, make_buffer, set_counters, small):
    """empty() starts write_count at 0, and writes are accepted again."""
    buffer = make_buffer()
    set_counters(LAST_COUNT, "write_count")
    with refused(LimitError):
        buffer.add(small.one(1))
    buffer.empty()
    buffer.add(small.one(1))
    assert buffer.write_count == 1


@pytest.mark.parametrize("consume", [None, 1, 2])
def test_indices_are_filled_to_their_end(make_buffer, set_last_index, records, consume):
    """Indices up to 2^53 - 1 are given out, found, drawn and taken out, each for itself."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    set_last_index(buffer, LAST_INDEX - 9)
    indices = buffer.extend(records.many(0, 9)).tolist()
    assert indices == list(range(LAST_INDEX - 8, LAST_INDEX + 1))
    assert numbers(buffer.get(indices)) == list(range(9))
    data, info = buffer.sample(9, return_info=True)
    assert (numbers(data), info.index.tolist()) == (list(range(9)), indices)
    assert buffer.doctor().ok


def test_the_last_indices_are_told_apart(make_buffer, set_last_index, records):
    """Neighbours at the end of the doubles: one is removed, and the other one is drawn."""
    buffer = make_buffer(sampler=Lifo())
    set_last_index(buffer, LAST_INDEX - 4)
    buffer.extend(records.many(0, 4))
    buffer.remove(LAST_INDEX)
    buffer.remove(LAST_INDEX - 2)
    assert numbers(buffer.sample(2)) == [2, 0]
    assert buffer.doctor().ok


@pytest.mark.parametrize("consume", [None, 1])
def test_an_index_is_never_passed(make_buffer, client, set_last_index, records, consume):
    """The write that would need an index above 2^53 - 1 is refused whole."""
    buffer = make_buffer(consume_after_n_samples=consume)
    set_last_index(buffer, 2**53 - 10)
    buffer.extend(records.many(0, 2))
    with nothing_changes(client), refused(LimitError) as caught:
        buffer.extend(records.many(2, 10))
    error = caught.value
    assert (error.what, error.value, error.n, error.limit) == ("index", 2**53 - 8, 8, LAST_INDEX)
    assert stored_numbers(buffer) == [0, 1]


def test_eviction_works_up_to_the_last_index(make_buffer, set_last_index, records):
    """A full ring turns until its last index, and then keeps what it has."""
    buffer = make_buffer(capacity=3)
    set_last_index(buffer, LAST_INDEX - 5)
    buffer.extend(records.many(0, 3))
    buffer.extend(records.many(3, 5))
    with refused(LimitError):
        buffer.add(records.one(5))
    assert stored_numbers(buffer) == [2, 3, 4]
    assert buffer.doctor().ok
