"""A server at its maxmemory: writes are refused whole, reading and freeing go on. What a handle says of it at open."""

import logging

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferDamagedError, BufferGoneError, OutOfMemoryError, ReplayTimeoutError
from redis_replay.samplers import Fifo
from tests._contract import LARGE, SMALL, Records, contents, nothing_changes, numbers, refused

ROOM = 2**20  # bytes that are left when a test begins


@pytest.fixture
def small():
    """Numbered records of a few bytes."""
    return Records(SMALL)


@pytest.fixture
def fill(configure, client):
    """Gives `fill(room=…)`: from now on the server has so many bytes left, and without `room` none.

    What a server uses falls by itself as well, while it frees what connections held: none is a limit of one byte.
    """
    configure("maxmemory-policy", "noeviction")

    def fill_it(room=None):
        configure("maxmemory", 1 if room is None else client.info("memory")["used_memory"] + room)

    return fill_it


@pytest.fixture
def restore(client):
    """Gives `restore()`: there is room again."""
    return lambda: client.config_set("maxmemory", 0)


@pytest.fixture(params=[200, LARGE], ids=["small", "large"])
def records(request):
    """Both ways of writing; a few hundred of either fill the room."""
    return Records(request.param)


def written(buffer, records, low, step=50):
    """Writes batches until the server refuses one. Gives the number of the first record that is not written."""
    while True:
        try:
            buffer.extend(records.many(low, low + step))
        except OutOfMemoryError as error:
            assert (error.name, error.done) == (buffer.name, 0)
            assert "maxmemory" in str(error)
            return low
        low += step


@pytest.mark.parametrize("consume", [None, 1], ids=["ring", "queue"])
def test_a_write_is_refused_whole(real_server, make_buffer, fill, client, records, consume):
    """All of a batch or nothing of it, to the last batch that fits; reading goes on, and every record is there."""
    buffer = make_buffer(capacity=1_000_000, consume_after_n_samples=consume, sampler=Fifo())
    buffer.extend(records.many(0, 50))
    fill(ROOM)
    n = written(buffer, records, 50)
    n = written(buffer, records, n, step=1)
    fill()
    with nothing_changes(client), refused(OutOfMemoryError):
        buffer.extend(records.many(n, n + 100))
    with nothing_changes(client), refused(OutOfMemoryError):
        buffer.add(records.one(n))
    assert buffer.stats()["write_count"] == n
    assert int(buffer.get(n)["i"]) == n - 1
    assert numbers(buffer.sample(20)) == list(range(20))
    assert buffer.doctor().ok


