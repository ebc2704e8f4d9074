"""TorchRL's own dumps, of each storage: order of writing, dtypes, old ones without counters, priorities, what is refused."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import checkpointers
from torchrl.data.replay_buffers.samplers import prioritized

from redis_replay.samplers import Prioritized
from redis_replay.torchrl import RedisReplayBuffer
from redis_replay.transfer import TorchRLSource, TransferError, import_torchrl
from tests.transfer._same import columns, same

pytestmark = pytest.mark.filterwarnings("ignore:.*last_cursor is None.*:UserWarning")


def steps(low, high):
    """Transitions numbered `low` to `high`, of all kinds of leaves."""
    i = torch.arange(low, high)
    n = len(i)
    following = {
        "reward": i[:, None].float() / 7,
        "done": i[:, None] % 2 == 0,
        "pixels": torch.zeros(n, 3, 4, dtype=torch.uint8),
    }
    return TensorDict(
        {
            "i": i,
            "pixels": i[:, None, None].expand(n, 3, 4).to(torch.uint8),
            "half": i.bfloat16(),
            "next": TensorDict(following, [n]),
        },
        [n],
    )


def numbers(buffer):
    return [int(record["i"]) for record in buffer.records()]


STORAGES = pytest.mark.parametrize("storage", [LazyMemmapStorage, LazyTensorStorage])


@pytest.fixture
def dump(tmp_path):
    """Gives `dump(storage, n)`: a dump of a TensorDictReplayBuffer of ten that has written `n`."""

    def make(storage, n):
        buffer = TensorDictReplayBuffer(storage=storage(10), batch_size=4)
        buffer.extend(steps(0, n))
        buffer.dumps(tmp_path / "dump")
        return tmp_path / "dump"

    return make


@STORAGES
@pytest.mark.parametrize("n", [6, 10, 25])
def test_a_dump_comes_in_in_the_order_of_writing(server, make_buffer, dump, chunks, storage, n):
    """The last ten, the oldest first; every leaf but the slot "index", with its dtype. The dump stays as it was."""
    path = dump(storage, n)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    buffer, told = make_buffer(), []
    kept = steps(max(0, n - 10), n)
    assert import_torchrl(buffer, path, progress=lambda *at: told.append(at)) == len(kept)
    assert numbers(buffer) == kept["i"].tolist()
    records = torch.stack(list(buffer.records()))
    assert set(records.keys(True, True)) == set(kept.keys(True, True))
    for key in kept.keys(True, True):
        assert records[key].dtype == kept[key].dtype
        assert (records[key] == kept[key]).all()
    assert (max(chunks) <= 7, told[-1]) == (True, (len(kept), len(kept)))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_it_goes_on_in_redis_replays_torchrl(server, make_buffer, dump, name):
    """One schema: what TorchRL's collectors write goes beside what was imported."""
    import_torchrl(make_buffer(), dump(LazyTensorStorage, 10))
    with RedisReplayBuffer(server.target(), name, batch_size=4) as buffer:
        buffer.extend(steps(10, 12))
        assert (len(buffer), buffer.sample(4)["next", "pixels"].shape) == (12, (4, 3, 4))


@STORAGES
def test_an_old_dump_without_counters(server, make_buffer, dump, storage):
    """The cursor alone tells the order; without that too it is the order of the slots."""
    path = dump(storage, 25)
    (path / "buffer_metadata.json").unlink()
    (path / "prefetch.pkl").unlink()
    (path / "writer" / "metadata.json").write_text('{"cursor": 5}')
    buffer = make_buffer()
    import_torchrl(buffer, path)
    assert numbers(buffer) == list(range(15, 25))
    shutil.rmtree(path / "writer")
    buffer.empty()
    import_torchrl(buffer, path)
    assert numbers(buffer) == [*range(20, 25), *range(15, 20)]


def test_texts_and_several_dimensions(server, make_buffer, tmp_path, chunks):
    """A storage of two dimensions gives its rows one behind the other; one of trajectories stays one of trajectories."""
    given = steps(0, 4)
    given["text"] = NonTensorStack(*"abcd")
    wide = TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2))
    wide.extend(steps(0, 30).reshape(2, 15))
    long = TensorDictReplayBuffer(storage=LazyTensorStorage(40))
    long.extend(steps(0, 30).reshape(2, 15))
    texts = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    texts.extend(given)
    found = []
    for i, dumped in enumerate((wide, long, texts)):
        dumped.dumps(tmp_path / f"{i}")
        buffer = make_buffer(f"b{i}")
        import_torchrl(buffer, tmp_path / f"{i}")
        found.append(list(buffer.records()))
    assert [int(record["i"]) for record in found[0]] == [n for pair in zip(range(15), range(15, 30), strict=True) for n in pair]
    assert [record["i"].tolist() for record in found[1]] == [[*range(15)], [*range(15, 30)]]
    assert [record["text"] for record in found[2]] == [*"abcd"]
    (tmp_path / "1" / "writer" / "metadata.json").write_text("{}")
    with pytest.raises(TransferError, match="no write_count tells what a record is"):
        TorchRLSource(tmp_path / "1")


def test_storages_of_dicts_and_of_bare_tensors(server, make_buffer, tmp_path):
    nested = ReplayBuffer(storage=LazyTensorStorage(10))
    nested.extend({"a": torch.arange(12), "b": (torch.ones(12, 2), torch.zeros(12))})
    bare = ReplayBuffer(storage=LazyTensorStorage(10))
    bare.extend(torch.arange(12))
    for name, dumped in (("nested", nested), ("bare", bare)):
        dumped.dumps(tmp_path / name)
        import_torchrl(make_buffer(name), tmp_path / name)
    parts = {"0": np.ones((10, 2), np.float32), "1": np.zeros(10, np.float32)}
    same(columns(make_buffer("nested")), {"a": np.arange(2, 12), "b": parts})
    same(columns(make_buffer("bare")), {"data": np.arange(2, 12)})


