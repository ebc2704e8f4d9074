"""Whatever somebody wrote into a buffer's keys by hand: an error of ours or nothing, never code, never a hang."""

import os
import pickle
import threading
import time

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferDamagedError, RecordDecodeError, ReplayError
from redis_replay.samplers import Fifo, Uniform
from tests._helpers import SOON, wait_until
from tests._server import REAL

RING, QUEUE = {}, {"sampler": Fifo(), "consume_after_n_samples": 2, "max_staleness": 1}
FORMS = pytest.mark.parametrize("options", [RING, QUEUE], ids=["ring", "queue"])


class Marker:
    """Unpickled, it makes a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def marker(tmp_path):
    """A place that code from the server would leave its mark at. It never does."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def hostile(marker):
    """Values that nothing of ours would write."""
    call = f"__import__('os').mkdir({str(marker)!r})"
    texts = ["-1", "abc", "nan", "1e400", "9" * 40, "[" * 10_000, "", "(" * 5000, call, f"Uniform(replacement={call})"]
    return [pickle.dumps(Marker(marker)), b"\xff\xfe\x00", *(text.encode() for text in texts)]


@pytest.fixture
def client(server):
    yield server.client()
    server.client().flushall()


@pytest.fixture
def key(name):
    return lambda what: f"rr:{{{name}}}:{what}"


@pytest.fixture
def make(server, name):
    """Gives `make(options)`: the buffer, new, with a few records, one batch drawn."""
    handles = []

    def new(options):
        buffer = ReplayBuffer(server.target(), name, capacity=20, fresh=True, **options)
        handles.append(buffer)
        buffer.extend({"x": np.arange(6.0)})
        buffer.sample(2)
        return buffer

    yield new
    for buffer in handles:
        buffer.close()


def operations(server, name, buffer):
    """Every operation, the destructive ones last."""
    return [
        lambda: ReplayBuffer(server.target(), name).close(),
        lambda: buffer.sample(2),
        lambda: buffer.wait_until_sampleable(2, 0.05),
        lambda: buffer.extend({"x": np.arange(18.0)}),
        buffer.stats,
        buffer.doctor,
        lambda: list(buffer.records()),
        lambda: buffer.get([1, 2]),
        lambda: buffer.remove([2, 3]),
        *([lambda: buffer.set_version(2)] if buffer._now.core.dates else []),
        buffer.empty,
        buffer.shutdown,
    ]


def endure(server, name, buffer):
    """Runs everything: each ends in time, well or with an error of ours that is about damage. Gives the errors."""
    errors = []
    for operation in operations(server, name, buffer):
        started = time.monotonic()
        try:
            operation()
        except ReplayError as error:
            errors.append(error)
        assert time.monotonic() - started < SOON
    return errors


CONFIG = [
    "capacity",
    "sampler",
    "consume_after_n_samples",
    "shutdowns",
    "record_bytes",
    "skipped",
    "max_staleness",
    "schema",
    "schema_hash",
    "state",
    "epoch",
]
COUNTERS = [
    "first", "last", "sampleable_size", "storage_size", "leased", "hidden", "parting", "used", "clock", "clock_offset",
    "write_count", "consumed", "evicted", "removed", "sample_calls", "arrivals", "bytes_total", "version", "stale",
    "unseen", "nothing_of_ours",
]  # fmt: skip
FIELDS = [("config", field) for field in CONFIG] + [("counters", field) for field in COUNTERS]
LOUD = {("config", f) for f in CONFIG[:9]} | {("counters", f) for f in COUNTERS if f not in ("clock", "clock_offset")}


@FORMS
@pytest.mark.parametrize("field", FIELDS, ids="-".join)
def test_settings_and_counters_are_not_trusted(server, client, name, key, make, hostile, options, field):
    """A hostile value in a field of config or counters ends in errors of ours, and none is about the server."""
    for value in hostile[::3]:
        buffer = make(options)
        client.hset(key(field[0]), field[1], value)
        errors = endure(server, name, buffer)
        assert {type(error).__name__ for error in errors} <= ENDS, (value, errors)
        if field in LOUD and value == b"abc":
            assert any(getattr(error, "key", "") == key(field[0]) for error in errors), errors
        buffer.close()


ENDS = {
    "BufferDamagedError", "BufferShutDownError", "BufferGoneError", "FormatError", "NotReadyError",
    "LimitError", "RecordNotFoundError",
}  # fmt: skip

SIDE = [
    "order",
    "holes",
    "parting",
    "uses",
    "held",
    "lanes",
    "holds",
    "waiters",
    "waiting",
    "requests",
    "versions",
    "authors",
    "shares",
]


