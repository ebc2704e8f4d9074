"""A key of a buffer that somebody deleted by hand: the next call says so and names it, or goes on as if nothing were."""

import itertools

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay._keys import NAMES
from redis_replay._ops_dump import begin
from redis_replay.exceptions import BufferDamagedError, BufferGoneError
from redis_replay.samplers import Fifo, Prioritized
from tests._contract import LARGE, SMALL, Records, refused
from tests._server import KINDS

LOST = (
    "config",
    "counters",
    "records",
    "order",
    "holes",
    "uses",
    "parting",
    "held",
    "holds",
    "leases",
    "leased",
    "priorities",
    "places",
    "buckets",
    "ranked",
    "versions",
    "authors",
)  # what nothing makes good
RENEWED = (
    "lanes",
    "requests",
    "writers",
    "waiters",
    "waiting",
    "shares",
    "noted",
    "kept",
)  # of calls under way, who wrote what
NEVER_THERE = ("inbox", "none", "events")  # while no call runs
SMALL_RECORDS, LARGE_RECORDS = Records(SMALL), Records(LARGE)

VERBS = {
    "add": lambda b: b.add(SMALL_RECORDS.one(9)),
    "extend": lambda b: b.extend(SMALL_RECORDS.many(9, 12)),
    "sample": lambda b: b.sample(2),
    "sample and wait": lambda b: b.sample(2, wait=True, timeout=1),
    "wait_until_sampleable": lambda b: b.wait_until_sampleable(2, timeout=1),
    "can_sample": lambda b: b.can_sample(2),
    "get": lambda b: b.get([8, 9]),
    "records": lambda b: list(b.records()),
    "remove": lambda b: b.remove(8),
    "stats": lambda b: b.stats(),
    "empty": lambda b: b.empty(),
    "shutdown": lambda b: b.shutdown(),
    "reopen": lambda b: b.reopen(),
}


def test_every_key_is_in_one_of_the_lists():
    """A key that a later feature adds must be told apart here, too."""
    assert sorted((*LOST, *RENEWED, *NEVER_THERE)) == sorted(NAMES)


# Of an async handle only the shell is another: each key and verb is met on one server, each key and each verb on all.
CASES = itertools.product(enumerate(LOST), enumerate(("add", "extend", "sample", "get", "stats")))
ASYNC = [(KINDS[(k + v) % len(KINDS)], what, verb) for (k, what), (v, verb) in CASES]


def prepare(server, name, what):
    """A buffer that has the key `what`, its name's handle, and the lane of a second handle that holds a batch."""
    weighed = what in ("priorities", "places", "buckets", "ranked")
    dated = what in ("versions", "authors", "shares")
    options = (
        {"max_staleness": 1}
        if dated
        else {}
        if what == "holes" or weighed
        else {"consume_after_n_samples": 2 if what == "uses" else 1}
    )
    sampler = Prioritized(alpha=1.0, beta=1.0, normalize="buffer") if weighed else Fifo()
    buffer = ReplayBuffer(server.target(), name, capacity=100, sampler=sampler, **options)
    buffer.extend(SMALL_RECORDS.many(0, 9))
    reader = ReplayBuffer(server.target(), name)
    if what in ("noted", "kept"):  # a dump is open
        reader._read("dumps", begin, "ab12", 2**30)
    if what == "holes":
        buffer.remove([2, 4])
    elif not weighed and not dated:
        reader.sample(2, lease=1000.0 if what in ("leases", "leased") else None)
    return buffer, reader


@pytest.fixture
def damage(server, client, name):
    """Gives `damage(what)`: a handle on a buffer that has lost this key."""
    handles = []

    def lose(what):
        handles.extend(prepare(server, name, what))
        if what in ("waiters", "waiting"):
            assert not handles[0].wait_until_sampleable(50, timeout=0.01)
        else:
            assert client.exists(f"rr:{{{name}}}:{what}") == 1
        client.delete(f"rr:{{{name}}}:{what}")
        return handles[0]

    yield lose
    for handle in handles[:1]:
        handle.delete()
    for handle in handles:
        handle.close()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", LOST)
def test_every_verb_names_a_lost_key(damage, name, what, verb):
    """The error says which key it is, whatever is called; and it comes at once."""
    buffer = damage(what)
    with refused(BufferDamagedError) as caught:
        VERBS[verb](buffer)
    assert caught.value.key == f"rr:{{{name}}}:{what}"
    assert caught.value.key in str(caught.value)


@pytest.mark.parametrize("what", LOST)
def test_the_doctor_finds_a_lost_key(damage, name, what):
    """The report names the key; the doctor itself does not fail."""
    report = damage(what).doctor()
    assert f"rr:{{{name}}}:{what}" in [finding.key for finding in report.findings]


