"""rediss://: everything goes over TLS, and a server that cannot show who it is is refused."""

import asyncio
import contextlib
import copy
import gc
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import redis

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay.exceptions import ArgumentError, CertificateError, ConnectionLostError, ReplayError
from redis_replay.samplers import Fifo
from tests._helpers import SOON, wait_until, wait_until_async
from tests._ports import on_ports
from tests._rights import PASSWORD, rights, user
from tests.security._tls import TlsServer, key_of

SMALL, LARGE = {"x": np.arange(8.0)}, {"x": np.arange(8 * 40_000.0).reshape(8, 40_000)}
QUEUE = {"capacity": 100, "sampler": Fifo(), "consume_after_n_samples": 1, "poll_interval": 30}


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    with on_ports(lambda *ports: contextlib.closing(TlsServer(folder, *ports)), 2) as made:
        yield made


@pytest.fixture
def tls(tls_server):
    yield tls_server
    assert tls_server.client.keys() == []


def ports_in_use(tls):
    """The server's ports that buffers are connected to."""
    return {int(entry["laddr"].rpartition(":")[2]) for entry in tls.client.client_list() if entry["name"] == "redis-replay"}


@pytest.mark.parametrize("rows", [SMALL, LARGE], ids=["small", "large"])
def test_a_buffer_works_over_tls(tls, name, rows):
    """Writes, draws, reads and a wait that is woken, with a login of least rights; no connection is a plain one."""
    with user(tls.client, rights(name=name)) as login:
        url = tls.url(login=f"{login}:{PASSWORD}@")
        with ReplayBuffer(url, name, **QUEUE) as buffer, ReplayBuffer(url, name) as writer:
            found = []
            thread = threading.Thread(target=lambda: found.append(buffer.sample(8, wait=True, timeout=20)))
            thread.start()
            wait_until(lambda: writer.stats()["waiters"] == 1, description="the waiter")
            index = writer.extend(rows)
            thread.join(SOON)
            assert (found[0]["x"] == rows["x"]).all()
            assert buffer.local_stats.wakeups_by_notice == 1
            assert (index.tolist(), ports_in_use(tls)) == (list(range(1, 9)), {tls.port})
            buffer.delete()


async def waiters(buffer):
    return (await buffer.stats())["waiters"]


async def test_a_buffer_works_over_tls_async(tls, name):
    """So it is for asyncio, the subscription included."""
    async with AsyncReplayBuffer(tls.url(), name, **QUEUE) as buffer:
        waiting = asyncio.create_task(buffer.sample(8, wait=True, timeout=20))
        await wait_until_async(lambda: waiters(buffer), description="the waiter")
        await buffer.extend(LARGE)
        assert ((await waiting)["x"] == LARGE["x"]).all()
        assert (buffer.local_stats.wakeups_by_notice, ports_in_use(tls)) == (1, {tls.port})
        await buffer.delete()


def test_an_event_loop_ends_before_the_server_says_goodbye(tls, name):
    """A handle that was closed leaves no socket behind, though the server does not answer the end of TLS before the loop's."""

    async def main():
        async with AsyncReplayBuffer(tls.url(), name, **QUEUE) as buffer:
            await buffer.extend(SMALL)
            os.kill(tls.pid, signal.SIGSTOP)

    try:
        asyncio.run(main())
        gc.collect()
    finally:
        os.kill(tls.pid, signal.SIGCONT)
    with ReplayBuffer(tls.url(), name) as buffer:
        buffer.delete()


def opens(url, name):
    ReplayBuffer(url, name, capacity=10)


def attaches(url, name):
    ReplayBuffer.attach(url, name, timeout=30)


def awaits(url, name):
    async def main():
        async with AsyncReplayBuffer(url, name, capacity=10):
            pass

    asyncio.run(main())


def opens_by_a_client(url, name):
    ReplayBuffer(redis.Redis.from_url(url), name, capacity=10)


WAYS = pytest.mark.parametrize("way", [opens, attaches, awaits, opens_by_a_client], ids=["open", "attach", "async", "client"])
UNTRUSTED = {"host": {"host": "127.0.0.1"}, "authority": {"ssl_ca_certs": ""}}


@WAYS
@pytest.mark.parametrize("wrong", UNTRUSTED.values(), ids=UNTRUSTED)
def test_an_untrusted_server_is_refused(tls, name, way, wrong):
    """A certificate for another host, or of an unknown authority, is an error at once, which names the server."""
    url = tls.url(login=f"trainer:{PASSWORD}@", **wrong)
    started = time.monotonic()
    with pytest.raises(CertificateError) as caught:
        way(url, name)
    assert time.monotonic() - started < SOON
    assert (str(tls.port) in caught.value.address, PASSWORD in str(caught.value)) == (True, False)


