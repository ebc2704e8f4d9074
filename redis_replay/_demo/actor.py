"""One process that plays CartPole and writes its transitions."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from redis_replay import ReplayBuffer
from redis_replay._demo.board import Board, Episode
from redis_replay._demo.dqn import Policy, Settings
from redis_replay.exceptions import BufferGoneError, BufferShutDownError

_POLL_S = 0.003  # between two looks for a newer policy, when the allowance is used up


@dataclass(frozen=True)
class Job:
    """What every process of one run is told."""

    url: str
    name: str
    seed: int
    steps: int
    patience_s: float = 60.0
    settings: Settings = field(default_factory=Settings)


class Transition(NamedTuple):
    """What one environment step leaves behind."""

    obs: Any
    action: int
    reward: float
    next_obs: Any
    terminated: bool


def columns(rows: list[Transition]) -> dict[str, Any]:
    """Transitions as the batch that `extend` takes: one array for each field, records along the first axis."""
    kinds = (np.float32, np.int64, np.float32, np.float32, np.bool_)
    values = zip(*rows, strict=True)
    pairs = zip(Transition._fields, values, kinds, strict=True)
    return {name: np.array(value, dtype=kind) for name, value, kind in pairs}


class Player:
    """An environment and an epsilon-greedy policy; `step()` gives one transition after another, over episode ends."""

    def __init__(self, seed: int, number: int) -> None:
        import gymnasium

        self.policy: Policy | None = None
        self.ended: list[float] = []
        self._rng = np.random.default_rng([seed, number])
        self._env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        self._obs, _ = self._env.reset(seed=int(self._rng.integers(2**31)))
        self._total = 0.0

    def step(self, epsilon: float) -> Transition:
        """Play one step. Until there is a policy, every action is random."""
        obs, action = self._obs, self._action(epsilon)
        self._obs, reward, terminated, truncated, _ = self._env.step(action)
        done = Transition(obs, action, float(reward), self._obs, bool(terminated))
        self._total += done.reward
        if terminated or truncated:
            self._begin_anew()
        return done

    def _action(self, epsilon: float) -> int:
        if self.policy is None or self._rng.random() < epsilon:
            return int(self._rng.integers(2))
        return self.policy(self._obs)

    def _begin_anew(self) -> None:
        self.ended.append(self._total)
        self._obs, _ = self._env.reset()
        self._total = 0.0


class Actor:
    """A player that writes what it plays, with the newest weights, and no further ahead than the learner allows."""

    def __init__(self, job: Job, number: int, buffer: ReplayBuffer, board: Board) -> None:
        self._job, self._number, self._buffer, self._board = job, number, buffer, board
        self._player = Player(job.seed, number)
        self._version, self._written, self._allowance = -1, 0, min(job.settings.warmup, job.steps)

    def turn(self) -> int:
        """Play and write one batch; how many records all actors have written by then."""
        self._await_allowance()
        settings = self._job.settings
        epsilon = settings.epsilon(self._written)
        index = self._buffer.extend(columns([self._player.step(epsilon) for _ in range(settings.write_batch)]))
        self._written = int(index[-1])  # indices number the records of all actors: the last one is their count
        while self._player.ended:
            self._board.report(Episode(self._number, self._player.ended.pop(0)))
        return self._written

    def _await_allowance(self) -> None:
        """Fetch newer weights if there are any, and wait for them while everything allowed is written."""
        deadline = time.monotonic() + self._job.patience_s
        self._fetch()
        while self._written >= self._allowance:
            if time.monotonic() > deadline:
                raise TimeoutError("the learner has published no weights for " + str(self._job.patience_s) + " s")
            time.sleep(_POLL_S)
            self._fetch()

    def _fetch(self) -> None:
        news = self._board.policy(self._version)
        if not news:
            return
        self._version, self._allowance = news.version, news.allowance
        if news.weights:  # none when the run is over
            self._player.policy = Policy(news.weights, self._job.settings.hidden)


def run(job: Job, number: int) -> int:
    """Play until the buffer is shut down; how many records there were by then."""
    board, written = Board(job.url, job.name), 0
    try:
        with ReplayBuffer.attach(job.url, job.name, timeout=job.patience_s) as buffer:
            actor = Actor(job, number, buffer, board)
            while True:
                written = actor.turn()
    except (BufferShutDownError, BufferGoneError):
        return written
    finally:
        board.close()
