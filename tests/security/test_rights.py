"""Least rights: a user with the documented ACL line may do everything, and each right that is missing is named."""

import asyncio
import pickle
import re
import threading
import time

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer, _lua, _rights
from redis_replay.exceptions import NoPermissionError, ReplayError
from redis_replay.samplers import Fifo
from tests._helpers import SOON, wait_until
from tests._rights import PASSWORD, documented, rights, set_user, url_of, user

SMALL, LARGE = {"x": np.zeros((8, 4), np.float32)}, {"x": np.zeros((8, 4000), np.float32)}
QUEUE = {"capacity": 100, "sampler": Fifo(), "consume_after_n_samples": 2, "max_staleness": 1}
COMMANDS = [word for word in rights() if word[0] == "+"]
MONITOR = [word for word in rights("monitor") if word[0] == "+"]


@pytest.fixture
def cleared(client):
    """Buffers that nobody could open with the rights they need are cleared away."""
    yield
    client.flushall()


def everything(handle, rows):
    """Every public operation that needs no other handle."""
    index = handle.extend(rows)
    assert (len(handle), handle.add({"x": rows["x"][0]})) == (8, int(index[-1]) + 1)
    assert handle.sample(4, return_info=True)[1].times_sampled is not None or handle.sample(4)
    assert (handle.wait_until_sampleable(1, timeout=2), handle.can_sample(1)) == (True, True)
    assert handle.get(index[4:6])["x"].shape[0] == 2
    assert (len(list(handle.records())) > 0, handle.remove(index[7])) == (True, 1)
    assert (handle.doctor().ok, handle.stats()["state"]) == (True, "open")
    handle.shutdown(drain=False)
    handle.reopen()
    handle.empty()


