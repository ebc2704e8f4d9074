"""A run that is killed, server and all, goes on from its last dump on another server."""

import contextlib
import os
import random
import signal
import time

import numpy as np
import pytest

from redis_replay import ReplayBuffer, checkpoint
from redis_replay.embedded import EmbeddedServer
from tests._helpers import wait_until
from tests.e2e.test_demo import children, demo, until_it_learns

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

COUNTED = ("write_count", "consumed", "evicted", "removed", "stale", "sample_calls", "samples_returned", "bytes_total")


@pytest.mark.slow
def test_a_killed_demo_goes_on_learning_on_a_fresh_server(tmp_path, seed):
    """Dumped again and again while it plays; SIGKILL of its processes and of the server at a random moment."""
    moment = random.Random(seed).uniform(0.5, 3.0)
    path = tmp_path / "demo.ckpt"
    with EmbeddedServer() as first, demo("--url", first.url, "--name", "cartpole") as run:
        until_it_learns(run)
        pids = [run.pid, *children(run.pid), first.pid]
        until = time.monotonic() + moment
        with ReplayBuffer(first.url, "cartpole") as buffer:
            buffer.dumps(path)
            while time.monotonic() < until:
                buffer.dumps(path)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # one that fell with the others
                os.kill(pid, signal.SIGKILL)
    saved = checkpoint.open(path)
    with EmbeddedServer() as second:
        with ReplayBuffer(second.url, "same", **saved.settings) as buffer:
            buffer.loads(path)
            stats = buffer.stats()
            assert {name: stats[name] for name in COUNTED} == {name: saved.counters[name] for name in COUNTED}
            assert (len(buffer), buffer.doctor().findings) == (len(saved), ())
            for ours, theirs in zip(buffer.records(), saved, strict=True):
                assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
        with demo("--url", second.url, "--name", "cartpole", "--resume", str(path)) as run:
            assert f"{len(saved):,} transitions" in next(run.stdout)
            until_it_learns(run)
            with ReplayBuffer(second.url, "cartpole") as buffer:
                wait_until(lambda: buffer.write_count > saved.counters["write_count"], 30)
                assert buffer.stats()["sample_calls"] > saved.counters["sample_calls"]
                assert buffer.doctor().ok
            run.send_signal(signal.SIGINT)
            assert run.wait(30) == 130
