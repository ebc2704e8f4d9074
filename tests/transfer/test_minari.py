"""Minari data sets, made and read by Minari: in and out, value by value, several episodes, nested spaces, images."""

import json

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from redis_replay.gymnasium import GymRecorder, VectorGymRecorder
from redis_replay.transfer import TransferError, export_minari, import_minari
from tests.gymnasium._envs import Counting, Nested
from tests.transfer._same import columns, same


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """Where Minari keeps its data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def record(buffer, env, steps):
    """A recorder's records of some steps; actions are seeded."""
    env = GymRecorder(env, buffer, batch_size=steps)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    env.flush()


class Images(Counting):
    """As Counting, in images large enough for Minari's JPEG."""

    observation_space = spaces.Box(0, 255, (40, 32, 3), np.uint8)

    def _observe(self):
        rng = np.random.default_rng([self.episode, self.time])
        return rng.integers(0, 256, (40, 32, 3), np.uint8)


class Plain(Counting):
    """As Counting, in a Dict of what numbers there are."""

    observation_space = spaces.Dict({
        "f": Counting.observation_space, "i": spaces.Box(-9, 999, (), np.int64), "b": spaces.Box(0, 1, (2,), np.bool_),
        "u": spaces.Box(0, 255, (2, 2), np.uint8),
    })  # fmt: skip
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _observe(self):
        seen = super()._observe()
        flags, image = np.array([self.time % 2, 1], bool), np.full((2, 2), self.time, np.uint8)
        return {"f": seen, "i": np.int64(self.time), "b": flags, "u": image}

    def step(self, action):
        return super().step(action[0])


@pytest.mark.parametrize(
    ("kind", "spaces_given"), [(Counting, True), (Nested, True), (Images, True), (Plain, True), (Images, False), (Plain, False)]
)
def test_out_and_in_again_is_the_same(server, make_buffer, chunks, kind, spaces_given):
    """Every leaf with its dtype, in order: what was recorded is what comes back, by an id and by its own schema."""
    first, second = make_buffer("first"), make_buffer("second")
    record(first, kind(length=3), 20)
    given = {"observation_space": kind.observation_space, "action_space": kind.action_space} if spaces_given else {}
    assert export_minari(first, "test/counting-v0", **given) == 20
    told = []
    assert import_minari(second, "test/counting-v0", progress=lambda *at: told.append(at)) == 20
    same(columns(second), columns(first))
    assert (chunks[1:], told[-1]) == ([7, 7, 6], (20, 20))
    second.extend([next(first.records())])  # one schema
    dataset = minari.load_dataset("test/counting-v0")
    assert [len(episode) for episode in dataset] == [3, 4, 5, 6, 2]
    assert [bool(episode.truncations[-1]) for episode in dataset] == [False, True, False, True, False]
    assert "test/counting-v0" in minari.list_local_datasets()


def test_a_real_environment_is_kept_with_the_data_set(server, make_buffer, tmp_path):
    """In a directory; the environment can be made again of it."""
    buffer, again = make_buffer("first"), make_buffer("second")
    record(buffer, gymnasium.make("CartPole-v1", max_episode_steps=15), 60)
    assert export_minari(buffer, tmp_path / "here" / "cart-v3", env="CartPole-v1") == 60
    dataset = minari.MinariDataset(tmp_path / "here" / "cart-v3" / "data")
    assert (dataset.id, dataset.env_spec.id, dataset.total_steps) == ("cart-v3", "CartPole-v1", 60)
    for place in (dataset, str(tmp_path / "here" / "cart-v3")):
        again.empty()
        import_minari(again, place)
        same(columns(again), columns(buffer))


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_minaris_own_data_sets(server, make_buffer, data_format):
    """Rewards of float64, infos and JPEGs, which are read as Minari gives them."""
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32), np.uint8)
    storage = _new("own-v0", Box(0, 255, (32, 32), np.uint8), spaces.Discrete(5), data_format)
    for length in (3, 1):
        storage.update_episodes([
            EpisodeBuffer(
                observations=images[: length + 1], actions=np.arange(length), rewards=np.arange(length) / 3,
                terminations=np.arange(length) == 2, truncations=np.zeros(length, bool),
                infos={"t": np.zeros((length + 1, 2))},
            )
        ])  # fmt: skip
    buffer = make_buffer()
    assert import_minari(buffer, "own-v0") == 4
    found, seen = columns(buffer), [episode.observations for episode in minari.load_dataset("own-v0")]
    same(found["observation"], np.concatenate([seen[0][:-1], seen[1][:-1]]))
    same(found["next_observation"], np.concatenate([seen[0][1:], seen[1][1:]]))
    same(found["reward"], np.array([0, 1 / 3, 2 / 3, 0], np.float32))
    same(found["action"], np.array([0, 1, 2, 0]))


Box = spaces.Box


def _new(name, observation_space, action_space, data_format="hdf5"):
    from minari.storage.datasets_root_dir import get_dataset_path

    path = get_dataset_path(name) / "data"
    path.parent.mkdir(parents=True)
    storage = MinariStorage.new(
        path, observation_space=observation_space, action_space=action_space, data_format=data_format
    )  # fmt: skip
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    return storage


