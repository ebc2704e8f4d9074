"""Checkpoints: one moment of a buffer in a file, and back; a file that is not whole changes nothing."""

import asyncio
import os
import threading

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer, _requests, checkpoint
from redis_replay.exceptions import (
    BufferShutDownError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointSchemaError,
    DumpError,
    LoadError,
    UnderWayError,
)
from redis_replay.limiters import Queue, SampleToInsertRatio
from redis_replay.samplers import Fifo, Freshest, MaxHeap, Prioritized, Uniform
from tests._contract import SMALL, Records, contents, nothing_changes, refused, stored_numbers
from tests._helpers import SOON, wait_until

WEIGHED = Prioritized(alpha=0.7, beta=0.5, normalize="buffer")
KINDS = {
    "ring": {},
    "ring-removed": {},
    "queue": {"sampler": Fifo(), "consume_after_n_samples": 1, "rate_limiter": Queue(80)},
    "uses": {"consume_after_n_samples": 3},
    "lease": {"consume_after_n_samples": 2, "lease": 100.0},
    "weighed": {"sampler": WEIGHED},
    "weighed-uses": {"sampler": WEIGHED, "consume_after_n_samples": 4, "lease": 100.0},
    "heap": {"sampler": MaxHeap(), "remover": Uniform()},
    "stale": {"sampler": Freshest(), "max_staleness": 2},
    "ratio": {"rate_limiter": SampleToInsertRatio(4.0, 5, 2000.0)},
}
KIND = pytest.mark.parametrize("kind", KINDS)
# Of the server's own, of calls under way, or of who is at work now.
PASSING = {"holds", "lanes", "writers", "parting", "storage_size", "utilization", "notices", "seconds_since_write", "arrivals",
           "leases", "leased", "waiters", "blocked", "restarts"}  # fmt: skip


def lived(make_buffer, kind, name=None):
    """A buffer of 100 that has been through something."""
    small = Records(SMALL)
    buffer = make_buffer(name, capacity=100, seed=3, **KINDS[kind])
    weighed = {"priority": np.arange(60) % 7} if "weighed" in kind or kind == "heap" else {}
    index = buffer.extend(small.many(0, 60), **weighed)
    if kind == "stale":
        buffer.set_version(1)
    if kind == "ring-removed":
        buffer.remove(index[10:30:3])
    for _ in range(2):
        buffer.sample(8)
    buffer.extend(small.many(60, 70))
    if "weighed" in kind:
        buffer.update_priority(index[20:30], np.linspace(0, 9, 10))
    if kind in ("ring", "heap"):
        buffer.extend(small.many(70, 130))  # some are evicted
    return buffer


def figures(buffer):
    """What `stats` tells that is the buffer's own; what is lent counts as come back, as in a dump."""
    told = {key: value for key, value in buffer.stats().items() if key not in PASSING}
    return told | {"total_weight": pytest.approx(told.get("total_weight", 0), rel=1e-12)}  # summed up in another order


def priorities(buffer):
    """By index, where there are any."""
    sampler = buffer.sampler
    return [each.tolist() for each in buffer.priorities()] if isinstance(sampler, Prioritized | MaxHeap) else []


@KIND
def test_a_load_puts_all_of_it_back(server, make_buffer, tmp_path, kind):
    """Records, identities, order, priorities, counters, and what the next draws give: as at the dump, whatever came after."""
    buffer = lived(make_buffer, kind)
    assert buffer.dumps(tmp_path / "c") == len(checkpoint.open(tmp_path / "c"))
    expected = [int(record["i"]) for record in checkpoint.open(tmp_path / "c")]
    before, had = figures(buffer), priorities(buffer)
    buffer.set_rate_limiter(None)
    buffer.extend(Records(SMALL).many(900, 930))
    buffer.sample(5)
    assert buffer.loads(tmp_path / "c") == len(expected)
    after = figures(buffer)
    if "lease" in KINDS[kind]:  # those that were lent are there again
        assert after["sampleable_size"] + after["hidden"] == len(expected)
    else:
        assert after == before
    assert (stored_numbers(buffer), priorities(buffer)) == (expected, had)
    assert buffer.doctor().findings == ()
    assert buffer.sample(5)["i"].shape == (5,)
    assert buffer.extend(Records(SMALL).many(950, 955)).shape == (5,)
    assert buffer.doctor().findings == ()


