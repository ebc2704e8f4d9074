"""A real server that comes back without its last writes: what was given is not given again, and everyone is told once."""

import contextlib
import logging
import pickle

import pytest
import redis

from redis_replay import ReplayBuffer, _ops_write, _requests, samplers
from redis_replay._foresight import STEADY
from redis_replay.exceptions import BufferGoneError, RecordNotFoundError
from tests import _server
from tests._helpers import wait_until
from tests._ports import on_ports
from tests._proxy import Proxy
from tests._rewindable import KEEPS, Rewindable
from tests._waiting import Running, blocked, open_handle, record, records, tags
from tests.fault.test_connections import large

pytestmark = pytest.mark.fault
JUMP = 2**32  # indices that nobody is given after a server was found to be another
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


@pytest.fixture(params=_server.REAL)
def binary(request):
    """A real server's program, in turn."""
    return _server.find(request.param) or _server.missing(request.param)


@pytest.fixture
def rewindable(request, binary, tmp_path):
    """A server that can be set back, by its append-only file if the test does not say otherwise."""
    how = getattr(request, "param", "aof")
    with on_ports(lambda port: contextlib.closing(Rewindable(binary, tmp_path, how, port))) as made:
        yield made


@pytest.fixture
def open_buffer(rewindable):
    """Gives `open_buffer(**options)`: a handle that is closed at the end."""
    handles = []

    def make(**options):
        handles.append(ReplayBuffer(rewindable.url, "b", **({"capacity": 1_000} | options)))
        return handles[-1]

    yield make
    for handle in handles:
        handle.close()


def tags_of(buffer):
    """The tags of all stored records, in order."""
    return [int(r["i"]) for r in buffer.records()]


def warnings(caplog):
    """How often somebody was told that the server was rewound."""
    return sum("was rewound" in entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING)


@pytest.mark.parametrize("rewindable", KEEPS, indirect=True)
@pytest.mark.parametrize("options", [{}, QUEUE], ids=["ring", "queue"])
@pytest.mark.parametrize("make", [records, large])
def test_lost_index_is_not_given_again(rewindable, open_buffer, caplog, make, options):
    """What was lost names nothing, the next writes come behind it, and there is one warning and one count."""
    buffer = open_buffer(**options)
    buffer.extend(make(10))
    rewindable.keep()
    lost = buffer.extend(make(5, 10))
    rewindable.rewind()
    given = buffer.extend(make(3, 20))
    assert (lost.tolist(), given.tolist()) == ([11, 12, 13, 14, 15], [JUMP + 16, JUMP + 17, JUMP + 18])
    assert (buffer.remove(lost), tags_of(buffer)) == (0, [*range(10), 20, 21, 22])
    with pytest.raises(RecordNotFoundError):
        buffer.get(13)
    stats = buffer.stats()
    assert (stats["rewound"], warnings(caplog), stats["write_count"], stats["ignored"]) == (1, 1, 13, 5)
    assert (stats["restarts"], buffer.doctor().findings) == (1, ())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_both_kinds_of_handle_notice(rewindable, open_buffer, caplog, kind):
    """An async handle, too, whose next call is only a read."""
    open_buffer()
    handle = open_handle(kind, None, "b", target=rewindable.url)
    handle.run("extend", records(10))
    rewindable.keep()
    handle.run("extend", records(5, 10))
    rewindable.rewind()
    assert (handle.run("stats")["rewound"], warnings(caplog), handle.run("add", record(20))) == (1, 1, JUMP + 16)
    handle.end()


def test_restart_that_lost_nothing_is_quiet(rewindable, open_buffer, caplog):
    """A server that comes back with all that it had is not rewound."""
    buffer = open_buffer(**QUEUE)
    buffer.extend(records(10))
    drawn = tags(buffer.sample(4))
    rewindable.kill()
    rewindable.start()
    assert (drawn + tags(buffer.sample(6)), buffer.stats()["rewound"], warnings(caplog)) == (list(range(10)), 0, 0)


