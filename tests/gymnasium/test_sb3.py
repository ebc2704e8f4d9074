"""RedisReplayBuffer beside Stable-Baselines3's own buffer, and in its algorithms."""

import contextlib
import copy
import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from redis_replay.exceptions import ArgumentError, BufferClosedError, BufferGoneError, ReplayTimeoutError
from redis_replay.samplers import Fifo, Uniform
from redis_replay.stable_baselines3 import RedisDictReplayBuffer, RedisReplayBuffer
from tests._server import REAL

BOX = spaces.Box(-1e6, 1e6, (3,), np.float32)
SPACES = {
    "box": (BOX, spaces.Box(-1, 1, (2,), np.float64)),
    "image": (spaces.Box(0, 255, (1, 4, 4), np.uint8), spaces.Discrete(4)),
    "discrete": (spaces.Discrete(1000), spaces.Discrete(4)),
    "dict": (spaces.Dict({"a": BOX, "b": spaces.Discrete(1000)}), spaces.MultiDiscrete([3, 4])),
}
FIELDS = ("observations", "actions", "next_observations", "dones", "rewards")


@pytest.fixture
def make(real_server, name):
    """Gives `make(kind, ...)`: a buffer of ours, closed at the end, on the test's server."""
    made = []

    def build(observation_space, action_space, n_envs=2, size=100, **options):
        kind = RedisDictReplayBuffer if isinstance(observation_space, spaces.Dict) else RedisReplayBuffer
        options = {"url": real_server.url, "name": name, **options}
        made.append(kind(size, observation_space, action_space, "cpu", n_envs, **options))
        return made[-1]

    yield build
    for one in made:
        if one._buffer is not None:
            with contextlib.suppress(BufferGoneError, BufferClosedError):
                one.buffer.delete()
        one.close()


def fill(*targets, steps=5, n_envs=2):
    """Adds the same random steps to each: some end, some of them by a time limit."""
    target = targets[0]
    target.action_space.seed(0), target.observation_space.seed(0)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs, next_obs = (_batch(target.observation_space, n_envs) for _ in range(2))
        action = np.stack([target.action_space.sample() for _ in range(n_envs)])
        done = rng.random(n_envs) < 0.6
        infos = [{"TimeLimit.truncated": bool(over and rng.random() < 0.5)} for over in done]
        reward = rng.normal(size=n_envs)
        for one in targets:
            one.add(copy.deepcopy(obs), copy.deepcopy(next_obs), action, reward, done, infos)


def _batch(space, n):
    if isinstance(space, spaces.Dict):
        return {key: _batch(part, n) for key, part in space.spaces.items()}
    return np.stack([space.sample() for _ in range(n)])


def rows(samples):
    """A batch's rows as comparable texts; and its dtypes and shapes."""
    leaves = {}
    for field in FIELDS:
        value = getattr(samples, field)
        leaves |= {f"{field}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {field: value}
    n = len(leaves["dones"])
    each = {str({name: leaf[i].tolist() for name, leaf in leaves.items()}) for i in range(n)}
    return each, {name: (leaf.dtype, leaf.shape) for name, leaf in leaves.items()}


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("timeouts", [True, False])
def test_samples_are_those_of_sb3(make, kind, timeouts):
    """Same rows, dtypes and shapes as its own buffer after the same steps of two environments, time limits as told."""
    observation, action = SPACES[kind]
    base = buffers.DictReplayBuffer if kind == "dict" else buffers.ReplayBuffer
    theirs = base(100, observation, action, "cpu", 2, handle_timeout_termination=timeouts)
    ours = make(observation, action, handle_timeout_termination=timeouts)
    fill(theirs, ours)
    (got, forms), (want, their_forms) = rows(ours.sample(256)), rows(theirs.sample(256))
    assert (got, forms) == (want, their_forms)
    assert (ours.size(), isinstance(ours, base), len(want)) == (10, True, 10)


def test_batches_are_normalized(make):
    """By the VecNormalize that SB3 hands over, as its own."""
    observation, action = SPACES["box"]
    theirs, ours = buffers.ReplayBuffer(100, observation, action, "cpu", 2), make(observation, action)
    fill(theirs, ours)
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 2))
    env.obs_rms.mean[:], env.ret_rms.var = 5.0, np.array(9.0)
    assert rows(ours.sample(256, env)) == rows(theirs.sample(256, env))


def test_added_arrays_may_be_used_again(make):
    """They are copied before `add` returns."""
    ours = make(*SPACES["box"], n_envs=1)
    obs = np.ones((1, 3), np.float32)
    ours.add(obs, obs, np.zeros((1, 2)), np.ones(1), np.zeros(1, bool), [{}])
    obs[:] = 2
    assert ours.sample(2).observations.tolist() == [[1, 1, 1]] * 2


def test_several_models_share_a_buffer(make):
    """With any n_envs each: what one writes, the other draws; a reset is everybody's. By index, too."""
    a, b = make(*SPACES["box"], n_envs=2), make(*SPACES["box"], n_envs=3)
    fill(a, steps=2, n_envs=2)
    fill(b, steps=2, n_envs=3)
    assert (a.size(), b.size(), len(rows(a.sample(256))[0])) == (10, 10, 10)
    assert len(b._get_samples(np.array([1, 2, 10])).rewards) == 3
    a.reset()
    assert b.size() == 0


