"""A server that serves nobody for now: it is waited out, at a small number of requests, or it is an error with a type."""

import contextlib
import functools
import shutil
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from redis_replay import ReplayBuffer, _connection, _ops_admin, _ops_wait, _ops_write, _requests, _wire, samplers
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ConnectionLostError, ServerNotReadyError
from tests import _server
from tests._helpers import SOON, wait_until
from tests._ports import Program, held_port, on_ports
from tests._proxy import Proxy
from tests._server import turns
from tests._waiting import Running, blocked, open_handle, record, tags

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
SECONDS = 0.4  # of each state


@pytest.fixture(params=_server.REAL)
def binary(request):
    """A real server's program, in turn."""
    return _server.find(request.param) or _server.missing(request.param)


# The states: each begins at once, and ends with its `with`.


@contextlib.contextmanager
def busy(client):
    """A script that somebody else runs does not end."""
    client.config_set("busy-reply-threshold", 1)
    endless = Running(client.eval, "while true do end", 0)

    def answers_busy():
        with contextlib.suppress(redis.ResponseError):
            client.get("x")
            return False
        return True

    wait_until(answers_busy, 5, "the script to run")
    yield
    client.script_kill()
    endless.error()


@contextlib.contextmanager
def replica(client):
    """A master that was made a replica, of a master that is away."""
    with held_port() as nobodys:
        client.replicaof("127.0.0.1", nobodys)
        yield
        client.replicaof("NO", "ONE")


@contextlib.contextmanager
def stale_replica(client):
    """As `replica`, and it refuses reads, too."""
    client.config_set("replica-serve-stale-data", "no")
    with replica(client):
        yield


@contextlib.contextmanager
def without_replicas(client):
    """A master that writes only where replicas follow, and none does."""
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def unassigned(client):
    """A cluster in which the buffer's slot is nobody's."""
    slot = client.execute_command("CLUSTER", "KEYSLOT", "{b}")
    client.execute_command("CLUSTER", "DELSLOTS", slot)
    try:
        yield
    finally:
        client.execute_command("CLUSTER", "ADDSLOTS", slot)


@contextlib.contextmanager
def migrating(client):
    """A cluster that moves the buffer's slot to another node."""
    slot = client.execute_command("CLUSTER", "KEYSLOT", "{b}")
    nodes = client.execute_command("CLUSTER", "NODES").decode().splitlines()
    other = next(line.split()[0] for line in nodes if "myself" not in line)
    client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", other)
    try:
        yield
    finally:
        client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


@contextlib.contextmanager
def unable_to_save(client):
    """A server whose snapshots fail, and which stops writes therefore: a directory lies where the file should."""
    there = Path(client.config_get("dir")["dir"], client.config_get("dbfilename")["dbfilename"])
    there.mkdir()
    (there / "in the way").touch()
    client.config_set("save", "3600 1000000")
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 5, "the snapshot to fail")
    yield
    shutil.rmtree(there)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", 5, "the next snapshot")


STATES = {
    "BUSY": busy,
    "READONLY": replica,
    "MASTERDOWN": stale_replica,
    "NOREPLICAS": without_replicas,
    "CLUSTERDOWN": unassigned,
    "TRYAGAIN": migrating,
    "MISCONF": unable_to_save,
}


@contextlib.contextmanager
def node(binary, port, bus):
    """A client of a node of a cluster, without slots."""
    with tempfile.TemporaryDirectory() as home:
        command = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", home, "--save", "", "--cluster-enabled", "yes"]
        command += ["--cluster-port", str(bus), "--cluster-require-full-coverage", "no"]
        with Program(command, port=port), redis.Redis(port=port) as client:
            yield client


@contextlib.contextmanager
def cluster(binary):
    """A cluster of two nodes, whose first one has every slot. Gives its URL and a client of it."""
    with contextlib.ExitStack() as stack:
        first, second = [stack.enter_context(on_ports(functools.partial(node, binary), 2)) for _ in range(2)]
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        port, bus = (int(second.config_get(name)[name]) for name in ("port", "cluster-port"))
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        wait_until(lambda: first.execute_command("CLUSTER", "NODES").count(b" connected") == 2, 10, "the nodes")
        wait_until(lambda: b"cluster_state:ok" in first.execute_command("CLUSTER", "INFO"), 10, "the cluster")
        yield f"redis://127.0.0.1:{first.config_get('port')['port']}/0", first