def test_lost_draw_is_noticed(rewindable, open_buffer, caplog):
    """A lane that fell back tells it where no index could: its draws come again, which is said, and its writes once."""
    buffer = open_buffer(**QUEUE)
    buffer.extend(records(10))
    rewindable.keep()
    for _ in range(3):
        buffer.sample(2)
    rewindable.rewind()
    assert [buffer.add(record(tag)) for tag in (20, 21)] == [JUMP + 11, JUMP + 12]
    assert (tags_of(buffer), buffer.write_count) == ([*range(10), 20, 21], 12)
    assert (buffer.stats()["rewound"], warnings(caplog), buffer.doctor().findings) == (1, 1, ())


def test_vanished_lane_writes_once(rewindable, open_buffer, caplog):
    """A handle whose every request was lost goes on under its own numbers: its next write is there once."""
    other = open_buffer()
    other.extend(records(10))
    rewindable.keep()
    buffer = open_buffer()
    lost = buffer.extend(records(2, 10))
    rewindable.rewind()
    given = [buffer.add(record(tag)) for tag in (20, 21)]
    assert (lost.tolist(), given, tags_of(other)) == ([11, 12], [JUMP + 13, JUMP + 14], [*range(10), 20, 21])
    assert (buffer.stats()["rewound"], buffer.doctor().findings) == (1, ())


def test_many_lanes_are_one_rewind(rewindable, open_buffer, caplog):
    """Eight threads that come back at once count it once, and their writes are all there once."""
    buffer = open_buffer()
    for call in [Running(buffer.extend, records(10, 10 * n)) for n in range(8)]:
        call.error()
    rewindable.keep()
    for call in [Running(buffer.extend, records(10, 1_000 + 10 * n)) for n in range(8)]:
        call.error()
    rewindable.rewind()
    calls = [Running(buffer.extend, records(5, 2_000 + 5 * n)) for n in range(8)]
    given = sorted(i for call in calls for i in call.result().tolist())
    assert given == list(range(JUMP + 161, JUMP + 201))
    assert sorted(tags_of(buffer)) == [*range(80), *range(2_000, 2_040)]
    assert (buffer.stats()["rewound"], warnings(caplog), buffer.doctor().findings) == (1, 1, ())


@pytest.mark.parametrize("rewindable", KEEPS, indirect=True)
@pytest.mark.parametrize("options", [{}, QUEUE], ids=["ring", "queue"])
@pytest.mark.parametrize("first", ["writer", "reader", "new", "pickled"])
def test_who_comes_first_is_given_no_lost_index(rewindable, open_buffer, caplog, options, first):
    """Whoever comes back first, who knows nothing of what was lost: not one lost index means another record afterwards."""
    buffer, other = open_buffer(**options), open_buffer(**options)
    other.extend(records(10))
    if first == "reader":
        other = open_buffer(**options)
        other.get(3)
    rewindable.keep()
    lost = buffer.extend(records(5, 10))
    rewindable.rewind()
    if first == "new":
        other = open_buffer(**options)
    with pickle.loads(pickle.dumps(other)) if first == "pickled" else other as comes:
        assert (comes.add(record(20)), warnings(caplog)) == (JUMP + 11, 0)
        assert (buffer.remove(lost), buffer.add(record(30)), comes.add(record(31))) == (0, JUMP + 12, JUMP + 13)
        assert (tags_of(comes), buffer.doctor().findings) == ([*range(10), 20, 30, 31], ())
        stats = comes.stats()
    assert [stats[name] for name in ("rewound", "restarts", "ignored")] + [warnings(caplog)] == [1, 1, 5, 1]


@pytest.mark.parametrize("rewindable", ["none"], indirect=True)
def test_server_that_kept_nothing_has_another_buffer(rewindable, open_buffer):
    """What was given before is not asked of the new buffer: the handle is told that its own is gone."""
    buffer = open_buffer()
    lost = buffer.extend(records(3))
    rewindable.rewind()
    again = open_buffer()
    assert (again.extend(records(3, 10)).tolist(), again.stats()["restarts"]) == (lost.tolist(), 0)
    for call in (buffer.get, buffer.remove):
        with pytest.raises(BufferGoneError):
            call(lost)
    assert tags_of(again) == [10, 11, 12]


