"""Entries that somebody adds to the stream by hand: skipped and counted, or refused as damage; never read as records."""

import threading

import pytest

from redis_replay.exceptions import BufferDamagedError, RecordNotFoundError
from redis_replay.samplers import Fifo
from tests._contract import LARGE, Records, nothing_changes, numbers, refused, stored_numbers
from tests._helpers import wait_until

CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])


@pytest.fixture
def stream(name):
    """The key of the buffer's stream."""
    return f"rr:{{{name}}}:records"


def add_malformed(client, stream):
    client.execute_command("XADD", stream, "0-*", "other", "field")


def add_with_explicit_id(client, stream):
    client.xadd(stream, {"d": b"\x00" * 16}, id="0-9")


def add_many(client, stream):
    for _ in range(700):
        add_malformed(client, stream)


SKIPPED = {"malformed": (add_malformed, 1, 5), "explicit-id": (add_with_explicit_id, 1, 10), "many": (add_many, 700, 704)}


@CONSUMES
@pytest.mark.parametrize(("spoil", "count", "next_index"), SKIPPED.values(), ids=SKIPPED)
def test_foreign_entries_are_skipped(server, make_buffer, client, stream, records, spoil, count, next_index, consume):
    """The next write takes them out and counts them; the index that follows goes to the record."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    spoil(client, stream)
    assert buffer.add(records.one(3)) == next_index
    stats = buffer.stats()
    assert (stats["foreign"], stats["write_count"], stats["size"], stats["storage_size"]) == (count, 4, 4, 4)
    assert numbers(buffer.sample(4)) == [0, 1, 2, 3]
    assert buffer.doctor().ok


@CONSUMES
def test_foreign_entries_before_the_first_record(server, make_buffer, client, stream, records, consume):
    """A buffer that was empty takes its first record behind them."""
    buffer = make_buffer(consume_after_n_samples=consume)
    add_malformed(client, stream)
    assert (buffer.add(records.one(7)), buffer.stats()["foreign"], len(buffer)) == (2, 1, 1)
    assert numbers(buffer.sample(1)) == [7]
    assert buffer.doctor().ok


def test_foreign_entries_do_not_evict(server, make_buffer, client, stream, records):
    """A full buffer loses no record to an entry that is not its own."""
    buffer = make_buffer(capacity=4)
    buffer.extend(records.many(0, 4))
    add_malformed(client, stream)
    buffer.add(records.one(4))
    assert (stored_numbers(buffer), buffer.stats()["evicted"]) == ([1, 2, 3, 4], 1)
    assert buffer.doctor().ok


def add_with_time(client, stream):
    client.xadd(stream, {"d": b"x"})


def add_far_away(client, stream):
    client.xadd(stream, {"d": b"x"}, id="0-5000000")


DAMAGE = {"server-time": add_with_time, "far-away": add_far_away}


@pytest.mark.parametrize("spoil", DAMAGE.values(), ids=DAMAGE)
def test_an_entry_out_of_place_refuses_writes(server, make_buffer, client, stream, records, spoil):
    """BufferDamagedError names the key, the entry and what was expected; nothing is changed."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 3))
    spoil(client, stream)
    with nothing_changes(client), refused(BufferDamagedError) as caught:
        buffer.add(records.one(3))
    assert (caught.value.key, caught.value.expected) == (stream, "no id above 0-3")
    assert client.xrevrange(stream, count=1)[0][0].decode() in caught.value.found


@CONSUMES
@pytest.mark.parametrize("spoil", [add_malformed, add_with_explicit_id, *DAMAGE.values()])
def test_readers_never_see_foreign_entries(server, make_buffer, client, stream, records, spoil, consume):
    """Draws, get and records go on with what the buffer holds."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    spoil(client, stream)
    assert stored_numbers(buffer) == [0, 1, 2]
    assert numbers(buffer.sample(2)) == [0, 1]
    with refused(RecordNotFoundError):
        buffer.get(9)


@pytest.mark.parametrize("spoil", [add_malformed, add_with_explicit_id, *DAMAGE.values()])
def test_foreign_entries_end_no_wait(server, make_buffer, client, stream, small, spoil):
    """A wait goes by the buffer's records: it neither succeeds nor fails by an entry added by hand."""
    buffer, found = make_buffer(poll_interval=0.05), []
    buffer.extend(small.many(0, 2))
    thread = threading.Thread(target=lambda: found.append(buffer.wait_until_sampleable(3, timeout=0.4)))
    thread.start()
    wait_until(lambda: buffer.stats()["waiters"] == 1, description="the waiter")
    spoil(client, stream)
    thread.join()
    assert found == [False]
    assert buffer.local_stats.wakeups_by_poll > 2


@pytest.mark.parametrize("width", [2, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("consume", [None, 1])
def test_a_last_id_moved_a_little_leaves_a_gap(real_server, make_buffer, client, stream, width, consume):
    """An entry that was added and deleted by hand has used its index: the next records come behind it."""
    records, buffer = Records(width), make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    client.execute_command("XSETID", stream, "0-50")
    assert buffer.extend(records.many(3, 6)).tolist() == [51, 52, 53]
    assert (len(buffer), buffer.doctor().findings) == (6, ())
    assert buffer.sample(6, return_info=True)[1].index.tolist() == [1, 2, 3, 51, 52, 53]


@pytest.mark.parametrize("moved", ["0-5000", "7-0", "1798761600000-0"], ids=["far", "above", "server-time"])
@pytest.mark.parametrize("held", [3, 0], ids=["with-records", "empty"])
@pytest.mark.parametrize("width", [2, LARGE], ids=["small", "large"])
def test_a_moved_last_id_refuses_writes(real_server, make_buffer, client, stream, moved, held, width):
    """XSETID by hand, or an entry added and deleted again, is damage; no record is counted or left."""
    records, buffer = Records(width), make_buffer()
    buffer.extend(records.many(0, 3))
    if not held:
        buffer.empty()
    client.execute_command("XSETID", stream, moved)
    before = buffer.stats()
    with refused(BufferDamagedError) as caught:
        buffer.extend(records.many(3, 6))
    assert caught.value.key == stream
    assert (buffer.stats(), client.xlen(stream)) == (before, held)


@CONSUMES
def test_a_record_deleted_by_hand_is_damage(server, make_buffer, client, stream, records, consume):
    """A draw that finds no entry for a live record says which, and takes nothing; the doctor says so, too."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 5))
    client.xdel(stream, "0-3")
    with refused(BufferDamagedError, 5):
        buffer.sample(5)
    with refused(RecordNotFoundError):
        buffer.get(3)
    assert not buffer.doctor().ok


@CONSUMES
def test_draws_beside_a_deleted_record_work(server, make_buffer, client, stream, records, consume):
    """Only the draw that needs the lost record fails."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 5))
    client.xdel(stream, "0-5")
    assert numbers(buffer.sample(4)) == [0, 1, 2, 3]