@pytest.fixture(scope="module")
def clusters():
    """Gives `clusters(binary)`: a cluster, started at its first use, since that takes 2 s."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda binary: stack.enter_context(cluster(binary)))


@pytest.fixture
def server(binary, word, clusters):
    """The URL of a server that is the test's own, or a cluster with nothing on it, and a client that was there before."""
    if word in ("CLUSTERDOWN", "TRYAGAIN"):
        yield clusters(binary)
        clusters(binary)[1].flushall()
        return
    with EmbeddedServer(binary=binary) as running, redis.Redis.from_url(running.url) as client:
        client.ping()
        yield running.url, client


@pytest.fixture
def proxy(server):
    """A proxy before it, which counts what arrives."""
    with contextlib.closing(Proxy(server[0])) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def handle(request, server, proxy):
    """A handle on a buffer there, which has written once."""
    with ReplayBuffer(server[0], "b", capacity=100, **QUEUE):
        made = open_handle(request.param, None, "b", target=proxy.url, poll_interval=0.2)
        made.run("add", record(0))
        made.run("sample", 1)
        yield made
        made.end()


def in_turn(words, kind):
    """Each word with both kinds of handle and on both servers. `kind` is the kind's name among the test's arguments."""
    cases = [(word, *turn) for n, word in enumerate(words) for turn in turns(n)]
    indirect = ["binary", *({"handle"} & {kind})]
    return pytest.mark.parametrize(("word", kind, "binary"), cases, indirect=indirect, ids=lambda value: value)


WORDS = in_turn(STATES, "handle")


def lines(caplog):
    """What was logged of connections."""
    return [r.getMessage() for r in caplog.records if r.name == "redis_replay" and "waiting for" not in r.getMessage()]


@WORDS
def test_write_waits_it_out(server, proxy, handle, word, caplog):
    """A write that meets the state is done once it is over, at less than 10 tries a second, with one line for each end."""
    with STATES[word](server[1]):
        before = proxy.arrived
        call = Running(handle.run, "add", record(7))
        threading.Event().wait(SECONDS)
        over, tries = call.is_over, proxy.arrived - before
    assert (over, call.error(), tries < 60) == (False, None, True)
    assert tags(handle.run("sample", 1)) == [7]
    lost, back = lines(caplog)
    assert ("is lost" in lost, word in lost, "serves again" in back) == (True, True, True)


@WORDS
def test_wait_waits_it_out(server, proxy, handle, word, caplog):
    """A blocked wait that meets the state goes on when it is over."""
    call = handle.start("sample", batch_size=1, timeout=20)
    with ReplayBuffer(server[0], "b") as writer:
        blocked(writer)
        with STATES[word](server[1]):
            before = proxy.arrived
            threading.Event().wait(SECONDS)
            over, tries = call.is_over, proxy.arrived - before
        writer.add(record(7))
        assert (over, tries < 60, call.how(timeout=SOON)) == (False, True, [7])
    assert len(lines(caplog)) == 2


@in_turn(["BUSY", "MISCONF"], "handle")
def test_refused_ping_is_an_answer(server, handle, word, monkeypatch, caplog):
    """A silent subscription whose PING is refused in the state is there still: the wait is woken by it, without its poll."""
    monkeypatch.setattr(_wire, "PING_SECONDS", 0.1)
    handle.buffer._now.core.poll_interval = 30
    call = handle.start("sample", batch_size=1, timeout=20)
    with ReplayBuffer(server[0], "b") as writer:
        blocked(writer)
        with STATES[word](server[1]):
            threading.Event().wait(SECONDS)
        writer.add(record(7))
        assert (call.how(timeout=SOON), handle.buffer.local_stats.wakeups_by_notice) == ([7], 1)
    assert lines(caplog) == []


@WORDS
def test_state_that_stays_is_an_error(server, handle, word, monkeypatch):
    """A call that meets the state until its timeout ends with an error that names it, and works once it is over."""
    for module in (_requests, _ops_write, _ops_wait, _ops_admin):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.4)
    monkeypatch.setattr(_ops_wait, "GRACE_SECONDS", 0.2)
    with STATES[word](server[1]):
        calls = [Running(handle.run, "add", record(7)), handle.start("sample", batch_size=1, timeout=0.3)]
        errors = [call.error() for call in calls]
    assert [(type(e), e.reason.startswith(word), c.seconds < SOON) for e, c in zip(errors, calls, strict=True)] == [
        (ServerNotReadyError, True, True)
    ] * 2
    handle.run("add", record(8))
    assert tags(handle.run("sample", 1)) == [8]


@in_turn(sorted(STATES.keys() - {"TRYAGAIN"}), "kind")  # opening asks for single keys first: those are redirected
def test_attach_waits_it_out(server, kind, word):
    """`attach` that meets the state attaches when it is over."""
    ReplayBuffer(server[0], "b", capacity=100).close()
    kind = {"sync": "attached", "async": "async attached"}[kind]
    with STATES[word](server[1]):
        call = Running(open_handle, kind, None, "b", target=server[0], poll_interval=0.1)
        threading.Event().wait(0.3)
        over = call.is_over
    attached = call.result()
    assert (over, attached.buffer.capacity) == (False, 100)
    attached.end()