@FORMS
@pytest.mark.parametrize("server", REAL, indirect=True)  # nobody else writes into a fake; there it would take 40 s
@pytest.mark.parametrize("what", SIDE)
def test_side_keys_are_not_trusted(server, client, name, key, make, hostile, options, what):
    """Hostile members of the sets, and hostile values under names that are in use, end in errors of ours or in nothing."""
    for value in hostile:
        buffer = make(options)
        plant(client, key, what, value, buffer._now.core.lanes[0].name)
        errors = endure(server, name, buffer)
        assert {type(error).__name__ for error in errors} <= ENDS, (value, errors)
        buffer.close()


def plant(client, key, what, value, lane):
    if what == "parting":
        client.sadd(key(what), value)
    elif what in ("order", "holes", "lanes", "holds", "waiters", "versions"):
        client.zadd(key(what), {value: 1})
    elif what == "waiting":
        client.hset(key(what), "w", value)
        client.zadd(key("waiters"), {"w": 1})
    elif what == "requests":
        client.hset(key(what), mapping={lane: value, "other": value})
        client.zadd(key("lanes"), {"other": 1})
        client.zadd(key("holds"), {"other": 1})
    else:
        client.hset(key(what), mapping={"1": value, "2": value, "zz": value})


def test_a_channel_of_somebodys_making_is_named(server, client, name, key, make):
    """Under a prefix that is ours, so that the line cannot know it: `stats` says what is wrong, and work goes on."""
    buffer = make(QUEUE)
    plant(client, key, "waiting", f"r 9 9 1 9007199254740991 0 0 0 500000 {key('wake')}:a;b".encode(), "")
    with pytest.raises(BufferDamagedError, match="as a waiter"):
        buffer.stats()
    assert len(buffer.extend({"x": np.arange(2.0)})) == 2


def test_a_hostile_waiter_holds_up_nobody(server, client, name, key, make, hostile):
    """A waiter whose entry cannot be read, or who names a channel of somebody else, is dropped: writes go on."""
    buffer = make(QUEUE)
    foreign = b"r 1 1 1 9007199254740991 0 0 0 500000 another:channel"
    for value in [*hostile, foreign]:
        plant(client, key, "waiting", value, "")
        assert len(buffer.extend({"x": np.arange(2.0)})) == 2
        assert (client.zcard(key("waiters")), client.hlen(key("waiting"))) == (0, 0)
    assert buffer.doctor().ok


def test_a_hostile_lane_holds_up_nobody(server, client, name, key, make, hostile):
    """A remembered request that cannot be read is as good as none: its lane is forgotten, its owner registers anew."""
    buffer = make(QUEUE)
    for value in hostile:
        plant(client, key, "requests", value, buffer._now.core.lanes[0].name)
        assert len(buffer.extend({"x": np.arange(2.0)})) == 2
        assert len(buffer.sample(1)["x"]) == 1


FORGED = [
    "NOT_READY a b c d", "NOT_READY", "LIMIT", "OK x y", "OK 1 1 - zz", "OK 1", "OK 2 1 - - zz 3x", "OK 999999999 5 - - -",
    "OK 1 999999999999", "OK 5 3", "SURPRISE", "NOT_FOUND \x80", "DAMAGED", "TOO_LARGE a b c", "FULL x",
]  # fmt: skip
NUMBERED = {
    "sample": lambda buffer: buffer.sample(1),
    "wait": lambda buffer: buffer.can_sample(1),
    "add": lambda buffer: buffer.extend({"x": np.arange(2.0)}),
    "remove": lambda buffer: buffer.remove(1),
    "ack": lambda buffer: buffer.ack("a.1"),
    "release": lambda buffer: buffer.release("a.1"),
    "empty": lambda buffer: buffer.empty(empty_write_count=False),
}


@FORMS
@pytest.mark.parametrize("answer", FORGED)
def test_a_forged_answer_is_not_trusted(server, client, name, key, make, options, answer):
    """Who writes the answer to a lane's next request before it is asked: the error names the key, and the next call works."""
    buffer, errors = make(options), []
    for verb, call in NUMBERED.items():
        lane = buffer._now.core.lanes[0]
        client.hset(key("requests"), lane.name, f"{lane.number + 1} {verb} {answer}".encode("latin1"))
        try:
            call(buffer)
        except ReplayError as error:
            errors.append((type(error), error.key))
        buffer.extend({"x": np.arange(2.0)})
        assert len(buffer.sample(1)["x"]) == 1
    assert set(errors) == {(BufferDamagedError, key("requests"))}


