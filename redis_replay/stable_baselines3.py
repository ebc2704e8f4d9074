"""Stable-Baselines3's replay buffers in Redis or Valkey: the `replay_buffer_class` of DQN, SAC, TD3 and their kin.

model = DQN("MlpPolicy", env, replay_buffer_class=RedisReplayBuffer, replay_buffer_kwargs={"url": url, "name": "cartpole"})
"""

from typing import Any

import numpy as np

from redis_replay._extras import extra

with extra("sb3", __name__):
    import torch as th
    from stable_baselines3.common import buffers
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from redis_replay import ReplayBuffer
from redis_replay.exceptions import ArgumentError

__all__ = ["RedisDictReplayBuffer", "RedisReplayBuffer"]


class RedisReplayBuffer(buffers.ReplayBuffer):
    """Transitions of one or several Stable-Baselines3 models, in any number of processes: all that name one buffer share it.

    Records have the leaves `observation`, `next_observation`, `action` (as the model stores it: scaled to [-1, 1] for a Box),
    `reward` (float32), `terminated` and `truncated` (bool). The arrays of SB3's own buffer (`observations`, `pos`, `full`, …)
    are not there. Sizes count transitions, not steps of `n_envs` transitions as SB3's do.

    Pickling (`model.save_replay_buffer`) keeps the address, its password included, and no data; so does `model.save`, with
    `replay_buffer_kwargs`. Nothing is asked of the server before the first call, so that a model can be loaded without one.

    Args:
        buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination: as SB3 gives them;
            `buffer_size` is the buffer's capacity, in transitions.
        optimize_memory_usage: must be False.
        url, name: as redis_replay.ReplayBuffer: it is created, or attached to with what it holds.
        timeout: seconds that `add` and `sample` may take, waits included.
        seed: of the draws; None takes one from numpy's global generator, which SB3 seeds with the model's seed.
        options: others of redis_replay.ReplayBuffer (sampler, remover, rate_limiter, …).

    Raises:
        ArgumentError: optimize_memory_usage, or `fresh` is among the options.
    """

    def __init__(
        self, buffer_size: int, observation_space: Any, action_space: Any, device: th.device | str = "auto", n_envs: int = 1,
        optimize_memory_usage: bool = False, handle_timeout_termination: bool = True, *, url: object, name: str,
        timeout: float = 60.0, seed: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        _refuse(options, optimize_memory_usage=optimize_memory_usage)
        super(buffers.ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        del self.pos, self.full  # they say nothing of what others write
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        seed = int(np.random.randint(2**31)) if seed is None else seed  # noqa: NPY002 - the generator that SB3 seeds
        self._how = {"url": url, "name": name, "capacity": buffer_size, "seed": seed, **options}
        self._timeout = timeout
        self._buffer: ReplayBuffer | None = None

    @property
    def buffer(self) -> ReplayBuffer:
        """The handle. Opens it at the first use, with the errors of redis_replay.ReplayBuffer."""
        if self._buffer is None:
            self._buffer = ReplayBuffer(**self._how)
        return self._buffer

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Writes one transition of each environment: leaves (n_envs, ...). All of them are copied.

        Raises:
            what redis_replay.ReplayBuffer.extend raises; unless that is an OutcomeUnknownError, nothing was written.
        """
        cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        over = np.array(done, np.bool_).reshape(self.n_envs)
        shape, dtype = (self.n_envs, self.action_dim), self._maybe_cast_dtype(self.action_space.dtype)
        rows = {
            "observation": self._stored(obs), "next_observation": self._stored(next_obs),
            "action": np.array(action).reshape(shape).astype(dtype),
            "reward": np.array(reward, np.float32).reshape(self.n_envs),
            "terminated": over & ~cut, "truncated": over & cut,
        }  # fmt: skip
        self.buffer.extend(rows, timeout=self._timeout)

    def _stored(self, obs: Any) -> Any:
        return self._column(obs, self.observation_space, self.obs_shape)

    def _column(self, obs: Any, space: Any, shape: tuple[int, ...]) -> Any:
        return np.array(obs, dtype=space.dtype).reshape(self.n_envs, *shape)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """A batch, reserved. Waits for its first transition; where a draw takes none twice (consume_after_n_samples, a sampler
        without replacement), for all of them.

        Args:
            env: the VecNormalize that normalizes observations and rewards, if there is one.

        Raises:
            what redis_replay.ReplayBuffer.sample raises; ReplayTimeoutError: too few in `timeout` seconds.
        """
        floor = 1 if self.buffer.draws_again else None
        return self._samples(self.buffer.sample(batch_size, wait=True, timeout=self._timeout, min_items=floor), env)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        """Of indices as redis_replay gives them."""
        return self._samples(self.buffer.get(batch_inds), env)

    def _samples(self, data: dict[str, Any], env: Any) -> Any:
        dones = data["terminated"] if self.handle_timeout_termination else data["terminated"] | data["truncated"]
        return self._kind()(
            observations=self._observed(data["observation"], env),
            actions=self.to_torch(data["action"], copy=False),
            next_observations=self._observed(data["next_observation"], env),
            dones=self.to_torch(dones.astype(np.float32).reshape(-1, 1), copy=False),
            rewards=self.to_torch(self._normalize_reward(data["reward"].reshape(-1, 1), env), copy=False),
        )

    def _kind(self) -> Any:
        return ReplayBufferSamples

    def _observed(self, obs: Any, env: Any) -> Any:
        normal: Any = self._normalize_obs(obs, env)
        return self.to_torch(normal, copy=False)

    def size(self) -> int:
        """Transitions that may be drawn now, whoever wrote them."""
        return len(self.buffer)

    def reset(self) -> None:
        """Takes all transitions out, for everyone."""
        self.buffer.empty()

    def close(self) -> None:
        """Closes the handle, if it is open; the buffer stays."""
        if self._buffer is not None:
            self._buffer.close()


class RedisDictReplayBuffer(RedisReplayBuffer, buffers.DictReplayBuffer):
    """As RedisReplayBuffer, for Dict observations (MultiInputPolicy): `observation` and `next_observation` are dicts."""

    def _stored(self, obs: Any) -> Any:
        spaces = self.observation_space.spaces
        return {key: self._column(obs[key], spaces[key], shape) for key, shape in self.obs_shape.items()}

    def _kind(self) -> Any:
        return DictReplayBufferSamples

    def _observed(self, obs: Any, env: Any) -> Any:
        normal: Any = self._normalize_obs(obs, env)
        return {key: self.to_torch(leaf, copy=False) for key, leaf in normal.items()}


def _refuse(options: dict[str, Any], *, optimize_memory_usage: bool) -> None:
    if optimize_memory_usage:
        allowed = "False with this replay_buffer_class: each record holds both observations"
        raise ArgumentError(name="optimize_memory_usage", allowed=allowed, found=True)
    if "fresh" in options:
        allowed = "left out: SB3 makes its buffer anew whenever a model is loaded; use model.replay_buffer.reset() instead"
        raise ArgumentError(name="fresh", allowed=allowed, found=options["fresh"])
