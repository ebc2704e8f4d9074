"""`call_timeout`: what bounds the calls of a handle that are given no timeout. A dead server: fault/test_dead_servers.py."""

import math
import pickle

import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, ReplayTimeoutError
from redis_replay.limiters import Queue
from redis_replay.samplers import Fifo
from tests._server import turns
from tests._waiting import open_handle, record, records, tags

BLOCKED = {"capacity": 4, "sampler": Fifo(), "consume_after_n_samples": 1, "rate_limiter": Queue(4)}
KINDS = pytest.mark.parametrize(("kind", "server"), turns(), indirect=["server"])


@KINDS
def test_a_wait_without_a_timeout_ends_by_the_handles(server, make_buffer, name, kind):
    """On both sides; one that has a timeout of its own ends by that."""
    make_buffer(**BLOCKED)
    handle = open_handle(kind, server, name, call_timeout=0.1)
    for call, what in (
        (lambda how: handle.run("sample", 2, wait=True, **how), "records"),
        (lambda how: handle.run("add", record(9), **how), "room"),
        (lambda how: handle.run("extend", records(2), **how), "room"),
    ):
        if what == "room" and not handle.run("can_sample", 4):
            handle.run("extend", records(4))
        for how, seconds in (({}, 0.1), ({"timeout": 0.02}, 0.02)):
            with pytest.raises(ReplayTimeoutError, match=f"{seconds:g} s") as caught:
                call(how)
            assert caught.value.timeout_s == seconds
    assert handle.run("wait_until_writable") is False
    handle.run("sample", 4)
    assert handle.run("wait_until_sampleable", 1) is False
    handle.end()


@KINDS
def test_without_end_is_without_end(server, make_buffer, name, kind):
    """timeout=inf is a timeout of its own."""
    buffer = make_buffer(**BLOCKED)
    handle = open_handle(kind, server, name, batch_size=2, call_timeout=0.05)
    waiting = handle.start("sample", timeout=math.inf)
    with pytest.raises(ReplayTimeoutError):
        handle.run("sample", 3, wait=True)
    buffer.extend(records(2))
    assert tags(waiting.result()) == [0, 1]
    handle.end()


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_copies_have_it(server, make_buffer):
    """Unpickled, and as after a fork."""
    buffer = make_buffer(call_timeout=0.05, **BLOCKED)
    with pickle.loads(pickle.dumps(buffer)) as twin:
        twin._start(twin._own.renew())
        for one in (buffer, twin):
            with pytest.raises(ReplayTimeoutError):
                one.sample(1, wait=True)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "1"])
def test_other_values_are_refused(bad):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="call_timeout"):
        ReplayBuffer("redis://localhost", "b", capacity=4, call_timeout=bad)
