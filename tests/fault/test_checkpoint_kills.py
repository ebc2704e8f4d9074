"""A process that is killed amid a dump or a load leaves the file, and the buffer, as they were."""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from redis_replay import checkpoint
from tests._helpers import wait_until

DUMP = """
import sys
from redis_replay import ReplayBuffer
buffer = ReplayBuffer(sys.argv[1], sys.argv[2])
while True:
    buffer.dumps(sys.argv[3])
    print("dumped", flush=True)
"""
LOAD = """
import sys
from redis_replay import ReplayBuffer
buffer = ReplayBuffer(sys.argv[1], sys.argv[2])
buffer.loads(sys.argv[3], progress=lambda done, total: print("loading", flush=True) or sys.stdin.readline())
"""


def start(code, *args):
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def full(make_buffer):
    """A buffer of 5,000 records: a dump of some pages."""
    buffer = make_buffer(capacity=5000)
    buffer.extend({"i": np.arange(5000)})
    return buffer


def test_a_killed_dump_leaves_the_earlier_file_whole(real_server, full, tmp_path, seed):
    path = tmp_path / "c"
    for moment in (random.Random(seed).uniform(0.0, 0.1) for _ in range(3)):
        with start(DUMP, real_server.url, full.name, str(path)) as process:
            assert process.stdout.readline() == "dumped\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(moment)
            kill(process)
        assert len(checkpoint.open(path)) == 5000
        key = f"rr:{{{full.name}}}:config"
        real_server.client().hdel(key, "cut")  # else the next one has to wait for a minute
    full.dumps(path)
    assert [found.name for found in tmp_path.iterdir()] == ["c"]


def test_a_killed_load_changes_nothing(real_server, full, tmp_path):
    """What it had built goes by itself, a minute after its last sign."""
    full.dumps(tmp_path / "c")
    full.add({"i": np.int64(7)})
    before = full.stats()
    with start(LOAD, real_server.url, full.name, str(tmp_path / "c")) as process:
        assert process.stdout.readline() == "loading\n"
        kill(process)
    client = real_server.client()
    beside = [key for key in client.scan_iter() if b":new:" in key]
    assert beside
    assert all(0 < client.pttl(key) <= 60_000 for key in beside)
    after = full.stats()
    assert {name: after[name] for name in ("write_count", "size", "evicted")} == {
        name: before[name] for name in ("write_count", "size", "evicted")
    }
    client.pexpire(f"rr:{{{full.name}}}:new:config", 1)  # the minute is over
    wait_until(lambda: not client.exists(f"rr:{{{full.name}}}:new:config"))
    assert full.loads(tmp_path / "c") == 5000
    assert not [key for key in client.scan_iter() if b":new:" in key]
    assert full.doctor().ok
