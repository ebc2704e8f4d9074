"""Leases: a lent batch is nobody else's; it ends by ack, by release, or by its time."""

import math

import numpy as np
import pytest

from redis_replay import LeasesEnded, ReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, BufferFullError, BufferShutDownError, ConfigMismatchError
from redis_replay.samplers import Fifo
from tests._contract import nothing_changes, numbers, stored_numbers
from tests.limits._pinger import PROMISE, Pinger

LONG = 1000.0  # seconds: it does not run out by itself
QUEUE = {"sampler": Fifo(), "consume_after_n_samples": 1}


@pytest.fixture
def queue(server, make_buffer, records):
    """A queue of ten records."""
    buffer = make_buffer(capacity=100, **QUEUE)
    buffer.extend(records.many(0, 10))
    return buffer


def counted(buffer, *names):
    stats = buffer.stats()
    return tuple(stats[name] for name in names)


def test_a_lent_batch_is_nobody_elses(queue, make_buffer):
    """It is neither live nor consumed, but stored: `get` and `records` see it, no draw does."""
    batch, info = queue.sample(4, True, lease=LONG)
    assert numbers(batch) == [0, 1, 2, 3]
    assert counted(queue, "leased", "leases", "sampleable_size", "consumed", "storage_size") == (4, 1, 6, 0, 10)
    assert numbers(make_buffer(attach=True).sample(6)) == [4, 5, 6, 7, 8, 9]
    assert queue.get(info.index[0])["i"] == 0
    assert stored_numbers(queue) == [0, 1, 2, 3]
    assert queue.doctor().ok


def test_ack_consumes(queue):
    """The use counts when the reader says so; its bytes go when the lane that drew goes on."""
    info = queue.sample(4, True, lease=LONG)[1]
    assert queue.ack(info.lease) == LeasesEnded(applied=1, late=0)
    assert counted(queue, "leased", "leases", "consumed", "storage_size", "parting") == (0, 0, 4, 6, 0)
    assert queue.doctor().ok


def test_release_puts_back_in_place(queue):
    """As if it had not been drawn: in its old order, uncounted."""
    info = queue.sample(4, True, lease=LONG)[1]
    assert queue.release(info.lease) == LeasesEnded(applied=1, late=0)
    assert counted(queue, "sampleable_size", "leased", "sample_calls", "samples_returned") == (10, 0, 0, 0)
    assert numbers(queue.sample(10)) == list(range(10))


def test_a_lease_ends_by_its_time(queue, make_raw):
    """The next script takes the records back, `stats` included; it counts them."""
    raw = make_raw()
    raw.sample(4, lease=2)
    raw.pass_time(1)
    assert counted(queue, "leased", "reclaimed") == (4, 0)
    raw.pass_time(1.5)
    assert counted(queue, "leased", "reclaimed", "sampleable_size") == (0, 4, 10)
    assert queue.doctor().ok


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_a_late_call_is_told_and_takes_nothing(queue, make_raw, verb):
    """What another reader has by now stays its own."""
    raw = make_raw()
    late = raw.sample(4, lease=2)[6]
    raw.pass_time(3)
    other = queue.sample(4, True, lease=LONG)[1]
    assert getattr(queue, verb)(late) == LeasesEnded(applied=0, late=1)
    assert counted(queue, "leased", "consumed", "late") == (4, 0, int(verb == "ack"))
    assert queue.ack(other.lease).applied == 1


def test_several_leases_end_in_one_call(queue):
    """Names in any number; one that is named twice has ended the second time."""
    leases = []
    for _ in range(3):
        info = queue.sample(2, True, lease=LONG)[1]
        queue._now.core.leases.end([info.lease])  # not this thread's any more, so that the next draw leaves it alone
        leases.append(info.lease)
    assert queue.ack([*leases, leases[0]]) == LeasesEnded(applied=3, late=1)
    assert queue.ack([]) == LeasesEnded(0, 0)


