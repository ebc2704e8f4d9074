"""The buffer under test, and what one step of a writer and of a reader is."""

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import redis

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay._bench.frame import Step
from redis_replay._cache import OVERHEAD
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ReplayTimeoutError

BATCH = 256
STEP_S = 0.005  # a training step
CHUNK = 32  # records of a batch, where many write
_LOOK_S = 0.02
_POOL = 8  # different batches, in turn
_PATIENCE_S = 60.0
_HELD_S = 0.5  # that one side waits for the other: at the end of a round it has stopped
_TYPICAL = {100: 100_000, 1024: 100_000, 28224: 10_000}
_OTHER_BYTES = 256_000_000


def full_size(size: int) -> int:
    """Capacity for records of so many bytes: 100,000, or fewer where they are large."""
    return _TYPICAL.get(size, max(1024, min(100_000, _OTHER_BYTES // size)))


@dataclass(frozen=True)
class Target:
    """Where the buffer is, and what is stored in it. Sent to each worker."""

    url: str
    name: str
    size: int
    reward: bool

    @property
    def stored(self) -> str:
        """What one record is."""
        return "obs uint8[size]" + (", reward float32" if self.reward else "")

    def batches(self) -> list[dict[str, Any]]:
        """Random bytes, so that nothing is won by compression or by a cache."""
        rng = np.random.default_rng(0)
        more = {"reward": np.ones(BATCH, dtype=np.float32)} if self.reward else {}
        return [{"obs": rng.integers(0, 256, (BATCH, self.size), dtype=np.uint8)} | more for _ in range(_POOL)]

    def attach(self, **options: Any) -> ReplayBuffer:
        """A handle on the buffer."""
        return ReplayBuffer(self.url, self.name, batch_size=BATCH, **options)

    def bytes_used(self) -> int:
        """Memory of the server."""
        with redis.Redis.from_url(self.url) as client:
            return int(client.info("memory")["used_memory"])


@contextmanager
def served(url: str | None) -> Iterator[str]:
    """The URL of the server to measure: the one given, or a private one."""
    if url:
        yield url
        return
    with EmbeddedServer() as server:
        yield server.url


@contextmanager
def buffer(url: str | None, size: int, reward: bool, capacity: int, **settings: Any) -> Iterator[Target]:
    """An empty buffer, deleted at the end. `settings`: of ReplayBuffer; without any, draws are even and remove nothing."""
    with served(url) as where:
        target = Target(where, f"bench-{secrets.token_hex(4)}", size, reward)
        with ReplayBuffer(where, target.name, capacity=capacity, **settings) as made:
            yield target
            made.delete()


def writer(target: Target) -> Step:
    """Writes a batch."""
    buffer, batches, turn = target.attach(), target.batches(), 0

    def step() -> int:
        nonlocal turn
        turn += 1
        buffer.extend(batches[turn % _POOL])
        return BATCH

    return step


def adder(target: Target, write_behind: float) -> Step:
    """Writes a batch's records one by one; `write_behind`: seconds, 0: each at once."""
    buffer = ReplayBuffer(target.url, target.name, write_behind=write_behind or None)
    each = [{name: values[i] for name, values in target.batches()[0].items()} for i in range(BATCH)]

    def step() -> int:
        for record in each:
            buffer.add(record)
        return BATCH

    return step


def bare_adder(target: Target) -> Step:
    """Writes a batch's records one by one, without a script, packed beforehand, on a plain socket; into a key that is deleted
    at the end of the step.
    """
    connection: Any = redis.Redis.from_url(target.url).connection_pool.make_connection()
    connection.connect()
    key, rows = target.name + "-bare", target.batches()[0]["obs"]
    commands = [*(("XADD", key, "0-*", "d", row.tobytes()) for row in rows), ("DEL", key)]
    packed = [b"".join(connection.pack_command(*command)) for command in commands]

    def step() -> int:
        socket = connection._sock
        for command in packed:
            socket.sendall(command)
            socket.recv(64)
        return BATCH

    return step


def reader(target: Target) -> Step:
    """Draws a batch, evenly, and has it as arrays."""
    buffer = target.attach()
    return lambda: len(buffer.sample()["obs"])


def learner(target: Target, prefetch: int) -> Step:
    """Multiplies matrices for 5 ms, then draws a batch, evenly. Gives the microseconds that it waited."""
    buffer, matrix = target.attach(prefetch=prefetch), np.random.default_rng(0).random((200, 200), np.float32)

    def step() -> int:
        until = time.perf_counter() + STEP_S
        while time.perf_counter() < until:
            np.matmul(matrix, matrix)
        began = time.perf_counter()
        buffer.sample()
        return round(1e6 * (time.perf_counter() - began))

    return step


def remembering_reader(target: Target, records: int, share: float) -> Step:
    """As `reader`, with a cache that holds this share of the buffer's records, and is full."""
    buffer = target.attach(cache_bytes=int(share * records * (target.size + OVERHEAD)))
    for _ in range(3 * -(-records // BATCH)):
        buffer.sample()
    return lambda: len(buffer.sample()["obs"])


def held_writer(target: Target) -> Step:
    """Writes a batch as soon as the rate limiter lets it. Nothing, where the reader has stopped."""
    buffer, batches, turn = target.attach(), target.batches(), 0

    def step() -> int:
        nonlocal turn
        turn += 1
        try:
            return len(buffer.extend(batches[turn % _POOL], timeout=_HELD_S))
        except ReplayTimeoutError:
            return 0

    return step


def held_reader(target: Target) -> Step:
    """Draws a batch as soon as the rate limiter lets it. Nothing, where the writer has stopped."""
    buffer = target.attach()

    def step() -> int:
        try:
            return len(buffer.sample(wait=True, timeout=_HELD_S)["obs"])
        except ReplayTimeoutError:
            return 0

    return step


def prioritizer(target: Target) -> Step:
    """Draws a batch by priority, and gives each of its records a new one."""
    buffer, rng = target.attach(), np.random.default_rng()

    def step() -> int:
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info.index, rng.random(BATCH))
        return BATCH

    return step


def crowd(target: Target, writers: int, rate: float) -> Step:
    """So many writers of small batches, each with a handle and a connection of its own, write all the time in one event loop;
    `rate`: records per second of all of them, 0: as many as they can. A step is a look at how many they wrote.
    """
    chunk = {name: values[:CHUNK] for name, values in target.batches()[0].items()}
    begun, written, every = set[int](), 0, writers * CHUNK / rate if rate else 0.0

    async def write(number: int) -> None:
        nonlocal written
        buffer = AsyncReplayBuffer(target.url, target.name)
        due = time.perf_counter() + every * number / writers
        while True:
            await buffer.extend(chunk)
            begun.add(number)
            written += CHUNK
            due = max(due + every, time.perf_counter() - every)  # who is late catches up with one batch at most
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def write_all() -> None:
        await asyncio.gather(*map(write, range(writers)))

    thread = threading.Thread(target=asyncio.run, args=(write_all(),), daemon=True)

    def step() -> int:
        before = written
        time.sleep(_LOOK_S)
        if not thread.is_alive():
            raise RuntimeError("the writers have ended")
        return written - before

    thread.start()
    while len(begun) < writers:
        step()
    return step


def fill(target: Target, records: int) -> None:
    """Write so many records, or a few more."""
    step = writer(target)
    for _ in range(-(-records // BATCH)):
        step()


def wait_for_each(target: Target, waits: int, results: Any) -> None:
    """A reader that is blocked until a record comes, so many times; puts "ready", then the times of its returns."""
    with target.attach() as buffer:
        results.put("ready")
        times = []
        for _ in range(waits):
            buffer.sample(1, wait=True, timeout=_PATIENCE_S)
            times.append(time.perf_counter())
    results.put(times)
