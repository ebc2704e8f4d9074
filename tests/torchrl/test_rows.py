"""TorchRL's checklist on RedisReplayBuffer, row by row. The numbers (C: checklist, D: defect) are those of docs/torchrl.md.

What the core's tests (tests/contract/test_torchrl_rows.py) show for every server is shown here for what TorchRL sees.
"""

import contextlib
import json
import multiprocessing
import threading
import time
from collections import Counter

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from redis_replay.exceptions import BufferShutDownError
from redis_replay.samplers import Fifo, Freshest
from redis_replay.torchrl import (
    BlockingReplayBuffer,
    RateLimitedReplayBuffer,
    RedisReplayBuffer,
)
from tests._helpers import thread_of, wait_until, waiters
from tests._torchrl import data, forked, numbers

# Waits


def test_a_blocked_wait_ends_by_another_thread(server, make):
    """C1"""
    rb, waiter = make(), make(attach=True)
    with (
        thread_of(lambda: waiter.wait_until_sampleable(4, timeout=10)) as found,
        thread_of(lambda: waiter.sample(4, wait=True, timeout=10).shape) as drawn,
    ):
        waiters(rb, 2)
        rb.extend(data(0, 4))
    assert (found, drawn) == ([True], [torch.Size([4])])


def write_once(rb):
    rb.extend(data(0, 8))
    rb.close()


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_later_process_ends_a_blocked_wait(server, make):
    """C2, C29: the writer is a spawned process that was given the handle; its data and its count are seen here."""
    rb = make(batch_size=8, poll_interval=30)
    with thread_of(lambda: rb.sample(wait=True, timeout=40)) as drawn:
        waiters(rb)
        writer = multiprocessing.get_context("spawn").Process(target=write_once, args=(rb,))
        writer.start()
        writer.join(40)
    assert len(drawn[0]) == 8
    assert rb.write_count == 8


