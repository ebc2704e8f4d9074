"""torchrl's own collectors, on a real CartPole, with the buffer as their `replay_buffer`."""

import inspect

import pytest
import torch
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector

from tests._helpers import wait_until
from tests._torchrl import cartpole

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
]
MULTI = pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])


def collect(rb, kind=Collector, envs=cartpole, frames=150, **options):
    """What the collector yields; it has ended."""
    collector = kind(envs, None, frames_per_batch=50, total_frames=frames, replay_buffer=rb, **options)
    try:
        return list(collector)
    finally:
        collector.shutdown()


def check(rb, frames):
    """All frames are there, and transitions are whole: what comes next is one step on."""
    assert (rb.write_count, len(rb)) == (frames, frames)
    batch = rb.sample(64)
    assert batch.shape == (64,)
    for key in ("observation", "action", "done", ("next", "observation"), ("next", "reward"), ("next", "done")):
        assert batch[key].shape[0] == 64
    assert (batch["next", "reward"] == 1).all()
    still = (batch["next", "observation"] == batch["observation"]).all(-1)
    assert not still.any()


@pytest.mark.parametrize(
    "options", [{}, {"init_random_frames": 100}, {"extend_buffer": False}], ids=["extend", "random", "add"]
)  # fmt: skip
def test_a_collector_writes(server, make, options):
    """C30: by batches, with random frames first (write_count is read at each step), and step by step."""
    rb = make(capacity=1000)
    assert collect(rb, **options) == [None] * 3
    check(rb, 150)


def test_whole_trajectories_are_written(server, make):
    """C30: in writes of different lengths."""
    if "replay_write_mode" not in inspect.signature(Collector.__init__).parameters:
        options = {"trajs_per_batch": 1}
        if "trajs_per_batch" not in inspect.signature(Collector.__init__).parameters:
            pytest.skip("this torchrl writes no trajectories")
    else:
        options = {"replay_write_mode": "trajectory"}
    rb = make(capacity=1000)
    collect(rb, **options)
    assert 0 < rb.write_count == len(rb)


def test_a_collector_in_the_background(server, make):
    """start(): it writes on while a learner draws."""
    rb = make(capacity=1000, batch_size=32)
    collector = Collector(cartpole, None, frames_per_batch=50, total_frames=-1, replay_buffer=rb)
    collector.start()
    try:
        assert rb.sample(wait=True, timeout=30).shape == (32,)
    finally:
        collector.async_shutdown()


@pytest.mark.slow
@MULTI
def test_workers_write_by_themselves(server, make, kind):
    """C30, C29: two processes, each with a handle of its own; nothing is lost or doubled."""
    rb = make(capacity=1000)
    collected = collect(rb, kind, [cartpole] * 2, frames=400, track_policy_version=True)
    assert set(collected) == {None}
    wait_until(lambda: len(rb) == rb.buffer.write_count >= 400, timeout=5, description="all frames")
    assert torch.isfinite(rb.sample(64)["observation"]).all()
    assert rb.is_alive
    assert rb.buffer.doctor().ok


@pytest.mark.slow
def test_parallel_environments_keep_their_dimension(server, make):
    """Two environments in one worker: records of [time], as TorchRL's storages of one dimension; reshaped, single steps."""
    from torchrl.envs import SerialEnv

    rb = make(capacity=1000)
    collect(rb, envs=lambda: SerialEnv(2, cartpole), frames=100)
    assert rb.sample(4)["observation"].shape == (4, 25, 4)
