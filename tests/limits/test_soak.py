"""A buffer that turns and turns keeps its length, and so do its server's memory, its keys and its clients' memory."""

import contextlib
import os
import random

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import NotReadyError
from redis_replay.samplers import Fifo

CAPACITY = 2_000
CLIENTS = 50  # that come and go
GROWTH = 1.3
LONG = int(os.environ.get("REDIS_REPLAY_SOAK", "60000"))  # records of the slow test; `make soak` writes 2,000,000
KINDS = {
    "ring": {},
    "uniform, 1 use": {"consume_after_n_samples": 1},
    "queue": {"sampler": Fifo(), "consume_after_n_samples": 2},
}


def resident():
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def batch(choice, n):
    """Records of 5 kB in the mean, of a few bytes to 10 kB."""
    return [{"i": i, "x": bytes(choice.randrange(10_000))} for i in range(n)]


def work(server, name, choice, batches):
    """What one client does while it is there: writes, draws, removes. Gives how many records it wrote."""
    written = 0
    with ReplayBuffer(server.target(), name, seed=choice.randrange(2**32)) as client:
        for _ in range(batches):
            indices = client.extend(batch(choice, 40))
            written += len(indices)
            with contextlib.suppress(NotReadyError):
                client.sample(choice.choice([1, 8, 32]))
            if choice.random() < 0.3:
                client.remove(indices[choice.randrange(40) :: 7])
    return written


def soak(server, client, name, options, total, seed):
    """Writes `total` records behind two turns of a buffer that is full from then on. Gives (memory, keys, resident) at
    each twentieth.
    """
    choice, looks, written, next_look = random.Random(seed), [], 0, 0
    with ReplayBuffer(server.target(), name, capacity=CAPACITY, **options) as first:
        for _ in range(2 * CAPACITY // 100):
            first.extend(batch(choice, 100))
    standing = [ReplayBuffer(server.target(), name, seed=i) for i in range(3)]
    while written < total:
        written += work(server, name, choice, max(1, total // (40 * CLIENTS * 4)))
        with contextlib.suppress(NotReadyError):
            standing[choice.randrange(3)].sample(16)
        if written >= next_look:
            looks.append((client.info("memory")["used_memory"], client.dbsize(), resident()))
            next_look += max(CAPACITY, total // 20)
    for handle in standing:
        handle.close()
    return looks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "total", [6_000, pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])], ids="{:,}".format
)
def test_memory_stays_when_the_length_does(real_server, client, name, seed, kind, total):
    """After two turns memory stays within 1.3 times, keys are as many as they were, and no key is left at the end."""
    looks = soak(real_server, client, name, KINDS[kind], total, seed)
    memory, keys, own = map(np.array, zip(*looks, strict=True))
    assert len(looks) >= 4
    assert memory.max() < GROWTH * memory[0], memory
    assert keys.max() - keys.min() <= 3, keys  # those that are there only while a reader holds something
    assert own.max() < GROWTH * own[0], own
    with ReplayBuffer(real_server.target(), name) as buffer:
        report, lanes = buffer.doctor(), buffer.stats()["lanes"]
        assert report.ok, report.findings
        assert lanes <= 1  # that of nobody: all who came have gone
        buffer.delete()
    assert client.dbsize() == 0
