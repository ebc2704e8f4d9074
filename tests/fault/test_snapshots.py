"""What a real server loads after SIGKILL, from its file or snapshot, is what it had, key by key, whatever was done before."""

import contextlib
import random
import shutil
import threading

import numpy as np
import pytest

from redis_replay import ReplayBuffer, limiters, samplers
from redis_replay.exceptions import ReplayError
from tests import _server
from tests._helpers import wait_until
from tests._ports import on_ports
from tests._rewindable import Rewindable
from tests._waiting import records, tags
from tests.fault.test_connections import large

pytestmark = pytest.mark.fault
SMALL_NODES = ["--stream-node-max-entries", "4"]
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
HOWS = {  # how it keeps data, and what is done before it is killed
    "always": ("aof", [], None),
    "everysec": ("everysec", [], None),
    "snapshot": ("rdb", [], None),
    "rewritten": ("aof", [], Rewindable.rewrite),
    "rewritten as commands": ("aof", ["--aof-use-rdb-preamble", "no"], Rewindable.rewrite),
}


@pytest.fixture(params=_server.REAL)
def binary(request):
    """A real server's program, in turn."""
    return _server.find(request.param) or _server.missing(request.param)


@pytest.fixture
def serve(binary, tmp_path):
    """Gives `serve(how, *more)`: a server that keeps its data so, with more words for its command line."""
    with contextlib.ExitStack() as stack:

        def start(how, *more, directory=tmp_path):
            start_at = lambda port: contextlib.closing(Rewindable(binary, directory, how, port, *more))  # noqa: E731
            return stack.enter_context(on_ports(start_at))

        yield start


