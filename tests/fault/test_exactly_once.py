"""Lost replies, delays, kills, freezes, threads and forks: each call is applied once, or not at all and says so. Records
and counters are counted at the end.
"""

import asyncio
import collections
import contextlib
import multiprocessing
import os
import random
import signal
import threading

import pytest
import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_replay import AsyncReplayBuffer, ReplayBuffer, _ops_write, _requests, samplers
from redis_replay._foresight import STEADY
from redis_replay._lua import load
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ConnectionLostError, OutcomeUnknownError
from tests import _server
from tests._proxy import now_and_then
from tests._server import turns
from tests._waiting import Running, open_handle, record, records, tags
from tests.fault.test_connections import stored

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
KINDS = pytest.mark.parametrize(("kind", "real_server"), turns(), indirect=["real_server"])


@pytest.fixture
def quick_calls(monkeypatch):
    """Calls without a timeout of their own give up after 0.3 s instead of five."""
    for module in (_requests, _ops_write):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)


def lose_next(proxy, n=1):
    """The next n replies are lost, with their connections, and no more."""
    left = [n]

    def policy(data):
        left[0] -= 1
        return 0 if left[0] >= 0 else None

    proxy.replies = policy


# A retry writes the item twice


@KINDS
def test_retried_puts_are_there_once(proxy, make_buffer, name, kind, seed):
    """2,000 tagged puts, 1 in 20 replies lost: each is there once under the index it was given, and is counted once."""
    direct = make_buffer(capacity=5_000)
    handle = open_handle(kind, None, name, target=proxy.url)
    proxy.replies = now_and_then(20, seed)
    given = {tag: handle.run("add", record(tag)) for tag in range(2_000)}
    proxy.replies = lambda data: None
    assert (stored(direct), direct.write_count, proxy.cuts > 50) == (list(range(2_000)), 2_000, True)
    assert tags(direct.get(list(given.values()))) == list(given)
    handle.end()


@KINDS
def test_unknown_puts_are_resolved(proxy, make_buffer, name, quick_calls, monkeypatch, kind, seed):
    """Without any retry each put gives an index, is known not to have been sent, or says which it was when asked: the
    tags that are stored are exactly those.
    """
    monkeypatch.setattr(_requests, "FIRST_BACKOFF", 10.0)
    direct = make_buffer(capacity=5_000)
    handle = open_handle(kind, None, name, target=proxy.url)
    handle.run("add", record(-1))
    proxy.replies = now_and_then(5, seed)
    applied, unknown = [-1], 0
    for tag in range(100):
        try:
            handle.run("add", record(tag))
        except OutcomeUnknownError as error:
            unknown += 1
            applied += [tag] if resolved(handle, error).applied else []
        except ConnectionLostError:
            continue  # it was not sent: what was open before was asked for, and that reply was lost
        else:
            applied.append(tag)
    assert (stored(direct), direct.write_count, unknown > 5) == (applied, len(applied), True)
    proxy.replies = lambda data: None
    handle.end()


def resolved(handle, error):
    """The outcome, asked for until it is told."""
    while True:
        with contextlib.suppress(ConnectionLostError):
            return handle.ask(error.resolve)


CALLS = {
    "add": lambda handle: handle.run("add", record(9)),
    "sample": lambda handle: tags(handle.run("sample", 3)),
    "remove": lambda handle: handle.run("remove", [2, 3, 99]),
    "set_version": lambda handle: handle.run("set_version", 1),
    "empty": lambda handle: handle.run("empty", False),
    "shutdown": lambda handle: handle.run("shutdown"),
}
AFTER = {  # what the call gives; tags stored afterwards, less what is held; write_count, consumed, removed, shutdowns
    "add": (6, [0, 1, 2, 3, 4, 9], (6, 0, 0, "open")),
    "sample": ([0, 1, 2], [3, 4], (5, 3, 0, "open")),
    "remove": (2, [0, 3, 4], (5, 0, 2, "open")),
    "set_version": (5, [], (5, 0, 0, "open")),
    "empty": (None, [], (5, 0, 5, "open")),
    "shutdown": (None, [0, 1, 2, 3, 4], (5, 0, 0, "draining")),
}


@KINDS
@pytest.mark.parametrize("lost", [1, 3], ids=["one lost", "three lost"])
@pytest.mark.parametrize("call", CALLS)
def test_lost_reply_is_not_felt(proxy, make_buffer, name, call, lost, kind):
    """The reply is lost once or more, the call is asked for again, and it was applied once."""
    direct = make_buffer(**QUEUE, max_staleness=0)
    direct.extend(records(5))
    handle = open_handle(kind, None, name, target=proxy.url)
    handle.run("stats")
    lose_next(proxy, lost)
    given, left, counted = AFTER[call]
    assert CALLS[call](handle) == given
    stats = direct.stats()
    assert (stored(direct), tuple(stats[c] for c in ("write_count", "consumed", "removed", "state"))) == (left, counted)
    assert (proxy.cuts, stats["sample_calls"], direct.doctor().findings) == (lost, int(call == "sample"), ())
    handle.end()


