"""What goes into RedisReplayBuffer and comes out of it: TensorDicts, transforms, priorities; and its handles."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from redis_replay.samplers import Uniform
from redis_replay.torchrl import RedisPrioritizedReplayBuffer
from tests._server import REAL
from tests._torchrl import data


def test_a_sample_is_labelled_as_torchrls(server, make):
    """ "index" in the data and in the info; not with include_info=False; the same shapes, dtypes and keys as TorchRL's."""
    rb = make(batch_size=6)
    local = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=6)
    index = rb.extend(data(0, 10))
    local.extend(data(0, 10))
    assert (index.dtype, index.tolist()) == (torch.int64, list(range(1, 11)))
    batch, info = rb.sample(return_info=True)
    theirs = local.sample()
    assert set(batch.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert batch[key].shape == theirs[key].shape
        assert key == "index" or batch[key].dtype == theirs[key].dtype
    assert (batch["index"] == info["index"]).all()
    assert (batch["index"] == batch["i"] + 1).all()
    assert "index" not in rb.sample(include_info=False)


def test_records_with_batch_dimensions_of_their_own(server, make):
    """Trajectories of one length: [n, T], and the index broadcast over T, as TorchRL's."""
    rb = make()
    rb.extend(data(0, 12).reshape(3, 4))
    batch = rb.sample(5)
    assert (batch.shape, batch["index"].shape, batch["obs"].shape) == ((5, 4), (5, 4), (5, 4, 4))


def test_lazy_stacks_and_lists(server, make):
    rb = make()
    rows = [TensorDict({"x": torch.full((2,), float(k))}, []) for k in (1, 2, 3)]
    index = rb.extend(lazy_stack(rows))
    assert [rb[int(i)]["x"].tolist() for i in index] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert len(rb.extend(rows)) == 3
    assert rb[index]["x"].shape == (3, 2)


@pytest.mark.parametrize("bad", [torch.zeros(3), {"x": torch.zeros(3)}, [torch.zeros(3)], None, "text"])
def test_other_data_are_refused(server, make, bad):
    rb = make()
    for call in (rb.extend, rb.add):
        with pytest.raises(TypeError, match="TensorDict"):
            call(bad)
    assert rb.write_count == 0


def test_data_written_without_torch(server, make, make_buffer):
    """An actor that knows numpy alone writes for a learner with TorchRL."""
    make_buffer().extend([{"x": np.full(3, k, np.float32), "deep": {"t": "text"}} for k in range(4)])
    rb = make(attach=True)
    batch = rb.sample(4)
    assert (batch["x"].shape, batch["deep", "t"], len(batch["index"])) == ((4, 3), ["text"] * 4, 4)
    assert (rb[1].batch_size, rb[[1, 2]].batch_size) == ((), (2,))


def test_index_is_the_identity_whatever_records_call_so(server, make, make_buffer):
    """A leaf of that name gives way, whoever wrote it: updates of priorities go by it."""
    make_buffer().extend({"index": np.arange(100, 104), "x": np.arange(4)})
    batch = make(attach=True).sample(4)
    assert (batch["index"] == batch["x"] + 1).all()


def doubled(batch):
    return batch.set("twice", batch["obs"] * 2)


def test_transforms_go_both_ways(server, make):
    """A torchrl transform, a callable; inverted on the way in; appended and inserted; kept by copies."""
    from torchrl.envs.transforms import DoubleToFloat, RewardScaling

    rb = make(batch_size=4, transform=DoubleToFloat(in_keys=["d"], in_keys_inv=["d"]))
    rb.extend(data(0, 4, d=torch.zeros(4)))
    assert rb.buffer.get(1)["d"].dtype == torch.float64
    assert rb.sample()["d"].dtype == torch.float32
    assert rb.append_transform(doubled).insert_transform(0, RewardScaling(0.0, 2.0, in_keys=[("next", "reward")])) is rb
    batch = rb.sample()
    assert (batch["twice"] == batch["obs"] * 2).all()
    assert (batch["next", "reward"].squeeze() == batch["i"] * 2).all()
    with pytest.raises(TypeError):
        rb.append_transform(3)
    with pytest.raises(ValueError):
        make(transform=doubled, transform_factory=lambda: doubled)


def test_a_transform_may_keep_data_back(server, make):
    from torchrl.envs.transforms import Transform

    class KeepsBack(Transform):
        def _inv_call(self, tensordict):
            return None

        def forward(self, tensordict):
            return tensordict

    rb = make(transform=KeepsBack())
    assert (rb.extend(data(0, 3)).shape, rb.add(data(0, 1)[0])) == ((0,), None)
    assert rb.write_count == 0


def test_collate_and_device(server, make):
    rb = make(batch_size=3, collate_fn=lambda batch: batch.select("obs"), device="cpu")
    rb.extend(data(0, 3))
    batch = rb.sample()
    assert (set(batch.keys()), batch.device) == ({"obs", "index"}, torch.device("cpu"))


# Priorities


def prioritized(make, **options):
    return make(RedisPrioritizedReplayBuffer, **{"alpha": 0.7, "beta": 0.9, "batch_size": 64} | options)


def test_weights_are_torchrls(server, make):
    """C22: ((p + eps) ** alpha / the least of the buffer) ** -beta; new records have the largest priority so far."""
    rb = prioritized(make)
    rb.extend(data(0, 5, td_error=torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5])))
    rb.extend(data(5, 6, td_error=torch.tensor([9.0])), update_priority=False)
    batch, info = rb.sample(return_info=True)
    p = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5, 4.0], dtype=torch.float64)[batch["i"]]
    stored = (p + 1e-8) ** 0.7
    expected = (stored / (0.5 + 1e-8) ** 0.7) ** -0.9
    torch.testing.assert_close(batch["priority_weight"].double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(info["priority"], p)


def test_updates_by_tensordict(server, make):
    """The largest of each record, by "index"; D7: what was overwritten since is ignored, the new record keeps its priority."""
    rb = prioritized(make, capacity=4, batch_size=4)
    rb.extend(data(0, 4))
    old = rb.sample()
    old["td_error"] = torch.tensor([[1.0, 7.0]]).expand(4, 2)
    updated = rb.update_tensordict_priority(old)
    assert (updated.applied, updated.ignored) == (len(set(old["index"].tolist())), 0)
    assert dict(zip(*rb.buffer.priorities(), strict=True))[int(old["index"][0])] == 7.0
    rb.extend(data(4, 8))
    assert rb.update_tensordict_priority(old).ignored == len(set(old["index"].tolist()))
    assert set(rb.buffer.priorities()[1]) == {7.0}


def test_bad_priorities_are_refused(server, make):
    """D19"""
    rb = prioritized(make, batch_size=2)
    rb.extend(data(0, 2))
    batch = rb.sample()
    for bad in (float("nan"), -1.0, float("inf")):
        batch["td_error"] = torch.tensor([1.0, bad])
        with pytest.raises(ValueError):
            rb.update_tensordict_priority(batch)
    for key in ("td_error", "index"):
        with pytest.raises(ValueError, match=key):
            rb.update_tensordict_priority(batch.exclude(key))


def test_a_plain_buffer_ignores_priorities(server, make):
    """As TorchRL's: trainers call it on every buffer."""
    rb = make(batch_size=2)
    rb.extend(data(0, 2, td_error=torch.ones(2)))
    assert rb.update_tensordict_priority(rb.sample()) is None


def test_a_priority_buffer_needs_both_exponents(server, make):
    with pytest.raises(ValueError, match="alpha"):
        make(RedisPrioritizedReplayBuffer, alpha=0.5)


# Handles


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_client_ends_itself_alone(server, make):
    """C27, C28: picklable, as many as one likes; `start` is the handle; `is_alive` tells."""
    rb = make(batch_size=2)
    rb.extend(data(0, 4))
    copies = [*rb.clients(2), pickle.loads(pickle.dumps(rb))]
    assert rb.start() is rb
    assert (rb.shared, rb.service_backend, rb.share() is rb, rb.initialized, rb.dim_extend) == (True, "ray", True, True, 0)
    for one in copies:
        assert len(one.sample()) == 2
        assert one.is_alive
        one.shutdown()
        assert not one.is_alive
    assert rb.is_alive
    rb.shutdown()
    assert not rb.is_alive
    with pytest.raises(ValueError):
        rb.share(False)


def test_a_copy_is_a_handle_of_its_own(server, make):
    """Closing one closes none of the others."""
    rb = make()
    rb.extend(data(0, 2))
    for twin in (copy.copy(rb), rb.client()):
        twin.close()
    assert len(rb.sample(2)) == 2


def test_the_storage_that_collectors_ask_for(server, make):
    """C30: initialized, of a size, on no device; the sampler is ours."""
    rb = make(sampler=Uniform(replacement=False))
    assert (rb._storage.initialized, rb.storage.max_size, len(rb.storage)) == (True, 100, 0)
    assert not hasattr(rb.storage, "device")
    assert rb.sampler == Uniform(replacement=False)
    assert repr(rb).startswith("RedisReplayBuffer(")
