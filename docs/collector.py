"""Frames per second of a real MultiSyncCollector with RedisReplayBuffer, beside TorchRL's own buffer in shared memory.

    python docs/collector.py [FRAMES]      # needs the extras torchrl, embedded and gym; prints both and their ratio
"""

import sys
import time

from redis_replay.embedded import EmbeddedServer
from redis_replay.torchrl import RedisReplayBuffer

ROUNDS, WORKERS, BATCH = 3, 2, 1000


def cartpole():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def frames_per_second(rb, frames):
    """Of a collector whose workers write by themselves, without its start: the first two batches are left out."""
    from torchrl.collectors import MultiSyncCollector

    collector = MultiSyncCollector(
        [cartpole] * WORKERS, None, frames_per_batch=BATCH, total_frames=frames + 2 * BATCH, replay_buffer=rb
    )
    try:
        for i, _ in enumerate(collector):
            if i == 1:
                started = time.perf_counter()
        return frames / (time.perf_counter() - started)
    finally:
        collector.shutdown()


def main(frames):
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    ours, theirs = [], []
    with EmbeddedServer() as server:
        for i in range(ROUNDS):
            with RedisReplayBuffer(server.url, f"collector-{i}", capacity=100_000) as rb:
                ours.append(frames_per_second(rb, frames))
            local = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), shared=True)
            theirs.append(frames_per_second(local, frames))
    print(f"RedisReplayBuffer {max(ours):,.0f}/s, LazyTensorStorage {max(theirs):,.0f}/s: {max(ours) / max(theirs):.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
