"""VectorGymRecorder: each environment's transitions are those it would have alone, in all modes of Gymnasium."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from redis_replay.exceptions import ArgumentError
from redis_replay.gymnasium import VectorGymRecorder
from tests.gymnasium._envs import Counting, Nested, Shelf, recorded, transitions

N, STEPS = 3, 14
SAME = AutoresetMode.SAME_STEP


def makers(mode, kind=Counting):
    """Environments whose episodes have 2, 3 and 4 steps at first. They use their arrays again, but in SAME_STEP: Gymnasium
    keeps the last observation while it resets, and would tell one that is overwritten.
    """
    return [lambda i=i: kind(i, 2 + i, mode != SAME) for i in range(N)]


def play(env, mode, steps=STEPS, action=lambda i: np.full(N, i)):
    """Plays `steps` steps; in DISABLED resets those that ended, as one must."""
    env.reset()
    for i in range(steps):
        *_, terminated, truncated, _ = env.step(action(i))
        mask = np.logical_or(terminated, truncated)
        if mode == AutoresetMode.DISABLED and mask.any():
            env.reset(options={"reset_mask": mask})


def steps_of(number, mode, steps=STEPS):
    """How many of an environment's steps are transitions: in NEXT_STEP one after each end is not."""
    if mode != AutoresetMode.NEXT_STEP:
        return steps
    done, left = 0, steps
    for ends in (t[2] or t[3] for t in transitions(number, steps, 2 + number)):
        if left <= 0:
            break
        done, left = done + 1, left - 1 - ends
    return done


def check(records, mode):
    for number in range(N):
        own = [r for r in records if r["observation"][0] == number]
        assert recorded(own) == transitions(number, steps_of(number, mode), 2 + number)
    assert len(records) == sum(steps_of(number, mode) for number in range(N))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("copy", [True, False])
def test_each_environment_is_recorded_as_if_alone(mode, copy):
    """Also where the vector gives its own arrays; the true last observation is there, and no reset is a transition."""
    shelf = Shelf()
    env = VectorGymRecorder(SyncVectorEnv(makers(mode), copy=copy, autoreset_mode=mode), shelf)
    play(env, mode)
    check(shelf.records, mode)
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, SAME])
def test_environments_in_processes(mode):
    """With shared memory, which each step overwrites."""
    shelf = Shelf()
    env = VectorGymRecorder(AsyncVectorEnv(makers(mode), copy=False, autoreset_mode=mode), shelf, batch_size=5)
    play(env, mode)
    env.close()
    check(shelf.records, mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nested_spaces(server, make_buffer, mode):
    """Dict, Tuple and Text, on every server."""
    buffer = make_buffer()
    env = VectorGymRecorder(SyncVectorEnv(makers(mode, Nested), autoreset_mode=mode), buffer, batch_size=7)
    play(env, mode, action=lambda i: (np.full(N, i), np.ones((N, 2), np.int8)))
    env.close()
    records = list(buffer.records())
    flat = [{k: v["at"] if "obs" in k else v for k, v in r.items()} for r in records]
    check(flat, mode)
    for r in records:
        for side in ("observation", "next_observation"):
            time = int(r[side]["at"][2])
            assert (int(r[side]["more"]["0"]), r[side]["more"]["1"]) == (time, str(time))


class Batched(VectorWrapper):
    """Tells final observations as one batch, as environments on accelerators do."""

    def step(self, actions):
        *rest, infos = self.env.step(actions)
        if "final_obs" in infos:
            infos["final_obs"] = np.stack([np.full(3, -1, "f4") if o is None else o for o in infos["final_obs"]])
        return *rest, infos


def test_final_observations_in_one_array():
    shelf = Shelf()
    inner = Batched(SyncVectorEnv(makers(SAME), autoreset_mode=SAME))
    play(VectorGymRecorder(inner, shelf), SAME)
    check(shelf.records, SAME)


class Silent(VectorWrapper):
    """Does not tell what it promised."""

    def step(self, actions):
        *rest, _ = self.env.step(actions)
        return *rest, {}


def test_a_final_observation_that_is_missing_is_told():
    """Rather than the first one of the next episode recorded in its place."""
    shelf = Shelf()
    env = VectorGymRecorder(Silent(SyncVectorEnv(makers(SAME), autoreset_mode=SAME)), shelf)
    with pytest.raises(ArgumentError, match="final_obs"):
        play(env, SAME)
    assert recorded(shelf.records) == [transitions(i, 1, 2 + i)[0] for i in range(N)]


def test_the_mode_must_be_known():
    """An environment that does not tell it needs the argument, and is recorded by it."""
    inner = SyncVectorEnv(makers(None))
    del inner.metadata["autoreset_mode"]
    with pytest.raises(ArgumentError, match="autoreset_mode"):
        VectorGymRecorder(inner, Shelf())
    shelf = Shelf()
    play(VectorGymRecorder(inner, shelf, autoreset_mode="NextStep"), AutoresetMode.NEXT_STEP)
    check(shelf.records, AutoresetMode.NEXT_STEP)


def test_ended_environments_wait_for_their_reset():
    """DISABLED, stepped on by a vector that allows it: what is beyond an end is no record."""

    class Lenient(SyncVectorEnv):
        def step(self, actions):
            self._autoreset_envs[:] = False
            return super().step(actions)

    shelf = Shelf()
    env = VectorGymRecorder(Lenient(makers(None), autoreset_mode=AutoresetMode.DISABLED), shelf)
    env.reset()
    for _ in range(4):
        env.step(np.zeros(N, int))
    assert [sum(r["observation"][0] == number for r in shelf.records) for number in range(N)] == [2, 3, 4]


def test_a_reset_of_some_leaves_the_others_alone():
    """Whatever the vector gives in their places."""

    class Blank(VectorWrapper):
        def reset(self, *, seed=None, options=None):
            mask = (options or {}).get("reset_mask", np.ones(N, bool))
            observation, infos = self.env.reset(seed=seed, options=options)
            return observation * mask[:, None], infos

    shelf = Shelf()
    env = VectorGymRecorder(Blank(SyncVectorEnv(makers(None), autoreset_mode="Disabled")), shelf)
    play(env, AutoresetMode.DISABLED)
    check(shelf.records, AutoresetMode.DISABLED)


def test_a_reset_of_all_begins_all_anew():
    """Also those that had just ended: their next step is a transition."""
    shelf = Shelf()
    env = VectorGymRecorder(SyncVectorEnv(makers(None)), shelf)
    env.reset()
    for _ in range(2):
        env.step(np.zeros(N, int))
    env.reset()
    env.step(np.zeros(N, int))
    assert [r["observation"].tolist() for r in shelf.records[-N:]] == [[number, 1, 0] for number in range(N)]
    assert len(shelf.records) == 3 * N


def test_a_step_before_the_first_reset_is_refused():
    shelf = Shelf()
    with pytest.raises(ResetNeeded):
        VectorGymRecorder(SyncVectorEnv(makers(None)), shelf).step(np.zeros(N, int))
    assert shelf.records == []
