"""Several buffers as one."""

import contextlib
import pickle
import threading
import time
from collections import Counter

import pytest
import torch

from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ArgumentError, ConnectionLostError, MemberDownError
from redis_replay.torchrl import (
    RateLimitedReplayBuffer,
    RedisPrioritizedReplayBuffer,
    RedisReplayBuffer,
    ReplayBufferEnsemble,
)
from tests._torchrl import data, forked, numbers

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def who(batch):
    return batch["index", "buffer_ids"][:, 0].tolist()


def test_a_sample_is_a_stack_of_members(pair):
    """As TorchRL's: [members, share], labelled by member and index."""
    batch, info = pair(6, 6).sample(return_info=True)
    assert batch.shape == (2, 4)
    assert (batch["index", "index"] == batch["i"] % 100 + 1).all()
    assert ((batch["i"] >= 100) == (batch["index", "buffer_ids"] == 1)).all()
    assert (info["index"] == batch["index"]).all()


def test_sums_are_true(pair):
    """D6, C11: one number for len, size and sampleable_size; and what was sampled is counted."""
    ensemble = pair(6, 4)
    ensemble.sample()
    stats = ensemble.stats()
    assert (len(ensemble), stats["size"], stats["sampleable_size"], ensemble.write_count) == (10, 10, 10, 10)
    assert (stats["samples_returned"], stats["sample_calls"], stats["num_buffers"], stats["capacity"]) == (8, 2, 2, 200)


def test_an_empty_member_is_not_drawn_from(pair):
    """D9: ready means that the draw succeeds, with p=None as with "sampleable"."""
    for p in (None, "sampleable", "in_turn", [0.5, 0.5]):
        ensemble = pair(6, 0, p=p)
        assert ensemble.wait_until_sampleable(timeout=1)
        for _ in range(20):
            assert who(ensemble.sample()) == [0, 0]


@pytest.mark.parametrize(("p", "share"), [(None, 0.5), ([0.9, 0.1], 0.9), ([0, 1], 0.0), ("sampleable", 0.25)])
def test_members_are_chosen_by_p(pair, p, share):
    ensemble, chosen = pair(10, 30, p=p, num_buffer_sampled=1), Counter()
    for _ in range(400):
        chosen.update(who(ensemble.sample(2)))
    assert abs(chosen[0] / 400 - share) < 0.08


def test_members_in_turn_and_all(pair):
    ensemble = pair(6, 6, p="in_turn", num_buffer_sampled=1)
    assert [who(ensemble.sample(2))[0] for _ in range(4)] == [0, 1, 0, 1]
    ensemble = pair(6, 6, sample_from_all=True)
    assert all(sorted(who(ensemble.sample())) == [0, 1] for _ in range(10))


@pytest.mark.parametrize("everyone", [False, True])
def test_waits_are_on_all_at_once(pair, everyone):
    """One that is ready is enough, or every one with sample_from_all; the timeout is one for all."""
    ensemble = pair(0, 0, {"poll_interval": 30}, sample_from_all=everyone)
    assert ensemble.wait_until_sampleable(timeout=0.1) is False
    with pytest.raises(TimeoutError):
        ensemble.sample(wait=True, timeout=0.1)
    event = threading.Event()
    event.set()
    with pytest.raises(RuntimeError):
        ensemble.sample(wait=True, cancel_event=event)
    results = []
    thread = threading.Thread(target=lambda: results.append(ensemble.sample(wait=True, timeout=10)))
    thread.start()
    ensemble.members[1].extend(data(100, 104))
    if everyone:
        time.sleep(0.05)
        assert not results
        ensemble.members[0].extend(data(0, 4))
    thread.join(10)
    assert results[0].shape == (2, 4)


def test_nothing_is_lost_where_one_has_too_few(pair):
    """Members that consume: what was drawn of one is given out with the next sample."""
    ensemble = pair(4, 0, {"consume_after_n_samples": 1}, sample_from_all=True)
    with pytest.raises(RuntimeError):
        ensemble.sample()
    ensemble.members[1].extend(data(100, 104))
    taken = ensemble.sample()
    assert sorted(numbers(taken)[0] + numbers(taken)[1]) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_a_member_that_is_never_chosen_ends_no_wait(pair):
    """Else the wait would be True, and the draw fail, over and over."""
    ensemble = pair(6, 0, p=[0, 1])
    assert (ensemble.can_sample(), ensemble.wait_until_sampleable(timeout=0.1)) == (False, False)
    with pytest.raises(TimeoutError):
        ensemble.sample(wait=True, timeout=0.1)


