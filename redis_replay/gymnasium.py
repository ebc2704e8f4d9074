"""Recorders for Gymnasium: wrappers that write each step of an environment, or of a vector of them, to a replay buffer.

    env = GymRecorder(gymnasium.make("CartPole-v1"), ReplayBuffer(url, "cartpole", capacity=100_000))

A record has the leaves `observation`, `action`, `next_observation` (each as its space: its dtype; Dict and Tuple spaces as
nested dicts, a Tuple's parts named "0", "1", …), `reward` (float32), `terminated` and `truncated` (bool).
"""

from typing import Any

import numpy as np

from redis_replay._extras import extra

with extra("gym", __name__):
    import gymnasium
    from gymnasium.error import ResetNeeded
    from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from redis_replay._outbox import Columns, Outbox, each, rows
from redis_replay._spaces import Layout
from redis_replay.exceptions import ArgumentError, ArgumentTypeError

__all__ = ["GymRecorder", "VectorGymRecorder"]


class _Recorder:
    """What both have: records on their way, and when they go.

    Attributes:
        version: of the policy that acts, a whole number; set it when that changes. Each step's record is written with the one
            that was set when the step was made. None: that of the buffer when the record arrives (ReplayBuffer.add).
    """

    version: int | None = None
    _outbox: Outbox

    def _begin(
        self, env: Any, spaces: tuple[Any, Any], buffer: Any, batch_size: Any, flush_at_end: bool, terms: dict[str, Any]
    ) -> None:  # fmt: skip
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
            raise ArgumentTypeError(name="batch_size", allowed="a whole number", found=batch_size)
        if batch_size < 1:
            raise ArgumentError(name="batch_size", allowed="at least 1", found=batch_size)
        self._observations, self._actions = Layout("observation_space", spaces[0]), Layout("action_space", spaces[1])
        self._outbox = Outbox(buffer, **{name: value for name, value in terms.items() if value is not None})
        self._batch_size, self._flush_at_end, self._failed = int(batch_size), flush_at_end, False
        self._last: Any = None  # the observation that the next step starts from, copied
        self._recorded = env

    @property
    def pending(self) -> int:
        """Records that are not known to be stored."""
        return len(self._outbox)

    def flush(self) -> None:
        """Writes what is pending. Raises what the buffer raises, as its `extend` does; call it again, and nothing is lost or
        doubled. A write whose outcome is unknown is asked after first.

        Raises:
            OutcomeLostError: what became of such a write cannot be learnt; `discard()` gives what is pending.
        """
        self._outbox.flush()
        self._failed = False

    def discard(self) -> dict[str, Any] | None:
        """Forgets what is pending, and gives it as columns, or None. After an OutcomeUnknownError its first records may be
        stored.
        """
        return self._outbox.discard()

    def _before(self) -> None:
        """A write that failed is tried again before the environment is touched, so that the caller can make the call again."""
        if self._failed:
            self.flush()

    def _record(self, columns: Columns, n: int, *, ended: bool) -> None:
        if n:
            self._outbox.put(columns, n, self.version)
        if self.pending >= self._batch_size or (ended and self._flush_at_end and self.pending):
            try:
                self.flush()
            except Exception:  # noqa: BLE001 - the caller shall have this step's result; the next call raises, if it still fails
                self._failed = True

    def close(self, **kwargs: Any) -> None:
        """Writes what is pending and closes the environment; the buffer stays open. If the write fails, the environment is
        closed all the same, and `flush()` may be called again.
        """
        try:
            self.flush()
        finally:
            self._recorded.close(**kwargs)


def _columns(before: Any, action: Any, after: Any, reward: Any, terminated: Any, truncated: Any) -> Columns:
    return {
        "observation": before, "action": action, "next_observation": after, "reward": np.array(reward, np.float32),
        "terminated": np.array(terminated, np.bool_), "truncated": np.array(truncated, np.bool_),
    }  # fmt: skip