class Tree:
    """A list in the place of TorchRL's compiled trees, which not every torch loads."""

    def __init__(self, capacity):
        self._values = torch.zeros(capacity, dtype=torch.float32)

    def __getitem__(self, at):
        return self._values[at]

    def __setitem__(self, at, value):
        self._values[at] = torch.as_tensor(value, dtype=torch.float32)


def prioritized_dump(path, monkeypatch, alpha):
    """Ten of fourteen, whose priority is their number."""
    for name in ("SumSegmentTreeFp32", "MinSegmentTreeFp32", "SumSegmentTreeFp64", "MinSegmentTreeFp64"):
        monkeypatch.setattr(prioritized, name, Tree)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=alpha, beta=0.4, storage=LazyTensorStorage(10))
    for low, high in ((0, 10), (10, 14)):
        index = buffer.extend(steps(low, high))
        buffer.update_priority(index, torch.arange(low, high).float())
    buffer.dumps(path)


def test_priorities_come_along(server, make_buffer, tmp_path, monkeypatch):
    """Where the buffer's sampler goes by them. 0 hides no record, as it does not in TorchRL."""
    prioritized_dump(tmp_path / "dump", monkeypatch, 0.7)
    source = TorchRLSource(tmp_path / "dump")
    assert source.sampler == Prioritized(alpha=0.7, beta=0.4, eps=1e-8)
    buffer = make_buffer("weighs", sampler=source.sampler)
    import_torchrl(buffer, tmp_path / "dump")
    np.testing.assert_allclose(buffer.priorities()[1], np.arange(4, 14), rtol=1e-6)
    assert numbers(buffer) == [*range(4, 14)]
    plain = make_buffer("plain")
    assert import_torchrl(plain, tmp_path / "dump") == 10
    file = tmp_path / "dump" / "sampler" / "sumtree.memmap"
    file.write_bytes(np.zeros(10).tobytes())
    assert TorchRLSource(tmp_path / "dump")._priorities.tolist() == [1e-12] * 10
    for content in (np.zeros(9), np.full(10, np.nan)):
        file.write_bytes(content.tobytes())
        with pytest.raises(TransferError, match="priorities"):
            TorchRLSource(tmp_path / "dump")


def test_alpha_0_tells_no_priorities(server, make_buffer, tmp_path, monkeypatch):
    prioritized_dump(tmp_path / "dump", monkeypatch, 0.0)
    buffer = make_buffer(sampler=Prioritized(alpha=0.5, beta=0.4))
    import_torchrl(buffer, tmp_path / "dump")
    assert buffer.priorities()[1].tolist() == [1.0] * 10


def test_what_would_need_unpickling_is_refused(server, make_buffer, tmp_path, dump):
    """What a consuming sampler has handed out, and values in the storage that are no tensors and no JSON."""
    consuming = TensorDictReplayBuffer(storage=LazyTensorStorage(10), consume_after_n_samples=1, batch_size=2)
    consuming.extend(steps(0, 6))
    consuming.dumps(tmp_path / "consuming")
    odd = dump(LazyTensorStorage, 6).rename(tmp_path / "odd")
    (odd / "storage" / "next" / "other.pickle").write_bytes(pickle.dumps({1, 2}))  # as tensordict keeps what is no JSON
    with make_buffer() as buffer:
        for name in ("consuming", "odd"):
            with pytest.raises(TransferError, match="nothing is unpickled"):
                import_torchrl(buffer, tmp_path / name)
        assert buffer.stats()["write_count"] == 0


@pytest.mark.parametrize("kind", [checkpointers.FlatStorageCheckpointer, checkpointers.NestedStorageCheckpointer])
def test_compact_checkpoints_are_refused(tmp_path, kind):
    """They hold no row for each record."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), checkpointer=kind())
    given = steps(0, 6).select("i", ("next", "reward"), ("next", "done"))
    given.update({"done": torch.zeros(6, 1, dtype=torch.bool), "observation": torch.zeros(6, 2)})
    given["next", "observation"] = torch.zeros(6, 2)
    buffer.extend(given)
    buffer.dumps(tmp_path / "dump")
    with pytest.raises(TransferError, match="compact checkpoints"):
        TorchRLSource(tmp_path / "dump")


def damage_missing(path):
    (path / "storage" / "next" / "reward.memmap").unlink()


def damage_cut(path):
    file = path / "storage" / "pixels.memmap"
    file.write_bytes(file.read_bytes()[:-1])


def damage_length(path):
    (path / "storage" / "storage_metadata.json").write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": 11}))


def damage_json(path):
    (path / "storage" / "meta.json").write_text("{")


def damage_class(path):
    file = path / "storage" / "meta.json"
    file.write_text(file.read_text().replace("tensordict._td.TensorDict", "os.Popen"))


def damage_whole(path):
    shutil.rmtree(path)


def damage_storage(path):
    shutil.rmtree(path / "storage")


@pytest.mark.parametrize("storage", [LazyTensorStorage])
@pytest.mark.parametrize("damage", [f for name, f in sorted(globals().items()) if name.startswith("damage_")])
def test_a_damaged_dump_is_refused_before_the_first_write(server, make_buffer, dump, storage, damage):
    """And nothing of it is changed: mapping a file that is too short would make it longer."""
    path = dump(storage, 10)
    damage(path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with make_buffer() as buffer:
        with pytest.raises(TransferError):
            import_torchrl(buffer, path)
        assert buffer.stats()["write_count"] == 0
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