# A server that answers nothing


@pytest.fixture
def word():
    """For the fixtures that ask: no state in particular."""
    return "PAUSE"


TURNS = pytest.mark.parametrize(("handle", "binary"), turns(), indirect=True)


@TURNS
@pytest.mark.parametrize("mode", ["ALL", "WRITE"])
def test_paused_server_is_waited_out(server, proxy, handle, mode):
    """CLIENT PAUSE delays a write and a wait, and no more; few requests pile up behind it."""
    call = handle.start("sample", batch_size=1, timeout=20)
    with ReplayBuffer(server[0], "b") as writer:
        blocked(writer)
    before = proxy.arrived
    server[1].execute_command("CLIENT", "PAUSE", 1_200, mode)
    write = Running(handle.run, "add", record(7))
    assert (write.error(), call.how(), proxy.arrived - before < 40) == (None, [7], True)


@TURNS
def test_script_that_cannot_be_loaded_is_an_error(server, proxy, handle, monkeypatch):
    """A server that never knows a script: no loop without a pause, and an error in time."""
    monkeypatch.setattr(_connection, "_load_command", lambda verb: _requests.pack(b"SCRIPT", b"LOAD", b"return 1"))
    for module in (_requests, _ops_write, _ops_wait):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    server[1].script_flush()
    before = proxy.arrived
    calls = [Running(handle.run, "add", record(1)), Running(handle.run, "sample", 1)]
    found = [(type(c.error()), c.error().reason.startswith("NOSCRIPT"), c.seconds < SOON) for c in calls]
    assert found == [(ServerNotReadyError, True, True)] * 2
    assert proxy.arrived - before < 300
    monkeypatch.undo()


# Failover


@pytest.fixture
def pair(binary):
    """A master and its replica, and a proxy that leads to the master: their clients and URLs."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(on_ports(lambda port: EmbeddedServer(binary=binary, port=port))) for _ in range(2)]
        clients = [stack.enter_context(redis.Redis.from_url(server.url)) for server in servers]
        proxy = stack.enter_context(contextlib.closing(Proxy(servers[0].url)))
        clients[1].replicaof(*address(servers[0]))
        clients[0].config_set("repl-diskless-sync-delay", 0)
        wait_until(lambda: clients[1].info("replication")["master_link_status"] == "up", 20, "the replica")
        yield servers, clients, proxy


def address(server):
    """Its host and port."""
    parts = urlsplit(server.url)
    return parts.hostname, parts.port


def promote(servers, clients, proxy):
    """The replica becomes the master, and the master its replica; new connections go to it. The old ones stay open."""
    offset = clients[0].info("replication")["master_repl_offset"]
    wait_until(lambda: clients[1].info("replication")["slave_repl_offset"] >= offset, 5, "the replica to follow")
    clients[1].replicaof("NO", "ONE")
    clients[0].replicaof(*address(servers[1]))
    proxy.lead_to(servers[1].url)


@pytest.mark.parametrize(("kind", "binary"), turns(1), indirect=["binary"])
def test_failover_is_followed(pair, kind, caplog):
    """When the replica is promoted, a blocked wait and the next write go to it, on connections of their own."""
    servers, clients, proxy = pair
    with ReplayBuffer(servers[0].url, "b", capacity=100, **QUEUE) as first:
        handle = open_handle(kind, None, "b", target=proxy.url, poll_interval=0.2)
        handle.run("add", record(0))
        call = handle.start("sample", batch_size=2, timeout=20)
        blocked(first)
        promote(servers, clients, proxy)
        assert handle.run("add", record(1)) == 2**32 + 2  # another server may have lost what anybody was given
        assert call.how(timeout=SOON) == [0, 1]
    assert clients[1].hget("rr:{b}:counters", "write_count") == b"2"
    assert len(lines(caplog)) == 2
    handle.end()


def test_demoted_master_is_an_error_for_writes(pair, monkeypatch):
    """A handle that is bound to a master which has become a replica: its writes end with a typed error."""
    servers, clients, proxy = pair
    monkeypatch.setattr(_requests, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(_ops_write, "CALL_SECONDS", 0.5)
    with ReplayBuffer(servers[0].url, "b", capacity=100) as buffer:
        buffer.add(record(0))
        promote(servers, clients, proxy)
        with pytest.raises((ServerNotReadyError, ConnectionLostError), match="READONLY"):
            buffer.add(record(1))
