"""A small double DQN in torch."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from redis_replay._demo.dqn import ACTIONS, OBS, SCALE, Settings


class Adam:
    """Adam's rule. The one in torch.optim brings the compiler along, which adds more than a second to every start.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
    """

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self._weights, self._lr, self._steps = weights, lr, 0
        self._means = [torch.zeros_like(w) for w in weights]
        self._squares = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self) -> None:
        """Move each weight against its gradient, and clear the gradients."""
        self._steps += 1
        rate = self._lr * math.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for weight, mean, square in zip(self._weights, self._means, self._squares, strict=True):
            assert weight.grad is not None
            mean.lerp_(weight.grad, 0.1)
            square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
            weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-rate)
            weight.grad = None


class Trainer:
    """The network, its slow copy, and one gradient step at a time."""

    def __init__(self, settings: Settings, seed: int) -> None:
        torch.set_num_threads(1)  # two cores are shared with the actors and the server
        torch.manual_seed(seed)
        self._settings = settings
        self._net, self._slow_net = _network(settings.hidden), _network(settings.hidden)
        self._slow_net.load_state_dict(self._net.state_dict())
        self._scale = torch.from_numpy(SCALE)
        self._optimizer = Adam(list(self._net.parameters()), settings.lr)

    def update(self, batch: Mapping[str, NDArray[Any]]) -> float:
        """One gradient step on a batch of transitions; the loss before it."""
        t = {key: torch.from_numpy(value) for key, value in batch.items()}
        goal = self._goal(t)
        value = self._net(t["obs"] * self._scale).gather(1, t["action"].unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        loss.backward()
        self._optimizer.step()
        self._follow()
        return float(loss.detach())

    def _goal(self, t: dict[str, torch.Tensor]) -> torch.Tensor:
        """Double DQN: the network chooses the next action, its slow copy says what that is worth."""
        s = self._settings
        with torch.no_grad():
            after = t["next_obs"] * self._scale
            best = self._net(after).argmax(1, keepdim=True)
            worth: torch.Tensor = self._slow_net(after).gather(1, best).squeeze(1)
            return t["reward"] * s.reward_scale + s.gamma * worth * ~t["terminated"]

    def _follow(self) -> None:
        with torch.no_grad():
            for slow, fast in zip(self._slow_net.parameters(), self._net.parameters(), strict=True):
                slow.lerp_(fast, self._settings.tau)

    def weights(self) -> bytes:
        """All weights as raw float32, layer by layer."""
        return b"".join(p.detach().numpy().tobytes() for p in self._net.parameters())


def _network(hidden: int) -> nn.Module:
    first, second, last = nn.Linear(OBS, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, ACTIONS)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