def sizes_in_a_child(ensemble):
    with contextlib.closing(ensemble):
        return [tuple(ensemble.sample().shape), len(ensemble)]


def test_a_forked_ensemble_has_threads_of_its_own(pair):
    """And not what its parent has drawn and not given out yet."""
    ensemble = pair(4, 0, {"consume_after_n_samples": 1}, sample_from_all=True)
    with pytest.raises(RuntimeError):
        ensemble.sample()
    ensemble.members[0].extend(data(4, 8))
    ensemble.members[1].extend(data(100, 108))
    assert forked(sizes_in_a_child, ensemble) == [(2, 4), 4]
    assert int(ensemble.sample()["i"].min()) < 4


def test_nothing_is_lost_where_the_transform_fails(pair):
    """D20, of the stacked batch: it is given out next."""
    fails = [True]

    def transform(batch):
        if fails.pop():
            raise ZeroDivisionError
        return batch

    ensemble = pair(4, 4, {"consume_after_n_samples": 1}, sample_from_all=True, transform=transform)
    with pytest.raises(ZeroDivisionError):
        ensemble.sample()
    fails.append(False)
    assert ensemble.sample().shape == (2, 4)


def test_a_member_without_an_answer_is_an_error_of_each_call(pair, monkeypatch):
    """Never a number; and what is kept stays."""
    ensemble = pair(6, 6, p="sampleable")

    def no_answer(self):
        raise ConnectionLostError(address="here", reason="gone")

    monkeypatch.setattr(RedisReplayBuffer, "__len__", no_answer)
    for call in (ensemble.sample, lambda: len(ensemble)):
        with pytest.raises(MemberDownError):
            call()


def test_a_ratio_of_a_member_gives_whole_shares(server, make, name):
    members = [make(RateLimitedReplayBuffer, f"{name}-{k}", samples_per_insert=1.0) for k in range(2)]
    for member in members:
        member.extend(data(0, 6))
    with contextlib.closing(ReplayBufferEnsemble(*members, batch_size=8, sample_from_all=True)) as ensemble:
        assert ensemble.sample().shape == (2, 4)
        with pytest.raises(RuntimeError):
            ensemble.sample()


def test_priorities_go_to_their_member(server, make, name):
    members = [make(RedisPrioritizedReplayBuffer, f"{name}-{k}", alpha=1.0, beta=1.0) for k in range(2)]
    for member in members:
        member.extend(data(0, 4))
    with contextlib.closing(ReplayBufferEnsemble(*members, batch_size=8, sample_from_all=True)) as ensemble:
        batch = ensemble.sample()
        batch["td_error"] = torch.tensor([[2.0], [3.0]]).expand(2, 4)
        ensemble.update_tensordict_priority(batch)
        for member, priority in zip(members, (2.0, 3.0), strict=True):
            assert priority in member.buffer.priorities()[1]


@pytest.mark.slow
def test_a_member_that_is_down_is_named(server, make, name):
    """Members on two servers, one of which ends: an error that says which; or it is left out, soon at once."""
    with EmbeddedServer() as other:
        far = RedisReplayBuffer(other.url, "far", capacity=10)
        far.extend(data(0, 8))
        near = make()
        near.extend(data(100, 108))
        strict = ReplayBufferEnsemble(near, far, batch_size=4, sample_from_all=True)
        lenient = ReplayBufferEnsemble(near.client(), far.client(), batch_size=4, skip_down=True)
        assert strict.sample().shape == (2, 2)
    with contextlib.closing(strict), contextlib.closing(lenient):
        with pytest.raises(MemberDownError) as caught:
            strict.sample()
        assert (caught.value.member, caught.value.name) == (1, "far")
        assert isinstance(caught.value, ConnectionError)
        while 1 in lenient._members.up:
            lenient.sample()
        started = time.monotonic()
        assert who(lenient.sample()) == [0, 0]
        assert len(lenient) == 8
        assert time.monotonic() - started < 1


def test_it_pickles_to_addresses(pair):
    ensemble = pair(6, 6)
    for twin in (ensemble.client(), pickle.loads(pickle.dumps(ensemble))):
        with contextlib.closing(twin):
            assert twin.sample().shape == (2, 4)


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 7}, {"p": [1.0]}, {"p": [0, 0]}, {"p": "x"}, {"p": [-1, 1]}, {"p": [1, 1], "sample_from_all": True}],
    ids=str,
)
def test_bad_options_are_refused(pair, options):
    with pytest.raises(ArgumentError):
        pair(1, 1, **options)
