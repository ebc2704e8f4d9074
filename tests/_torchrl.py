"""Data for the tests of redis_replay.torchrl, importable by the processes that they start."""

import multiprocessing

import torch
from tensordict import TensorDict


def data(low, high, **more):
    """Transitions numbered `low` to `high`: `i` is the number, "obs" has it four times."""
    i = torch.arange(low, high)
    n = len(i)
    reward = TensorDict({"reward": i[:, None].float()}, [n])
    return TensorDict({"i": i, "obs": i[:, None].expand(n, 4).float().clone(), "next": reward, **more}, [n])


def numbers(batch):
    """The numbers of a batch's records, after a look at their other leaves."""
    assert (batch["obs"] == batch["i"][..., None]).all()
    assert (batch["next", "reward"] == batch["i"][..., None]).all()
    return batch["i"].tolist()


def cartpole():
    """A real environment of torchrl."""
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def dqn(rb, frames=600, **more):
    """A Trainer of torchrl, learning CartPole: it collects, extends, samples, learns, and updates priorities."""
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss
    from torchrl.trainers import ReplayBufferTrainer, Trainer

    torch.manual_seed(0)
    env = cartpole()
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec, action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.99)  # else the first step makes it, too late for a state that is loaded before
    collector = Collector(env, actor, frames_per_batch=100, total_frames=frames)
    trainer = Trainer(
        collector=collector, total_frames=frames, frame_skip=1, optim_steps_per_batch=2, loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters()), progress_bar=False, **more,
    )  # fmt: skip
    ReplayBufferTrainer(rb, batch_size=32, flatten_tensordicts=True).register(trainer)
    return trainer


def forked(function, handle):
    """What `function(handle)` gives in a forked child."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(function(handle)))
    child.start()
    assert ours.poll(20), "the child has given nothing"
    child.join(20)
    assert child.exitcode == 0
    return ours.recv()
