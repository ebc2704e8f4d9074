"""Replay buffers of redis_replay, for TorchRL's collectors and trainers. docs/torchrl.md maps TorchRL's classes to these."""

from redis_replay._extras import extra

with extra("torchrl", __name__):
    from redis_replay.torchrl._buffer import RedisReplayBuffer
    from redis_replay.torchrl._ensemble import ReplayBufferEnsemble
    from redis_replay.torchrl._limited import BlockingReplayBuffer, RateLimitedReplayBuffer
    from redis_replay.torchrl._prioritized import RedisPrioritizedReplayBuffer
    from redis_replay.torchrl._remote import RemoteRedisReplayBuffer

__all__ = [
    "BlockingReplayBuffer",
    "RateLimitedReplayBuffer",
    "RedisPrioritizedReplayBuffer",
    "RedisReplayBuffer",
    "RemoteRedisReplayBuffer",
    "ReplayBufferEnsemble",
]