def test_server_that_tells_not_who_it_is(rewindable, open_buffer):
    """Without INFO a lost index may be given again, until the handle comes that was given the largest."""
    buffer, other = open_buffer(), open_buffer()
    other.extend(records(10))
    with redis.Redis.from_url(rewindable.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        client.hdel("rr:{b}:config", "server")
        rewindable.keep()
        buffer.extend(records(5, 10))
        rewindable.rewind()
        client.execute_command("ACL", "SETUSER", "default", "-info")
    assert (other.add(record(20)), buffer.add(record(30)), other.add(record(31))) == (11, JUMP + 16, JUMP + 17)
    assert (tags_of(other), other.stats()["restarts"]) == ([*range(10), 20, 30, 31], 0)


def test_write_that_was_under_way_is_there_once(rewindable, open_buffer):
    """A write that is asked for again across the rewind is there once, under the index that was given."""
    buffer = open_buffer()
    buffer.extend(records(10))
    rewindable.keep()
    buffer.extend(records(5, 10))
    rewindable.kill()
    call = Running(buffer.extend, records(3, 20))
    wait_until(lambda: not buffer._now.core.idle, description="the write to be under way")
    rewindable.rewind()
    assert (call.result().tolist(), tags_of(buffer)) == ([JUMP + 16, JUMP + 17, JUMP + 18], [*range(10), 20, 21, 22])


def test_wait_goes_on(rewindable, open_buffer):
    """A wait that the server was rewound under is served once its records are there."""
    buffer, writer = open_buffer(poll_interval=0.2, **QUEUE), open_buffer(**QUEUE)
    writer.extend(records(2))
    rewindable.keep()
    call = Running(buffer.sample, 4, wait=True, timeout=20)
    blocked(writer)
    rewindable.rewind()
    writer.extend(records(2, 10))
    assert (call.how(timeout=5), writer.stats()["waiters"], writer.doctor().findings) == ([0, 1, 10, 11], 0, ())


def test_unknown_write_that_was_lost_never_was(rewindable, open_buffer, monkeypatch):
    """A write whose reply was lost, and then the write itself: asked about it, the server says never, and nobody else did."""
    monkeypatch.setattr(_ops_write, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(_requests, "CALL_SECONDS", 0.3)
    reader = open_buffer()
    reader.extend(records(10))
    with contextlib.closing(Proxy(rewindable.url)) as proxy, ReplayBuffer(proxy.url, "b") as buffer:
        buffer.add(record(10))
        rewindable.keep()
        given = buffer.add(record(11))
        proxy.mute = b""
        error = Running(buffer.add, record(12)).error()
        proxy.mute = None
        rewindable.rewind()
        assert (given, error.resolve().applied, buffer.add(record(13))) == (12, False, JUMP + 13)
    assert (tags_of(reader), reader.doctor().findings) == ([*range(11), 13], ())


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_a_foreseen_draw_that_a_rewind_interrupts_uses_nothing_of_before(rewindable, open_buffer, cache_bytes):
    """The server does not say that it is another, and others were given the lost indices: what is given is what is stored."""
    with contextlib.closing(rewindable.client()) as client, contextlib.closing(Proxy(rewindable.url)) as proxy:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        writer = open_buffer()
        writer.extend(records(40))
        before = {key: client.dump(key) for key in client.keys("rr:*")}
        writer.extend(records(10, 40))
        with ReplayBuffer(proxy.url, "b", batch_size=32, cache_bytes=cache_bytes) as reader:
            for _ in range(STEADY + 4):
                reader.sample()

            def rewind(_):
                proxy.requests = lambda _: None
                client.delete(*client.keys("rr:*"))
                for key, value in before.items():
                    client.restore(key, 0, value)
                open_buffer().extend(records(10, 60))
                proxy.cut()
                return 0

            proxy.requests = rewind
            batch, info = reader.sample(return_info=True)
        assert tags(batch) == [int(writer.get(index)["i"]) for index in info.index.tolist()]
        assert max(tags(batch)) >= 60