@KINDS
def test_reply_behind_the_timeout_is_asked_for_again(proxy, make_buffer, name, monkeypatch, kind):
    """Replies that take longer than the socket's timeout: puts and draws are asked for again, and applied once."""
    monkeypatch.setattr(_requests, "CALL_SECONDS", 0.15)
    monkeypatch.setattr(_ops_write, "CALL_SECONDS", 5.0)
    direct = make_buffer(**QUEUE)
    direct.extend(records(5))
    handle = open_handle(kind, None, name, target=proxy.url)
    handle.run("add", record(5))
    proxy.delay_s = 0.3
    late = Running(handle.run, "add", record(6))
    threading.Event().wait(0.5)
    proxy.delay_s = 0.0
    assert late.result(6) == 7
    assert (tags(handle.run("sample", 7)), direct.stats()["consumed"], direct.write_count) == ([0, 1, 2, 3, 4, 5, 6], 7, 7)
    handle.end()


@KINDS
def test_refusal_of_a_second_copy_is_no_refusal(proxy, make_buffer, name, real_server, kind):
    """A write that was applied, and whose second copy the server refuses (no memory), is not reported as not written."""
    direct = make_buffer()
    direct.add(record(0))
    handle = open_handle(kind, None, name, target=proxy.url)
    handle.run("add", record(1))
    client = real_server.client()

    def lose_and_fill(data):
        proxy.replies = lambda data: None
        client.config_set("maxmemory", 1)
        return 0

    proxy.replies = lose_and_fill
    try:
        error = Running(handle.run, "add", record(2)).error()
        outcome = handle.ask(error.resolve) if isinstance(error, OutcomeUnknownError) else error
    finally:
        client.config_set("maxmemory", 0)
    assert (outcome.applied, outcome.index.tolist(), stored(direct)) == (True, [3], [0, 1, 2])
    handle.end()


# The client library never sends again


@KINDS
def test_request_is_sent_once_by_the_client_library(proxy, make_buffer, name, monkeypatch, kind):
    """A put whose reply is lost arrives as often as we send it, whatever the retries of the client that was given."""
    monkeypatch.setattr(_requests, "FIRST_BACKOFF", 10.0)
    make_buffer()
    library, retry = (redis.Redis, Retry) if kind == "sync" else (redis.asyncio.Redis, AsyncRetry)
    client = library.from_url(proxy.url, retry=retry(NoBackoff(), 10), retry_on_error=[ConnectionError, TimeoutError])
    handle = open_handle(kind, None, name, target=client)
    handle.run("add", record(0))
    arrived = bytearray()
    proxy.requests = arrived.extend
    proxy.replies = lambda data: 0
    assert Running(handle.run, "add", record(1)).how() is OutcomeUnknownError
    assert arrived.count(load("add").sha.encode()) == 1
    proxy.replies = lambda data: None
    handle.end()


# Killed, frozen, cancelled, shared, forked


