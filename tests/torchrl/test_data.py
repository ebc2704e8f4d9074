"""What goes into RedisReplayBuffer and comes out of it: TensorDicts, transforms, priorities; and its handles."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack, tensorclass
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer

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


@pytest.mark.parametrize("put", ["append", "insert"])
def test_a_transform_may_be_inverted(server, make, put):
    """As TorchRL's: applied to what is written, and its inverse to what is read."""
    from torchrl.envs.transforms import DoubleToFloat

    def plus_one(batch):
        return batch.apply(lambda leaf: leaf + 1)

    rb, local = make(batch_size=4), TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    for one in (rb, local):
        (one.append_transform if put == "append" else partial(one.insert_transform, 0))(
            DoubleToFloat(in_keys=["d"], in_keys_inv=["d"]), invert=True
        )
        one.append_transform(plus_one, invert=True)
        one.extend(data(0, 4, d=torch.zeros(4, dtype=torch.float64)))
    stored, theirs = rb.buffer.get([1, 2, 3, 4]), local._storage[:]
    assert all(stored[key].dtype == theirs[key].dtype for key in ("i", "d"))
    assert (stored["i"] == theirs["i"]).all()
    assert (stored["d"].dtype, stored["d"].tolist()) == (torch.float32, [1.0] * 4)
    batch, theirs = rb.sample(), local.sample()
    assert batch["d"].dtype == theirs["d"].dtype == torch.float64
    with pytest.raises(TypeError, match="invert"):
        rb.append_transform(plus_one, invert="yes")


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


@tensorclass
class Inner:
    y: torch.Tensor


@tensorclass
class Step:
    x: torch.Tensor
    inner: Inner
    text: str = "a"


def steps(n):
    return Step(x=torch.arange(float(n)), inner=Inner(y=torch.zeros(n), batch_size=[n]), text="b", batch_size=[n])


def test_a_tensorclass_comes_back_as_one(server, make):
    """As TorchRL's, where it was written: a batch, a record, a list of them; with index and weight in the info."""
    rb, local = make(batch_size=3), ReplayBuffer(storage=LazyTensorStorage(100), batch_size=3)
    for one in (rb, local):
        one.extend(steps(4))
    rb.add(steps(1)[0])
    rb.extend([*steps(2).unbind(0)])
    (batch, info), theirs = rb.sample(return_info=True), local.sample()
    assert type(batch) is type(theirs) is Step
    assert (batch.batch_size, batch.x.dtype, batch.text) == (theirs.batch_size, theirs.x.dtype, theirs.text)
    assert info["index"].shape == (3,)
    assert type(rb[1]) is type(rb[:]) is Step
    assert batch.inner.get("y").shape == theirs.inner.y.shape


def test_others_get_a_tensorclass_as_a_tensordict(server, make):
    """They know no such class; collate_fn makes one, or its own."""
    make().extend(steps(4))
    other = make(attach=True, batch_size=2)
    assert isinstance(other.sample(), TensorDict)
    made = make(attach=True, batch_size=2, collate_fn=lambda batch: Step.from_tensordict(batch.exclude("index")), device="cpu")
    assert isinstance(made.sample(), Step)


def test_who_wrote_both_gets_tensordicts(server, make):
    rb = make(batch_size=2)
    rb.extend(steps(4))
    rb.extend(steps(4).to_tensordict())
    assert isinstance(rb.sample(), TensorDict)


def test_a_tensorclass_in_a_tensordict(server, make, make_buffer):
    """Is stored as a TensorDict, from here and from the plain handle; so is one in a list."""
    rb = make(batch_size=2)
    rb.extend(TensorDict({"step": steps(4), "z": torch.zeros(4)}, [4]))
    plain = make_buffer(attach=True)
    plain.add(TensorDict({"step": steps(1)[0], "z": torch.zeros(())}, []))
    plain.extend([TensorDict({"step": steps(1)[0], "z": torch.zeros(())}, [])] * 2)
    assert rb.buffer.write_count == 7
    found = rb[[1, 5, 6]]
    assert set(found.keys(True, True)) == {("step", "x"), ("step", "inner", "y"), "z", "index"}
    assert found["step", "text"] == ["b"] * 3


def test_a_batch_needs_a_batch_dimension(server, make):
    """What has none is one record, and would be written as nothing."""
    rb = make()
    for one in (data(0, 1)[0], steps(1)[0]):
        with pytest.raises(ValueError, match="`add` writes one"):
            rb.extend(one)
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
    assert rb.update_priority(0, 1.0) is None


def test_the_sampler_tells_the_beta_of_now(server, make, make_buffer):
    """Of this handle, and of copies from then on; it is its own of each."""
    rb = prioritized(make)
    other = make(RedisPrioritizedReplayBuffer, attach=True)
    rb.buffer.beta = 0.95
    assert (rb.sampler.beta, other.sampler.beta) == (0.95, 0.9)
    assert copy.copy(rb.buffer).sampler.beta == 0.95
    other.load_state_dict(rb.state_dict(include_data=False))
    assert (other.sampler.beta, rb.sampler.alpha) == (0.95, 0.7)


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
