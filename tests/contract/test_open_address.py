"""Where a buffer lives: URLs, clients of the user's, database numbers."""

import contextlib
import threading

import pytest
import redis
from redis.sentinel import Sentinel

from redis_replay import ReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, ConnectionLostError, ServerRefusedError
from tests._contract import contents, nothing_changes, refused
from tests._helpers import SOON, wait_until

BAD_URLS = [
    "http://localhost:6379/0",
    "localhost:6379",
    "",
    "redis:/localhost",
    "redis://localhost:port/0",
    "redis://localhost:6379/abc",
    "redis://localhost:6379/-1",
    "redis://localhost:6379?db=abc",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused_before_connecting(url):
    """The error names the argument and the schemes that work."""
    with refused(ArgumentError) as caught:
        ReplayBuffer(url, "b", capacity=1)
    assert str(caught.value).startswith("url must be")


@pytest.mark.parametrize("target", [None, 6379, object()], ids=["none", "int", "object"])
def test_a_target_of_another_kind_is_refused(target):
    """A TypeError says what url may be."""
    with refused(ArgumentTypeError) as caught:
        ReplayBuffer(target, "b", capacity=1)
    assert str(caught.value).startswith("url must be")


UNREACHABLE = {
    "port": "redis://127.0.0.1:1/0",
    "host": "redis://no-such-host.invalid:6379/0",
    "socket": "unix:///nowhere/redis.sock",
}


@pytest.mark.parametrize("url", UNREACHABLE.values(), ids=UNREACHABLE)
def test_an_unreachable_server_is_named(url):
    """ConnectionLostError, a ConnectionError, has the address."""
    with refused(ConnectionLostError) as caught:
        ReplayBuffer(url, "b", capacity=1)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.address.split("/0")[0] in url


@pytest.fixture
def login(real_server, client):
    """The server's address for a user `actor` with the password `secret`, without the login."""
    client.execute_command("ACL", "SETUSER", "actor", "on", ">secret", "~*", "&*", "+@all")
    yield real_server.url.removeprefix("unix://")
    client.execute_command("ACL", "DELUSER", "actor")


def test_a_password_in_the_url_is_used(login, name, small):
    """User and password of a URL log in."""
    with ReplayBuffer(f"unix://actor:secret@{login}", name, capacity=1) as buffer:
        assert buffer.get(buffer.add(small.one(2)))["i"] == 2
        buffer.delete()


def test_a_wrong_password_is_refused_unread(login, client, name):
    """The server's refusal is passed on at once; the password is not in the text."""
    with nothing_changes(client, ()), refused(ServerRefusedError) as caught:
        ReplayBuffer(f"unix://actor:guessed@{login}", name, capacity=1)
    assert "WRONGPASS" in str(caught.value) or "invalid username-password" in str(caught.value)
    assert "guessed" not in str(caught.value)


def test_a_wrong_password_does_not_wait(login, name):
    """attach() does not wait for a login that will never work."""
    with refused(ServerRefusedError):
        ReplayBuffer.attach(f"unix://actor:guessed@{login}", name, timeout=30)


def test_a_bad_url_never_shows_its_password():
    """The password is blotted out in errors about the URL."""
    with refused(ArgumentError) as caught:
        ReplayBuffer("http://user:secret@host/0", "b", capacity=1)
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_refused(real_server, client, name):
    """The server has 16: number 99 is its refusal, which is passed on."""
    url = real_server.url.replace("db=0", "db=99")
    with nothing_changes(client, ()), refused(ServerRefusedError) as caught:
        ReplayBuffer(url, name, capacity=1)
    assert "DB index" in str(caught.value) or "invalid DB" in str(caught.value)


def test_a_client_that_decodes_is_refused(server, name):
    """The error names the option of the client that is in the way."""
    with refused(ArgumentError) as caught:
        ReplayBuffer(server.client(decode_responses=True), name, capacity=1)
    assert "decode_responses" in str(caught.value)
    assert contents(server.client()) == {}


class OwnConnection(redis.Connection):
    """A class of the user's."""


OWN_WAYS = {
    "sentinel": lambda: Sentinel([("127.0.0.1", 1)]).master_for("m"),
    "own-class": lambda: redis.Redis(connection_pool=redis.ConnectionPool(connection_class=OwnConnection)),
}


@pytest.mark.parametrize("make", OWN_WAYS.values(), ids=OWN_WAYS)
def test_a_client_that_connects_its_own_way_is_refused(make):
    """What a client does to find its server or to log in, and we cannot do, is named."""
    with refused(ArgumentError) as caught, make() as client:
        ReplayBuffer(client, "b", capacity=1)
    assert caught.value.found in ("SentinelManagedConnection", "OwnConnection")


CLIENTS = {"plain": {}, "protocol-3": {"protocol": 3}, "named": {"client_name": "actor-7"}, "short": {"socket_timeout": 0.05}}


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
def test_a_users_client_works(server, make_buffer, records, options):
    """Whatever the client was made with, what goes in comes out."""
    buffer = make_buffer(target=server.client(**options))
    buffer.extend(records.many(0, 50))
    assert (buffer.sample(20)["x"] >= 0).all()
    assert [int(record["i"]) for record in buffer.records()] == list(range(50))


def test_a_users_client_keeps_its_connections(server, make_buffer, small):
    """Closing the handle leaves the user's client alone."""
    client = server.client()
    make_buffer(target=client).close()
    assert client.ping()


@pytest.fixture
def in_database(server, name):
    """Gives `open_in(db, **options)`: the buffer of one name in a numbered database; deleted at the end."""
    with contextlib.ExitStack() as ends:

        def open_in(db, **options):
            target = server.url.replace("db=0", f"db={db}") if server.url else server.client(db=db)
            buffer = ends.enter_context(ReplayBuffer(target, name, capacity=100, **options))
            ends.callback(lambda: server.client(db=db).flushdb())
            return buffer

        yield open_in


def test_a_numbered_database_works(server, in_database, records):
    """A buffer in database 3 has its keys there and nowhere else."""
    buffer = in_database(3)
    buffer.extend(records.many(0, 10))
    assert (len(buffer), contents(server.client())) == (10, {})


def test_databases_do_not_see_each_other(server, in_database, small):
    """One name in database 0 and in database 1 is two buffers."""
    zero, one = in_database(0), in_database(1)
    zero.extend(small.many(0, 10))
    assert (len(zero), len(one)) == (10, 0)


def test_databases_do_not_wake_each_other(server, in_database, small):
    """Pub/sub knows no databases: a write in database 0 reaches no waiter of the same name in database 1."""
    zero, one = in_database(0), in_database(1, poll_interval=30)
    found = []
    thread = threading.Thread(target=lambda: found.append(one.wait_until_sampleable(5, timeout=1)))
    thread.start()
    wait_until(lambda: one.stats()["waiters"] == 1, description="the waiter in database 1")
    zero.extend(small.many(0, 10))
    thread.join()
    assert (found, one.local_stats.wakeups_by_notice, zero.stats()["notices"]) == ([False], 0, 0)


def test_a_write_wakes_within_its_database(server, in_database, small):
    """In a numbered database a waiter gets its notice."""
    reader, writer = in_database(1, poll_interval=30), in_database(1)
    found = []
    thread = threading.Thread(target=lambda: found.append(reader.wait_until_sampleable(5, timeout=20)))
    thread.start()
    wait_until(lambda: writer.stats()["waiters"] == 1, description="the waiter")
    writer.extend(small.many(0, 5))
    thread.join(SOON)
    assert found == [True]
