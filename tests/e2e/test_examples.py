"""Each example trains, learns something, and leaves the counters it should and no key behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def cleanrl_dqn(told):
    """Each of the 10,000 steps is a record, but those that only reset; a gradient step for every four after the first 1,000."""
    assert told["last"] > 3 * told["first"]
    assert 10_000 - 4 <= told["write_count"] + told["episodes"] <= 10_000
    assert told["updates"] == (10_000 - 4 - 1_000) // 4


def sb3_dqn(told):
    """It learned, over a save and a load that took the buffer's address along, and nothing was lost between."""
    assert told["after"] > 5 * told["before"]
    assert 10_000 <= told["write_count"] < 10_000 + 2 * 4 * 32
    assert told["pickle_bytes"] < 10_000


def dataloader(told):
    """The model predicts what it could not, from as many batches as it was to have, and the recorder lost no step."""
    assert told["last"] < told["first"] / 100
    assert (told["batches"], told["samples_returned"], told["write_count"]) == (1_000, 64_000, 5_000)


def gym_recorder(told):
    """Both ended well; the actor learned from the learner; and the limiter kept each record's draws at 32."""
    assert told["exit_codes"] == [0, 0]
    assert told["last"] > 2 * told["first"]
    assert told["samples_returned"] == 2_000 * 128
    assert abs(32 * told["write_count"] - told["samples_returned"] - 32 * 1_000) <= 8 * 128


RUNS = {
    "cleanrl_dqn": ("valkey", cleanrl_dqn, []),
    "sb3_dqn": ("redis", sb3_dqn, []),
    "dataloader": ("redis", dataloader, []),
    "gym_recorder": ("valkey", gym_recorder, ["--updates", "2000"]),
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("example", "real_server"), [(k, v[0]) for k, v in RUNS.items()], indirect=["real_server"])
def test_example_trains(example, real_server):
    """As a reader would run it, on a server that is there."""
    _, check, arguments = RUNS[example]
    words = [sys.executable, f"examples/{example}.py", "--url", real_server.url, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=100, env=_environment())
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    check(json.loads(done.stdout.splitlines()[-1]))


def _environment():
    import os

    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_example_needs_no_server():
    """embedded:// is the default of each; one of them shows it, briefly."""
    for path in EXAMPLES:
        assert '"--url", default="embedded://"' in path.read_text()
    words = [sys.executable, "examples/cleanrl_dqn.py", "--total-timesteps", "1200"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=50, env=_environment())
    assert (done.returncode, json.loads(done.stdout.splitlines()[-1])["updates"]) == (0, 49), done.stderr


def test_every_example_is_run():
    """None is without its test."""
    assert [path.stem for path in EXAMPLES] == sorted(RUNS)
