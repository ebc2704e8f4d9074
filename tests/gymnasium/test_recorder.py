"""GymRecorder: what it writes of an environment, and when."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from redis_replay import AsyncReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError
from redis_replay.gymnasium import GymRecorder
from tests.gymnasium._envs import Counting, Nested, Shelf, recorded, transitions


def play(env, steps, first=0):
    """Plays with the actions first, first + 1, …"""
    for i in range(steps):
        *_, terminated, truncated, _ = env.step(first + i)
        if terminated or truncated:
            env.reset()


def test_each_step_is_a_record(server, make_buffer):
    """Both observations of each step, what ended it, its action and its reward, each with its dtype; on every server."""
    buffer = make_buffer()
    env = GymRecorder(Counting(), buffer)
    env.reset()
    play(env, 12)
    records = list(buffer.records())
    assert recorded(records) == transitions(0, 12)
    assert [(int(r["action"]), float(r["reward"])) for r in records] == [(i, float(i)) for i in range(12)]
    dtypes = {name: leaf.dtype.name for name, leaf in buffer.sample(3).items()}
    assert dtypes == {
        "observation": "float32", "action": "int64", "next_observation": "float32", "reward": "float32",
        "terminated": "bool", "truncated": "bool",
    }  # fmt: skip


def test_nested_spaces_are_nested_dicts(server, make_buffer):
    """Dict and Tuple spaces, a text, and a Tuple of actions come back whole."""
    buffer = make_buffer()
    env = GymRecorder(Nested(), buffer)
    env.reset()
    env.step((7, np.array([0, 1], np.int8)))
    record = buffer.get(1)
    assert record["observation"]["at"].tolist() == [0, 0, 0]
    assert record["next_observation"]["at"].tolist() == [0, 0, 1]
    assert (int(record["next_observation"]["more"]["0"]), record["next_observation"]["more"]["1"]) == (1, "1")
    assert (int(record["action"]["0"]), record["action"]["1"].tolist()) == (7, [0, 1])


def test_what_the_environment_gives_is_passed_on():
    """The caller sees what it would see without a recorder."""
    plain, env = Counting(), GymRecorder(Counting(), Shelf())
    assert env.reset(seed=1)[0].tolist() == plain.reset(seed=1)[0].tolist()
    for action in range(2):
        got, want = env.step(action), plain.step(action)
        assert got[0].tolist() == want[0].tolist()
        assert got[1:] == want[1:]


@pytest.mark.parametrize(("at_end", "calls", "pending"), [(False, [4, 4], 1), (True, [2, 3, 4], 0)])
def test_writes_are_of_batch_size(at_end, calls, pending):
    """One write for `batch_size` steps, and at the end of each episode where that is asked for; close writes what is left."""
    shelf = Shelf()
    env = GymRecorder(Counting(), shelf, batch_size=4, flush_at_end=at_end)
    env.reset()
    play(env, 9)
    assert (shelf.calls, env.pending) == (calls, pending)
    env.close()
    assert (recorded(shelf.records), env.pending) == (transitions(0, 9), 0)


def test_a_reset_in_the_middle_ends_nothing():
    """An episode that is left is neither terminated nor truncated, and no record leads from it to the next."""
    shelf = Shelf()
    env = GymRecorder(Counting(length=5), shelf)
    env.reset()
    env.step(0)
    env.reset()
    env.step(0)
    assert [r[:2] for r in recorded(shelf.records)] == [([0, 0, 0], [0, 0, 1]), ([0, 1, 0], [0, 1, 1])]
    assert not any(r["terminated"] or r["truncated"] for r in shelf.records)


def test_a_step_outside_of_an_episode_is_refused():
    """Before the first reset and after an end: the environment is not touched."""
    shelf, inner = Shelf(), Counting()
    env = GymRecorder(inner, shelf)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    env.step(0), env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert (inner.time, len(shelf.records)) == (2, 2)


def test_the_step_that_only_resets_is_no_record():
    """Inside gymnasium's Autoreset, also under another wrapper."""
    shelf = Shelf()
    env = GymRecorder(gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.Autoreset(Counting())), shelf)
    env.reset()
    for _ in range(2 + 1 + 3 + 1 + 2):
        env.step(0)
    assert recorded(shelf.records) == transitions(0, 7)


def test_a_buffer_may_have_add_alone():
    """Then records go one by one, in order."""

    class Adds:
        def __init__(self):
            self.records = []

        def add(self, record):
            self.records.append(record)

    adds = Adds()
    env = GymRecorder(Counting(), adds, batch_size=3)
    env.reset()
    play(env, 7)
    env.close()
    assert recorded(adds.records) == transitions(0, 7)


class Sequences(Counting):
    observation_space = spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})


@pytest.mark.parametrize(
    ("env", "buffer", "options", "error", "name"),
    [
        (Counting, Shelf, {"batch_size": 0}, ArgumentError, "batch_size"),
        (Counting, Shelf, {"batch_size": True}, ArgumentTypeError, "batch_size"),
        (Counting, object, {}, ArgumentTypeError, "buffer"),
        (Counting, lambda: AsyncReplayBuffer("redis://localhost", "x"), {}, ArgumentTypeError, "buffer"),
        (Sequences, Shelf, {}, ArgumentTypeError, "observation_space['a']"),
    ],
)
def test_arguments_are_checked(env, buffer, options, error, name):
    """What cannot work is refused by name when the recorder is made."""
    with pytest.raises(error) as caught:
        GymRecorder(env(), buffer(), **options)
    assert caught.value.name == name


def test_a_real_environment(server, make_buffer):
    """CartPole under its usual wrappers: each record leads to the next, but where an episode ends."""
    buffer = make_buffer(capacity=1000)
    env = GymRecorder(gymnasium.make("CartPole-v1", max_episode_steps=15), buffer, batch_size=32)
    env.reset(seed=3)
    env.action_space.seed(3)
    ends = 0
    for _ in range(200):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            ends += 1
            env.reset()
    env.close()
    records = list(buffer.records())
    over = [bool(r["terminated"] or r["truncated"]) for r in records]
    assert (len(records), sum(over)) == (200, ends)
    assert sum(bool(r["truncated"]) for r in records) > 0
    assert all(
        np.array_equal(a["next_observation"], b["observation"]) != end
        for a, b, end in zip(records, records[1:], over, strict=False)
    )
