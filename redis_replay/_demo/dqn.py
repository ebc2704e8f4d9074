"""The network as actors use it, in numpy, and every number that was chosen for the demo.

Actors do not import torch: a forward pass over one observation takes 10 µs in numpy, and the import takes seconds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OBS, ACTIONS = 4, 2
# Typical sizes of cart position, cart speed, pole angle, pole speed: brings every input near one.
SCALE = np.array([1.0, 0.7, 4.0, 0.7], dtype=np.float32)


@dataclass(frozen=True)
class Settings:
    """What the demo was tuned to. Steps are environment steps (one transition each), counted over all actors."""

    hidden: int = 64
    batch_size: int = 256
    lr: float = 5e-4
    gamma: float = 0.99
    tau: float = 0.02
    reward_scale: float = 0.1
    warmup: int = 1_000
    steps_per_update: float = 4.0
    chunk: int = 8
    ahead: int = 8
    epsilon_end: float = 0.02
    epsilon_steps: int = 4_000
    capacity: int = 100_000
    write_batch: int = 16

    def epsilon(self, steps: int) -> float:
        """Share of random actions after so many steps: 1.0 during the warm-up, then down in a straight line."""
        part = (steps - self.warmup) / self.epsilon_steps
        return float(np.clip(1.0 - part, self.epsilon_end, 1.0))


def shapes(hidden: int) -> list[tuple[int, ...]]:
    """Shapes of the weights, in the order in which they are published."""
    return [(hidden, OBS), (hidden,), (hidden, hidden), (hidden,), (ACTIONS, hidden), (ACTIONS,)]


class Policy:
    """The greedy action for an observation, from weights as they came over the wire."""

    def __init__(self, weights: bytes, hidden: int) -> None:
        flat, at, self._arrays = np.frombuffer(weights, dtype=np.float32), 0, list[Any]()
        for shape in shapes(hidden):
            size = int(np.prod(shape))
            self._arrays.append(np.ascontiguousarray(flat[at : at + size].reshape(shape).T))
            at += size

    def __call__(self, obs: NDArray[np.float32]) -> int:
        w1, b1, w2, b2, w3, b3 = self._arrays
        x = np.maximum((obs * SCALE) @ w1 + b1, 0.0)
        x = np.maximum(x @ w2 + b2, 0.0)
        return int((x @ w3 + b3).argmax())
