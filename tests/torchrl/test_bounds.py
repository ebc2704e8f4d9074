"""What bounds the calls of those that give no timeout, collectors and trainers; and a repr, that never hangs or fails."""

import os
import pickle
import signal

import pytest

from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ConnectionLostError, OutcomeUnknownError, ReplayTimeoutError
from redis_replay.torchrl import (
    BlockingReplayBuffer,
    RedisPrioritizedReplayBuffer,
    RemoteRedisReplayBuffer,
    ReplayBufferEnsemble,
)
from tests import _server
from tests._torchrl import data, dqn, forked

VALKEY = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def ends_by(rb, seconds):
    """Whether a wait without a timeout ends by that of the handle."""
    with pytest.raises(ReplayTimeoutError) as caught:
        rb.sample(50, wait=True)
    return caught.value.timeout_s == seconds


@VALKEY
@pytest.mark.filterwarnings("ignore")  # torchrl's trainers warn of themselves
def test_a_trainer_that_waits_for_ever_is_told_why(server, make):
    """Its second extend would never have room, as it draws too little between."""
    rb = make(BlockingReplayBuffer, capacity=100, call_timeout=0.2)
    with pytest.raises(ReplayTimeoutError) as caught:
        dqn(rb).train()
    assert (caught.value.side, caught.value.timeout_s) == ("insert", 0.2)
    assert rb.write_count == 100


@VALKEY
def test_it_goes_where_the_handle_goes(server, make, name):
    """Clients, copies for other processes, forked ones, attached ones; every class."""
    rb = make(RedisPrioritizedReplayBuffer, alpha=0.5, beta=0.5, call_timeout=0.1)
    attached = make(attach=True, call_timeout=0.1)
    remote = make(RemoteRedisReplayBuffer, buffer_name=f"{name}-r", call_timeout=0.1)
    handles = [rb, rb.client(), *rb.clients(1), pickle.loads(pickle.dumps(rb)), attached, remote]
    assert all(ends_by(one, 0.1) for one in handles)
    assert forked(lambda one: ends_by(one, 0.1), rb)
    for one in handles[1:4]:
        one.close()


@VALKEY
def test_an_ensemble_has_its_own(server, make, name):
    """And does not end by that of a member."""
    members = [make(buffer_name=f"{name}-{k}", call_timeout=0.05) for k in range(2)]
    ensemble = ReplayBufferEnsemble(*members, batch_size=4, call_timeout=0.2)
    with pytest.raises(ReplayTimeoutError) as caught:
        ensemble.sample(wait=True)
    assert caught.value.timeout_s == 0.2
    other = pickle.loads(pickle.dumps(ensemble))
    assert other.wait_until_sampleable() is False
    other.close()
    with pytest.raises(ReplayTimeoutError) as caught:
        ensemble.sample(wait=True, timeout=0.1)
    assert caught.value.timeout_s == 0.1
    ensemble.close()


@pytest.fixture
def stopped():
    """Gives `(server, stop)`: a server, and what leaves it without a word."""
    with EmbeddedServer(binary=_server.find("valkey") or _server.missing("valkey")) as server:
        yield server, lambda: os.kill(server.pid, signal.SIGSTOP)


@pytest.mark.fault
def test_a_server_that_does_not_answer_ends_them(stopped, monkeypatch):
    """All that collectors and trainers call."""
    server, stop = stopped
    monkeypatch.setattr("redis_replay._requests.CALL_SECONDS", 60.0)
    filled = RedisPrioritizedReplayBuffer(server.url, "b", capacity=9, alpha=0.5, beta=0.5)
    filled.extend(data(0, 4))
    batch = filled.sample(2)
    batch["td_error"] = batch["priority_weight"]
    filled.close()
    rb = RedisPrioritizedReplayBuffer.attach(server.url, "b", call_timeout=0.3)
    stop()
    for call in (
        lambda: rb.extend(data(4, 8)), lambda: rb.add(data(4, 5)[0]), lambda: rb.sample(2), rb.stats, rb.empty,
        lambda: rb.update_tensordict_priority(batch), lambda: len(rb), lambda: rb.buffer.write_count, rb.wait_until_writable,
    ):  # fmt: skip
        with pytest.raises((ConnectionLostError, OutcomeUnknownError)):
            call()
    assert "len=unknown" in repr(rb)
    rb.close()


@VALKEY
def test_a_repr_shows_what_torchrls_does(server, make):
    rb = make(RedisPrioritizedReplayBuffer, alpha=0.5, beta=0.5, batch_size=8, prefetch=2, transform=str)
    rb.extend(data(0, 4))
    text = repr(rb)
    for part in ("RedisPrioritizedReplayBuffer(\n", "len=4, max_size=100", "Prioritized(alpha=0.5", "batch_size=8", "Compose(",
                 "prefetch=2"):  # fmt: skip
        assert part in text
    assert "collate_fn" not in text
    ensemble = ReplayBufferEnsemble(rb, p="in_turn")
    assert text.splitlines()[1] in repr(ensemble)
    ensemble.close()


@VALKEY
def test_a_repr_never_fails(server, make):
    """Of a handle that is closed, a buffer that is gone."""
    rb = make()
    twin = rb.client()
    rb.buffer.delete()
    assert all("len=unknown" in repr(one) for one in (rb, twin))
    twin.close()