def test_a_reader_that_consumes_drains_a_full_server(real_server, make_buffer, fill, records):
    """Every record is handed out once, and then writes work again, without anybody having changed a setting."""
    buffer = make_buffer(capacity=1_000_000, consume_after_n_samples=1, sampler=Fifo())
    buffer.extend(records.many(0, 50))
    fill(ROOM)
    n = written(buffer, records, 50)
    assert n > 100
    drained = [i for _ in range(n // 25) for i in numbers(buffer.sample(25))]
    assert drained == list(range(n))
    assert not buffer.can_sample(1)
    buffer.extend(records.many(n, n + 20))
    assert numbers(buffer.sample(20)) == list(range(n, n + 20))
    assert buffer.doctor().ok


FREEING = {
    "remove": lambda b: b.remove(np.arange(1, len(b))),
    "empty": lambda b: b.empty(),
}


@pytest.mark.parametrize("way", FREEING)
def test_what_frees_memory_needs_none(real_server, make_buffer, fill, records, way):
    """At the limit, records can be taken out; then writes work again."""
    buffer = make_buffer(capacity=1_000_000)
    buffer.extend(records.many(0, 50))
    fill(ROOM)
    n = written(buffer, records, 50)
    FREEING[way](buffer)
    buffer.extend(records.many(n, n + 5))
    assert buffer.doctor().ok


WORKING = {
    "sample": lambda b: b.sample(4),
    "get": lambda b: b.get([1, 2]),
    "records": lambda b: list(b.records()),
    "can_sample": lambda b: b.can_sample(2),
    "wait": lambda b: b.wait_until_sampleable(999, timeout=0.05),
    "stats": lambda b: b.stats(),
    "doctor": lambda b: b.doctor(),
    "remove": lambda b: b.remove([1]),
    "empty": lambda b: b.empty(),
    "shutdown": lambda b: b.shutdown(),
    "delete": lambda b: b.delete(),
}


@pytest.mark.parametrize("verb", WORKING)
def test_every_other_verb_works_without_memory(real_server, make_buffer, fill, restore, small, verb):
    """Also by a handle that is opened when there is none: its lane and its wait are let through."""
    make_buffer(capacity=1000).extend(small.many(0, 20))
    fill()
    with ReplayBuffer(real_server.target(), make_buffer(attach=True).name) as late:
        WORKING[verb](late)
    with refused(OutOfMemoryError):
        ReplayBuffer(real_server.target(), "another", capacity=1)
    restore()


async def test_an_async_handle_says_the_same(real_server, make_async_buffer, fill, restore, records):
    """Typed, whole, and draining works."""
    buffer = make_async_buffer(capacity=1000, consume_after_n_samples=1, sampler=Fifo())
    await buffer.extend(records.many(0, 20))
    fill()
    for low in (20, 30):
        with pytest.raises(OutOfMemoryError):
            await buffer.extend(records.many(low, low + 10))
    assert numbers(await buffer.sample(20)) == list(range(20))
    assert (await buffer.stats())["write_count"] == 20
    restore()
    await buffer.extend(records.many(20, 30))
    assert (await buffer.doctor()).ok


def test_a_long_extend_says_how_far_it_came(real_server, make_buffer, fill, restore, small):
    """Of 200,000 records, in ten steps, those of the first ones are there, and `done` is their number."""
    buffer = make_buffer(capacity=1_000_000)
    buffer.extend(small.many(0, 10))
    fill(room=3 * 2**20)
    with refused(OutOfMemoryError, 10) as caught:
        buffer.extend(small.many(10, 200_010))
    done = caught.value.done
    assert done % 20_000 == 0
    assert 0 < done < 200_000
    assert buffer.stats()["write_count"] == 10 + done
    restore()
    buffer.extend(small.many(10 + done, 40 + done))
    assert buffer.doctor().ok


# What a handle says when it opens


def opened(server, name, caplog, **options):
    """What is logged while a handle opens, by level."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "redis_replay"):
        ReplayBuffer(server, name, **options).close()
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "redis_replay"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_an_evicting_policy_is_warned_of(real_server, make_buffer, configure, caplog, policy):
    """Each handle says once, by name, that the server throws keys away."""
    name = make_buffer().name
    configure("maxmemory-policy", policy)
    ((level, text),) = opened(real_server.target(), name, caplog)
    assert level == "WARNING"
    assert policy in text
    assert repr(name) in text
    assert "noeviction" in text


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl", "volatile-random"])
def test_a_policy_that_leaves_the_buffer_alone_is_not(real_server, make_buffer, configure, caplog, policy):
    """Keys of a buffer never expire, and volatile-* takes only those that do."""
    name = make_buffer().name
    configure("maxmemory-policy", policy)
    assert opened(real_server.target(), name, caplog) == []


def test_an_attach_warns_once(real_server, make_buffer, configure, caplog):
    """While it waits for a creator it says nothing of the server."""
    configure("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ReplayTimeoutError):
        ReplayBuffer.attach(real_server.target(), "nobodys", timeout=0.05, poll_interval=0.01)
    assert caplog.records == []


@pytest.fixture
def limited(client, real_server):
    """Gives `limited(rule…)`: the URL of a user with these rules on top of all rights."""

    def make(*rules):
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)
        return real_server.url.replace("unix://", "unix://limited:secret@")

    yield make
    client.execute_command("ACL", "DELUSER", "limited")


def test_a_server_that_tells_nothing_is_noted(real_server, make_buffer, limited, caplog):
    """Without rights to CONFIG and INFO a handle opens and works; one line of level INFO says what is not known."""
    name = make_buffer().name
    url = limited("-config", "-info")
    ((level, text),) = opened(url, name, caplog)
    assert (level, "maxmemory-policy" in text, "which process it is" in text) == ("INFO", True, True)
    with ReplayBuffer(url, name) as buffer:
        buffer.add({"x": 1})
        assert len(buffer) == 1


def test_the_policy_is_told_by_info_where_config_is_refused(real_server, make_buffer, limited, configure, caplog):
    """Most managed servers refuse only CONFIG."""
    name = make_buffer().name
    configure("maxmemory-policy", "allkeys-lru")
    ((level, text),) = opened(limited("-config"), name, caplog)
    assert (level, "allkeys-lru" in text) == ("WARNING", True)


def test_a_renamed_command_is_as_good_as_refused(make_buffer, server, caplog):
    """A server without CONFIG and INFO at all (fakeredis is one) is opened as well."""
    name = make_buffer().name
    assert [level for level, _ in opened(server.target(), name, caplog)] == ([] if server.is_real else ["INFO"])


async def test_an_async_handle_warns_as_well(real_server, make_async_buffer, configure, caplog):
    """At its first await."""
    configure("maxmemory-policy", "allkeys-lru")
    await make_async_buffer().add({"x": 1})
    assert ["allkeys-lru" in record.getMessage() for record in caplog.records] == [True]


def test_a_buffer_that_was_evicted_says_so(real_server, configure, client, name, make_buffer, small):
    """Where keys are thrown away all the same, each key's loss is an error of its own kind, and never half a buffer."""
    configure("maxmemory-policy", "allkeys-random")
    buffer = make_buffer(capacity=1_000_000)
    buffer.extend(small.many(0, 1000))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM)
    caught = None
    while caught is None:
        try:
            buffer.extend(small.many(0, 1000))
        except (BufferDamagedError, BufferGoneError) as error:
            caught = error
    client.config_set("maxmemory", 0)
    left = {key.rpartition(":")[2] for key in contents(client)}
    if isinstance(caught, BufferGoneError):
        assert not left & {"config", "counters", "records"}
    else:
        assert caught.key.startswith(f"rr:{{{name}}}:")
        make_buffer(capacity=10, fresh=True).add(small.one(1))