@KINDS
def test_killed_connections_double_nothing(real_server, make_buffer, name, kind):
    """The server closes all connections again and again while records are written and drawn: 100, and more until it has."""
    direct = make_buffer(capacity=1_000, **QUEUE)
    handle = open_handle(kind, None, name, target=real_server.url)
    done, client, kills = threading.Event(), real_server.client(), []

    def kill():
        while not done.wait(0.01):
            kills.append(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

    killer = Running(kill)
    drawn = []
    while len(drawn) < 100 or sum(kills) <= 5:
        handle.run("extend", records(2, len(drawn)))
        drawn += tags(handle.run("sample", 2))
    done.set()
    killer.error()
    n = len(drawn)
    assert (drawn, direct.write_count, direct.stats()["consumed"]) == (list(range(n)), n, n)
    assert (sum(kills) > 5, direct.doctor().findings) == (True, ())
    handle.end()


@pytest.mark.parametrize("kind", _server.REAL)
def test_frozen_server_doubles_nothing(kind, monkeypatch):
    """Writes and draws that meet a frozen server, and are asked for again when it is thawed, count once."""
    monkeypatch.setattr(_requests, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(_requests, "CALL_SECONDS", 0.1)  # of one try; the writes themselves go on for 5 s
    with (
        EmbeddedServer(binary=_server.find(kind) or _server.missing(kind)) as server,
        ReplayBuffer(server.url, "b", capacity=1_000, **QUEUE) as buffer,
    ):
        buffer.extend(records(10))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            writes = [Running(buffer.extend, records(10, 10 * n)) for n in (1, 2, 3)]
            draws = [Running(buffer.sample, 5, wait=True, timeout=10) for _ in range(2)]
            threading.Event().wait(0.5)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        given = [i for call in writes for i in call.result().tolist()]
        drawn = [tag for call in draws for tag in call.how()]
        assert sorted(given) == list(range(11, 41))
        assert collections.Counter(drawn + stored(buffer)) == collections.Counter(range(40))
        assert (buffer.write_count, buffer.stats()["consumed"], buffer.doctor().findings) == (40, 10, ())


async def test_cancelled_tasks_double_nothing(real_server, make_buffer, name, seed):
    """Of 200 puts and draws, each cancelled at some moment, what was given and what is stored is each record once."""
    direct, generator = make_buffer(capacity=1_000, **QUEUE), random.Random(seed)
    drawn, written = [], 0
    async with AsyncReplayBuffer(real_server.url, name) as buffer:
        for tag in range(200):
            task = asyncio.ensure_future(buffer.add(record(tag)) if tag % 2 else buffer.sample(1, wait=True, timeout=0.01))
            await asyncio.sleep(generator.uniform(0, 0.002))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                result = await task
                drawn += [] if tag % 2 else tags(result)
                written += tag % 2
        await buffer.stats()
    there = drawn + stored(direct)
    assert len(there) == len(set(there)) == direct.write_count >= written
    assert (direct.stats()["consumed"], direct.doctor().findings) == (len(drawn), ())


def test_eight_threads_double_nothing(proxy, make_buffer, seed):
    """Eight threads write and draw through one handle while 1 in 20 replies is lost: each record comes out once."""
    direct = make_buffer(capacity=5_000, **QUEUE)
    buffer = make_buffer(target=proxy.url, attach=True)
    proxy.replies = now_and_then(20, seed)

    def work(n):
        drawn = []
        for i in range(0, 50, 2):
            buffer.extend(records(2, 50 * n + i))
            drawn += tags(buffer.sample(2, wait=True, timeout=20))
        return drawn

    calls = [Running(work, n) for n in range(8)]
    drawn = [tag for call in calls for tag in call.result(30)]
    assert (sorted(drawn), direct.write_count, direct.stats()["consumed"]) == (list(range(400)), 400, 400)
    assert (proxy.cuts > 10, direct.doctor().findings) == (True, ())


def _write_and_draw(buffer, n, pipe):
    drawn = []
    for i in range(0, 50, 2):
        buffer.extend(records(2, 50 * n + i))
        drawn += tags(buffer.sample(2, wait=True, timeout=20))
    pipe.send(drawn)
    buffer.close()


def test_forks_double_nothing(proxy, make_buffer, seed):
    """Four forked processes do the same through the parent's handle, which was used before."""
    direct = make_buffer(capacity=5_000, **QUEUE)
    buffer = make_buffer(target=proxy.url, attach=True)
    buffer.extend(records(2, 1_000))
    fork = multiprocessing.get_context("fork")
    proxy.replies = now_and_then(20, seed)
    pipes = [fork.Pipe(duplex=False) for _ in range(4)]
    children = [fork.Process(target=_write_and_draw, args=(buffer, n, pipes[n][1])) for n in range(4)]
    for child in children:
        child.start()
    drawn = [tag for ours, _ in pipes for tag in ours.recv()]
    for child in children:
        child.join()
    proxy.replies = lambda data: None
    drawn += tags(buffer.sample(2))
    assert (sorted(drawn), direct.write_count) == ([*range(200), 1_000, 1_001], 202)
    assert (proxy.cuts > 5, direct.doctor().findings) == (True, ())


def test_pauses_between_tries_are_jittered(server, make_buffer):
    """Tries come at growing, random intervals, and what they take from chance is not taken from the draws."""
    core = make_buffer(seed=1)._now.core
    state = core.random.getstate()
    pauses = []
    for _ in range(2):
        operation = _requests.deliver(core, _requests.commands((b"PING",)), core.clock() + 5)
        next(operation)
        for _ in range(4):
            step = operation.throw(_requests.LostError(ConnectionLostError(address="a", reason="r")))
            pauses.append(step.seconds)
            next(operation)
        operation.close()
    assert (core.random.getstate() == state, len(set(pauses))) == (True, 8)
    assert all(0.5 * 0.01 * 2**i <= p <= 1.5 * 0.01 * 2**i for run in (pauses[:4], pauses[4:]) for i, p in enumerate(run))


@KINDS
@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_a_foreseen_draw_whose_reply_was_lost_is_made_by_the_script(proxy, make_buffer, name, kind, cache_bytes):
    """What was known of the buffer may be so no more: nothing of it is used. It is counted once."""
    buffer = make_buffer(capacity=100)
    buffer.extend([record(tag) for tag in range(40)])
    handle = open_handle(kind, None, name, target=proxy.url, batch_size=8, cache_bytes=cache_bytes)
    for _ in range(STEADY + 4):
        handle.run("sample")
    hits = handle.buffer.cache_info().hits
    lose_next(proxy)
    batch, info = handle.run("sample", return_info=True)
    assert tags(batch) == [index - 1 for index in info.index.tolist()]
    assert handle.buffer.cache_info().hits == hits
    assert buffer.stats()["samples_returned"] == 8 * (STEADY + 5)
    handle.end()
