"""`rb[...]`: by identity, where TorchRL's goes by position; and what comes back is what TorchRL's gives."""

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from redis_replay.exceptions import ArgumentError, ArgumentTypeError, RecordNotFoundError
from redis_replay.samplers import Fifo
from tests._torchrl import data

VALKEY = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def ours(index):
    """An index or slice of positions as one of identities, in a buffer that never lost a record."""
    if isinstance(index, slice):
        low, high = (None if bound is None else bound + 1 for bound in (index.start, index.stop))
        return slice(low, high, index.step)
    return index + 1 if not isinstance(index, list) else [i + 1 for i in index]


@pytest.mark.parametrize(
    "index",
    [3, slice(None), slice(2, 5), slice(None, 3), slice(4, None, 2), slice(5, 2), slice(90, 99), [1, 3], [2],
     torch.tensor([4, 0, 4]), np.array([1, 2]), torch.tensor(3)],
    ids=str,
)  # fmt: skip
def test_what_is_looked_up_is_as_torchrls(server, make, index):
    rb, local = make(), TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    for one in (rb, local):
        one.extend(data(0, 8))
    found, theirs = rb[ours(index)], local[index]
    assert found.batch_size == theirs.batch_size
    assert set(found.keys(True, True)) == set(theirs.keys(True, True))
    assert (found["i"] == theirs["i"]).all()
    assert (found["index"] == theirs["index"] + 1).all()


def test_leaves_of_everything(server, make):
    """By key; records that have left are not there."""
    rb = make(capacity=4)
    rb.extend(data(0, 6))
    rb.buffer.remove(4)
    for everything in (rb[:], rb[...]):
        assert everything["index"].tolist() == [3, 5, 6]
    assert rb["i"].tolist() == [2, 4, 5]
    assert rb["next", "reward"].shape == (3, 1)
    assert len(rb[:4]) == 1


@VALKEY
def test_pages_are_put_together(server, make):
    """More records than one answer holds."""
    rb = make(capacity=5000)
    rb.extend(data(0, 2500))
    assert rb[:]["i"].tolist() == list(range(2500))
    assert rb[900:2100:400]["i"].tolist() == [899, 1299, 1699]


@VALKEY
def test_nothing_stored_is_an_empty_batch(server, make):
    rb = make(sampler=Fifo(), consume_after_n_samples=1)
    assert rb[:].batch_size == (0,)
    rb.extend(data(0, 2))
    rb.sample(2)
    assert (rb[:].batch_size, rb[:]["obs"].shape) == ((0,), (0, 4))


@VALKEY
@pytest.mark.parametrize(
    "bad", [0, -1, slice(-3, None), slice(None, None, -1), slice("a"), [True, False], torch.ones(3) > 0, 1.5]
)
def test_positions_are_refused(server, make, bad):
    """Rather than taken for something else: the last record is not -1, and 0 is nobody."""
    rb = make()
    rb.extend(data(0, 3))
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        rb[bad]


@VALKEY
def test_records_never_change(server, make):
    rb = make()
    rb.extend(data(0, 3))
    with pytest.raises(TypeError, match="assignment"):
        rb[1] = data(5, 6)[0]
    with pytest.raises(RecordNotFoundError):
        rb[4]


def test_trajectories_have_the_index_in_each_step(server, make):
    """As in batches."""
    rb = make()
    rb.extend(data(0, 12).reshape(3, 4))
    assert rb[2]["index"].tolist() == [2] * 4
    assert rb[[1, 3]]["index"].tolist() == [[1] * 4, [3] * 4]


def test_transforms_are_applied(server, make):
    rb = make(transform=lambda batch: batch.exclude("index").set("twice", batch["obs"] * 2))
    rb.extend(data(0, 3))
    for found in (rb[2], rb[[1, 2]], rb[:]):
        assert (found["twice"] == found["obs"] * 2).all()
        assert "index" in found
