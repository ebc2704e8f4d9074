"""Draws that are foreseen: the batches are those of a handle that foresees nothing, whatever happens in between."""

import threading

import pytest

from redis_replay import ReplayBuffer, _foresight, _ops_sample
from redis_replay._reading import Reading
from redis_replay.exceptions import BufferDamagedError, BufferGoneError
from redis_replay.limiters import SampleToInsertRatio
from redis_replay.samplers import Fifo, Lifo, Prioritized, Uniform
from tests._contract import LARGE, SMALL, Records, numbers
from tests._server import turns
from tests._waiting import open_handle
from tests.contract.test_cache import RECORDS, equal

MIB = 2**20


@pytest.fixture
def foreseen(monkeypatch):
    """The Readings of draws that were foreseen, while the test runs, in turn."""
    found, payloads = [], Reading.payloads

    def note(self):
        found.append(self)
        return payloads(self)

    fetch = _ops_sample._fetch

    def uncounted(*args):
        before = len(found)
        batch = yield from fetch(*args)
        del found[before:]
        return batch

    monkeypatch.setattr(Reading, "payloads", note)
    monkeypatch.setattr(_ops_sample, "_fetch", uncounted)
    return found


@pytest.fixture
def blind(monkeypatch):
    """Gives `blind(handle)`: it foresees nothing."""

    def make(handle):
        monkeypatch.setattr(handle._own.foresight, "look", lambda seeds, n: None)
        return handle

    return make


def steady(buffer):
    """Draws until draws are foreseen."""
    for _ in range(2 * _foresight.STEADY):
        buffer.sample()


def changes(buffer, what):
    """What others do between draws, one after another."""
    yield lambda: None
    yield lambda: buffer.extend(RECORDS[what](40, 50))
    yield lambda: buffer.remove([45])
    yield lambda: buffer.extend(RECORDS[what](50, 95))
    yield lambda: buffer.remove([91])
    yield buffer.empty
    yield lambda: buffer.extend(RECORDS[what](0, 16))


@pytest.mark.parametrize("what", RECORDS)
@pytest.mark.parametrize("cache_bytes", [0, 3000, MIB])
def test_batches_are_those_without_foresight(server, make_buffer, name, foreseen, blind, what, cache_bytes):
    """By the same seed: with what is told of them, while records leave and new ones come. Both handles are counted alike."""
    buffer = make_buffer(capacity=40)
    buffer.extend(RECORDS[what](0, 40))
    options = {"seed": 5, "batch_size": 16}
    with (
        blind(ReplayBuffer(server.target(), name, **options)) as plain,
        ReplayBuffer(server.target(), name, cache_bytes=cache_bytes, **options) as seeing,
    ):
        for change in changes(buffer, what):
            change()
            for _ in range(2 * _foresight.STEADY if len(buffer) else 0):
                (a, told_a), (b, told_b) = (handle.sample(return_info=True) for handle in (plain, seeing))
                assert equal(a, b)
                assert told_a.index.tolist() == told_b.index.tolist()
                assert told_a.probability.tolist() == told_b.probability.tolist()
        stats = buffer.stats()
        assert stats["samples_returned"] == 16 * stats["sample_calls"]
        assert buffer._own.foresight is not seeing._own.foresight
        assert len(foreseen) >= 3 * (_foresight.STEADY - 1)  # a hole left by `remove` cannot be foreseen


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Uniform(replacement=False)}, {"sampler": Fifo()}, {"sampler": Lifo()}, {"sampler": Prioritized(0.6, 0.4)},
        {"consume_after_n_samples": 99}, {"remover": Uniform()}, {"remover": Lifo()}, {"max_staleness": 3},
    ],
    ids=repr,
)  # fmt: skip
def test_other_draws_are_not_foreseen(server, make_buffer, small, foreseen, options):
    buffer = make_buffer(capacity=40, batch_size=8, **options)
    buffer.extend(small.many(0, 40))
    for _ in range(3 * _foresight.STEADY):
        buffer.sample()
    assert foreseen == []


