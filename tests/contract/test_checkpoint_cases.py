"""Faults of the field: a restored buffer can be used at once, and its limits hold as they did before."""

import numpy as np

from redis_replay import ReplayBuffer
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import CheckpointError, CheckpointMismatchError, ReplayTimeoutError, SchemaError
from redis_replay.limiters import SampleToInsertRatio
from redis_replay.samplers import Prioritized
from tests._contract import refused, stored_numbers

LIMITER = SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=100, error_buffer=30_000.0)
MANY = {"capacity": 20_000, "sampler": Prioritized(alpha=0.6, beta=0.4), "rate_limiter": LIMITER}


def records(low, high):
    return {"i": np.arange(low, high)}


def test_a_restored_buffer_is_drawn_from_and_wraps(real_server, make_buffer, tmp_path):
    """Case 23: 20,000 records with priorities and a limiter that has handed out many; a new server process."""
    buffer = make_buffer(**MANY)
    for low in range(0, 20_000, 5000):
        buffer.extend(records(low, low + 5000), priority=1.0 + np.arange(5000) % 9)
        buffer.sample(2000)
        buffer.sample(2000)
    buffer.dumps(tmp_path / "c")
    with EmbeddedServer() as fresh, ReplayBuffer(fresh.url, "restored", **MANY) as restored:
        assert restored.loads(tmp_path / "c") == 20_000
        assert len(restored.sample(256, wait=True, timeout=5)["i"]) == 256
        for here, there in zip(restored.priorities(), buffer.priorities(), strict=True):
            assert np.array_equal(here, there)
        restored.extend(records(20_000, 23_000))
        assert stored_numbers(restored) == list(range(3000, 23_000))
        before = restored.stats()["write_count"]
        whole = (tmp_path / "c").read_bytes()
        bad = {
            "missing": None, "empty": b"", "cut": whole[: len(whole) * 6 // 10],
            "flipped": whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
        }  # fmt: skip
        for name, data in bad.items():
            if data is not None:
                (tmp_path / name).write_bytes(data)
            with refused(CheckpointError):
                restored.loads(tmp_path / name)
        with ReplayBuffer(fresh.url, "wide", **MANY | {"capacity": 20_001}) as wide, refused(CheckpointMismatchError):
            wide.loads(tmp_path / "c")
        with ReplayBuffer(fresh.url, "other", **MANY) as other:
            other.add({"y": 1.0})
            with refused(SchemaError):
                other.loads(tmp_path / "c")
        assert (restored.stats()["write_count"], len(restored)) == (before, 20_000)


def allowed(buffer, version):
    """Writes until the limiter blocks. Gives how many records went in."""
    for n in range(0, 10_000, 10):
        try:
            buffer.extend(records(0, 10), version=version, timeout=0.05)
        except ReplayTimeoutError:
            return n
    return None


def test_limits_hold_across_a_restart(real_server, make_buffer, tmp_path, name):
    """Case 24: version 50, at most 2 behind, a limiter: after the restart no burst gets through, and nothing older is drawn."""
    options = {"capacity": 1000, "max_staleness": 2, "rate_limiter": SampleToInsertRatio(1.0, 10, 60.0)}
    buffer = make_buffer(**options)
    for version in range(51):
        buffer.set_version(version)
        buffer.extend(records(0, 10), version=version)
        buffer.sample(10, timeout=1, wait=True)
    buffer.dumps(tmp_path / "c")
    restored = make_buffer(f"{name}-2", **options)
    restored.loads(tmp_path / "c")
    assert restored.stats()["version"] == 50
    assert abs(allowed(restored, 50) - allowed(buffer, 50)) <= 10
    _, info = restored.sample(20, return_info=True)
    assert 50 - min(info.version) <= 2
    restored.add({"i": np.int64(1)}, version=47, timeout=0.5)
    assert restored.stats()["stale"] == buffer.stats()["stale"] + 1