def test_timeouts_end_waits_in_their_way(server, make):
    """C3"""
    rb = make()
    for timeout in (0, 0.15):
        assert rb.wait_until_sampleable(1, timeout=timeout) is False
        with pytest.raises(TimeoutError):
            rb.sample(1, wait=True, timeout=timeout)
    for bad, kind in ((-1, ValueError), (float("nan"), ValueError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(kind):
            rb.wait_until_sampleable(1, timeout=bad)


def test_a_set_event_cancels_waits(server, make):
    """C4"""
    rb, event = make(poll_interval=30), threading.Event()
    with thread_of(lambda: rb.sample(1, wait=True, cancel_event=event)) as ended:
        waiters(rb)
        event.set()
        wait_until(lambda: ended, timeout=0.5, description="the wait to end")
    assert isinstance(ended[0], RuntimeError)
    rb.extend(data(0, 3))
    assert rb.wait_until_sampleable(1, cancel_event=event) is False
    with pytest.raises(RuntimeError):
        rb.sample(1, wait=True, cancel_event=event)


def test_a_shutdown_ends_all_waits(server, make):
    """C5: in every handle with a RuntimeError; a second one is none; start and sample are refused, stats are not."""
    rb, others = make(), [make(attach=True, poll_interval=30) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        ended = [stack.enter_context(thread_of(lambda b=b: b.sample(1, wait=True))) for b in others]
        waiters(rb, 3)
        rb.shutdown()
        wait_until(lambda: all(ended), timeout=2, description="all waits to end")
    assert [type(results[0]) for results in ended] == [BufferShutDownError] * 3
    rb.shutdown()
    for call in (rb.start, lambda: rb.sample(1), lambda: others[0].sample(1, wait=True), lambda: rb.extend(data(0, 1))):
        with pytest.raises(RuntimeError):
            call()
    assert rb.stats()["state"] == "shut"


def test_emptying_keeps_waits_waiting(server, make):
    """C6"""
    rb, waiter = make(), make(attach=True)
    rb.extend(data(0, 3))
    with thread_of(lambda: waiter.wait_until_sampleable(4, timeout=10)) as found:
        waiters(rb)
        rb.empty(empty_write_count=False)
        assert (len(rb), rb.write_count) == (0, 3)
        rb.empty()
        assert (len(rb), rb.write_count, found) == (0, 0, [])
        rb.extend(data(0, 4))
    assert found == [True]


def test_min_items_is_a_number_of_records(server, make):
    """C8: as many must be there for a wait; a sample that does not wait gives a full batch of one record, as TorchRL's."""
    rb, sized = make(), make(attach=True, batch_size=3)
    rb.extend(data(0, 2))
    assert [rb.wait_until_sampleable(n, timeout=0) for n in (2, 3)] == [True, False]
    assert sized.wait_until_sampleable(timeout=0) is False
    assert (sized.can_sample(), sized.sample().shape) == (True, torch.Size([3]))
    for bad, kind in ((0, ValueError), (-1, ValueError), (True, TypeError), (None, ValueError)):
        with pytest.raises(kind):
            rb.wait_until_sampleable(bad, timeout=0)
    with pytest.raises(ValueError):
        rb.can_sample()
    with pytest.raises(ValueError):
        rb.sample()


def test_a_wait_blocks_no_writer(server, make):
    """C15, D12: `client()` waits as the others do, and writers get through meanwhile."""
    rb = make(poll_interval=30)
    client = rb.client()
    with contextlib.closing(client), thread_of(lambda: client.wait_until_sampleable(2, timeout=10)) as found:
        waiters(rb)
        rb.extend(data(0, 1))
        assert not found
        rb.extend(data(1, 2))
    assert found == [True]


# Counters


def test_stats_are_flat_and_repeatable(server, make):
    """C9: TorchRL's keys and more, scalars, equal after JSON, the same again."""
    rb = make()
    rb.extend(data(0, 5))
    local = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    stats = rb.stats()
    assert set(local.stats()) <= set(stats)
    assert json.loads(json.dumps(stats)) == stats
    assert rb.stats() | {"seconds_since_write": 0} == stats | {"seconds_since_write": 0}


def test_fifteen_writes_into_ten_places(server, make):
    """C10"""
    rb = make(capacity=10)
    rb.extend(data(0, 15))
    stats = rb.stats()
    assert (stats["size"], stats["write_count"], stats["utilization"]) == (10, 15, 1.0)


@pytest.mark.parametrize("consume", [None, 1])
def test_size_is_what_can_be_sampled(server, make, consume):
    """C11, C12: and the sample counters are calls and true lengths."""
    rb = make(consume_after_n_samples=consume)
    rb.extend(data(0, 9))
    rb.sample(4)
    rb.sample(2)
    stats, live = rb.stats(), 3 if consume else 9
    assert (stats["size"], stats["sampleable_size"], len(rb)) == (live, live, live)
    assert (stats["sample_calls"], stats["samples_returned"]) == (2, 6)
    assert len(rb.storage) == stats["storage_size"]


def test_write_count_is_a_moment_old_at_most(server, make):
    """C13, C14: own writes are seen at once, another handle's within 50 ms, and after `empty` at once again."""
    rb, other = make(), make(attach=True)
    assert (rb.write_count, other.write_count) == (0, 0)
    rb.extend(data(0, 5))
    rb.add(data(5, 6)[0])
    assert rb.write_count == 6
    wait_until(lambda: other.write_count == 6, timeout=1, description="the other handle to see it")
    rb.empty()
    assert rb.write_count == 0


def test_write_count_asks_seldom(server, make, monkeypatch):
    """A collector reads it for each environment step: many reads, few questions."""
    rb, asked = make(), []
    kind, count = type(rb.buffer), type(rb.buffer).write_count
    monkeypatch.setattr(kind, "write_count", property(lambda self: asked.append(1) or count.fget(self)))
    started = time.monotonic()
    for n in range(200):
        assert rb.write_count == n
        rb.add(data(n, n + 1)[0])
    assert len(asked) <= 2 + (time.monotonic() - started) / 0.05


def test_a_write_that_fails_leaves_no_wrong_count(server, make):
    rb = make()
    rb.extend(data(0, 5))
    assert rb.write_count == 5
    with pytest.raises(ValueError):
        rb.extend(TensorDict({"other": torch.zeros(3)}, [3]))
    assert rb.write_count == 5


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_stats_are_one_round_trip(server, make):
    """C16: and a client's are the owner's."""
    rb, client = make(), server.client()
    rb.extend(data(0, 3))
    with contextlib.closing(rb.client()) as other:
        other.stats()
        client.config_resetstat()
        assert other.stats() == rb.stats()
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2


def test_changes_of_the_counters_are_told(server, make):
    """From any handle: the first look, each change, the shutdown; and nothing while nothing changes."""
    rb, other, seen = make(), make(attach=True), []
    stats = other.subscribe_stats(poll_interval=0.01)
    seen.append(next(stats)["write_count"])
    rb.extend(data(0, 3))
    seen.append(next(stats)["write_count"])
    rb.sample(2)
    seen.append(next(stats)["samples_returned"])
    rb.shutdown()
    assert (seen, [one["state"] for one in stats]) == ([0, 3, 2], ["shut"])
    with pytest.raises(ValueError):
        next(rb.subscribe_stats(poll_interval=0))


# Consuming


@pytest.mark.parametrize("consume", [1, 2])
def test_each_record_is_delivered_so_often(server, make, consume):
    """C17, C18: batches come short at the end, as TorchRL's; then an error; new records can be drawn."""
    rb, drawn = make(batch_size=5, consume_after_n_samples=consume), Counter()
    rb.extend(data(0, 12))
    for batch in rb:
        drawn.update(numbers(batch))
    assert drawn == Counter(dict.fromkeys(range(12), consume))
    with pytest.raises(RuntimeError):
        rb.sample()
    rb.extend(data(12, 14))
    assert sorted(numbers(rb.sample())) == [12, 13]


def test_next_is_an_iteration(server, make):
    rb = make(batch_size=4, sampler=Fifo(), consume_after_n_samples=1)
    rb.extend(data(0, 6))
    assert [numbers(rb.next()), numbers(rb.next()), rb.next()] == [[0, 1, 2, 3], [4, 5], None]
    rb.extend(data(6, 7))
    assert numbers(rb.next()) == [6]


def test_consumed_room_is_used_first(server, make):
    """C19"""
    rb = make(capacity=6, sampler=Fifo(), consume_after_n_samples=1)
    rb.extend(data(0, 6))
    rb.sample(3)
    rb.extend(data(6, 9))
    assert (rb.stats()["evicted"], len(rb)) == (0, 6)


def test_consume_refuses(server, make, name):
    """C21: prefetch, priorities, 0, a bool; and creates nothing."""
    for options in ({"prefetch": 2, "batch_size": 4}, {"consume_after_n_samples": 0}, {"consume_after_n_samples": True}):
        with pytest.raises((ValueError, TypeError)):
            make(**{"consume_after_n_samples": 1} | options)
    with pytest.raises(LookupError):
        RedisReplayBuffer(server.target(), name)


def test_a_client_of_a_consuming_buffer_draws_nothing_ahead(server, make):
    """C21: nor one that attaches, which has no option to compare."""
    make(consume_after_n_samples=1)
    with pytest.raises(ValueError, match="prefetch"):
        make(attach=True, prefetch=2, batch_size=4)


def test_what_a_failing_transform_saw_comes_back(server, make):
    """D20: nothing is lost where a transform raises."""

    def fails(_):
        raise ZeroDivisionError

    rb = make(consume_after_n_samples=1, transform=fails)
    rb.extend(data(0, 4))
    with pytest.raises(ZeroDivisionError):
        rb.sample(4)
    rb.extend(data(4, 5))  # the next request gives it back
    assert rb.stats()["size"] == 5


# Limits


def test_no_more_than_the_ratio(server, make):
    """C25, D13: over two readers; a wait wakes on a write; `empty` leaves no debt; its keys are TorchRL's."""
    rb = make(RateLimitedReplayBuffer, samples_per_insert=0.5, batch_size=2)
    with contextlib.closing(rb.client()) as other:
        rb.extend(data(0, 8))
        assert [len(reader.sample()) for reader in (rb, other)] == [2, 2]
        assert (rb.can_sample(), other.can_sample()) == (False, False)
        assert rb.wait_until_sampleable(timeout=0) is False
        with pytest.raises(RuntimeError):
            rb.sample()
        with thread_of(lambda: other.sample(wait=True, timeout=10).shape) as drawn:
            waiters(rb)
            rb.extend(data(8, 12))
        assert drawn == [torch.Size([2])]
    rb.empty()
    rb.extend(data(0, 4))
    assert len(rb.sample()) == 2
    stats = make(RateLimitedReplayBuffer, attach=True).stats()
    assert (stats["target_samples_per_insert"], stats["sample_budget"], stats["reserved_samples"]) == (0.5, 0, 0)


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), True, "1", None])
def test_a_ratio_is_a_number(server, make, bad):
    with pytest.raises((ValueError, TypeError), match="samples_per_insert"):
        make(RateLimitedReplayBuffer, samples_per_insert=bad)