READ = {
    b"hash": lambda client, key: client.hgetall(key),
    b"set": lambda client, key: client.smembers(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: (client.xrange(key), client.xinfo_stream(key)["last-generated-id"]),
}


def contents(server):
    """All that is on it, key by key."""
    with server.client() as client:
        return {key: READ[client.type(key)](client, key) for key in client.scan_iter()}


def length(data, at):
    """A length in a dump, and where the next thing begins."""
    kind = data[at] >> 6
    if kind == 0:
        return data[at], at + 1
    if kind == 1:
        return (data[at] & 63) << 8 | data[at + 1], at + 2
    size = {0x80: 4, 0x81: 8}[data[at]]
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


def entries_of_nodes(client, key):
    """How many entries each node of a stream has: the first number of its listpack. Text that is packed cannot be read."""
    client.config_set("rdbcompression", "no")
    data = client.dump(key)
    nodes, at = length(data, 1)
    found = []
    for _ in range(nodes):
        size, at = length(data, at)
        size, at = length(data, at + size)
        found.append(data[at + 6])
        at += size
    return found


# What comes back


def fill_queue(url):
    """Small and large records, uses, a lease that is open, one that was acknowledged, one released, held bytes, holes."""
    buffer = ReplayBuffer(url, "queue", capacity=40, sampler=samplers.Fifo(), consume_after_n_samples=2, lease=1000.0)
    buffer.extend(large(30))
    _, info = buffer.sample(5, True)
    buffer.ack(info.lease)
    _, info = buffer.sample(3, True)
    buffer.release(info.lease)
    buffer.remove([8, 9, 30])
    buffer.sample(4)
    buffer.extend(large(12, 30))
    _, info = buffer.sample(2, True)
    return buffer, info.lease


def fill_weighted(url):
    """Priorities, one of them hidden and others set anew, another alpha, versions, a limiter, what was evicted and dropped."""
    options = {"sampler": samplers.Prioritized(alpha=0.7, beta=0.5), "remover": samplers.MinHeap(), "max_staleness": 2}
    limiter = limiters.SampleToInsertRatio(2, 4, (-16, 32))
    buffer = ReplayBuffer(url, "weighted", capacity=20, rate_limiter=limiter, seed=3, **options)
    for version in range(4):
        buffer.extend(records(5, 5 * version), priority=np.arange(5) + 1, version=version)
        buffer.set_version(version)
        buffer.sample(4)
    buffer.update_priority([9, 10], [0, 7.5])
    buffer.set_alpha(0.4)
    buffer.extend(records(3, 20), priority=[0.25, 0, 3])
    return buffer


def fill_ring(url):
    """A ring that turned, was emptied, and has holes."""
    buffer = ReplayBuffer(url, "ring", capacity=10)
    buffer.extend(records(25))
    buffer.empty(empty_write_count=False)
    buffer.extend(records(13, 25))
    buffer.remove([30, 33, 38])
    return buffer


@pytest.mark.parametrize("how", HOWS)
def test_all_of_a_buffer_comes_back(serve, how):
    """Records, order, uses, leases, holds, priorities, versions, limiter, counters, schema, requests: each key as it was, and
    handles that were open go on with them.
    """
    keeps, more, before = HOWS[how]
    server = serve(keeps, *more, *SMALL_NODES)
    with contextlib.ExitStack() as stack:
        queue, lease = fill_queue(server.url)
        weighted, ring = fill_weighted(server.url), fill_ring(server.url)
        handles = [stack.enter_context(handle) for handle in (queue, weighted, ring)]
        if before:
            before(server)
        server.settle()
        kept = contents(server)
        server.restart()
        assert contents(server) == kept
        version, weights = weighted.stats()["version"], weighted.priorities()[1].tolist()
        assert (queue.ack(lease).applied, len(queue.sample(3)["i"]), version) == (1, 3, 3)
        assert (weights.count(0), weighted.can_sample(4), weighted.sample(4)["i"].shape) == (2, True, (4,))
        assert (weighted.extend(records(1)) > 2**32, tags(ring.get([34, 35])), len(ring)) == (True, [33, 34], 7)
        assert [(h.stats()["restarts"], h.stats()["rewound"], h.doctor().findings) for h in handles] == [(1, 0, ())] * 3


KINDS = {
    "ring": {},
    "queue": QUEUE,
    "twice": {"sampler": samplers.Uniform(replacement=False), "consume_after_n_samples": 2},
    "lent": QUEUE | {"lease": 1000.0},
    "least": {"sampler": samplers.Prioritized(alpha=0.7, beta=0.5), "remover": samplers.MinHeap()},
    "stale": {"max_staleness": 2},
}


def disturb(buffer, generator):
    """One call that writes, or that takes records out in some way: by eviction, name, consumption, age, or all."""
    last = int(buffer.extend(records(generator.randint(1, 5)))[-1])
    what = generator.choice(["write", "remove", "remove", "drain", "drain", "age", "end", "empty"])
    if what == "remove":
        buffer.remove([max(1, last - generator.randint(0, 14)) for _ in range(generator.randint(1, 6))])
    elif what == "end":  # from the new end on, so that what was deleted lies behind what stays
        buffer.remove(list(range(max(1, last - generator.randint(0, 6)), last + 1)))
    elif what == "drain" and buffer.consume_after_n_samples:
        with contextlib.suppress(ReplayError):
            buffer.sample(generator.randint(1, 8), min_items=1)
            buffer.sample(generator.randint(1, 8), min_items=1)
    elif what == "age" and buffer._now.core.max_staleness is not None:
        with contextlib.suppress(ReplayError):
            buffer.set_version(buffer.stats()["version"] + 1)
    elif what == "empty" and generator.random() < 0.2:
        buffer.empty()


def look(server):
    """The nodes without an entry, of all streams: newer servers than these save them and refuse to load them."""
    with server.client() as client:
        return [key for key in client.scan_iter() if client.type(key) == b"stream" and 0 in entries_of_nodes(client, key)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_trim_leaves_an_empty_node(serve, kind, seed):
    """However deletions and trims are mixed, by eviction, consumption, removal and age, no node of the stream is empty, and
    each way of keeping it loads what was there (CASES S14: redis #15808).
    """
    server, generator = serve("aof", *SMALL_NODES, "--enable-debug-command", "yes"), random.Random(seed)
    with server.client() as client, ReplayBuffer(server.url, "b", capacity=12, **KINDS[kind]) as buffer:
        for turn in range(150):
            disturb(buffer, generator)
            assert (turn, look(server)) == (turn, [])
            if turn % 25 == 0:
                there = contents(server)
                client.execute_command("DEBUG", "RELOAD")  # saves it all as a snapshot, and loads that
                assert contents(server) == there
        for preamble in ("yes", "no"):
            client.config_set("aof-use-rdb-preamble", preamble)
            server.rewrite()
        there = contents(server)
        client.connection_pool.disconnect()
        server.restart()
        assert (contents(server), buffer.doctor().findings) == (there, ())


def test_trim_up_to_a_deleted_entry_leaves_no_node(serve):
    """The shortest way to an empty node: the last record is removed, then all before it are consumed at once."""
    server = serve("aof")
    with server.client() as client, ReplayBuffer(server.url, "b", capacity=12, **QUEUE) as buffer:
        buffer.extend(records(3))
        buffer.remove(3)
        buffer.sample(2)
        assert buffer.remove(3) == 0  # its lane's next request: what the draw held goes
        info = client.xinfo_stream("rr:{b}:records")
        assert (info["length"], info["radix-tree-keys"]) == (0, 0)


def test_a_node_behind_a_restart_is_not_left_empty(serve):
    """What a restart skips is marked by an entry that is added and deleted, far behind those that are consumed afterwards."""
    server = serve("aof")
    with server.client() as client, ReplayBuffer(server.url, "b", capacity=12, **QUEUE) as buffer:
        buffer.extend(records(3))
        client.connection_pool.disconnect()
        server.restart()
        buffer.sample(3)
        buffer.can_sample(1)
        buffer.shutdown()
        info = client.xinfo_stream("rr:{b}:records")
        assert (info["length"], info["radix-tree-keys"]) == (0, 0)


# While large records go in


def writes_large(url, acknowledged, over):
    """Writes large records by threes, each time through the gate, until it is over."""
    with ReplayBuffer(url, "b", capacity=10_000) as buffer:
        while not over.is_set():
            acknowledged.append(int(buffer.extend(large(3, 3 * len(acknowledged)))[-1]))


@contextlib.contextmanager
def at_work(server, acknowledged):
    """A writer of large records, until the end of the `with`."""
    over = threading.Event()
    thread = threading.Thread(target=writes_large, args=(server.url, acknowledged, over))
    thread.start()
    wait_until(lambda: acknowledged, 10, "the first write")
    yield
    over.set()
    thread.join(20)


def judged(server):
    """Of a server that has just loaded: its keys that should not be, entries beyond whole writes, and what the doctor finds."""
    with server.client() as client:
        inbox, n = client.exists("rr:{b}:inbox"), client.xlen("rr:{b}:records")
    with ReplayBuffer(server.url, "b") as buffer:
        counted = buffer.write_count, [int(r["i"]) for r in buffer.records()]
        return inbox, n % 3, counted == (n, list(range(n))), buffer.doctor().findings


def copied(server, tmp_path, number):
    """A copy of a server's files, in a folder of its own."""
    shutil.copytree(server.data, tmp_path / f"copy-{number}" / "data", ignore=shutil.ignore_patterns("temp-*"))
    return tmp_path / f"copy-{number}"


@pytest.mark.parametrize("how", ["aof", "rdb"])
def test_snapshot_never_shows_half_a_large_write(serve, tmp_path, how):
    """Snapshots and rewrites while large records go in, each loaded by another server: whole writes, no inbox, nothing torn."""
    server, acknowledged, least, found = serve(how), [], [], []
    with at_work(server, acknowledged):
        for number in range(4):
            least.append(acknowledged[-1])
            server.settle() if how == "rdb" else server.rewrite()
            copied(server, tmp_path, number)
    for number in range(4):
        copy = serve(how, directory=tmp_path / f"copy-{number}")
        found.append(judged(copy))
        with copy.client() as client:
            assert client.xlen("rr:{b}:records") >= least[number]
        copy.kill()
    assert found == [(0, 0, True, ())] * 4


def test_kill_amid_a_rewrite_loses_nothing(serve):
    """A server is killed while it rewrites its file: the file before, and what was appended meanwhile, are there."""
    server, acknowledged = serve("aof", "--rdb-key-save-delay", "50000"), []
    with at_work(server, acknowledged):
        with server.client() as client:
            client.bgrewriteaof()
            wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"], 5, "the rewrite")
            before = len(acknowledged)
            wait_until(lambda: len(acknowledged) > before + 2, 10, "writes meanwhile")
        known = acknowledged[-1]
        server.restart()
        with server.client() as client:
            assert client.xlen("rr:{b}:records") >= known
        wait_until(lambda: acknowledged[-1] > 2**32, 10, "the writer to go on by itself")
    assert judged(server) == (0, 0, True, ())


@pytest.mark.parametrize("make", [records, large])
def test_cut_file_loads_up_to_a_whole_step(serve, tmp_path, seed, make):
    """An append-only file whose tail is cut off anywhere: what was answered before the cut is there, nothing is half there."""
    server, generator, ends = serve("aof"), random.Random(seed), []
    with ReplayBuffer(server.url, "b", capacity=10_000) as buffer:
        (file,) = (server.data / "appendonlydir").glob("*.incr.aof")
        for number in range(6):
            buffer.extend(make(3, 3 * number))
            ends.append(file.stat().st_size)
        server.kill()
    cuts = [(n, generator.randrange(ends[n - 1], ends[n])) for n in range(1, 6)] + [(5, ends[5] - 1)]
    found = []
    for number, cut in cuts:
        copy = copied(server, tmp_path, cut)
        with open(copy / "data" / "appendonlydir" / file.name, "r+b") as tail:
            tail.truncate(cut)
        loaded = serve("aof", directory=copy)
        with loaded.client() as client:
            found.append((client.xlen("rr:{b}:records") == 3 * number, judged(loaded)))
        loaded.kill()
    assert found == [(True, (0, 0, True, ()))] * 6