@KIND
def test_another_server_goes_on_from_it(server, make_buffer, tmp_path, kind, name):
    """A buffer that was never written to has the records under their own indices; the next one is behind them."""
    first = lived(make_buffer, kind)
    first.dumps(tmp_path / "c")
    saved = checkpoint.open(tmp_path / "c")
    second = make_buffer(f"{name}-2", **saved.settings)
    second.loads(tmp_path / "c")
    index = [int(i) for page in saved.pages() for i in page.index]
    assert [int(second.get(i)["i"]) for i in index] == [int(record["i"]) for record in saved]
    second.set_rate_limiter(None)
    assert second.add(Records(SMALL).one(999)) == saved.last + 1
    assert second.write_count == first.write_count + 1
    assert second.doctor().ok


def test_a_load_is_drawn_from_at_once_by_who_waits(server, make_buffer, small, tmp_path, name):
    """D2: a wait is woken by the load, and not by its poll."""
    full = make_buffer(batch_size=20)
    full.extend(small.many(0, 40))
    full.dumps(tmp_path / "c")
    empty = make_buffer(f"{name}-2", poll_interval=60.0)
    got = []
    reader = threading.Thread(target=lambda: got.append(empty.sample(20, wait=True, timeout=50)))
    reader.start()
    wait_until(lambda: empty.stats()["waiters"] == 1)
    empty.loads(tmp_path / "c")
    reader.join(SOON)
    assert len(got[0]["i"]) == 20


