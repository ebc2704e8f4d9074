"""Staleness: what is older than the buffer's version by more than max_staleness is dropped, and never handed out."""

import threading

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay._encode import encode_batch
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, ConfigMismatchError, NotReadyError
from redis_replay.samplers import Fifo, Freshest, Lifo, MaxHeap, Prioritized, Uniform
from tests._contract import LARGE, SMALL, Records, contents, numbers, refused, stored_numbers

SAMPLERS = [Uniform(), Uniform(replacement=False), Fifo(), Lifo(), Freshest(), MaxHeap(), Prioritized(alpha=0.6, beta=0.4)]
BAD = [-1, 2**53, 1.0, 1.5, "1", True, float("nan"), None, b"1"]
QUEUE = {"sampler": Fifo(), "consume_after_n_samples": 1}


@pytest.mark.parametrize("consume", [None, 1, 2])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_what_is_too_old_is_dropped(server, make_buffer, small, sampler, consume):
    """max_staleness itself is allowed, one more is not; what went is counted and its index names nothing."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume, max_staleness=2)
    indices = buffer.extend(small.many(0, 6), version=[3, 0, 2, 1, 3, 2])
    assert buffer.set_version(4) == 2
    assert stored_numbers(buffer) == [0, 2, 4, 5]
    assert (len(buffer), buffer.stats()["stale"], buffer.stats()["version"]) == (4, 2, 4)
    assert (buffer.remove(indices[[1, 3]]), buffer.doctor().findings) == (0, ())
    batch, info = buffer.sample(4, True)
    assert info.version.tolist() == [[3, 0, 2, 1, 3, 2][i] for i in numbers(batch)]


def test_zero_allows_the_current_version_alone(server, make_buffer, records):
    """With max_staleness=0 a step of the version empties the buffer of what was there."""
    buffer = make_buffer(max_staleness=0)
    buffer.extend(records.many(0, 5))
    assert (buffer.set_version(0), len(buffer)) == (0, 5)
    assert (buffer.set_version(1), len(buffer)) == (5, 0)
    with pytest.raises(NotReadyError):
        buffer.sample(1)
    buffer.add(records.one(7))
    batch, info = buffer.sample(1, True)
    assert (numbers(batch), info.version.tolist(), info.version.dtype) == ([7], [1], np.int64)


def test_a_version_ahead_of_the_buffers_is_kept(server, make_buffer, small):
    """An actor may have a policy before the learner says so; its records count as fresh."""
    buffer = make_buffer(max_staleness=0)
    buffer.extend(small.many(0, 2), version=2**53 - 1)
    assert buffer.stats()["lag"] == {0: 2}
    assert (buffer.set_version(2**53 - 1), buffer.sample(1, True)[1].version.tolist()) == (0, [2**53 - 1])


def test_a_write_that_is_too_old_is_counted_and_dropped(server, make_buffer, records):
    """It has its indices, it is in write_count and in stale, it displaces nobody, and no draw finds it."""
    buffer = make_buffer(capacity=4, max_staleness=1)
    buffer.set_version(9)
    kept = buffer.extend(records.many(0, 4))
    assert buffer.extend(records.many(4, 7), version=[7, 8, 7]).tolist() == [5, 6, 7]
    stats = buffer.stats()
    assert [stats[name] for name in ("write_count", "stale", "evicted", "size")] == [7, 2, 1, 4]
    assert stored_numbers(buffer) == [1, 2, 3, 5]
    assert (buffer.remove(kept), buffer.doctor().findings) == (3, ())


@pytest.mark.parametrize("sampler", [Uniform(), Freshest(), MaxHeap()], ids=repr)
def test_large_records_go_the_same_way(server, client, name, sampler):
    """The gate path leaves the same versions, counters and shares as the small one."""
    left = []
    for width in (SMALL, LARGE):
        with ReplayBuffer(server.target(), name, capacity=5, sampler=sampler, max_staleness=3, fresh=True) as buffer:
            buffer.writer = "w"
            buffer.set_version(5)
            buffer.extend(Records(width).many(0, 4), version=[5, 1, 2, 4])
            buffer.extend(Records(width).many(4, 8), version=6)
            buffer.set_version(6)
            buffer.add(Records(width).one(8))
            stats, kept = buffer.stats(), contents(client)
            del stats["bytes_total"]
            left.append((stats, [kept[f"rr:{{{name}}}:{what}"] for what in ("versions", "authors")], stored_numbers(buffer)))
            assert buffer.doctor().findings == ()
            buffer.delete()
    assert left[0] == left[1]


def test_freshest_goes_by_version_then_by_age(server, make_buffer, small):
    """The highest version first, of equals the newest; without max_staleness nothing is dropped."""
    buffer = make_buffer(sampler=Freshest())
    buffer.extend(small.many(0, 12), version=[1, 5, 5, 0, 10, 9, 5, 2, 2, 2, 2, 2])
    assert numbers(buffer.sample(6)) == [4, 5, 6, 2, 1, 11]
    assert (buffer.set_version(100), len(buffer)) == (0, 12)


def test_a_lent_record_that_has_grown_old_is_dropped_when_it_comes_back(server, make_buffer, records):
    """By release and by ack; what is not too old goes back."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=2, max_staleness=1)
    buffer.extend(records.many(0, 6), version=[0, 0, 1, 1, 0, 1])
    released = buffer.sample(2, True, lease=100.0)[1]
    with ReplayBuffer(server.target(), buffer.name) as other:
        acked = other.sample(2, True, lease=100.0)[1]
        assert buffer.set_version(2) == 1  # of those that are there
        buffer.release(released.lease)
        other.ack(acked.lease)
    stats = buffer.stats()
    assert (stats["stale"], stats["size"], stored_numbers(buffer)) == (3, 3, [2, 3, 5])
    assert buffer.doctor().findings == ()