@pytest.mark.parametrize("what", LOST)
def test_a_handle_that_is_opened_later_finds_it_too(damage, server, name, what):
    """It opens, so that the doctor can look and `delete` can clear away; only without a config there is nothing to open."""
    damage(what)
    if what == "config":
        with refused(BufferDamagedError) as caught:
            ReplayBuffer(server.target(), name)
        assert caught.value.found == "is there without a config"
        return
    with ReplayBuffer(server.target(), name) as late:
        with refused(BufferDamagedError) as caught:
            late.sample(1)
        assert caught.value.key == f"rr:{{{name}}}:{what}"
        assert not late.doctor().ok


@pytest.mark.parametrize("what", LOST)
def test_a_damaged_buffer_is_created_anew(damage, server, name, what):
    """fresh=True takes the rest away; the old handle sees that its buffer is gone."""
    old = damage(what)
    with ReplayBuffer(server.target(), name, capacity=100, fresh=True) as buffer:
        assert buffer.get(buffer.add(SMALL_RECORDS.one(1)))["i"] == 1
        assert buffer.doctor().ok
        with refused(BufferGoneError):
            old.stats()
        buffer.delete()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", RENEWED)
def test_every_verb_goes_on_without_what_comes_again(damage, what, verb):
    """Lanes register anew, waiters join anew, and nothing of the records is lost."""
    buffer = damage(what)
    VERBS[verb](buffer)


@pytest.mark.parametrize(("server", "what", "verb"), ASYNC, indirect=["server"])
async def test_every_verb_names_a_lost_key_async(damage, server, client, name, what, verb):
    """So does the async handle."""
    lost, buffer = f"rr:{{{name}}}:{what}", AsyncReplayBuffer(server.async_target(), name)
    if what == "config":  # its handle opens while the config is there
        kept = prepare(server, name, what)
        await buffer.stats()
        client.delete(lost)
    else:
        damage(what)
    with pytest.raises(BufferDamagedError) as caught:
        await VERBS[verb](buffer)
    assert caught.value.key == lost
    await buffer.close()
    if what == "config":
        kept[0].delete()
        kept[1].close()
    await server.close_async()


@pytest.mark.parametrize("what", ["records", "counters", "versions", "authors"])
def test_set_version_names_a_lost_key(server, client, name, what):
    """So does the verb of buffers that keep versions."""
    with ReplayBuffer(server.target(), name, capacity=100, max_staleness=1) as buffer:
        buffer.extend(SMALL_RECORDS.many(0, 9))
        client.delete(f"rr:{{{name}}}:{what}")
        with refused(BufferDamagedError) as caught:
            buffer.set_version(9)
        assert caught.value.key == f"rr:{{{name}}}:{what}"
        buffer.delete()


@pytest.mark.parametrize("what", ["order", "parting", "holes", "versions"])
def test_an_entry_taken_out_by_hand_is_found(damage, server, client, name, what):
    """Not only the whole key: one of its entries, too."""
    buffer, reader = prepare(server, name, what)
    key = f"rr:{{{name}}}:{what}"
    client.srem(key, *client.smembers(key)) if what == "parting" else client.zpopmin(key)
    with refused(BufferDamagedError) as caught:
        buffer.sample(1)
    assert caught.value.key == key
    buffer.delete()
    reader.close()


@pytest.mark.parametrize("what", [name for name in NAMES if name not in NEVER_THERE])
def test_a_key_of_another_type_is_named(server, client, name, what):
    """Whatever somebody put in its place: by the first call that looks into it; and it stays as it was."""
    buffer, reader = prepare(server, name, what)
    key = f"rr:{{{name}}}:{what}"
    client.delete(key)
    client.set(key, "mine")
    calls = [VERBS[verb] for verb in ("sample", "add", "remove")]
    calls += [lambda b: b.wait_until_sampleable(99, timeout=0.1), lambda b: b.ack("nobody.1")]
    with pytest.raises(BufferDamagedError) as caught:
        [call(buffer) for call in calls]
    assert (caught.value.key, caught.value.found, client.get(key)) == (key, "is a string", b"mine")
    client.delete(key)
    buffer.delete()
    reader.close()


def test_large_records_find_a_lost_key(server, name, client):
    """Both ways of writing look: the gate does not open on a damaged buffer."""
    with ReplayBuffer(server.target(), name, capacity=10) as buffer:
        first = buffer.extend(LARGE_RECORDS.many(0, 3))
        assert np.array_equal(first, [1, 2, 3])
        client.delete(f"rr:{{{name}}}:records")
        with refused(BufferDamagedError) as caught:
            buffer.extend(LARGE_RECORDS.many(3, 6))
        assert caught.value.key == f"rr:{{{name}}}:records"
        buffer.delete()