@FORMS
@pytest.mark.parametrize("call", NUMBERED)
def test_a_forged_number_is_not_trusted(server, client, name, key, make, options, call):
    """Who makes the server think that a lane is far ahead: the error names the key, and the next call has another lane."""
    buffer = make(options)
    client.hset(key("requests"), buffer._now.core.lanes[0].name, "9007199254740990 settle OK")
    with pytest.raises(BufferDamagedError) as caught:
        NUMBERED[call](buffer)
    assert caught.value.key == key("requests")
    NUMBERED[call](buffer)


def live_by_hand(client, key, entry):
    """Adds an entry to the stream and makes it a live record. Gives its index."""
    index = int(client.xadd(key("records"), entry, id="0-*").split(b"-")[1])
    for counter in ("last", "sampleable_size", "storage_size", "write_count", "records_total"):
        client.hincrby(key("counters"), counter, 1)
    return index


@pytest.fixture
def entries(hostile, marker):
    """Payloads that carry code, or lies, as the stream's entries."""
    npy = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + hostile[0]
    return [*(h for h in hostile), npy, b"PK\x03\x04" + hostile[0], b"\xff" * 2**20, b"\xdd\xff\xff\xff\xff", b"\x91" * 10_000]


RECORDS = {"fixed": {"x": 1.0}, "large": {"x": np.zeros(2000)}, "variable": {"x": "text", "y": (1, [2, {"z": b"3"}])}}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_hostile_entry_is_named_and_the_next_is_read(server, client, name, key, make_buffer, entries, record):
    """By get, by records and by a draw: RecordDecodeError with the index; the records beside it can be read."""
    buffer = make_buffer(sampler=Uniform(replacement=False))
    before = buffer.add(record)
    for payload in entries:
        index = live_by_hand(client, key, {"d": payload})
        after = buffer.add(record)
        started = time.monotonic()
        with pytest.raises(RecordDecodeError) as caught:
            buffer.get(index)
        assert (caught.value.index, str(index) in str(caught.value)) == (index, True)
        with pytest.raises(RecordDecodeError):
            buffer.get([before, index, after])
        with pytest.raises(RecordDecodeError):
            list(buffer.records())
        with pytest.raises(RecordDecodeError) as caught:
            buffer.sample(100, min_items=1)
        assert caught.value.index == index
        assert buffer.get(after).keys() == record.keys()
        assert time.monotonic() - started < SOON
        buffer.remove(index)
        assert len(buffer.sample(100, min_items=1)["x"]) == len(buffer)


MESSAGES = [b"", b"wake", b"standby", b"\xff\xfe", b"wake nobody", b"x" * 2**20, b"wake " + b"y" * 2**20]


def test_messages_are_hints_at_most(real_server, name, make_buffer, hostile):
    """Whatever is published on the channels of a waiting handle: it goes on waiting, remembers nothing, and is woken."""
    reader, writer = make_buffer(poll_interval=30), make_buffer(attach=True)
    found = []
    thread = threading.Thread(target=lambda: found.append(reader.sample(2, wait=True, timeout=20)))
    thread.start()
    wait_until(lambda: writer.stats()["waiters"] == 1, description="the waiter")
    core, client = reader._now.core, real_server.client()
    for message in [*hostile, *MESSAGES]:
        for channel in (core.channel, core.keys.events):
            assert client.publish(channel, message) == 1
    wait_until(lambda: not found, description="nothing")
    writer.extend({"x": np.arange(2.0)})
    thread.join(SOON)
    assert (len(found), len(reader._now.listener.notices) <= 2) == (1, True)


def test_the_doctor_finds_members_that_are_no_index(server, client, name, key, make, hostile):
    """It says so, and does not break off."""
    buffer = make(QUEUE)
    for what in ("order", "parting"):
        plant(client, key, what, b"abc", "")
    found = buffer.doctor().findings
    assert {finding.key for finding in found if "abc" in finding.found} == {key("order"), key("parting")}


def test_the_doctor_finds_a_counter_that_is_no_number(server, client, name, key, make):
    """It names the counter."""
    buffer = make(RING)
    client.hset(key("counters"), "evicted", "abc")
    assert [finding.key for finding in buffer.doctor().findings if "evicted" in finding.expected] == [key("counters")]


def test_a_damaged_setting_names_key_and_value(server, client, name, key, make):
    """The error of opening says which key, what was found, and what is expected."""
    make(RING)
    client.hset(key("config"), "capacity", "many")
    with pytest.raises(BufferDamagedError) as caught:
        ReplayBuffer(server.target(), name)
    assert (caught.value.key, "'many' as capacity" in str(caught.value)) == (key("config"), True)