@pytest.mark.parametrize("option", ["prefetch", "rate_limiter"])
def test_a_ratio_refuses(server, make, option):
    """C25: also where it is attached to."""
    with pytest.raises(ValueError, match=option):
        make(RateLimitedReplayBuffer, samples_per_insert=1.0, batch_size=1, **{option: 2})
    if option == "prefetch":
        make(RateLimitedReplayBuffer, samples_per_insert=1.0)
        with pytest.raises(ValueError, match=option):
            make(RateLimitedReplayBuffer, attach=True, batch_size=1, prefetch=2)


def test_writers_wait_for_room(server, make):
    """PR 4419: nothing unread is overwritten; a batch whole or not at all; a timeout, and a cancelled write change nothing."""
    rb = make(BlockingReplayBuffer, capacity=4, batch_size=2)
    rb.extend(data(0, 3))
    with pytest.raises(TimeoutError):
        rb.extend(data(3, 5), timeout=0.1)
    assert len(rb) == 3
    event = threading.Event()
    event.set()
    with pytest.raises(RuntimeError):
        rb.extend(data(3, 5), cancel_event=event)
    with contextlib.closing(rb.client()) as other, thread_of(lambda: other.extend(data(3, 5)).tolist()) as wrote:
        waiters(rb)
        rb.sample()
    assert len(wrote[0]) == 2
    assert (len(rb), rb.stats()["evicted"]) == (3, 0)
    with pytest.raises(ValueError):
        rb.extend(data(0, 5))


