"""The algorithm trainers of torchrl, each for a few steps: they take a RedisReplayBuffer as it is."""

import pytest
import torch
from torch import nn

from redis_replay.torchrl import RedisPrioritizedReplayBuffer, RedisReplayBuffer
from tests._torchrl import cartpole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.filterwarnings("ignore"),  # torchrl's trainers warn of themselves
]

OBSERVATION, ACTION = 3, 1  # of Pendulum


def net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


class Critic(nn.Module):
    """The value of observations, or of observations and actions."""

    def __init__(self, inputs):
        super().__init__()
        self.net = net(inputs, 1)

    def forward(self, *parts):
        return self.net(torch.cat(parts, -1))


def pendulum():
    from torchrl.envs import GymEnv

    return GymEnv("Pendulum-v1")


def gaussian(spec):
    """An actor that draws its actions."""
    from tensordict.nn import TensorDictModule
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

    body = nn.Sequential(net(OBSERVATION, 2 * ACTION), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=spec, in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs={"low": -2.0, "high": 2.0},
    )  # fmt: skip


def certain(spec):
    """An actor that does not."""
    from torchrl.modules import Actor

    body = nn.Sequential(net(OBSERVATION, ACTION), nn.Tanh())
    return Actor(body, in_keys=["observation"], spec=spec)


def values():
    from torchrl.modules import ValueOperator

    return ValueOperator(Critic(OBSERVATION), in_keys=["observation"])


def action_values():
    from torchrl.modules import ValueOperator

    return ValueOperator(Critic(OBSERVATION + ACTION), in_keys=["observation", "action"])


def losses(algorithm, spec):
    """Actor and loss of an algorithm."""
    from torchrl import objectives

    if algorithm in ("DDPG", "TD3"):
        actor = certain(spec)
        if algorithm == "DDPG":
            return actor, objectives.DDPGLoss(actor, action_values(), delay_value=True)
        return actor, objectives.TD3Loss(actor, action_values(), action_spec=spec)
    actor = gaussian(spec)
    if algorithm == "IQL":
        return actor, objectives.IQLLoss(actor, action_values(), values())
    kind = {"SAC": objectives.SACLoss, "CQL": objectives.CQLLoss}[algorithm]
    return actor, kind(actor, action_values(), action_spec=spec)


def trainer_of(algorithm, rb, frames):
    from torchrl.collectors import Collector
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate
    from torchrl.trainers import algorithms

    torch.manual_seed(0)
    if algorithm == "DQN":
        env = cartpole()
        actor = QValueActor(net(4, 2), in_keys=["observation"], spec=env.action_spec, action_space="categorical")
        loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    else:
        env = pendulum()
        actor, loss = losses(algorithm, env.action_spec)
    loss.make_value_estimator(gamma=0.99)
    options = {"optimizer": torch.optim.Adam(loss.parameters())}
    if algorithm == "TD3":
        options = {"optimization_stepper": algorithms.td3.TD3OptimizationStepper(
            torch.optim.Adam(loss.actor_network_params.flatten_keys().values()),
            torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values()),
        )}  # fmt: skip
    return getattr(algorithms, f"{algorithm}Trainer")(
        collector=Collector(env, actor, frames_per_batch=50, total_frames=frames), total_frames=frames, frame_skip=1,
        optim_steps_per_batch=2, loss_module=loss, replay_buffer=rb, target_net_updater=SoftUpdate(loss, eps=0.99),
        progress_bar=False, log_rewards=False, enable_logging=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "DDPG", "TD3", "IQL", "CQL"])
@pytest.mark.parametrize("kind", [RedisReplayBuffer, RedisPrioritizedReplayBuffer])
def test_an_algorithm_learns_from_it(server, make, algorithm, kind):
    options = {"alpha": 0.6, "beta": 0.4} if kind is RedisPrioritizedReplayBuffer else {}
    rb = make(kind, capacity=1000, batch_size=16, **options)
    trainer_of(algorithm, rb, 200).train()
    stats = rb.stats()
    assert (stats["write_count"], stats["sample_calls"], stats["samples_returned"]) == (200, 8, 128)
    if options and algorithm != "CQL":  # CQLTrainer updates no priorities, of whatever buffer
        assert len(set(rb.buffer.priorities()[1])) > 10