class GymRecorder(_Recorder, gymnasium.Wrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """Writes each step of an environment to a buffer. `step` and `reset` give what the environment gives.

    An error of the buffer is raised by the next `step` or `reset`, if the write fails again, before the environment is touched:
    so no step's result is lost, and the call can be made again. What is pending stays until it is written, or `discard()`.

    Args:
        env: its spaces are made of Box, Discrete, MultiBinary, MultiDiscrete, Text, Dict and Tuple.
        buffer: a redis_replay.ReplayBuffer, or anything else with `extend(columns)` or `add(record)`. Not closed by `close`.
        batch_size: steps of one write. The last ones are written by `close` or `flush`.
        flush_at_end: write at the end of each episode, too.
        timeout, cancel_event: of each write, as ReplayBuffer.extend; where a rate limiter holds writers back, `step` waits.

    Raises:
        ArgumentError, ArgumentTypeError: an argument, or a space, is not allowed.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], buffer: Any, *, batch_size: int = 1, flush_at_end: bool = False,
        timeout: float | None = None, cancel_event: Any = None,
    ) -> None:  # fmt: skip
        gymnasium.Wrapper.__init__(self, env)
        terms = {"timeout": timeout, "cancel_event": cancel_event}
        self._begin(env, (env.observation_space, env.action_space), buffer, batch_size, flush_at_end, terms)
        self._resets = _autoresets(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Begins an episode: the step that it cuts off ends neither terminated nor truncated."""
        self._before()
        observation, info = self.env.reset(seed=seed, options=options)
        self._last = self._observations.one(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's. Inside gymnasium.wrappers.Autoreset the step that only resets is not recorded.

        Raises:
            ResetNeeded: the episode has ended, or none has begun. What the buffer raises, before the environment is touched.
        """
        self._before()
        if self._last is None and not self._resets:
            raise ResetNeeded("cannot record a step before reset(), or after the end of an episode")
        before, taken = self._last, self._actions.one(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        after, ended = self._observations.one(observation), bool(terminated or truncated)
        self._last = None if ended else after
        if before is not None:
            self._record(_columns(before, taken, after, [reward], [terminated], [truncated]), 1, ended=ended)
        return observation, reward, terminated, truncated, info


def _autoresets(env: Any) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            return True
        env = env.env
    return False


class VectorGymRecorder(_Recorder, VectorWrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """As GymRecorder, for a vector of n environments: n records a step, in their order, but for those that are only reset.

    `next_observation` is the last one of its episode where that ends, whatever the mode: NEXT_STEP, whose step after the end is
    a reset and no record; SAME_STEP, which tells it in `infos["final_obs"]` (an environment that uses its array again must give
    copies there: Gymnasium resets it before anybody can look); DISABLED, where an environment is not recorded from its end on,
    until `reset(options={"reset_mask": mask})`.

    Args:
        autoreset_mode: where `env.metadata` does not tell.
        batch_size: records of one write; it is of whole steps.

    Raises:
        ArgumentError: nothing tells the mode. Else as GymRecorder.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], buffer: Any, *, batch_size: int = 1, flush_at_end: bool = False,
        timeout: float | None = None, cancel_event: Any = None, autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:  # fmt: skip
        VectorWrapper.__init__(self, env)
        mode = autoreset_mode or env.metadata.get("autoreset_mode")
        if mode is None:
            allowed = "given, since the environment's metadata does not tell it"
            raise ArgumentError(name="autoreset_mode", allowed=allowed, found=None)
        self._mode = AutoresetMode(mode)
        terms = {"timeout": timeout, "cancel_event": cancel_event}
        spaces = env.single_observation_space, env.single_action_space
        self._begin(env, spaces, buffer, batch_size, flush_at_end, terms)
        self._over = np.zeros(env.num_envs, np.bool_)  # whose next step is no transition

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environments', with `options["reset_mask"]` of some of them."""
        self._before()
        mask = None if self._last is None else (options or {}).get("reset_mask")
        observation, infos = self.env.reset(seed=seed, options=options)
        begun = self._observations.batch(observation)
        self._last = begun if mask is None else _replaced(self._last, begun, np.asarray(mask, np.bool_))
        self._over = np.zeros(self.num_envs, np.bool_) if mask is None else self._over & ~np.asarray(mask, np.bool_)
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environments'.

        Raises:
            ResetNeeded: no episode has begun. What the buffer raises, before an environment is touched.
        """
        self._before()
        if self._last is None:
            raise ResetNeeded("cannot record a step before reset()")
        before, taken, live = self._last, self._actions.batch(actions), ~self._over
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        after, ended = self._observations.batch(observation), np.logical_or(terminated, truncated)
        final = self._final(after, infos, ended) if self._mode is AutoresetMode.SAME_STEP and ended.any() else after
        columns = rows(_columns(before, taken, final, reward, terminated, truncated), live)
        self._last = after
        if self._mode is not AutoresetMode.SAME_STEP:
            self._over = ended if self._mode is AutoresetMode.NEXT_STEP else self._over | ended
        self._record(columns, int(live.sum()), ended=bool((ended & live).any()))
        return observation, reward, terminated, truncated, infos

    def _final(self, after: Any, infos: dict[str, Any], ended: Any) -> Any:
        """`after`, with the last observation of each episode that ended in the place of the first one of the next."""
        final = infos.get("final_obs")
        if final is None:
            allowed = 'with "final_obs" where an episode ends, as AutoresetMode.SAME_STEP promises'
            raise ArgumentError(name="infos", allowed=allowed, found=sorted(infos))
        if getattr(final, "dtype", None) != np.object_ and not isinstance(final, list):  # of all environments at once
            return _replaced(after, self._observations.batch(final), ended)
        for i in np.flatnonzero(ended):
            mask = np.arange(self.num_envs) == i
            after = each(lambda old, new, at=mask: _set(old, new, at), after, self._observations.one(final[i]))
        return after


def _set(old: Any, new: Any, mask: Any) -> Any:
    """A column with one row for all rows of the mask."""
    if isinstance(old, np.ndarray):
        return np.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return [new[0] if there else text for there, text in zip(mask, old, strict=True)]


def _replaced(old: Any, new: Any, mask: Any) -> Any:
    """Columns with the rows of the mask taken from others."""

    def leaf(old: Any, new: Any) -> Any:
        if isinstance(old, np.ndarray):
            return np.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new, old)
        return [b if there else a for there, a, b in zip(mask, old, new, strict=True)]

    return each(leaf, old, new)
