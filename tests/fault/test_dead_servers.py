"""A server that was killed, or stopped without a word: each call ends in its time, with an error that has a type."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from redis_replay import ReplayBuffer, _ops_admin, _ops_lease, _ops_wait, _ops_write, _requests, samplers
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ConnectionLostError, OutcomeUnknownError
from tests import _server
from tests._helpers import SOON
from tests._waiting import Running, open_handle, record, records

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
HOW = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@pytest.fixture
def doomed():
    """A server that the test may kill or stop. Dead, one kind is as the other."""
    with EmbeddedServer(binary=_server.find("valkey") or _server.missing("valkey")) as server:
        yield server


def large(n):
    """A batch of large records: they go in by another way."""
    return {"i": np.arange(n), "pixels": np.zeros((n, 50_000), np.uint8)}


def call(name, *args):
    return lambda handle, url: handle.run(name, *args)


def read_all(handle, url):
    if hasattr(handle, "loop"):
        return handle.call(anext(handle.buffer.records()))
    return next(handle.buffer.records())


CALLS = {
    "add": call("add", {"i": np.int64(1), "pixels": np.zeros(50_000, np.uint8)}),
    "extend": call("extend", large(20)),
    "remove": call("remove", [1]),
    "set_version": call("set_version", 1),
    "empty": call("empty"),
    "get": call("get", 1),
    "records": read_all,
    "sample": call("sample", 1),
    "can_sample": call("can_sample", 1),
    "wait": lambda handle, url: handle.start("sample", batch_size=1, timeout=0.5).result(),
    "wait for some": lambda handle, url: handle.start("wait_until_sampleable", min_items=1, timeout=0.5).result(),
    "ack": call("ack", "a.1"),
    "release": call("release", "a.1"),
    "stats": call("stats"),
    "doctor": call("doctor"),
    "shutdown": call("shutdown"),
    "reopen": call("reopen"),
    "delete": call("delete"),
    "open": lambda handle, url: ReplayBuffer(url, "b", call_timeout=0.3),
    "attach": lambda handle, url: ReplayBuffer.attach(url, "b", timeout=0.5),
}


@pytest.mark.parametrize(
    ("kind", "how", "call_timeout"),
    [("sync", "killed", None), ("async", "killed", None), ("sync", "stopped", None), ("async", "stopped", None),
     ("sync", "stopped", 0.3), ("async", "stopped", 0.3)],
)  # fmt: skip
def test_every_call_on_a_dead_server_ends(doomed, kind, how, call_timeout, monkeypatch):
    """Each call, begun when the server is dead, ends soon after its time with an error of ours, and `close()` in a moment. Its
    time is that of all calls, or the handle's.
    """
    for module in (_requests, _ops_write, _ops_wait, _ops_lease):
        monkeypatch.setattr(module, "CALL_SECONDS", 60.0 if call_timeout else 0.3)
    monkeypatch.setattr(_ops_admin, "CALL_SECONDS", 0.3)
    options = {"capacity": 10, "max_staleness": 0, "call_timeout": call_timeout, **QUEUE}
    handle = open_handle(kind, None, "b", target=doomed.url, **options)
    handle.run("extend", large(2))
    os.kill(doomed.pid, HOW[how])
    running = {name: Running(one, handle, doomed.url) for name, one in CALLS.items()}
    errors = {name: one.error() for name, one in running.items()}
    assert {name: e for name, e in errors.items() if not isinstance(e, ConnectionLostError | OutcomeUnknownError)} == {}
    assert {name: one.seconds for name, one in running.items() if one.seconds > SOON} == {}
    closing = Running(handle.end)
    assert (closing.error(timeout=10), closing.seconds < SOON) == (None, True)


@pytest.mark.parametrize(("verb", "how"), [("add", "killed"), ("extend", "stopped")])
def test_a_write_gives_up_in_its_time(doomed, verb, how):
    """A writer can stop when it wants to, and sooner or later than other calls."""
    buffer = ReplayBuffer(doomed.url, "b", capacity=10)
    buffer.add(record(0))
    os.kill(doomed.pid, HOW[how])
    for seconds in (0, 0.4):
        write = Running(getattr(buffer, verb), record(1) if verb == "add" else records(2), timeout=seconds)
        assert isinstance(write.error(), ConnectionLostError | OutcomeUnknownError)
        assert write.seconds < seconds + SOON
    for wrong in (-1, float("nan"), True):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            getattr(buffer, verb)(record(1), timeout=wrong)
    buffer.close()


WRITER = """
import sys
from redis_replay import ReplayBuffer
from redis_replay.exceptions import ReplayError
buffer = ReplayBuffer(sys.argv[1], "b", capacity=100)
try:
    while True:
        buffer.add({"i": 1}, timeout=0.5)
        print("wrote", flush=True)
except ReplayError as error:
    print(type(error).__name__)
for call in (lambda: buffer.extend({"i": [1, 2]}, timeout=0.5), lambda: buffer.sample(1, wait=True, timeout=0.5)):
    try:
        call()
    except ReplayError as error:
        print(type(error).__name__)
buffer.close()
"""


@pytest.mark.parametrize("how", HOW)
def test_writer_whose_server_dies_stops_cleanly(doomed, how):
    """A process that writes in a loop is told by each of its calls, closes its handle and exits, all within 10 s."""
    with subprocess.Popen([sys.executable, "-c", WRITER, doomed.url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "wrote\n"
        os.kill(doomed.pid, HOW[how])
        output, _ = process.communicate(timeout=10)
    told = [line for line in output.splitlines() if line != "wrote"]
    assert (process.returncode, len(told), set(told) <= {"ConnectionLostError", "OutcomeUnknownError"}) == (0, 3, True)