@pytest.mark.parametrize(("kind", "server"), turns(), indirect=["server"])
def test_every_handle_foresees(server, make_buffer, name, records, foreseen, kind):
    make_buffer().extend(records.many(0, 40))
    handle = open_handle(kind, server, name, batch_size=8)
    try:
        for _ in range(2 * _foresight.STEADY + 1):
            batch, info = handle.run("sample", return_info=True)
            assert numbers(batch) == [i - 1 for i in info.index.tolist()]
        assert len(foreseen) == _foresight.STEADY
        assert all(len(reading.wanted) == 8 for reading in foreseen)
    finally:
        handle.end()


def test_nothing_is_held_after_a_draw_that_was_foreseen(server, make_buffer, client, records, foreseen):
    """Its bytes have come: nobody needs them any more."""
    buffer = make_buffer(batch_size=8)
    buffer.extend(records.many(0, 40))
    steady(buffer)
    assert foreseen
    assert not client.exists(buffer._own.keys.key("held"), buffer._own.keys.key("holds"))


def test_a_limit_of_samples_holds(server, make_buffer, small, foreseen):
    """A draw that it cuts short is the script's own."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(4.0, 8, 200.0), batch_size=8)
    buffer.extend(small.many(0, 40))
    taken = 0
    while buffer.can_sample(8):
        taken += len(numbers(buffer.sample(8, min_items=1)))
    assert taken == buffer.stats()["samples_returned"]
    assert foreseen


def test_scripts_that_the_server_has_forgotten_are_loaded(server, make_buffer, client, records, foreseen):
    buffer = make_buffer(batch_size=8)
    buffer.extend(records.many(0, 40))
    for _ in range(3 * _foresight.STEADY):
        client.script_flush()
        assert len(numbers(buffer.sample())) == 8
    assert len(foreseen) > _foresight.STEADY


def test_a_lost_record_is_named(server, make_buffer, client, records, foreseen):
    """One that somebody deleted by hand: as by any other draw."""
    buffer = make_buffer(batch_size=8, seed=3)
    buffer.extend(records.many(0, 8))
    steady(buffer)
    assert foreseen
    client.xdel(buffer._own.keys.key("records"), *[f"0-{i}" for i in range(1, 8)])
    with pytest.raises(BufferDamagedError):
        buffer.sample()


def test_another_buffer_of_the_name_is_not_drawn_from(server, make_buffer, name, records, foreseen):
    """Though it has as many records, under the same indices."""
    buffer = make_buffer(batch_size=8)
    buffer.extend(records.many(0, 40))
    steady(buffer)
    seen = len(foreseen)
    assert seen
    with ReplayBuffer(server.target(), name, capacity=100, fresh=True) as fresh:
        fresh.extend(records.many(100, 140))
        with pytest.raises(BufferGoneError):
            buffer.sample()
    assert len(foreseen) == seen


@pytest.mark.parametrize("width", [SMALL, LARGE])
def test_draws_beside_a_writer_are_whole(real_server, make_buffer, name, foreseen, width):
    """Records leave between what is read and the draw: each batch is of records that were live, whatever was foreseen."""
    rows, stop, wrong, written = Records(width), threading.Event(), [], threading.Semaphore(0)
    buffer = make_buffer(capacity=64)
    buffer.extend(rows.many(0, 64))

    def write():
        low = 64
        while written.acquire() and not stop.is_set():
            buffer.extend(rows.many(low, low + 16))
            low += 16

    def draw():
        with ReplayBuffer(real_server.target(), name, batch_size=32) as reader:
            for i in range(300):
                batch, info = reader.sample(return_info=True)
                if i % 20 == 19:  # it writes while the next are drawn
                    written.release()
                wrong.extend(set(numbers(batch)) ^ {i - 1 for i in info.index.tolist()})

    writer, readers = threading.Thread(target=write), [threading.Thread(target=draw) for _ in range(2)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join(60)
    stop.set()
    written.release()
    writer.join(10)
    assert wrong == []
    assert foreseen
    assert buffer.stats()["samples_returned"] == 2 * 300 * 32
