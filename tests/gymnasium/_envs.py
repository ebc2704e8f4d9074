"""Environments whose every transition is known beforehand, and a buffer that is a list."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes [number, episode, time], in an array that it uses again (`reuse`). Episode e has `length + e` steps, and ends
    terminated where e is even, truncated where it is odd. The reward is the action.
    """

    observation_space = spaces.Box(-1, 1000, (3,), np.float32)
    action_space = spaces.Discrete(100)

    def __init__(self, number=0, length=2, reuse=True):
        self.reuse = reuse
        self.number, self.length, self.episode, self.time = number, length, -1, 0
        self._array = np.zeros(3, np.float32)

    def _observe(self):
        self._array[:] = self.number, self.episode, self.time
        return self._array if self.reuse else self._array.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        over, even = self.time == self.length + self.episode, self.episode % 2 == 0
        return self._observe(), float(action), over and even, over and not even, {}


class Nested(Counting):
    """As Counting, in a Dict with a Tuple, a Text and a Discrete in it; actions are a Tuple."""

    observation_space = spaces.Dict(
        {"at": Counting.observation_space, "more": spaces.Tuple((spaces.Discrete(500), spaces.Text(8, charset="0123456789")))}
    )
    action_space = spaces.Tuple((spaces.Discrete(100), spaces.MultiBinary(2)))

    def _observe(self):
        return {"at": super()._observe(), "more": (np.int64(self.time), str(self.time))}

    def step(self, action):
        return super().step(action[0])


def transitions(number, n, length=2):
    """The first `n` of a Counting: (observation, next_observation, terminated, truncated)."""
    found, episode, time = [], 0, 0
    for _ in range(n):
        over = time + 1 == length + episode
        found.append(
            ([number, episode, time], [number, episode, time + 1], over and episode % 2 == 0, over and episode % 2 == 1)
        )
        episode, time = (episode + 1, 0) if over else (episode, time + 1)
    return found


def recorded(records):
    """Records as `transitions` gives them."""
    sides, ends = ("observation", "next_observation"), ("terminated", "truncated")
    return [(*(r[side].tolist() for side in sides), *(bool(r[end]) for end in ends)) for r in records]


class Shelf:
    """A buffer that is a list. `errors` are raised by the next calls; each says by `done` how many records it writes first."""

    def __init__(self):
        self.records, self.calls, self.errors = [], [], []

    def extend(self, columns):
        each = [self._row(columns, i) for i in range(len(columns["reward"]))]
        self.calls.append(len(each))
        if self.errors:
            error = self.errors.pop(0)
            self.records += each[: getattr(error, "done", 0)]
            raise error
        self.records += each
        return np.arange(len(each))

    def _row(self, columns, i):
        return {k: self._row(v, i) if isinstance(v, dict) else v[i] for k, v in columns.items()}