def _episode(storage, observations, **more):
    n = len(observations) - 1
    given = {"actions": np.zeros(n, int), "rewards": np.zeros(n), "terminations": np.zeros(n, bool)} | more
    storage.update_episodes([EpisodeBuffer(observations=observations, truncations=np.zeros(n, bool), **given)])


def test_an_episode_that_does_not_fit_ends_the_import(server, make_buffer, chunks):
    """What was written before it is told."""
    storage = _new("bad-v0", Box(-1, 1, (2,), np.float32), spaces.Discrete(5))
    _episode(storage, np.zeros((9, 2), np.float32))
    _episode(storage, np.zeros((4, 2), np.float32), rewards=np.zeros(7))
    buffer = make_buffer()
    with pytest.raises(TransferError, match="episode 1 has") as caught:
        import_minari(buffer, "bad-v0")
    assert (caught.value.done, buffer.stats()["write_count"]) == (7, 7)


def test_what_is_no_data_set_is_refused_before_the_first_write(server, make_buffer, tmp_path, datasets):
    """Missing, no id, without its spaces (Minari would run what its environment names), cut."""
    storage = _new("good-v0", Box(-1, 1, (2,), np.float32), spaces.Discrete(5))
    _episode(storage, np.zeros((9, 2), np.float32))
    meta = datasets / "good-v0" / "data" / "metadata.json"
    with make_buffer() as buffer:
        for missing in ("none-v0", "no id at all", str(tmp_path)):
            with pytest.raises(TransferError, match="no such data set"):
                import_minari(buffer, missing)
        whole = json.loads(meta.read_text())
        meta.write_text(json.dumps({**whole, "observation_space": None} | {"env_spec": '{"entry_point": "os:abort"}'}))
        with pytest.raises(TransferError):
            import_minari(buffer, "good-v0")
        meta.write_text(json.dumps({key: value for key, value in whole.items() if key != "action_space"}))
        with pytest.raises(TransferError, match="lack the action_space"):
            import_minari(buffer, "good-v0")
        meta.write_text(json.dumps(whole)[:50])
        with pytest.raises(TransferError):
            import_minari(buffer, "good-v0")
        assert buffer.stats()["write_count"] == 0


def test_episodes_of_a_vector_are_told_apart(server, make_buffer):
    """Their records lie interleaved; each goes on with the episode whose next observation it has."""
    buffer = make_buffer()
    envs = gymnasium.vector.SyncVectorEnv([lambda i=i: Counting(i) for i in range(3)])
    envs = VectorGymRecorder(envs, buffer, batch_size=9)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(envs.action_space.sample())
    envs.flush()
    assert export_minari(buffer, "vector-v0") == len(buffer)
    for episode in minari.load_dataset("vector-v0"):
        seen = episode.observations
        assert (np.diff(seen[:, 2]) == 1).all()
        assert len(np.unique(seen[:, :2], axis=0)) == 1


def step(at, then, **more):
    """A record that leads from one number to another."""
    ends = {"terminated": False, "truncated": False} | more
    record = {"observation": np.float32([at]), "next_observation": np.float32([then]), "action": np.int64(0)}
    return record | {"reward": np.float32(0)} | {name: np.bool_(value) for name, value in ends.items()}


REFUSED = {
    "nothing": ([], "holds no record"),
    "a leaf": ([{"observation": np.zeros(2), "action": 1}], "no leaf next_observation"),
    "ambiguous": ([step(1, 2), step(0, 2), step(2, 3)], "2 episodes are at the observation of record 3"),
    "no order": ([step(i, -i - 1) for i in range(1100)], "more than 1024 episodes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_records_that_are_no_episodes_are_refused(server, make_buffer, datasets, case):
    """And nothing is left of the data set."""
    records, words = REFUSED[case]
    buffer = make_buffer(capacity=2000)
    if records:
        buffer.extend(records)
    with pytest.raises(TransferError, match=words):
        export_minari(buffer, "bad-v0")
    assert list(datasets.rglob("*.hdf5")) == []
    assert not (datasets / "bad-v0").exists()


def test_no_space_is_made_of_a_text(server, make_buffer):
    buffer = make_buffer()
    record(buffer, Nested(), 3)
    with pytest.raises(TransferError, match="no space can be made of a leaf of text"):
        export_minari(buffer, "text-v0")


def test_spaces_and_ids_that_do_not_fit_are_refused(server, make_buffer, tmp_path):
    buffer = make_buffer()
    buffer.extend([step(1, 2)])
    with pytest.raises(TransferError, match=r"observation is float32 \(1,\), and the space has float32 \(4,\)"):
        export_minari(buffer, "bad-v0", env="CartPole-v1")
    with pytest.raises(TransferError, match="its version"):
        export_minari(buffer, "noversion")
    (tmp_path / "there-v0").mkdir()
    with pytest.raises(TransferError, match="there already"):
        export_minari(buffer, tmp_path / "there-v0")
