"""Parquet out: each leaf comes back with its type and shape, in row groups of bounded size; the file is whole or not there."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tensordict import TensorDict

from redis_replay.samplers import Prioritized
from redis_replay.transfer import TransferError, _parquet, export_parquet

N = 20


def everything():
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 255, (N, 3, 4), np.uint8), "vector": rng.random((N, 5), np.float32), "n": np.arange(N),
        "flag": np.arange(N) % 3 == 0, "flags": rng.random((N, 2, 2)) < 0.5, "half": rng.random(N).astype(np.float16),
        "text": [f"text {i}" for i in range(N)], "raw": [bytes([i]) for i in range(N)],
        "deep": {"er": {"grid": rng.random((N, 2, 2, 2))}, "x": [float(i) for i in range(N)]}, "nothing": {},
    }  # fmt: skip


def read(column):
    """A column of a file as an array: lists and tensors by their shape, structs as dicts."""
    column = column.combine_chunks()
    kind = column.type
    if pa.types.is_struct(kind):
        return {field.name: read(pa.chunked_array([column.field(field.name)])) for field in kind}
    shape = (len(column), *getattr(kind, "shape", ()))
    if isinstance(kind, pa.FixedShapeTensorType):
        return read(pa.chunked_array([column.storage.flatten()])).reshape(shape)
    if pa.types.is_fixed_size_list(kind):
        return read(pa.chunked_array([column.flatten()])).reshape(len(column), kind.list_size)
    return column.to_pylist() if pa.types.is_string(kind) or pa.types.is_binary(kind) else column.to_numpy(zero_copy_only=False)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_parquet, "_GROUP_RECORDS", 7)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "out.parquet"


def test_every_leaf_comes_back(server, make_buffer, path, small):
    """With its dtype and shape; seven records a row group."""
    from tests.transfer._same import same

    buffer, given, told = make_buffer(), everything(), []
    index = buffer.extend(given)
    assert export_parquet(buffer, path, progress=lambda *at: told.append(at)) == N
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [7, 7, 6]
    assert told == [(7, N), (14, N), (20, N)]
    table = pq.read_table(path)
    del given["nothing"]
    given["deep"]["x"] = np.array(given["deep"]["x"])
    same({name: read(table[name]) for name in table.column_names}, {"index": index, **given})


def test_priorities_are_a_column(server, make_buffer, path):
    """Records of two names of ours keep theirs."""
    buffer = make_buffer(sampler=Prioritized(alpha=0.5, beta=0.5))
    index = buffer.extend({"index": np.arange(5) * 10, "x": np.arange(5)}, priority=[0, 1, 2, 3, 4.5])
    buffer.remove(index[1])
    export_parquet(buffer, path)
    table = pq.read_table(path)
    assert table.to_pydict() == {
        "redis_replay.index": index[[0, 2, 3, 4]].tolist(), "priority": [0, 2, 3, 4.5],
        "index": [0, 20, 30, 40], "x": [0, 2, 3, 4],
    }  # fmt: skip


def test_a_record_that_came_meanwhile_has_no_priority(server, make_buffer, path, monkeypatch):
    """Priorities are read first."""
    buffer = make_buffer(sampler=Prioritized(alpha=0.5, beta=0.5))
    buffer.extend({"x": np.arange(2)}, priority=3.0)
    known = buffer.priorities()
    buffer.add({"x": np.int64(2)}, priority=7.0)
    monkeypatch.setattr(type(buffer), "priorities", lambda _: known)
    export_parquet(buffer, path)
    assert pq.read_table(path)["priority"].to_pylist() == [3, 3, None]


def test_tensordicts_are_structs(server, make_buffer, path):
    buffer = make_buffer()
    buffer.extend(
        TensorDict({"x": torch.zeros(3, 2), "next": TensorDict({"done": torch.ones(3, 1, dtype=torch.bool)}, [3])}, [3])
    )
    export_parquet(buffer, path)
    table = pq.read_table(path)
    assert (table["x"].to_pylist(), table["next"].to_pylist()) == ([[0, 0]] * 3, [{"done": [True]}] * 3)


REFUSED = {
    "nothing": (None, "holds no record"),
    "complex": ({"z": np.zeros(3, np.complex64)}, "the leaf z"),
    "objects": ({"o": [None, [1], (2,)]}, "the leaf o: None, lists or tuples"),
    "bfloat16": ({"deep": {"b": torch.zeros(3, dtype=torch.bfloat16)}}, "no type for deep/b"),
    "no elements": ({"e": np.zeros((3, 0))}, "the leaf e"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_parquet_cannot_hold_is_refused(server, make_buffer, path, case):
    """And no file is left."""
    batch, words = REFUSED[case]
    buffer = make_buffer()
    if batch is not None:
        buffer.extend(batch)
    with pytest.raises(TransferError, match=words):
        export_parquet(buffer, path)
    assert list(path.parent.iterdir()) == []


def test_a_file_is_whole_or_not_there(server, make_buffer, path, small):
    """After an error nothing is left; what is there already is not touched."""
    buffer = make_buffer()
    buffer.extend(everything())
    with pytest.raises(ZeroDivisionError):
        export_parquet(buffer, path, progress=lambda done, _: 1 / (done - 14))
    assert list(path.parent.iterdir()) == []
    path.write_text("mine")
    with pytest.raises(TransferError, match="there already"):
        export_parquet(buffer, path)
    assert path.read_text() == "mine"
