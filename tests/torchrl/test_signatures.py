"""The names of the installed torchrl and ours, both ways: what it has, we have or say why not; what we add is listed."""

import inspect

import pytest
from torchrl.data import LazyTensorStorage, RemoteTensorDictReplayBuffer, ReplayBuffer, TensorDictReplayBuffer

from redis_replay.torchrl import RedisReplayBuffer, RemoteRedisReplayBuffer

# Methods and properties of TorchRL's that have no counterpart: docs/torchrl.md says what to use.
NOT_OURS = {
    "as_dataset", "as_remote", "export", "query",  # ReplayDataset; the buffer's `records()`
    "register_load_hook", "register_save_hook",  # of storages
    "mark_update", "set_", "set_at_", "update_", "read_all_in_order", "write_all",  # records never change
    "update_if_present", "submit_update_if_present",
    "set_rng", "set_sampler", "set_storage", "set_writer", "writer",  # settings stay
    "synchronize",  # every call has ended when it returns
}  # fmt: skip
OURS = {
    "attach",
    "buffer",
    "clients",
    "close",
    "next",
    "priority_key",
    "reopen",
    "shared",
    "subscribe_stats",
    "wait_until_writable",
    "update_tensordict_priority",
}
ARGUMENTS = {  # of a method: those that we add
    "add": {"timeout", "cancel_event"},
    "extend": {"timeout", "cancel_event"},
    "dumps": {"max_hold_bytes", "progress"},
    "loads": {"progress"},
    "state_dict": {"include_data"},
}
NAMES_OF_DATA = {"data", "tensordicts"}


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_each_name_of_torchrls_is_here():
    assert public(TensorDictReplayBuffer) - public(RedisReplayBuffer) <= NOT_OURS
    assert NOT_OURS & public(RedisReplayBuffer) == set()


def test_each_name_of_ours_is_torchrls_or_listed():
    known = public(TensorDictReplayBuffer) | {
        "wait_until_sampleable",
        "can_sample",
        "is_alive",
        "service_backend",
        "start",
        "client",
    }
    assert public(RedisReplayBuffer) - known <= OURS


@pytest.mark.parametrize(
    "name",
    ["add", "extend", "sample", "can_sample", "wait_until_sampleable", "update_priority", "update_tensordict_priority", "empty",
     "stats", "share", "shutdown", "start", "client", "next", "append_transform", "insert_transform", "dumps", "loads",
     "state_dict", "load_state_dict"],
)  # fmt: skip
def test_arguments_are_the_same(name):
    """In the same order, with the same defaults; ours are behind, by name alone."""
    theirs = getattr(TensorDictReplayBuffer, name, None)
    if theirs is None:
        pytest.skip(f"this torchrl has no {name}")
    ours, known = (inspect.signature(kind).parameters for kind in (getattr(RedisReplayBuffer, name), theirs))
    shared = [p for p in known if p not in NAMES_OF_DATA]
    assert [p for p in ours if p in shared] == shared
    assert {p: known[p].default for p in shared} == {p: ours[p].default for p in shared}
    added = {p for p in ours if p not in known} - NAMES_OF_DATA
    assert added <= ARGUMENTS.get(name, set()) | ({"wait", "timeout", "cancel_event"} if name == "sample" else set())


def test_the_rref_has_its_own_order():
    order = ["self", "batch_size", "include_info", "return_info"]
    for kind in (RemoteTensorDictReplayBuffer, RemoteRedisReplayBuffer):
        assert list(inspect.signature(kind.sample).parameters)[:4] == order


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_stats_have_torchrls_keys(server, make):
    """C9: all of them, of one type each."""
    theirs, ours = ReplayBuffer(storage=LazyTensorStorage(10)).stats(), make().stats()
    assert set(theirs) <= set(ours)
    assert {name: type(theirs[name]) for name in theirs} == {name: type(ours[name]) for name in theirs}