def test_draws_follow_the_models_seed(make):
    """As of SB3's own buffer: numpy's global generator, or a seed of its own."""
    fill(make(*SPACES["box"]))
    found = []
    for seed in (None, None, 3, 3):
        np.random.seed(11)  # noqa: NPY002 - as SB3 does
        found.append(make(*SPACES["box"], seed=seed).sample(64).observations.tolist())
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize(
    "options", [{"consume_after_n_samples": 1, "sampler": Fifo()}, {"sampler": Uniform(replacement=False)}]
)
def test_a_batch_is_full_or_waited_for(make, options):
    """Where a draw takes no record twice; SB3 counts on batch_size rows."""
    ours = make(*SPACES["box"], timeout=0.1, **options)
    fill(ours, steps=2)
    with pytest.raises(ReplayTimeoutError):
        ours.sample(5)
    assert len(ours.sample(4).rewards) == 4


@pytest.mark.parametrize("options", [{"optimize_memory_usage": True}, {"fresh": True}])
def test_what_cannot_be_is_refused(make, options):
    """By name, before anything is asked of a server."""
    with pytest.raises(ArgumentError) as caught:
        make(*SPACES["box"], url="redis://127.0.0.1:1", **options)
    assert caught.value.name == next(iter(options))


def test_a_pickle_is_an_address(make):
    """It is small, whatever the buffer holds, and finds it there; one that was not opened asks nobody."""
    ours = make(*SPACES["box"])
    fill(ours)
    text = pickle.dumps(ours)
    twin = pickle.loads(text)
    assert (twin.size(), twin.sample(4).rewards.shape, len(text) < 10_000) == (10, (4, 1), True)
    twin.close()
    pickle.loads(pickle.dumps(make(*SPACES["box"], url="redis://127.0.0.1:1"))).close()


class Pairs(gymnasium.Env):
    """Dict observations; ends by a time limit alone."""

    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(5)})
    action_space = spaces.Discrete(2)

    def _observe(self):
        return {"a": self.np_random.random(2).astype(np.float32), "b": np.int64(self.time % 5)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        return self._observe(), 1.0, False, self.time == 7, {}


ALGORITHMS = {
    "DQN": (DQN, "MlpPolicy", lambda: gymnasium.make("CartPole-v1"), {}),
    "SAC": (SAC, "MlpPolicy", lambda: gymnasium.make("Pendulum-v1"), {}),
    "TD3": (TD3, "MlpPolicy", lambda: gymnasium.make("Pendulum-v1"), {}),
    "DQN-dict": (DQN, "MultiInputPolicy", Pairs, {"exploration_fraction": 0.5}),
}


@pytest.mark.parametrize(("algorithm", "real_server"), list(zip(ALGORITHMS, REAL * 2, strict=True)), indirect=["real_server"])
def test_algorithms_train(real_server, make_buffer, name, algorithm):
    """The real ones, on two environments: every step is there, and the networks were trained on it."""
    kind, policy, env, options = ALGORITHMS[algorithm]
    buffer = make_buffer(capacity=500)
    model = kind(
        policy, DummyVecEnv([env] * 2), buffer_size=500, batch_size=16, learning_starts=20, train_freq=2, device="cpu", seed=0,
        replay_buffer_class=RedisDictReplayBuffer if policy == "MultiInputPolicy" else RedisReplayBuffer,
        replay_buffer_kwargs={"url": real_server.url, "name": name}, policy_kwargs={"net_arch": [16]}, **options,
    )  # fmt: skip
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(60)
    model.replay_buffer.close()
    assert (buffer.write_count, model._n_updates > 0) == (60, True)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    if algorithm == "DQN-dict":
        assert sum(bool(r["truncated"]) for r in buffer.records()) == 2 * (30 // 7)
        assert not any(r["terminated"] for r in buffer.records())


def train(url, name, seed):
    """A process of its own: 100 steps, of which others see all."""
    model = DQN(
        "MlpPolicy", gymnasium.make("CartPole-v1"), buffer_size=500, learning_starts=50, seed=seed, device="cpu",
        replay_buffer_class=RedisReplayBuffer, replay_buffer_kwargs={"url": url, "name": name},
    )  # fmt: skip
    model.learn(100)
    model.replay_buffer.close()


@pytest.mark.slow
def test_processes_share_a_buffer(real_server, make_buffer, name):
    """Each model trains on what all of them wrote; no transition is lost."""
    context, buffer = multiprocessing.get_context("spawn"), make_buffer(capacity=500)
    jobs = [context.Process(target=train, args=(real_server.url, name, seed)) for seed in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(50)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert (buffer.write_count, buffer.stats()["samples_returned"] > 0, buffer.doctor().ok) == (200, True, True)


def test_a_model_is_saved_and_loaded(real_server, make_buffer, name, tmp_path):
    """Its buffer as an address; the model alone loads where no server is, and goes on where one is."""
    buffer = make_buffer(capacity=500)
    where = {"url": real_server.url, "name": name}
    env = gymnasium.make("CartPole-v1")
    model = DQN(
        "MlpPolicy", env, buffer_size=500, learning_starts=10, replay_buffer_class=RedisReplayBuffer,
        replay_buffer_kwargs=where, device="cpu",
    )  # fmt: skip
    model.learn(20)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    model.replay_buffer.close()
    alone = DQN.load(tmp_path / "model", custom_objects={"replay_buffer_kwargs": where | {"url": "redis://127.0.0.1:1"}})
    alone.predict(env.reset()[0])
    again = DQN.load(tmp_path / "model", env)
    again.load_replay_buffer(tmp_path / "buffer")
    assert again.replay_buffer.size() == 20
    again.learn(12, reset_num_timesteps=False)
    again.replay_buffer.close()
    assert buffer.write_count == 32