@pytest.mark.parametrize("rows", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("options", [{"capacity": 20}, QUEUE], ids=["ring", "queue"])
def test_the_documented_user_may_do_everything(url, name, rows, options):
    """Every operation works with the rights on the page, in a ring and in a queue, with small and with large records."""
    with ReplayBuffer(url, name, fresh=True, **options) as buffer:
        everything(buffer, rows)
        buffer.extend({"x": np.repeat(rows["x"], 20, 0)})  # more than fits: eviction
        assert buffer.sample(8)["x"].shape == (8, *rows["x"].shape[1:])
        buffer.delete()


def test_the_documented_user_waits_and_is_woken(url, name):
    """A wait over a subscription is woken by a notice, not by its poll."""
    with ReplayBuffer(url, name, poll_interval=30, **QUEUE) as reader, ReplayBuffer(url, name) as writer:
        found = []
        thread = threading.Thread(target=lambda: found.append(reader.sample(8, wait=True, timeout=20)))
        thread.start()
        wait_until(lambda: writer.stats()["waiters"] == 1, description="the waiter")
        writer.extend(SMALL)
        thread.join(SOON)
        assert (len(found), reader.local_stats.wakeups_by_notice) == (1, 1)
        writer.delete()


async def test_the_documented_user_may_do_everything_async(url, name):
    """So it is for asyncio: writing, waiting, drawing, looking, ending."""
    async with AsyncReplayBuffer(url, name, poll_interval=30, **QUEUE) as buffer:
        waiting = asyncio.create_task(buffer.sample(8, wait=True, timeout=20))
        await asyncio.sleep(0.05)
        await buffer.extend(LARGE)
        assert (await waiting)["x"].shape == (8, 4000)
        assert (await buffer.doctor()).ok
        await buffer.delete()


def test_the_documented_line_is_no_more_than_least():
    """The line grants no category, no other key and no other channel."""
    words = documented("trainer") + documented("monitor")
    assert [w for w in words if w.startswith(("+@", "~", "&", "allkeys", "allchannels", "nopass"))] == [
        "~rr:{cartpole}:*", "&rr:{cartpole}:*", "~rr:{cartpole}:*",
    ]  # fmt: skip


def test_documents_table_and_scripts_agree(client):
    """The page grants what the scripts run and what goes before them, and the code looks at exactly that."""
    known = {command.upper() for command in client.command()}
    run = {right for verb in _lua.verbs() for right in _commands(_lua.load(verb).text, known)} - {*_rights.OPTIONAL}
    table = {*_rights.FIRST, *_rights.READ, *_rights.WRITE}
    assert {f"+{right}" for right in table} == set(COMMANDS)
    assert table == run | {*_rights.FIRST, "exec", "script|load", "subscribe"}
    assert {f"+{right}" for right in (*_rights.FIRST, *_rights.READ)} == set(MONITOR)


def _commands(text, known):
    """Whatever stands in quotes in a script and is a command of the server, with its subcommand."""
    for word, following in re.findall(r"'([A-Z]+)'(?=(?:, '([A-Z]+)')?)", text):
        if word in known:
            yield f"{word}|{following}".lower() if word in {"XGROUP", "XINFO", "PUBSUB"} else word.lower()


def denied(url, name, **options):
    """What a user is told who opens the buffer and uses it, and after how many seconds."""
    started = time.monotonic()
    with pytest.raises(NoPermissionError) as caught, ReplayBuffer(url, name, **options) as buffer:
        buffer.extend(SMALL)
    return caught.value, time.monotonic() - started


@pytest.mark.parametrize("lacking", COMMANDS)
def test_a_missing_command_is_named(real_server, client, url, name, cleared, lacking):
    """Without one command the buffer is not opened: the error names the command, and nothing was done."""
    set_user(client, [right for right in rights(name=name) if right != lacking])
    error, seconds = denied(url, name, capacity=10)
    assert (error.rights, lacking in str(error), seconds < SOON) == ((lacking,), True, True)
    assert client.keys() == []


def test_a_missing_key_right_is_named(real_server, client, url, name, cleared):
    """Without the right to the keys the error names their pattern."""
    set_user(client, [right for right in rights(name=name) if right[0] != "~"])
    error, seconds = denied(url, name, capacity=10)
    assert (error.rights, seconds < SOON) == ((f"~rr:{{{name}}}:*",), True)


def test_a_missing_channel_right_is_named(real_server, client, url, name, cleared):
    """Without the right to the channels the error names their pattern: no wait hangs until its timeout."""
    set_user(client, [right for right in rights(name=name) if right[0] != "&"])
    error, seconds = denied(url, name, capacity=10)
    assert (error.rights, seconds < SOON) == ((f"&rr:{{{name}}}:*",), True)


def test_a_missing_channel_right_is_named_to_a_waiter(real_server, client, url, name, make_buffer):
    """Who attaches without it, and waits, is told at once."""
    make_buffer()
    set_user(client, [right for right in rights(name=name) if right[0] != "&"])
    started = time.monotonic()
    with pytest.raises(NoPermissionError) as caught, ReplayBuffer(url, name) as reader:
        reader.sample(1, wait=True, timeout=30)
    assert (caught.value.rights, time.monotonic() - started < SOON) == ((f"&rr:{{{name}}}:*",), True)


def test_a_missing_channel_right_is_named_to_who_awaits_the_creator(real_server, client, url, name):
    """attach() of a buffer that nobody has created does not wait for it in vain."""
    set_user(client, [right for right in rights(name=name) if right[0] != "&"])
    started = time.monotonic()
    with pytest.raises(NoPermissionError):
        ReplayBuffer.attach(url, name, timeout=30)
    assert time.monotonic() - started < SOON


async def test_a_missing_right_is_named_async(real_server, client, url, name, cleared):
    """So it is for asyncio: a command, the keys, the channels."""
    granted = rights(name=name)
    for lacking in ("+zadd", "+evalsha", "+multi", "+client|setname", granted[0], granted[1]):
        set_user(client, [right for right in granted if right != lacking])
        with pytest.raises(NoPermissionError) as caught:
            async with AsyncReplayBuffer(url, name, capacity=10) as buffer:
                await buffer.extend(SMALL)
        assert caught.value.rights == (lacking,)


def test_everything_that_is_missing_is_named_at_once(real_server, client, url, name, cleared):
    """One error lists all, in words that ACL SETUSER takes: granted, the buffer opens."""
    set_user(client, [right for right in rights(name=name) if right not in ("+zadd", "+time") and right[0] != "&"])
    error, _ = denied(url, name, capacity=10)
    assert set(error.rights) == {"+zadd", "+time", f"&rr:{{{name}}}:*"}
    client.execute_command("ACL", "SETUSER", "trainer", *error.rights)
    with ReplayBuffer(url, name, capacity=10) as buffer:
        assert len(buffer.extend(SMALL)) == 8


TAKEN = ["+evalsha", "+hmget", "+zadd", "+xadd", "+hset", "~", "&"]


@pytest.mark.parametrize("taken", TAKEN)
def test_a_right_taken_away_later_is_named_at_the_next_use(real_server, client, url, name, cleared, taken):
    """An open handle names it as well, at the first call that needs it."""
    with ReplayBuffer(url, name, capacity=10) as buffer:
        buffer.extend(LARGE)
        set_user(client, [right for right in rights(name=name) if not right.startswith(taken)])
        started = time.monotonic()
        with pytest.raises(NoPermissionError) as caught:
            [call() for call in (lambda: buffer.sample(1), lambda: buffer.extend(LARGE), buffer.shutdown)]
        assert caught.value.verb in ("sample", "extend", "shutdown")
        assert any(right.startswith(taken) for right in caught.value.rights)
        assert time.monotonic() - started < SOON
        set_user(client, rights(name=name))


def test_another_buffer_is_out_of_reach(real_server, client, url, name, make_buffer):
    """The rights for one buffer open no other."""
    make_buffer(f"{name}-2").extend(SMALL)
    with pytest.raises(NoPermissionError) as caught:
        ReplayBuffer(url, f"{name}-2")
    assert caught.value.rights[0] == f"~rr:{{{name}-2}}:*"


def test_a_monitor_may_look(real_server, client, name, make_buffer):
    """The documented monitor examines and reads a buffer, and is told what it lacks for anything else."""
    buffer = make_buffer()
    index = buffer.extend(SMALL)
    with user(client, rights("monitor", name), "monitor"), ReplayBuffer(url_of(real_server, "monitor"), name) as monitor:
        assert (monitor.doctor().ok, monitor.get(index)["x"].shape, len(list(monitor.records()))) == (True, (8, 4), 8)
        twin = pickle.loads(pickle.dumps(monitor))
        calls = [monitor.stats, monitor.delete, monitor.shutdown, lambda: monitor.extend(SMALL), lambda: monitor.sample(1)]
        for call in (*calls, twin.stats, lambda: twin.extend(SMALL)):
            with pytest.raises(NoPermissionError) as caught:
                call()
            assert {"+del", "+zadd"} <= set(caught.value.rights) <= {*COMMANDS, f"&rr:{{{name}}}:*"}
        twin.close()
    assert (len(buffer), buffer.doctor().ok) == (8, True)


def test_a_monitor_creates_nothing(real_server, client, name):
    """It may not create a buffer, and leaves no key in the attempt."""
    with user(client, rights("monitor", name), "monitor"), pytest.raises(NoPermissionError):
        ReplayBuffer(url_of(real_server, "monitor"), name, capacity=10)
    assert client.keys() == []


def test_a_login_without_rights_is_named(real_server, client, name):
    """A user that may do nothing at all is told so, and not kept waiting."""
    with user(client, []), pytest.raises(NoPermissionError) as caught:
        ReplayBuffer.attach(url_of(real_server), name, timeout=30)
    assert PASSWORD not in str(caught.value)
    assert isinstance(caught.value, ReplayError)
