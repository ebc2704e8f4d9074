"""TorchRL's checklist on RedisReplayBuffer, row by row. The numbers (C: checklist, D: defect) are those of docs/torchrl.md.

What the core's tests (tests/contract/test_torchrl_rows.py) show for every server is shown here for the handle that TorchRL sees.
"""

import contextlib
import json
import multiprocessing
import pickle
import threading
import time
from collections import Counter

import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from redis_replay.exceptions import BufferShutDownError
from redis_replay.samplers import Fifo, Freshest, Uniform
from redis_replay.torchrl import (
    BlockingReplayBuffer,
    RateLimitedReplayBuffer,
    RedisPrioritizedReplayBuffer,
    RedisReplayBuffer,
)
from tests._helpers import wait_until
from tests._server import REAL
from tests._torchrl import data, numbers


@contextlib.contextmanager
def thread_of(function):
    results = []

    def run():
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield results
    thread.join(10)
    assert not thread.is_alive()


def waiters(rb, n=1):
    wait_until(lambda: rb.stats()["waiters"] == n, description=f"{n} waiting calls")


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
    stats = rb.stats()
    assert (stats["target_samples_per_insert"], stats["sample_budget"], stats["reserved_samples"]) == (0.5, 0, 0)


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), True, "1", None])
def test_a_ratio_is_a_number(server, make, bad):
    with pytest.raises((ValueError, TypeError), match="samples_per_insert"):
        make(RateLimitedReplayBuffer, samples_per_insert=bad)


@pytest.mark.parametrize("option", ["prefetch", "rate_limiter"])
def test_a_ratio_refuses(server, make, option):
    """C25"""
    with pytest.raises(ValueError, match=option):
        make(RateLimitedReplayBuffer, samples_per_insert=1.0, batch_size=1, **{option: 2})


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


def test_prefetch_needs_a_batch_size(server, make):
    with pytest.raises(ValueError, match="prefetch"):
        make(prefetch=2)


# Data