# Ready means that the draw succeeds


def test_what_is_too_old_makes_no_wait_true(server, make):
    """D8: the wait goes by the rule of the draw."""
    rb = make(sampler=Freshest(), max_staleness=0)
    rb.extend(data(0, 5))
    rb.buffer.set_version(3)
    assert rb.wait_until_sampleable(1, timeout=0) is False
    assert rb.stats()["size"] == 0


def test_nothing_of_before_empty_is_drawn_ahead(server, make):
    """D15: by whomever it was emptied; and what is drawn ahead is shown."""
    rb, other = make(batch_size=4, prefetch=3), make(attach=True)
    rb.extend(data(0, 10))
    for _ in range(3):
        rb.sample()
    assert rb.stats()["prefetch_queue_size"] == 3
    other.empty()
    with pytest.raises(RuntimeError):
        rb.sample()
    other.extend(data(10, 20))
    for _ in range(8):
        assert min(numbers(rb.sample())) >= 10
    other.shutdown()
    rb.shutdown()
    with pytest.raises(BufferShutDownError):
        rb.sample()


def test_a_version_ends_what_was_drawn_ahead(server, make):
    """What is too old by now is not handed out, whenever it was drawn."""
    rb = make(batch_size=2, prefetch=2, max_staleness=0)
    rb.extend(data(0, 10))
    rb.sample()
    rb.buffer.set_version(1)
    with pytest.raises(RuntimeError):
        rb.sample()


def test_what_is_drawn_ahead_is_no_less_than_what_is_waited_for(server, make):
    """A batch drawn ahead from too few records is not what `wait` means."""
    rb = make(batch_size=4, prefetch=2)
    rb.extend(data(0, 1))
    for _ in range(3):
        assert numbers(rb.sample()) == [0] * 4
    with pytest.raises(TimeoutError):
        rb.sample(wait=True, timeout=0.1)


def shapes_of_three(rb):
    with contextlib.closing(rb):
        return [len(rb.sample()) for _ in range(3)]


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_forked_handle_draws_ahead_by_itself(server, make):
    """Threads do not live through a fork: the child does not wait for those of its parent."""
    rb = make(batch_size=4, prefetch=2)
    rb.extend(data(0, 10))
    rb.sample()
    assert forked(shapes_of_three, rb) == [4, 4, 4]


def test_prefetch_needs_a_batch_size(server, make):
    with pytest.raises(ValueError, match="prefetch"):
        make(prefetch=2)
