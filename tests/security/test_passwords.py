"""A password stays where it was put: in no text of ours, wherever it ends up."""

import asyncio
import logging
import pickle
import traceback
from urllib.parse import quote

import pytest
import redis

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, ReplayError
from tests._rights import PASSWORD, rights, set_user, url_of, user

AWKWARD = "p@s:s/w?o#r%d"


def texts(error):
    """All that an error may end up as in a log."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error) + repr(vars(error))


def test_no_text_of_a_handle_shows_it(real_server, client, url, name, caplog):
    """Neither repr() nor str() of a handle and of what it is made of, nor the server's list of clients, nor a log line."""
    caplog.set_level(logging.DEBUG)
    with ReplayBuffer(url, name, capacity=10) as buffer:
        buffer.add({"x": 1})
        awaited = AsyncReplayBuffer(url, name)
        listed = str(client.client_list()) + str(client.execute_command("CLIENT", "LIST"))
        twin = pickle.loads(pickle.dumps(buffer))
        parts = [buffer, buffer._setup, buffer._setup.address, buffer._now, buffer._now.core, buffer._now.connection]
        shown = "".join(f"{part!r} {part!s}" for part in [*parts, twin, twin._setup.address, awaited])
        assert (PASSWORD in shown, PASSWORD in listed, PASSWORD in caplog.text) == (False, False, False)
        twin.close()
        buffer.delete()


def test_a_pickled_handle_logs_in_by_itself(url, name):
    """The pickle carries the password, as the page says: that is how another process gets in."""
    with ReplayBuffer(url, name, capacity=10) as buffer:
        kept = pickle.dumps(buffer)
        assert PASSWORD.encode() in kept
        with pickle.loads(kept) as twin:
            assert twin.add({"x": 1}) == 1
        buffer.delete()


def failures(real_server, client, url, name):
    """Errors of every kind that a login can be part of."""
    wrong, nowhere = url_of(real_server, password="wrong-" + PASSWORD), f"redis://trainer:{PASSWORD}@127.0.0.1:1/0"
    yield lambda: ReplayBuffer(wrong, name, capacity=10)
    yield lambda: ReplayBuffer.attach(wrong, name, timeout=5)
    yield lambda: ReplayBuffer(nowhere, name, capacity=10)
    yield lambda: ReplayBuffer.attach(nowhere, name, timeout=0.1)
    yield lambda: ReplayBuffer(url.replace("db=0", "db=99"), name, capacity=10)
    yield lambda: ReplayBuffer(url, name)
    yield lambda: ReplayBuffer(url, name + "-of-another", capacity=10)
    yield lambda: asyncio.run(opened(wrong, name))
    yield lambda: asyncio.run(opened(nowhere, name))


async def opened(url, name):
    async with AsyncReplayBuffer(url, name, capacity=10):
        pass


def test_no_error_shows_it(real_server, client, url, name, soon, caplog):
    """Whatever fails: text, data, chain and traceback of the error, and the log, go without."""
    caplog.set_level(logging.DEBUG)
    for fails in failures(real_server, client, url, name):
        with pytest.raises(ReplayError) as caught:
            fails()
        assert PASSWORD not in texts(caught.value)
    assert PASSWORD not in caplog.text


def test_a_lost_login_shows_nothing(real_server, client, url, name):
    """A password that was changed while a handle was open ends its calls, in words without it."""
    with ReplayBuffer(url, name, capacity=10) as buffer:
        client.execute_command("ACL", "SETUSER", "trainer", "resetpass", ">another")
        client.execute_command("CLIENT", "KILL", "USER", "trainer")
        with pytest.raises(ReplayError) as caught:
            buffer.sample(1, wait=True, timeout=1)
        assert PASSWORD not in texts(caught.value)
        set_user(client, rights(name=name))
        buffer.delete()


BAD = [
    "http://u:{}@host/0",
    "redis:/u:{}@host",
    "u:{}@host",
    "redis://u:{}@host:port/0",
    "redis://u:{}@host/abc",
    "redis://:{}",
    "redis://host?db=x&password={}",
    "redis://u:{}@[::1/0",
    "redis://{}@host:x",
]


@pytest.mark.parametrize("password", [PASSWORD, AWKWARD, quote(AWKWARD, safe="")], ids=["plain", "awkward", "escaped"])
@pytest.mark.parametrize("bad", BAD)
def test_no_bad_url_shows_it(bad, password):
    """A URL that cannot be read is told without its password, nor any piece of it that was taken for something else."""
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        ReplayBuffer(bad.format(password), "b", capacity=10)
    shown = texts(caught.value)
    pieces = {piece for piece in (password, *password.replace("@", "/").replace("?", "/").split("/")) if len(piece) > 2}
    assert [piece for piece in pieces if piece in shown.replace(__file__, "")] == []


@pytest.mark.parametrize("target", [{"password": PASSWORD}, PASSWORD.encode(), [PASSWORD]], ids=["dict", "bytes", "list"])
def test_a_target_of_another_kind_is_told_by_its_type(target):
    """What is no address at all may hold a password, too."""
    with pytest.raises(ArgumentTypeError) as caught:
        ReplayBuffer(target, "b", capacity=10)
    assert PASSWORD not in texts(caught.value)


def test_an_awkward_password_works_escaped(real_server, client, name):
    """Each character that means something in a URL, written as the page says."""
    with user(client, rights(name=name)):
        client.execute_command("ACL", "SETUSER", "trainer", f">{AWKWARD}")
        with ReplayBuffer(url_of(real_server, password=quote(AWKWARD, safe="")), name, capacity=10) as buffer:
            assert buffer.add({"x": 1}) == 1
            buffer.delete()


def test_a_client_of_the_users_shows_nothing(real_server, client, url, name):
    """So it is for a client in place of a URL."""
    given = redis.Redis.from_url(url)
    with ReplayBuffer(given, name, capacity=10) as buffer:
        assert PASSWORD not in repr(buffer) + repr(buffer._setup)
        buffer.delete()
    given.close()
