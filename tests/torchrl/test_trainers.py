"""torchrl's Trainer with its hooks, a real DQN on CartPole; and its logger's monitor."""

import pytest

from redis_replay.torchrl import RedisPrioritizedReplayBuffer, RedisReplayBuffer
from tests._torchrl import data, dqn

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.filterwarnings("ignore"),  # torchrl's trainers warn of themselves
]


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
