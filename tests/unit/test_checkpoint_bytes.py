"""A checkpoint that is cut or changed anywhere is told apart from a whole one."""

import io
from functools import cache

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    head = {"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "name": "b", "epoch": "a", "records": N, "last": N}
    writer.write("head", head | {"config": config, "counters": {"write_count": N}, "shares": {}})
    for low in (0, 25):
        index = np.arange(low, min(low + 25, N), dtype=np.int64) + 1
        none = np.full(len(index), checkpoint.NONE)
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


@pytest.mark.parametrize("change", [{"format": "another"}, {"version": 2}, {"records": 3}])
def test_another_format_is_named(change):
    """Blocks that are whole, and say something else."""
    unpacker = msgpack.Unpacker(io.BytesIO(whole()))
    file = io.BytesIO()
    writer = Writer(file)
    for _, kind, body, _ in unpacker:
        writer.write(kind, msgpack.unpackb(body) | (change if kind == "head" else {}))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.open(file.getvalue())
    assert str(next(iter(change.values()))) in str(caught.value) or "format" in change


def test_blocks_in_another_order_are_told():
    blocks = list(msgpack.Unpacker(io.BytesIO(whole())))
    swapped = [blocks[0], blocks[2], blocks[1], blocks[3]]
    with pytest.raises(CheckpointError):
        checkpoint.open(b"".join(msgpack.packb(block) for block in swapped))
