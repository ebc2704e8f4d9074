"""Workloads whose figure is no rate: memory, the client's processor time, the time to start."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import redis

from redis_replay import _decode
from redis_replay._bench import target as on
from redis_replay._bench.figures import Figures, Options, capacity
from redis_replay._bench.target import BATCH, Target
from redis_replay._encode import encode_batch
from redis_replay._keys import Keys

_TURNOVERS = 12  # of a buffer's content
_LOOKS = 10


def memory(options: Options, size: int) -> Figures:
    """The server's bytes with a full buffer less those before, per record."""
    records = -(-capacity(options, size) // BATCH) * BATCH
    with on.buffer(options.url, size, options.reward, records) as target:
        before = target.bytes_used()
        on.fill(target, records)
        each = (target.bytes_used() - before) / records
    return Figures(extra={"bytes_per_item": round(each), "payload_bytes": size, "items": records})


def turnover(options: Options, size: int) -> Figures:
    """The server's bytes for each record of a buffer that is consumed at random and written to as much, beside those of the
    same buffer when it was fresh.
    """
    records = -(-capacity(options, size) // 4 // BATCH) * BATCH
    with (
        on.buffer(options.url, size, options.reward, 2 * records, consume_after_n_samples=1) as target,
        target.attach() as buffer,
        redis.Redis.from_url(target.url) as client,
    ):
        write, read = on.writer(target), on.reader(target)

        def each() -> float:
            used = (client.memory_usage(key, samples=0) or 0 for key in Keys(target.name).all)
            return sum(used) / len(buffer)

        on.fill(target, records)
        fresh = each()
        for _ in range(_TURNOVERS * records // BATCH):
            write()
            read()
        after = each()
    extra = {"fresh_bytes_per_item": round(fresh), "bytes_per_item": round(after), "of_fresh": round(after / fresh, 2)}
    return Figures(extra=extra | {"items": records})


def decode(options: Options, size: int) -> Figures:
    """Milliseconds to make a batch of 256 of its records' bytes, and to copy as many bytes once."""
    rows = encode_batch(Target("", "", size, options.reward).batches()[0], None)
    payloads, index = [bytes(payload) for payload in rows.payloads()], range(BATCH)
    source = np.frombuffer(b"".join(payloads), np.uint8)
    batch_ms = _best(lambda: _decode.decode_batch(rows.schema, payloads, index))
    copy_ms = _best(source.copy)
    return Figures(extra={"decode_ms": batch_ms, "memcpy_ms": copy_ms, "of_memcpy": round(batch_ms / copy_ms, 2)})


def start(_options: Options, _size: int) -> Figures:
    """Milliseconds of a Python process that imports the package, asks for its first name, or imports what it stands on."""
    lines = {
        "import_ms": "import redis_replay",
        "first_name_ms": "from redis_replay import ReplayBuffer",
        "redis_and_numpy_ms": "import redis, numpy",
    }
    return Figures(extra={name: _best(partial(_run, line)) for name, line in lines.items()})


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def _best(do: Callable[[], object]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        do()
        times.append(time.perf_counter() - began)
    return round(1e3 * min(times), 3)