def test_k_uses_are_counted_one_by_one(server, make_buffer, records):
    """With consume_after_n_samples=2 the first ack gives the records back with one use, the second consumes them."""
    buffer = make_buffer(capacity=10, sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(records.many(0, 3))
    first = buffer.sample(3, True, lease=LONG)[1]
    assert first.times_sampled.tolist() == [1, 1, 1]
    buffer.release(first.lease)
    again = buffer.sample(3, True, lease=LONG)[1]
    assert again.times_sampled.tolist() == [1, 1, 1]
    buffer.ack(again.lease)
    assert counted(buffer, "sampleable_size", "consumed") == (3, 0)
    last = buffer.sample(3, True, lease=LONG)[1]
    assert last.times_sampled.tolist() == [2, 2, 2]
    buffer.ack(last.lease)
    assert counted(buffer, "sampleable_size", "consumed", "storage_size") == (0, 3, 0)
    assert buffer.doctor().ok


def test_the_buffers_lease_is_every_readers(server, make_buffer, small):
    """Readers that attach need not know it."""
    buffer = make_buffer(capacity=100, lease=LONG, **QUEUE)
    buffer.extend(small.many(0, 10))
    info = make_buffer(attach=True).sample(4, True)[1]
    assert info.lease is not None
    assert counted(buffer, "leased") == (4,)


def test_a_draw_without_a_lease_has_none(queue):
    """It consumes at once."""
    assert queue.sample(4, True)[1].lease is None
    assert counted(queue, "leased", "consumed") == (0, 4)


# Who acknowledges by itself


def test_the_next_sample_acknowledges(queue):
    """A loop needs no ack: each draw is the proof that the one before was used."""
    queue.sample(4, lease=LONG)
    queue.sample(4, lease=LONG)
    assert counted(queue, "consumed", "leased") == (4, 4)


def test_the_next_sample_acknowledges_even_where_it_finds_too_little(queue):
    """The batch before is done with, whatever becomes of this call."""
    queue.sample(4, lease=LONG)
    assert queue.can_sample(7) is False
    with pytest.raises(Exception, match="6"):
        queue.sample(7)
    assert counted(queue, "consumed", "leased") == (4, 0)


def test_close_acknowledges(queue, make_buffer):
    """Leaving in good order means that the work was done."""
    with make_buffer(attach=True) as reader:
        reader.sample(4, lease=LONG)
    assert counted(queue, "consumed", "leased") == (4, 0)


def test_an_exception_releases(queue, make_buffer):
    """Leaving `with` by an exception means that it was not."""

    def crash():
        with make_buffer(attach=True) as reader:
            reader.sample(4, lease=LONG)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert counted(queue, "consumed", "leased", "sampleable_size") == (0, 0, 10)


# Eviction


def test_a_lent_record_outlives_those_that_can_go(server, make_buffer, records):
    """The oldest are lent; what comes next displaces the others, and what comes back then is too old."""
    buffer = make_buffer(capacity=4, **QUEUE)
    buffer.extend(records.many(0, 4))
    info = buffer.sample(2, True, lease=LONG)[1]
    buffer.extend(records.many(4, 7))
    assert stored_numbers(buffer) == [0, 1, 5, 6]
    buffer.release(info.lease)
    assert stored_numbers(buffer) == [5, 6]
    assert counted(buffer, "evicted", "consumed") == (5, 0)
    assert buffer.doctor().ok


def test_a_writer_is_told_when_all_is_lent(server, make_buffer, client, records):
    """Nothing can be evicted, so nothing is written; when a lease has ended, it can be."""
    buffer = make_buffer(capacity=4, **QUEUE)
    buffer.extend(records.many(0, 4))
    info = buffer.sample(4, True, lease=LONG)[1]
    with nothing_changes(client), pytest.raises(BufferFullError) as caught:
        make_buffer(attach=True).extend(records.many(4, 6))
    assert (caught.value.name, caught.value.capacity) == (buffer.name, 4)
    buffer.ack(info.lease)
    buffer.extend(records.many(4, 6))
    assert stored_numbers(buffer) == [4, 5]


# A lost reply


def test_a_lent_batch_is_answered_again(queue, make_raw):
    """The same number gives the same batch under the same lease."""
    raw = make_raw()
    first = raw.sample(4, lease=LONG)
    again = raw.sample(4, lease=LONG, number=raw.number)
    assert again[:9] == first[:9]
    assert counted(queue, "leased", "leases") == (4, 1)


def test_a_lent_batch_that_never_arrived_goes_back(queue, make_raw):
    """The lane's next request names it."""
    raw = make_raw()
    raw.sample(4, lease=LONG)
    assert raw.settle(open_number=raw.number)[1] == "applied"
    assert counted(queue, "leased", "sampleable_size", "sample_calls") == (0, 10, 0)
    assert queue.doctor().ok


def test_a_lease_that_ran_out_is_not_undone_twice(queue, make_raw):
    """Its records may be another's by then."""
    raw = make_raw()
    raw.sample(4, lease=2)
    raw.pass_time(3)
    other = queue.sample(4, True, lease=LONG)[1]
    raw.settle(open_number=raw.number)
    assert counted(queue, "leased", "samples_returned", "reclaimed") == (4, 4, 4)
    assert queue.ack(other.lease).applied == 1
    assert queue.doctor().ok


# Ends of life


def test_empty_takes_lent_records_too(queue):
    """The lease ends with them; who acknowledges it is late."""
    info = queue.sample(4, True, lease=LONG)[1]
    queue.empty(empty_write_count=False)
    assert counted(queue, "leased", "leases", "storage_size", "removed") == (0, 0, 0, 10)
    assert queue.ack(info.lease) == LeasesEnded(0, 1)
    assert queue.doctor().ok


def test_draining_waits_for_leases(queue, make_buffer):
    """What is lent may come back, so the rest is no last batch before; when all is acknowledged the buffer shuts."""
    reader = make_buffer(attach=True)
    lent = reader.sample(4, True, lease=LONG)[1]
    queue.shutdown()
    assert queue.can_sample(7) is False
    reader.release(lent.lease)
    batch, info = reader.sample(20, True, lease=LONG)
    assert (numbers(batch), info.last, queue.stats()["state"]) == (list(range(10)), True, "draining")
    reader.ack(info.lease)
    assert queue.stats()["state"] == "shut"
    with pytest.raises(BufferShutDownError):
        reader.sample(1)


def test_leases_can_be_ended_after_a_shutdown(queue):
    """The work was done, whatever became of the buffer."""
    info = queue.sample(4, True, lease=LONG)[1]
    queue.shutdown(drain=False)
    assert queue.ack(info.lease) == LeasesEnded(1, 0)
    assert counted(queue, "consumed", "state") == (4, "shut")


# Many at once


def lend_one_by_one(raw, client, n):
    """n leases of one record each, all of the lane."""
    pipeline = client.pipeline(transaction=False)
    for _ in range(n):
        pipeline.eval(
            *raw.command(
                "sample",
                batch_size=1,
                min_items=1,
                lease_us=10**9,
                with_bytes=1,
                foreseen="",
                seed=raw.seeds,
                **raw._standing(0, -1),
            )
        )
    pipeline.execute()
    return raw


@pytest.mark.parametrize("n", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_many_leases_run_out_in_bounded_steps(real_server, make_buffer, make_raw, client, small, n):
    """Each script takes back so many that no other client waits long; all come back. Noise only adds: the best step counts."""
    buffer = make_buffer(capacity=30_000, **QUEUE)
    buffer.extend(small.many(0, n))
    raw = lend_one_by_one(make_raw(), client, n)
    assert counted(buffer, "leases", "leased") == (n, n)
    raw.pass_time(2000)
    with Pinger(real_server.url, real_server.pid) as pinger:
        pinger.slowest()
        steps = [(buffer.stats()["reclaimed"], pinger.slowest()) for _ in range(n // 1_000)]
    assert [reclaimed for reclaimed, _ in steps] == list(range(1_000, n + 1, 1_000))
    assert min(seconds for _, seconds in steps) <= PROMISE
    assert counted(buffer, "leases", "reclaimed", "sampleable_size") == (0, n, n)
    assert buffer.doctor().ok


# Arguments


@pytest.mark.parametrize("lease", [0, -1, 0.01, 86_401, math.inf, math.nan])
def test_a_lease_is_a_bounded_time(queue, make_buffer, lease):
    """Refused as an argument and as a setting, before anything is drawn."""
    for call in (lambda: queue.sample(1, lease=lease), lambda: make_buffer(capacity=9, lease=lease, **QUEUE)):
        with pytest.raises(ArgumentError, match="lease"):
            call()
    assert len(queue) == 10


@pytest.mark.parametrize("lease", [True, "1", b"1", [1]])
def test_a_lease_is_a_number(queue, lease):
    """Neither a bool nor text."""
    with pytest.raises(ArgumentTypeError, match="lease"):
        queue.sample(1, lease=lease)


def test_a_lease_needs_a_buffer_that_consumes(server, make_buffer, small):
    """Elsewhere there is nothing to acknowledge."""
    buffer = make_buffer(capacity=9)
    buffer.extend(small.many(0, 3))
    with pytest.raises(ArgumentError, match="consume_after_n_samples"):
        buffer.sample(1, lease=1.0)
    with pytest.raises(ArgumentError, match="consume_after_n_samples"):
        make_buffer(capacity=9, lease=1.0)


def test_the_lease_is_compared_when_attaching(server, make_buffer, name):
    """As every setting is: both values are named."""
    buffer = make_buffer(capacity=9, lease=2, **QUEUE)
    assert make_buffer(capacity=9, lease=2.0, **QUEUE).capacity == buffer.capacity
    with pytest.raises(ConfigMismatchError) as caught:
        make_buffer(attach=True, lease=3)
    assert caught.value.differences == {"lease": (2.0, 3.0)}


@pytest.mark.parametrize("wrong", ["", "x", "x.", ".1", "a b.1", "x.1\n"])
def test_what_is_no_lease_is_refused(queue, wrong):
    """Before it is sent."""
    with pytest.raises(ArgumentError, match="lease"):
        queue.ack(wrong)


@pytest.mark.parametrize("wrong", [None, 1, [None], b"x.1"])
def test_what_is_no_name_is_refused(queue, wrong):
    """`info.lease` of a draw that was not lent is None."""
    with pytest.raises(ArgumentTypeError, match="lease"):
        queue.release(wrong)


def test_handles_of_other_processes_have_no_leases(queue):
    """A pickled or copied handle acknowledges nothing of the first one's."""
    queue.sample(4, lease=LONG)
    assert len(queue._now.core.renew().leases) == 0
    assert ReplayBuffer.__getstate__(queue)["identity"].keys().isdisjoint({"leases"})


def test_the_last_batch_is_not_told_before_it_is(server, make_buffer, records):
    """With consume_after_n_samples=2 what is acknowledged once comes again, so the first round is not the last."""
    buffer = make_buffer(capacity=10, sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(records.many(0, 3))
    buffer.shutdown()
    told = []
    for _ in range(2):
        info = buffer.sample(3, True, lease=LONG)[1]
        told.append(info.last)
        buffer.ack(info.lease)
    assert told == [False, True]
    assert buffer.stats()["state"] == "shut"


def test_more_leases_than_one_script_takes_back_come_back_to_one_call(real_server, make_buffer, make_raw, client, small):
    """The call asks again until all that ran out is there."""
    buffer = make_buffer(capacity=3000, **QUEUE)
    buffer.extend(small.many(0, 2500))
    raw = lend_one_by_one(make_raw(), client, 2500)
    raw.pass_time(2000)
    assert numbers(buffer.sample(2500)) == list(range(2500))


def test_arrays_are_no_leases(queue, make_buffer):
    """An error of ours, not numpy's."""
    for wrong in (np.array("a.1"), np.array([1, 2])):
        with pytest.raises(ArgumentTypeError, match="lease"):
            queue.ack(wrong)
    with pytest.raises((ArgumentTypeError, ArgumentError), match="lease"):
        make_buffer(capacity=9, lease=np.array([1, 2]), **QUEUE)
    with pytest.raises(ArgumentTypeError, match="index"):
        queue.get([[1], [2, 3]])
