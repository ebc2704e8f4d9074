"""What a class is for: a buffer of another kind is refused; the end of a buffer is an answer; nothing to write is nothing."""

import re

import pytest
import torch

from redis_replay import ReplayBuffer
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import BufferGoneError, BufferShutDownError, ConfigMismatchError, LoadError, NotReadyError
from redis_replay.torchrl import (
    BlockingReplayBuffer,
    RateLimitedReplayBuffer,
    RedisPrioritizedReplayBuffer,
    RedisReplayBuffer,
)
from tests._torchrl import data

VALKEY = pytest.mark.parametrize("server", ["valkey"], indirect=True)


@VALKEY
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (RedisPrioritizedReplayBuffer, "sampler"),
        (RateLimitedReplayBuffer, "rate_limiter"),
        (BlockingReplayBuffer, "rate_limiter"),
    ],
)
def test_a_buffer_of_another_kind_is_refused(server, make, kind, what):
    """It would learn evenly, or never wait, without a word."""
    rb = make()
    with pytest.raises(ConfigMismatchError) as caught:
        kind.attach(server.target(), rb.buffer.name)
    assert set(caught.value.differences) == {what}
    assert re.search(rf"{what}: stored \S+, given [A-Z]\w+;", str(caught.value))
    if kind is RedisPrioritizedReplayBuffer:
        with pytest.raises(ConfigMismatchError):
            kind(server.target(), rb.buffer.name)


@VALKEY
def test_a_buffer_of_its_kind_is_taken(server, make, name):
    for kind, how in ((RateLimitedReplayBuffer, {"samples_per_insert": 2.0}), (BlockingReplayBuffer, {"capacity": 9})):
        rb = make(kind, buffer_name=f"{name}-{kind.__name__}", **how)
        kind.attach(server.target(), rb.buffer.name).close()


@VALKEY
def test_whether_a_buffer_is_alive_is_always_answered(server, make, name):
    """Shut down, deleted, closed, without a server: False. `reopen` undoes a shutdown."""
    rb = make()
    rb.shutdown()
    assert not rb.is_alive
    with pytest.raises(BufferShutDownError):
        rb.start()
    rb.reopen()
    assert rb.is_alive
    rb.buffer.delete()
    assert not rb.is_alive
    with EmbeddedServer() as other:
        late = RedisReplayBuffer(other.url, name, capacity=9)
        ReplayBuffer(other.url, name).delete()
        assert not late.is_alive
        with pytest.raises(BufferGoneError):
            late.start()
        late.close()


@VALKEY
def test_nothing_to_write_is_nothing(server, make):
    """As TorchRL."""
    rb = make()
    rb.extend(data(0, 4))
    for empty in (data(0, 0), []):
        index = rb.extend(empty)
        assert (index.shape, index.dtype) == (torch.Size([0]), torch.long)
    assert rb.write_count == 4


@VALKEY
def test_a_small_state_knows_an_emptied_buffer(server, make):
    rb = make()
    rb.extend(data(0, 4))
    state = rb.state_dict(include_data=False)
    rb.extend(data(4, 8))
    rb.load_state_dict(state)
    rb.empty()
    with pytest.raises(LoadError, match="emptied"):
        rb.load_state_dict(state)


@VALKEY
def test_the_first_error_names_only_what_there_is(server, make):
    with pytest.raises(NotReadyError, match="ask for fewer") as caught:
        make().sample(4)
    assert "min_items" not in str(caught.value)
