"""Scripts that the server forgets: after a flush and after a restart each call works, at once, and nothing is doubled."""

import contextlib
import itertools
import threading
import time

import numpy as np
import pytest

from redis_replay import samplers
from redis_replay.embedded import EmbeddedServer
from tests import _server
from tests._ports import held_port
from tests._server import turns
from tests._waiting import Running, open_handle, records, tags
from tests.fault.test_connections import large

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
KINDS = pytest.mark.parametrize(("kind", "real_server"), turns(), indirect=["real_server"])


def lend(handle):
    return handle.run("sample", 1, True)[1].lease


# In an order in which each works, as often as it is repeated.
CALLS = {
    "reopen": lambda handle: handle.run("reopen"),
    "add": lambda handle: handle.run("extend", large(1)),  # by MULTI
    "wait": lambda handle: handle.start("wait_until_sampleable", min_items=1, timeout=5).result(),
    "sample": lambda handle: handle.run("sample", 1),
    "can_sample": lambda handle: handle.run("can_sample", 1),
    "get": lambda handle: handle.run("get", 1),
    "stats": lambda handle: handle.run("stats"),
    "doctor": lambda handle: handle.run("doctor"),
    "remove": lambda handle: handle.run("remove", [2]),
    "set_version": lambda handle: handle.run("set_version", 1),
    "ack": lambda handle: handle.run("ack", "a.1"),
    "release": lambda handle: handle.run("release", "a.1"),
    "empty": lambda handle: handle.run("empty"),
    "shutdown": lambda handle: handle.run("shutdown"),
}
LIVE = {"sample", "wait", "get"}  # those that need a record


def seconds(handle, name, forget):
    """How long each of three first calls took, after the scripts were forgotten."""
    for _ in range(3):
        if name in LIVE:
            handle.run("empty")
            index = handle.run("extend", large(2))
        call = CALLS[name] if name != "get" else lambda handle: handle.run("get", index)  # noqa: B023
        forget()
        began = time.monotonic()
        call(handle)
        yield time.monotonic() - began


@KINDS
def test_first_call_after_a_flush_is_quick(real_server, make_buffer, name, kind):
    """Each operation works at once when the scripts were flushed, in less than 100 ms (the best of three counts)."""
    make_buffer(capacity=100, max_staleness=0, **QUEUE)
    handle, client = open_handle(kind, real_server, name), real_server.client()
    handle.run("extend", large(2))
    best = {call: min(seconds(handle, call, client.script_flush)) for call in CALLS}
    assert {call: took for call, took in best.items() if took > 0.1} == {}
    handle.run("reopen")
    assert handle.run("doctor").ok
    handle.end()


@pytest.fixture
def port():
    """A TCP port at which the test's own server may start, end, and start again."""
    with held_port() as held:
        yield held


@pytest.mark.parametrize(("kind", "server_kind"), turns(1))
def test_every_call_works_after_a_restart(tmp_path, port, server_kind, kind):
    """Each operation works on a server that was started anew with its data, and knows no script."""
    binary = _server.find(server_kind) or _server.missing(server_kind)
    url = f"redis://127.0.0.1:{port}/0"
    with EmbeddedServer(tmp_path, port=port, binary=binary):
        handle = open_handle(kind, None, "b", target=url, capacity=100, **QUEUE)
        handle.run("extend", large(3))
        handle.run("sample", 1)
    with EmbeddedServer(tmp_path, port=port, binary=binary):
        for call in ("sample", "add", "wait", "stats", "remove", "doctor", "empty", "shutdown", "reopen"):
            CALLS[call](handle)
        handle.run("extend", records(1) | {"pixels": np.zeros((1, 6_000), np.uint8)})
        assert (handle.run("stats")["write_count"], handle.run("doctor").ok) == (1, True)
        handle.end()


@contextlib.contextmanager
def flushing(client, every):
    """Flushes the server's scripts all the time."""
    done = threading.Event()

    def flush():
        count = 0
        while not done.wait(every):
            client.script_flush()
            count += 1
        return count

    flusher = Running(flush)
    try:
        yield
    finally:
        done.set()
    assert flusher.result() > 10


@KINDS
@pytest.mark.parametrize("length", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(90)])])
def test_flushes_under_load_are_not_felt(real_server, make_buffer, name, kind, length):
    """Scripts are flushed every 10 ms while others write, in batches and one by one, draw under leases, and look: no call
    fails, each record is acknowledged once.
    """
    direct = make_buffer(capacity=200_000, lease=60, **QUEUE)
    handles = [open_handle(kind, real_server, name) for _ in range(3)]
    written, until, numbers, drawn = threading.Event(), time.monotonic() + length, itertools.count(), []

    def write(handle, size):
        while time.monotonic() < until:
            first = next(numbers) * 10
            handle.run("extend", large(size, first))
            handle.run("stats")
            threading.Event().wait(0.05)

    def read(handle):
        while not written.is_set() or direct.sampleable_size:
            if there := direct.sampleable_size:
                batch, info = handle.run("sample", min(there, 20), True)
                drawn.extend(tags(batch))
                assert handle.run("ack", info.lease).applied == 1

    with flushing(real_server.client(), 0.01):
        writers, reader = [Running(write, handles[i], size) for i, size in enumerate((1, 10))], Running(read, handles[2])
        errors = [writer.error(timeout=length + 10) for writer in writers]
        written.set()
        errors.append(reader.error(timeout=10))
    for handle in handles:
        handle.end()
    found = direct.stats()
    counts = len(set(drawn)), found["write_count"], found["consumed"], found["late"]
    assert (errors, counts, direct.doctor().findings) == ([None] * 3, (*[len(drawn)] * 3, 0), ())