FILES = {
    "ca missing": ("ssl_ca_certs", None), "ca no certificate": ("ssl_ca_certs", "nothing"),
    "certificate missing": ("ssl_certfile", None), "certificate without a key": ("ssl_certfile", "nothing"),
    "key missing": ("ssl_keyfile", None), "ca a folder": ("ssl_ca_certs", "."), "folder missing": ("ssl_ca_path", None),
}  # fmt: skip


@WAYS
@pytest.mark.parametrize(("option", "content"), FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_read_is_named(tls, name, way, tmp_path, option, content):
    """At open, and before anything is sent: the option, the path, and why."""
    path = tmp_path if content == "." else tmp_path / "file.pem"
    if content == "nothing":
        path.write_text(content)
    with pytest.raises(ArgumentError, match=option) as caught:
        way(tls.url(login=f"trainer:{PASSWORD}@", **{option: str(path)}), name)
    assert (str(path) in str(caught.value), PASSWORD in str(caught.value)) == (True, False)


def test_a_file_that_is_lost_later_is_named(tls, name, tmp_path):
    """A handle that connects anew, in another process perhaps, where the file is not."""
    path = tmp_path / "ca.pem"
    path.write_bytes(Path(tls.authority.certificate).read_bytes())
    with ReplayBuffer(tls.url(ssl_ca_certs=str(path)), name, capacity=10) as buffer:
        path.unlink()
        copied = copy.deepcopy(buffer)
        with pytest.raises(ArgumentError, match=r"ca\.pem"):
            copied.stats()
        copied.close()
        buffer.delete()


def test_a_lost_trust_ends_a_wait(tls, name):
    """A server whose certificate is another one after a while is refused by the calls of an open handle, too."""
    with ReplayBuffer(tls.url(), name, capacity=10) as buffer:
        other = tls.authority.sign("other", "DNS:elsewhere.invalid")
        good = tls.authority.folder / "server.crt"
        tls.set("tls-cert-file", other, "tls-key-file", key_of(other))
        for entry in tls.client.client_list():
            if entry["name"]:
                tls.client.client_kill_filter(_id=entry["id"])
        with pytest.raises(CertificateError):
            buffer.sample(1, wait=True, timeout=30)
        tls.set("tls-cert-file", str(good), "tls-key-file", key_of(str(good)))
        assert buffer.add({"x": 1.0}) == 1
        buffer.delete()


@WAYS
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_the_wrong_kind_of_port_hangs_nobody(tls, name, soon, way, scheme):
    """A plain connection to the TLS port, and a TLS connection to the plain port, end in time."""
    url = f"redis://localhost:{tls.port}/0"
    if scheme == "rediss":
        url = tls.url().replace(f":{tls.port}/", f":{tls.plain_port}/")
    if way is attaches:
        error = return_in_time(lambda: ReplayBuffer.attach(url, name, timeout=0.5))
    else:
        error = return_in_time(lambda: way(url, name))
    assert ("rediss://localhost" in str(error)) == (scheme == "rediss")  # where the mistake may be


def return_in_time(call):
    started = time.monotonic()
    with pytest.raises(ConnectionLostError) as caught:
        call()
    assert time.monotonic() - started < SOON
    return caught.value


@pytest.mark.parametrize("way", [opens, awaits], ids=["open", "async"])
def test_a_port_that_never_shakes_hands_hangs_nobody(tls, name, soon, way):
    """A server that takes the connection and says nothing is given up in time."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = tls.url().replace(f":{tls.port}/", f":{silent.getsockname()[1]}/")
        return_in_time(lambda: way(url, name))


def test_a_client_certificate_is_shown(tls, name):
    """Where the server wants one, a client with it is let in, and one without is refused in time."""
    mine = tls.authority.sign("client")
    tls.set("tls-auth-clients", "yes")
    try:
        with ReplayBuffer(tls.url(ssl_certfile=mine, ssl_keyfile=key_of(mine)), name, capacity=10) as buffer:
            assert buffer.add({"x": 1.0}) == 1
            buffer.delete()
        started = time.monotonic()
        with pytest.raises(ReplayError):
            ReplayBuffer(tls.url(), name, capacity=10)
        assert time.monotonic() - started < SOON
    finally:
        tls.set("tls-auth-clients", "no")


def test_the_host_name_is_checked_by_default_only(tls, name):
    """Who says so in the URL may leave the check of the host name out, and only that."""
    with ReplayBuffer(tls.url(host="127.0.0.1", ssl_check_hostname="false"), name, capacity=10) as buffer:
        buffer.delete()
    with pytest.raises(CertificateError):
        ReplayBuffer(tls.url(host="127.0.0.1", ssl_check_hostname="false", ssl_ca_certs=""), name, capacity=10)
