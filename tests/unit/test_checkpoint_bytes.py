"""A checkpoint that is cut or changed anywhere is told apart from a whole one."""

import io
from functools import cache

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_replay import _contents as contents
from redis_replay import checkpoint
from redis_replay._blocks import Writer
from redis_replay._encode import encode_batch
from redis_replay.exceptions import CheckpointError

N = 40


@cache
def whole():
    """The bytes of a checkpoint of 40 records in two blocks, written as a dump writes them."""
    rows = encode_batch({"i": np.arange(N), "x": np.ones((N, 3), np.float32)}, None)
    file = io.BytesIO()
    writer = Writer(file)
    config = {"schema": rows.schema.text, "schema_hash": rows.schema.hash, "capacity": "50"}
    head = {"format": contents.FORMAT, "version": contents.VERSION, "name": "b", "epoch": "a", "records": N, "last": N}
    writer.write("head", head | {"config": config, "counters": {"write_count": N}, "shares": {}})
    for low in (0, 25):
        index = np.arange(low, min(low + 25, N), dtype=np.int64) + 1
        none = np.full(len(index), contents.NONE)
        page = checkpoint.Page(index, rows.payloads(low, low + len(index)), none, none.astype(np.float64), none, none)
        writer.write("rows", page.packed())
    writer.write("end", {"records": N})
    return file.getvalue()


def test_a_whole_one_is_read():
    saved = checkpoint.open(whole())
    assert [int(record["i"]) for record in saved] == list(range(N))
    assert (len(saved), saved.name, saved.settings) == (N, "b", {"capacity": 50})


@given(st.integers(0, len(whole()) - 1))
def test_cut_anywhere_it_is_refused(end):
    with pytest.raises(CheckpointError):
        checkpoint.open(whole()[:end])


@given(st.integers(0, len(whole()) - 1), st.integers(1, 255))
def test_one_byte_changed_anywhere_is_told(at, bits):
    spoiled = bytearray(whole())
    spoiled[at] ^= bits
    with pytest.raises(CheckpointError):
        checkpoint.open(bytes(spoiled))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data):
    with pytest.raises(CheckpointError):
        checkpoint.open(data)


def rewritten(**changes):
    """A checkpoint with whole blocks that say something else: of the block of each kind, what `changes` makes of it."""
    file = io.BytesIO()
    writer = Writer(file)
    for _, kind, body, _ in msgpack.Unpacker(io.BytesIO(whole())):
        writer.write(kind, changes.get(kind, lambda body: body)(msgpack.unpackb(body)))
    return file.getvalue()


def without(name):
    return lambda body: {key: value for key, value in body.items() if key != name}


def column(name, kind, *values):
    """A column whose first values are others."""

    def change(body):
        numbers = np.frombuffer(body[name], kind).copy()
        numbers[: len(values)] = values
        return body | {name: numbers.tobytes()}

    return change


CRAFTED = {
    "format": {"head": lambda body: body | {"format": "another"}},
    "version": {"head": lambda body: body | {"version": 2}},
    "records": {"head": lambda body: body | {"records": 3}},
    "last below": {"head": lambda body: body | {"last": 2}},
    "no last": {"head": without("last")},
    "last is text": {"head": lambda body: body | {"last": "40"}},
    "a negative counter": {"head": lambda body: body | {"counters": body["counters"] | {"sample_calls": -5}}},
    "half a call": {"head": lambda body: body | {"counters": body["counters"] | {"sample_calls": 1.5}}},
    "counters are a list": {"head": lambda body: body | {"counters": [1, 2]}},
    "no schema": {"head": lambda body: body | {"config": {"capacity": "50"}}},
    "skipped": {"head": lambda body: body | {"config": body["config"] | {"skipped": "5:1"}}},
    "no uses": {"rows": without("uses")},
    "index 0": {"rows": column("index", "<i8", 0)},
    "index falls": {"rows": column("index", "<i8", 9, 8)},
    "index above last": {"rows": lambda body: column("index", "<i8", *range(99, 99 + len(body["payload"])))(body)},
    "priority": {"rows": column("priority", "<f8", np.nan)},
    "priority below 0": {"rows": column("priority", "<f8", -2)},
    "uses below 0": {"rows": column("uses", "<i8", -7)},
    "short column": {"rows": lambda body: body | {"index": body["index"][:-8]}},
    "short payload": {"rows": lambda body: body | {"payload": [b"x"] * len(body["payload"])}},
    "payload is text": {"rows": lambda body: body | {"payload": ["x"] * len(body["payload"])}},
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_what_cannot_be_is_refused(crafted):
    """Its blocks are whole, and say what no dump says."""
    assert checkpoint.open(rewritten()).counters["write_count"] == N
    with pytest.raises(CheckpointError):
        checkpoint.open(rewritten(**CRAFTED[crafted]))


def test_what_is_read_is_what_was_proven(tmp_path):
    """Another file that takes its place meanwhile is not looked at."""
    (tmp_path / "c").write_bytes(whole())
    saved = checkpoint.open(tmp_path / "c")
    records = iter(saved)
    next(records)
    (tmp_path / "d").write_bytes(b"something else")
    (tmp_path / "d").replace(tmp_path / "c")
    assert [int(record["i"]) for record in records] == list(range(1, N))
    assert len(list(saved)) == N


def test_blocks_in_another_order_are_told():
    blocks = list(msgpack.Unpacker(io.BytesIO(whole())))
    swapped = [blocks[0], blocks[2], blocks[1], blocks[3]]
    with pytest.raises(CheckpointError):
        checkpoint.open(b"".join(msgpack.packb(block) for block in swapped))
