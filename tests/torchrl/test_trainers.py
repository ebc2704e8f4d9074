"""torchrl's Trainer with its hooks, a real DQN on CartPole; and its logger's monitor."""

import pytest
import torch
from torch import nn

from redis_replay.torchrl import RedisPrioritizedReplayBuffer, RedisReplayBuffer
from tests._torchrl import cartpole, data

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.filterwarnings("ignore"),  # torchrl's trainers warn of themselves
]


def dqn(rb, frames=600):
    """A Trainer that collects, extends, samples, learns, and updates priorities."""
    from torchrl.collectors import Collector
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss
    from torchrl.trainers import ReplayBufferTrainer, Trainer

    torch.manual_seed(0)
    env = cartpole()
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec, action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    collector = Collector(env, actor, frames_per_batch=100, total_frames=frames)
    trainer = Trainer(
        collector=collector, total_frames=frames, frame_skip=1, optim_steps_per_batch=2, loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters()), progress_bar=False,
    )  # fmt: skip
    ReplayBufferTrainer(rb, batch_size=32, flatten_tensordicts=True).register(trainer)
    return trainer


@pytest.mark.parametrize("kind", [RedisReplayBuffer, RedisPrioritizedReplayBuffer])
def test_a_trainer_learns_from_it(server, make, kind):
    """C30: extend, sample and update_priority are called by the Trainer itself."""
    options = {"alpha": 0.6, "beta": 0.4} if kind is RedisPrioritizedReplayBuffer else {}
    rb = make(kind, capacity=1000, **options)
    dqn(rb).train()
    stats = rb.stats()
    assert (stats["write_count"], stats["sample_calls"], stats["samples_returned"]) == (600, 12, 384)
    if options:
        assert len(set(rb.buffer.priorities()[1])) > 30


def test_a_monitor_logs_it(server, make):
    """LoggerMonitor takes its stats as they are."""
    monitoring = pytest.importorskip("torchrl.record.loggers.monitoring")
    logged = {}

    class Sink:
        def log_scalar(self, name, value, step=None):
            logged[name] = value

        def log_metrics(self, metrics, step=None, **_):
            logged.update(metrics)

    rb = make()
    monitor = monitoring.LoggerMonitor(Sink(), background=False)
    monitor.watch(rb, name="replay", step="write_count")
    rb.extend(data(0, 10))
    monitor.step()
    assert logged["replay/size"] == 10