def test_a_hidden_record_grows_old_too(server, make_buffer, small):
    """Priority 0 does not save it."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0), max_staleness=0)
    index = buffer.extend(small.many(0, 4), priority=[0.0, 1.0, 0.0, 1.0], version=[0, 0, 1, 1])
    assert (buffer.set_version(1), len(buffer), buffer.stats()["hidden"]) == (2, 1, 1)
    assert buffer.update_priority(index, 1.0).applied == 2


def test_many_go_in_steps(real_server, make_buffer):
    """45,000 old records; the version is raised when the last has gone."""
    buffer = make_buffer(capacity=100_000, max_staleness=1)
    for version in (0, 1, 2):
        buffer.extend({"x": np.zeros(15_000, np.int8)}, version=version)
    buffer.add({"x": np.int8(1)}, version=3)
    assert buffer.set_version(4) == 45_000
    stats = buffer.stats()
    assert (stats["stale"], stats["size"], stats["version"], stats["lag"]) == (45_000, 1, 4, {1: 1})
    assert buffer.doctor().findings == ()


def test_a_step_that_is_not_the_last_leaves_the_version(server, make_buffer, make_raw):
    """MORE: some are gone, the counters are right, and draws go on under the version of before."""
    buffer, raw = make_buffer(capacity=50_000, max_staleness=0), make_raw()
    buffer.extend({"x": np.zeros(7_000, np.int8)})
    assert raw("version", version=1)[::2] == ["MORE", "5000"]
    assert (buffer.stats()["version"], len(buffer), buffer.doctor().findings) == (0, 2_000, ())
    assert raw("version", version=1)[::2] == ["OK", "2000"]
    assert buffer.stats()["version"] == 1


def test_no_reader_is_handed_what_is_too_old(real_server, make_buffer, name):
    """A learner raises the version while readers draw and an actor writes late: no batch has an old record in it."""
    buffer = make_buffer(capacity=5_000, max_staleness=1)
    buffer.extend({"x": np.zeros(100, np.int8)})
    said, ended, wrong = [0], threading.Event(), []

    def read(seed):
        with ReplayBuffer(real_server.target(), name, seed=seed) as reader:
            while not ended.is_set():
                least = said[0] - 1  # the version that the learner knew as raised before this draw
                _, info = reader.sample(16, True, wait=True, min_items=1)
                wrong.extend(v for v in info.version.tolist() if v < least)

    def write():
        with ReplayBuffer(real_server.target(), name) as actor:
            while not ended.is_set():
                actor.extend({"x": np.zeros(20, np.int8)}, version=np.maximum(0, said[0] - np.arange(20) % 4))

    threads = [
        threading.Thread(target=read, args=(1,)),
        threading.Thread(target=read, args=(2,)),
        threading.Thread(target=write),
    ]
    for thread in threads:
        thread.start()
    try:
        for version in range(1, 150):
            buffer.set_version(version)
            said[0] = version
    finally:
        buffer.extend({"x": np.zeros(16, np.int8)})
        ended.set()
        for thread in threads:
            thread.join(10)
    assert (wrong, buffer.stats()["stale"] > 0, buffer.doctor().findings) == ([], True, ())


# What an open gate leaves


def test_a_gate_that_was_not_closed_loses_no_version(server, make_buffer, make_raw, small):
    """Its records get the versions they came with; what is too old among them is dropped before anything is drawn."""
    buffer, raw = make_buffer(**QUEUE, max_staleness=1), make_raw()
    buffer.set_version(7)
    buffer.extend(small.many(0, 1))
    raw.gate(encode_batch(small.many(1, 4), None), steps=("open", "adds"), origin="somebody 7 5 6")
    batch, info = buffer.sample(3, True)
    assert (numbers(batch), info.version.tolist(), buffer.stats()["stale"]) == ([0, 1, 3], [7, 7, 6], 1)
    assert buffer.stats()["by_writer"]["somebody"] == {"written": 3, "stale": 1, "evicted": 0}
    assert buffer.doctor().findings == ()


# Waits


def test_dropping_the_last_ends_a_drain(server, make_buffer, small):
    """A draining buffer whose rest grows old is shut, as if it had been handed out."""
    buffer = make_buffer(**QUEUE, max_staleness=0)
    buffer.extend(small.many(0, 3))
    buffer.shutdown()
    assert (buffer.set_version(1), buffer.stats()["state"]) == (3, "shut")


def test_what_was_dropped_is_not_waited_for(server, make_buffer, small):
    """A wait counts on what is there after the drop."""
    buffer = make_buffer(**QUEUE, max_staleness=0)
    buffer.extend(small.many(0, 3))
    buffer.set_version(1)
    assert (buffer.can_sample(1), buffer.wait_until_sampleable(1, timeout=0.01)) == (False, False)


# Looking


def test_lags_are_exact_and_then_powers_of_two(server, make_buffer, small):
    """Below 16 each lag is told for itself; the others by the power of two below."""
    buffer = make_buffer(sampler=Freshest())
    buffer.set_version(1000)
    lags = [0, 0, 1, 15, 15, 16, 31, 32, 63, 64, 999, 1000]
    buffer.extend(small.many(0, 12), version=[1000 - lag for lag in lags])
    assert buffer.stats()["lag"] == {0: 2, 1: 1, 15: 2, 16: 2, 32: 2, 64: 1, 512: 2}


def test_each_writers_loss_is_told(server, make_buffer, name, small):
    """What was dropped or evicted before anybody was handed it, by writer; what was handed out is no loss."""
    buffer = make_buffer(capacity=6, max_staleness=1, sampler=Fifo())
    with ReplayBuffer(server.target(), name) as slow:
        buffer.writer, slow.writer = "fast", "slow"
        slow.extend(small.many(0, 3))
        buffer.sample(1)
        buffer.extend(small.many(3, 8), version=2)
        buffer.set_version(2)
    assert buffer.stats()["by_writer"] == {
        "slow": {"written": 3, "stale": 1, "evicted": 1},
        "fast": {"written": 5, "stale": 0, "evicted": 0},
    }
    assert (buffer.stats()["stale"], buffer.stats()["evicted"], buffer.stats()["unseen"]) == (1, 2, 5)
    buffer.empty()
    assert (buffer.stats()["by_writer"], buffer.stats()["stale"], buffer.stats()["version"]) == ({}, 0, 2)


def test_writers_beyond_256_are_counted_together(server, make_buffer, small):
    """The most silent ones give way: the table stays small, and no count is lost."""
    buffer = make_buffer(sampler=Freshest(), capacity=100)
    for i in range(260):
        buffer.writer = f"actor-{i}"
        buffer.add(small.one(i))
    shares = buffer.stats()["by_writer"]
    assert (len(shares), "actor-0" in shares, "actor-259" in shares, "(others)" in shares) == (257, False, True, True)
    assert sum(share["written"] for share in shares.values()) == 260
    assert sum(share["evicted"] for share in shares.values()) == 160


def test_a_writer_is_its_host_and_process_by_default(server, make_buffer, small):
    """So that a user finds it; a name of its own is checked."""
    buffer = make_buffer(max_staleness=0)
    buffer.add(small.one(0))
    assert list(buffer.stats()["by_writer"]) == [buffer.writer]
    for bad in ("", "two words", "x" * 65, 5):
        with refused((ArgumentError, ArgumentTypeError)):
            buffer.writer = bad


# What is refused


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad is not None], ids=repr)
def test_what_is_no_version_is_refused(server, make_buffer, client, small, bad):
    """The error names the position, and nothing was written."""
    buffer = make_buffer(max_staleness=0)
    for call in (lambda: buffer.extend(small.many(0, 3), version=[1, 2, bad]), lambda: buffer.set_version(bad)):
        before = contents(client)
        with refused((ArgumentError, ArgumentTypeError)) as caught:
            call()
        assert contents(client) == before
        assert caught.value.name in ("version[2]", "version")


def test_the_number_of_versions_is_one_or_as_many(server, make_buffer, small):
    """Two versions for three records are refused."""
    with refused(ArgumentError) as caught:
        make_buffer(max_staleness=0).extend(small.many(0, 3), version=[1, 2])
    assert caught.value.name == "version"


def test_arrays_and_tensors_are_versions(server, make_buffer, small):
    """Of numpy and torch, scalars and arrays, alone and in lists."""
    torch = pytest.importorskip("torch")
    buffer = make_buffer(max_staleness=9, sampler=Fifo())
    given = [
        np.int32(3),
        np.array([1, 2, 3], np.uint16),
        torch.tensor(4),
        torch.tensor([5, 6, 7]),
        [torch.tensor(1), np.int8(2), 3],
    ]
    for version in given:
        buffer.extend(small.many(0, 3), version=version)
    versions = buffer.sample(15, True)[1].version.tolist()
    assert (versions, buffer.set_version(torch.tensor(4))) == ([3, 3, 3, 1, 2, 3, 4, 4, 4, 5, 6, 7, 1, 2, 3], 0)


def test_a_buffer_without_versions_says_what_to_set(server, make_buffer, small):
    """Neither writes nor set_version take one where it would mean nothing; info has none."""
    buffer = make_buffer()
    for call in (lambda: buffer.add(small.one(0), version=0), lambda: buffer.set_version(1)):
        with refused(ArgumentError) as caught:
            call()
        assert "max_staleness" in str(caught.value)
        assert "Freshest" in str(caught.value)
    buffer.add(small.one(0))
    assert (buffer.sample(1, True)[1].version, buffer.stats()["lag"], buffer.stats()["by_writer"]) == (None, {}, {})


def test_a_lower_version_changes_nothing(server, make_buffer, client, small):
    """It is refused with both numbers; the same one is no error."""
    buffer = make_buffer(max_staleness=0)
    buffer.set_version(5)
    buffer.extend(small.many(0, 2))
    before = contents(client, (":requests", ":lanes"))
    with refused(ArgumentError) as caught:
        buffer.set_version(4)
    assert ("5" in caught.value.allowed, caught.value.found) == (True, 4)
    assert buffer.set_version(5) == 0
    assert contents(client, (":requests", ":lanes")) == before


@pytest.mark.parametrize("bad", [-1, 2**53, 1.5, "1", True])
def test_a_max_staleness_that_is_none_is_refused(server, name, bad):
    """Before anything is created."""
    with refused((ArgumentError, ArgumentTypeError)) as caught:
        ReplayBuffer(server.target(), name, capacity=5, max_staleness=bad)
    assert caught.value.name == "max_staleness"


def test_another_max_staleness_does_not_attach(server, make_buffer, name):
    """It is a setting of the buffer, compared where it is named; who leaves it out has it, too."""
    make_buffer(max_staleness=3)
    for other in (2, None):
        with refused(ConfigMismatchError) as caught:
            ReplayBuffer(server.target(), name, capacity=100, max_staleness=other)
        assert caught.value.differences["max_staleness"] == (3, other)
    with ReplayBuffer(server.target(), name) as late:
        assert late.set_version(1) == 0
