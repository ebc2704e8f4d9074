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