def test_what_changes_meanwhile_is_in_it_as_it_was(server, make_buffer, tmp_path, monkeypatch):
    """Between the pages of a dump everything goes on: consumed, evicted, removed, updated; the file knows nothing of it."""
    monkeypatch.setattr("redis_replay._ops_dump.PAGE_RECORDS", 10)
    buffer = make_buffer(capacity=100, sampler=WEIGHED, consume_after_n_samples=2, seed=1)
    index = buffer.extend(Records(SMALL).many(0, 100), priority=np.arange(1, 101))
    buffer.sample(30)
    expected = {int(i): p for i, p in zip(*buffer.priorities(), strict=True)}

    def meanwhile(done, total):
        if done < 50:
            buffer.sample(10)
            buffer.update_priority(index[done:], 7.5)
            buffer.remove(index[90 + done // 10])
            buffer.extend(Records(SMALL).many(1000 + done, 1020 + done))
        assert buffer.doctor().ok

    buffer.dumps(tmp_path / "c", progress=meanwhile)
    saved = checkpoint.open(tmp_path / "c")
    pages = list(saved.pages())
    found = dict(
        zip(np.concatenate([p.index for p in pages]).tolist(), np.concatenate([p.priority for p in pages]), strict=True)
    )
    assert (found, saved.counters["write_count"], len(saved)) == (expected, 100, len(expected))
    assert set(np.concatenate([p.uses for p in pages])) == {-1, 1}
    buffer.stats()  # what was kept for it goes
    assert buffer.stats()["parting"] <= 10
    assert buffer.doctor().ok


def test_a_dump_that_would_keep_too_much_ends(server, make_buffer, small, tmp_path, monkeypatch):
    """Writers are never slowed: it is the dump that gives way, and what was there before is whole."""
    monkeypatch.setattr("redis_replay._ops_dump.PAGE_RECORDS", 10)
    buffer = make_buffer(capacity=50)
    buffer.extend(small.many(0, 50))
    buffer.dumps(tmp_path / "c")
    whole = (tmp_path / "c").read_bytes()
    with refused(DumpError) as caught:
        buffer.dumps(tmp_path / "c", max_hold_bytes=100, progress=lambda *_: buffer.extend(small.many(50, 60)))
    assert "max_hold_bytes" in caught.value.reason
    assert ((tmp_path / "c").read_bytes(), [path.name for path in tmp_path.iterdir()]) == (whole, ["c"])
    buffer.stats()
    assert (buffer.stats()["parting"], buffer.doctor().findings) == (0, ())


@pytest.mark.parametrize("end", ["empty", "loads"])
def test_a_dump_says_what_ended_it(server, make_buffer, small, tmp_path, monkeypatch, end):
    monkeypatch.setattr("redis_replay._ops_dump.PAGE_RECORDS", 10)
    buffer = make_buffer(capacity=50)
    buffer.extend(small.many(0, 50))
    buffer.dumps(tmp_path / "whole")
    ends = {"empty": buffer.empty, "loads": lambda: buffer.loads(tmp_path / "whole")}
    with refused(DumpError) as caught:
        buffer.dumps(tmp_path / "c", progress=lambda *_: ends[end]())
    assert {"empty": "emptied", "loads": "loaded"}[end] in caught.value.reason
    assert not (tmp_path / "c").exists()


def test_two_dumps_at_once_are_refused_by_name(server, make_buffer, small, tmp_path, monkeypatch):
    monkeypatch.setattr("redis_replay._ops_dump.PAGE_RECORDS", 10)
    buffer = make_buffer()
    buffer.extend(small.many(0, 20))

    def second(*_):
        with refused(UnderWayError):
            buffer.dumps(tmp_path / "d")
        with refused(UnderWayError):
            make_buffer(f"{buffer.name}-2").dumps(tmp_path / "c")

    assert buffer.dumps(tmp_path / "c", progress=second) == 20


def test_the_dump_of_a_killed_process_ends(server, make_buffer, make_raw, small):
    """A minute after its last page: then nothing is kept for it, and another one may begin."""
    buffer, raw = make_buffer(capacity=20), make_raw()
    buffer.extend(small.many(0, 20))
    assert raw("cut", id="a", step="open", most_bytes=10**9)[0] == "OK"
    buffer.extend(small.many(20, 40))
    assert buffer.stats()["parting"] == 20
    raw.pass_time(61)
    assert buffer.stats()["parting"] == 0
    assert raw("rows", id="a", after=0, page_size=9)[:3] == ["CLOSED", "-", "late"]
    assert buffer.doctor().ok


BAD = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) * 6 // 10],
    "cut at its end": lambda whole: whole[:-1],
    "flipped": lambda whole: whole[:200] + bytes([whole[200] ^ 4]) + whole[201:],
    "longer": lambda whole: whole + b"\xc0",
    "text": lambda whole: b"no checkpoint at all",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_file_that_is_not_whole_changes_nothing(server, make_buffer, small, client, tmp_path, bad):
    buffer = make_buffer()
    buffer.extend(small.many(0, 30))
    buffer.dumps(tmp_path / "c")
    (tmp_path / "c").write_bytes(BAD[bad]((tmp_path / "c").read_bytes()))
    with nothing_changes(client, ()), refused(CheckpointError) as caught:
        buffer.loads(tmp_path / "c")
    assert caught.value.path == str(tmp_path / "c")


def test_what_does_not_fit_changes_nothing(server, make_buffer, small, client, tmp_path, name):
    """No file, a directory, other settings, another schema, a shut buffer."""
    make_buffer().extend(small.many(0, 30))
    buffer = make_buffer(attach=True)
    buffer.dumps(tmp_path / "c")
    wider = make_buffer(f"{name}-w", capacity=31, sampler=Fifo())
    other = make_buffer(f"{name}-o")
    other.add({"y": 1.0})
    shut = make_buffer(f"{name}-s")
    shut.shutdown()
    with nothing_changes(client, ("requests", "lanes")):
        with refused(CheckpointNotFoundError):
            buffer.loads(tmp_path / "nothing")
        with refused(CheckpointError):
            buffer.loads(tmp_path)
        with refused(CheckpointMismatchError) as caught:
            wider.loads(tmp_path / "c")
        with refused(CheckpointSchemaError) as schema:
            other.loads(tmp_path / "c")
        with refused(CheckpointSchemaError):
            other.loads(tmp_path / "c", merge=True)
        with refused(BufferShutDownError):
            shut.loads(tmp_path / "c")
    assert set(caught.value.differences) == {"capacity", "sampler"}
    assert (schema.value.file, schema.value.name) == (str(tmp_path / "c"), other.name)
    assert "nothing was changed" in str(schema.value)


def test_merge_writes_them_beside_what_is_there(server, make_buffer, small, tmp_path):
    buffer = make_buffer(capacity=100, sampler=WEIGHED, max_staleness=5)
    buffer.extend(small.many(0, 10), priority=np.arange(10), version=1)
    buffer.dumps(tmp_path / "c")
    assert buffer.loads(tmp_path / "c", merge=True) == 10
    assert stored_numbers(buffer) == [*range(10), *range(10)]
    assert buffer.priorities()[1].tolist() == [*range(10), *range(10)]
    assert (buffer.write_count, buffer.doctor().findings) == (20, ())


def test_what_others_write_during_a_load_moves_it_up(server, make_buffer, small, tmp_path, name):
    """Into a buffer that was empty when it began: nobody's index ever means other bytes."""
    first = make_buffer()
    first.extend(small.many(0, 30))
    first.dumps(tmp_path / "c")
    second = make_buffer(f"{name}-2")
    theirs = []
    second.loads(tmp_path / "c", progress=lambda *_: theirs.append(second.add(small.one(77))))
    assert stored_numbers(second) == list(range(30))
    assert min(second.sample(8, return_info=True)[1].index) > max(theirs)
    assert second.doctor().findings == ()


def test_draws_of_before_do_not_come_back(server, make_buffer, make_raw, small, tmp_path):
    """A draw that a load overtook is told that it lapsed; undone it gives nothing back."""
    buffer, raw = make_buffer(consume_after_n_samples=1), make_raw()
    buffer.extend(small.many(0, 10))
    buffer.dumps(tmp_path / "c")
    assert raw.sample(4)[0] == "OK"
    buffer.loads(tmp_path / "c")
    assert raw.sample(4, number=raw.number)[0] == "LAPSED"
    raw.settle(open_number=raw.number)
    assert (len(buffer), buffer.stats()["consumed"], buffer.doctor().findings) == (10, 0, ())


def test_state_dict_small_and_whole(server, make_buffer, small, name):
    buffer = make_buffer()
    buffer.extend(small.many(0, 30))
    state = buffer.state_dict()
    assert (state["counters"]["write_count"], state["position"], "data" in state) == (30, 30, False)
    buffer.load_state_dict(state)
    other = make_buffer(f"{name}-2")
    with refused(LoadError):
        other.load_state_dict(state)
    other.load_state_dict(buffer.state_dict(include_data=True))
    assert stored_numbers(other) == list(range(30))


async def test_an_async_handle_does_the_same(server, name, small, tmp_path):
    async with AsyncReplayBuffer(server.async_target(), name, capacity=50) as buffer:
        await buffer.extend(small.many(0, 30))
        assert await buffer.dumps(tmp_path / "c") == 30
        state = await buffer.state_dict(include_data=True)
        await asyncio.gather(buffer.empty(), buffer.stats())
        assert await buffer.loads(tmp_path / "c") == 30
        await buffer.load_state_dict(state)
        await buffer.load_state_dict(await buffer.state_dict())
        assert await buffer.write_count == 30
    with ReplayBuffer(server.target(), name) as sync:
        assert stored_numbers(sync) == list(range(30))
        sync.delete()


def test_a_dump_leaves_nothing_behind(server, make_buffer, small, client, tmp_path):
    buffer = make_buffer()
    buffer.extend(small.many(0, 30))
    before = contents(client, ("requests", "lanes"))
    buffer.dumps(tmp_path / "c")
    assert contents(client, ("requests", "lanes")) == before


def test_a_sparse_buffer_is_loaded_in_steps(server, make_buffer, small, tmp_path, monkeypatch):
    """Many short gaps are bounded like one long one."""
    monkeypatch.setattr("redis_replay._ops_load.HOLES", 20)
    monkeypatch.setattr("redis_replay._ops_load.GAP", 12)
    buffer = make_buffer(capacity=300)
    index = buffer.extend(small.many(0, 300))
    left = [int(i) for i in index if i % 7 == 0 and not 100 < i < 150]
    buffer.remove([int(i) for i in index if int(i) not in left])
    buffer.dumps(tmp_path / "c")
    asked = []
    original = _requests.ask

    def ask(core, script, *args, **named):
        asked.append(script)
        return original(core, script, *args, **named)

    monkeypatch.setattr("redis_replay._ops_load.rq.ask", ask)
    buffer.loads(tmp_path / "c")
    assert stored_numbers(buffer) == [i - 1 for i in left]
    rows = [script.args[1].split() for script in asked if script.verb == "restore" and script.count]
    assert all(int(row[-1]) - int(row[0]) <= 20 + 12 for row in rows)
    assert buffer.doctor().findings == ()


async def test_a_cancelled_dump_is_over(server, name, small, tmp_path):
    """The next one begins at once."""
    async with AsyncReplayBuffer(server.async_target(), name, capacity=50) as buffer:
        await buffer.extend(small.many(0, 30))
        for turns in range(12):
            task = asyncio.create_task(buffer.dumps(tmp_path / "c"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert await buffer.dumps(tmp_path / "c") == 30
    with ReplayBuffer(server.target(), name) as sync:
        sync.delete()


def test_a_link_leads_where_it_led_and_rights_stay(server, make_buffer, small, tmp_path):
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    buffer.dumps(tmp_path / "link")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "real").stat().st_mode & 0o777) == (True, 0o600)
    assert len(checkpoint.open(tmp_path / "real")) == 3


def test_what_is_no_file_is_neither_read_nor_replaced(server, make_buffer, small, tmp_path):
    """A pipe, say."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    os.mkfifo(tmp_path / "pipe")
    with refused(CheckpointError):
        buffer.loads(tmp_path / "pipe")
    for target in ("pipe", "."):
        with refused(OSError):
            buffer.dumps(tmp_path / target)
    assert (tmp_path / "pipe").is_fifo()
