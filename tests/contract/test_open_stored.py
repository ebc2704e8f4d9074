"""Opening where something else is stored: foreign keys, other formats, a server that is too old."""

import fakeredis
import pytest

from redis_replay import ReplayBuffer
from redis_replay import _ops_admin as admin
from redis_replay._keys import NAMES
from redis_replay.exceptions import BufferDamagedError, FormatError, ServerTooOldError
from tests._contract import contents, nothing_changes, refused

STORED = NAMES  # the last two, `none` and `events`, are no keys of ours: whatever is there is foreign


def another_type(what):
    """A type that the key `what` never has."""
    return "string" if what != "config" else "list"


@pytest.fixture
def spoil(client, name):
    """Gives `spoil(what)`: a key of another type under one of the buffer's keys. Taken away at the end."""
    spoilt = []

    def make(what):
        spoilt.append(f"rr:{{{name}}}:{what}")
        client.delete(spoilt[-1])
        if another_type(what) == "list":
            client.rpush(spoilt[-1], "foreign")
        else:
            client.set(spoilt[-1], "foreign")
        return spoilt[-1]

    yield make
    if spoilt:
        client.delete(*(f"rr:{{{name}}}:{what}" for what in NAMES))


@pytest.mark.parametrize("what", STORED)
def test_a_foreign_key_is_refused_at_creation(server, client, name, spoil, what):
    """A key of another type under the buffer's name is named by the error, and stays as it was."""
    key = spoil(what)
    with nothing_changes(client, ()), refused(BufferDamagedError) as caught:
        ReplayBuffer(server.target(), name, capacity=10)
    assert (caught.value.key, caught.value.found) == (key, f"is a {another_type(what)}")
    assert key in str(caught.value)
    assert "WRONGTYPE" not in str(caught.value)


@pytest.mark.parametrize("what", STORED)
def test_a_spoilt_key_is_refused_at_attach(server, client, name, make_buffer, spoil, what):
    """A key of a buffer that somebody put something else under is named when the next one opens it."""
    make_buffer(capacity=10)
    key = spoil(what)
    with nothing_changes(client, ()), refused(BufferDamagedError) as caught:
        ReplayBuffer(server.target(), name)
    assert caught.value.key == key


def test_a_key_without_a_config_is_refused(server, client, name, spoil):
    """A key of the right type without a config is the rest of something: it is not taken over."""
    spoil("records")
    client.delete(f"rr:{{{name}}}:records")
    client.xadd(f"rr:{{{name}}}:records", {"d": "x"}, id="0-1")
    with nothing_changes(client, ()), refused(BufferDamagedError) as caught:
        ReplayBuffer(server.target(), name, capacity=10)
    assert caught.value.found == "is there without a config"


def test_fresh_clears_foreign_keys_away(server, client, name, make_buffer, small, spoil):
    """fresh=True creates the buffer whatever was there."""
    for what in STORED:
        spoil(what)
    buffer = make_buffer(fresh=True)
    assert buffer.get(buffer.add(small.one(8)))["i"] == 8


@pytest.mark.parametrize("what", ["counters", "records"])
def test_a_lost_key_is_reported_as_damage(server, client, name, make_buffer, small, what):
    """A buffer whose stream or counters were deleted by hand says so, and writes nothing."""
    buffer = make_buffer()
    buffer.add(small.one(1))
    client.delete(f"rr:{{{name}}}:{what}")
    with refused(BufferDamagedError) as caught:
        buffer.add(small.one(2))
    assert caught.value.key == f"rr:{{{name}}}:{what}"


FORMATS = {"higher": str(int(admin.FORMAT) + 1), "lower": str(int(admin.FORMAT) - 1), "text": "new", "empty": ""}


@pytest.mark.parametrize("found", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("options", [{"capacity": 10}, {}], ids=["create", "attach"])
def test_another_format_is_refused_at_open(server, client, name, make_buffer, found, options):
    """The error carries both format numbers, and nothing is changed."""
    make_buffer(capacity=10)
    config = f"rr:{{{name}}}:config"
    client.hset(config, "format", found)
    with nothing_changes(client, ()), refused(FormatError) as caught:
        ReplayBuffer(server.target(), name, **options)
    assert (caught.value.found, caught.value.supported) == (found, admin.FORMAT)
    client.hset(config, "format", admin.FORMAT)


def test_a_config_without_format_is_refused(server, client, name, make_buffer):
    """A hash that somebody else keeps under the config's key is no buffer."""
    make_buffer(capacity=10)
    config = f"rr:{{{name}}}:config"
    client.hdel(config, "format")
    with nothing_changes(client, ()), refused(FormatError) as caught:
        ReplayBuffer(server.target(), name, capacity=10)
    assert caught.value.found == "none"
    client.hset(config, "format", admin.FORMAT)


def test_another_format_is_refused_by_attach(server, client, name, make_buffer):
    """attach() does not wait for a buffer that it will never be able to read."""
    make_buffer(capacity=10)
    config = f"rr:{{{name}}}:config"
    client.hset(config, "format", "99")
    with refused(FormatError):
        ReplayBuffer.attach(server.target(), name, timeout=30)
    client.hset(config, "format", admin.FORMAT)


@pytest.mark.parametrize("opened", ["created", "attached"])
def test_a_server_too_old_is_named(opened):
    """The error says which servers will do, and no key is left behind."""
    old = fakeredis.FakeServer(version=(6, 2))
    with fakeredis.FakeRedis(server=old) as client:
        with refused(ServerTooOldError) as caught:
            if opened == "created":
                ReplayBuffer(client, "b", capacity=1)
            else:
                ReplayBuffer.attach(client, "b", timeout=5)
        assert "Redis 7.0 or Valkey 7.2" in str(caught.value)
        assert contents(client) == {}