def test_a_sample_is_labelled_as_torchrls(server, make):
    """"index" in the data and in the info; not with include_info=False; the same shapes, dtypes and keys as TorchRL's."""
    rb = make(batch_size=6)
    local = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=6)
    index = rb.extend(data(0, 10))
    local.extend(data(0, 10))
    assert (index.dtype, index.tolist()) == (torch.int64, list(range(1, 11)))
    batch, info = rb.sample(return_info=True)
    theirs = local.sample()
    assert set(batch.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert batch[key].shape == theirs[key].shape
        assert key == "index" or batch[key].dtype == theirs[key].dtype
    assert (batch["index"] == info["index"]).all()
    assert (batch["index"] == batch["i"] + 1).all()
    assert "index" not in rb.sample(include_info=False)


def test_records_with_batch_dimensions_of_their_own(server, make):
    """Trajectories of one length: [n, T], and the index broadcast over T, as TorchRL's."""
    rb = make()
    rb.extend(data(0, 12).reshape(3, 4))
    batch = rb.sample(5)
    assert (batch.shape, batch["index"].shape, batch["obs"].shape) == ((5, 4), (5, 4), (5, 4, 4))


def test_lazy_stacks_and_lists(server, make):
    rb = make()
    rows = [TensorDict({"x": torch.full((2,), float(k))}, []) for k in (1, 2, 3)]
    index = rb.extend(lazy_stack(rows))
    assert [rb[int(i)]["x"].tolist() for i in index] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert len(rb.extend(rows)) == 3
    assert rb[index]["x"].shape == (3, 2)


@pytest.mark.parametrize("bad", [torch.zeros(3), {"x": torch.zeros(3)}, [torch.zeros(3)], None, "text"])
def test_other_data_are_refused(server, make, bad):
    rb = make()
    for call in (rb.extend, rb.add):
        with pytest.raises(TypeError, match="TensorDict"):
            call(bad)
    assert rb.write_count == 0


def test_data_written_without_torch(server, make, make_buffer):
    """An actor that knows numpy alone writes for a learner with TorchRL."""
    import numpy as np

    make_buffer().extend([{"x": np.full(3, k, np.float32), "deep": {"t": "text"}} for k in range(4)])
    batch = make(attach=True).sample(4)
    assert (batch["x"].shape, batch["deep", "t"], len(batch["index"])) == ((4, 3), ["text"] * 4, 4)


def doubled(batch):
    return batch.set("twice", batch["obs"] * 2)


def test_transforms_go_both_ways(server, make):
    """A torchrl transform, a callable; inverted on the way in; appended and inserted; kept by copies."""
    from torchrl.envs.transforms import DoubleToFloat, RewardScaling

    rb = make(batch_size=4, transform=DoubleToFloat(in_keys=["d"], in_keys_inv=["d"]))
    rb.extend(data(0, 4, d=torch.zeros(4)))
    assert rb.buffer.get(1)["d"].dtype == torch.float64
    assert rb.sample()["d"].dtype == torch.float32
    assert rb.append_transform(doubled).insert_transform(0, RewardScaling(0.0, 2.0, in_keys=[("next", "reward")])) is rb
    batch = rb.sample()
    assert (batch["twice"] == batch["obs"] * 2).all()
    assert (batch["next", "reward"].squeeze() == batch["i"] * 2).all()
    with pytest.raises(TypeError):
        rb.append_transform(3)
    with pytest.raises(ValueError):
        make(transform=doubled, transform_factory=lambda: doubled)


def test_a_transform_may_keep_data_back(server, make):
    from torchrl.envs.transforms import Transform

    class KeepsBack(Transform):
        def _inv_call(self, tensordict):
            return None

        def forward(self, tensordict):
            return tensordict

    rb = make(transform=KeepsBack())
    assert (rb.extend(data(0, 3)).shape, rb.add(data(0, 1)[0])) == ((0,), None)
    assert rb.write_count == 0


def test_collate_and_device(server, make):
    rb = make(batch_size=3, collate_fn=lambda batch: batch.select("obs"), device="cpu")
    rb.extend(data(0, 3))
    batch = rb.sample()
    assert (set(batch.keys()), batch.device) == ({"obs", "index"}, torch.device("cpu"))


# Priorities


def prioritized(make, **options):
    return make(RedisPrioritizedReplayBuffer, **{"alpha": 0.7, "beta": 0.9, "batch_size": 64} | options)


def test_weights_are_torchrls(server, make):
    """C22: ((p + eps) ** alpha / the least of the buffer) ** -beta; new records have the largest priority so far."""
    rb = prioritized(make)
    rb.extend(data(0, 5, td_error=torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5])))
    rb.extend(data(5, 6, td_error=torch.tensor([9.0])), update_priority=False)
    batch, info = rb.sample(return_info=True)
    p = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5, 4.0], dtype=torch.float64)[batch["i"]]
    stored = (p + 1e-8) ** 0.7
    expected = (stored / (0.5 + 1e-8) ** 0.7) ** -0.9
    torch.testing.assert_close(batch["priority_weight"].double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(info["priority"], p)


def test_updates_by_tensordict(server, make):
    """The largest of each record, by "index"; D7: what was overwritten since is ignored, the new record keeps its priority."""
    rb = prioritized(make, capacity=4, batch_size=4)
    rb.extend(data(0, 4))
    old = rb.sample()
    old["td_error"] = torch.tensor([[1.0, 7.0]]).expand(4, 2)
    updated = rb.update_tensordict_priority(old)
    assert (updated.applied, updated.ignored) == (len(set(old["index"].tolist())), 0)
    assert dict(zip(*rb.buffer.priorities(), strict=True))[int(old["index"][0])] == 7.0
    rb.extend(data(4, 8))
    assert rb.update_tensordict_priority(old).ignored == len(set(old["index"].tolist()))
    assert set(rb.buffer.priorities()[1]) == {7.0}


def test_bad_priorities_are_refused(server, make):
    """D19"""
    rb = prioritized(make, batch_size=2)
    rb.extend(data(0, 2))
    batch = rb.sample()
    for bad in (float("nan"), -1.0, float("inf")):
        batch["td_error"] = torch.tensor([1.0, bad])
        with pytest.raises(ValueError):
            rb.update_tensordict_priority(batch)
    for key in ("td_error", "index"):
        with pytest.raises(ValueError, match=key):
            rb.update_tensordict_priority(batch.exclude(key))


def test_a_plain_buffer_ignores_priorities(server, make):
    """As TorchRL's: trainers call it on every buffer."""
    rb = make(batch_size=2)
    rb.extend(data(0, 2, td_error=torch.ones(2)))
    assert rb.update_tensordict_priority(rb.sample()) is None


def test_a_priority_buffer_needs_both_exponents(server, make):
    with pytest.raises(ValueError, match="alpha"):
        make(RedisPrioritizedReplayBuffer, alpha=0.5)


# Handles


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_client_ends_itself_alone(server, make):
    """C27, C28: picklable, as many as one likes; `start` is the handle; `is_alive` tells."""
    rb = make(batch_size=2)
    rb.extend(data(0, 4))
    copies = [*rb.clients(2), pickle.loads(pickle.dumps(rb))]
    assert rb.start() is rb
    assert (rb.shared, rb.service_backend, rb.share() is rb, rb.initialized, rb.dim_extend) == (True, "ray", True, True, 0)
    for one in copies:
        assert len(one.sample()) == 2
        assert one.is_alive
        one.shutdown()
        assert not one.is_alive
    assert rb.is_alive
    rb.shutdown()
    assert not rb.is_alive
    with pytest.raises(ValueError):
        rb.share(False)


def test_the_storage_that_collectors_ask_for(server, make):
    """C30: initialized, of a size, on no device; the sampler is ours."""
    rb = make(sampler=Uniform(replacement=False))
    assert (rb._storage.initialized, rb.storage.max_size, len(rb.storage)) == (True, 100, 0)
    assert not hasattr(rb.storage, "device")
    assert rb.sampler == Uniform(replacement=False)
    assert repr(rb).startswith("RedisReplayBuffer(")
