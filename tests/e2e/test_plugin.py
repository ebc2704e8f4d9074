"""The shipped pytest plugin gives users buffers on fakeredis."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where redis-replay is installed, pytest finds the plugin by itself; from a bare source tree it has to be named.
INSTALLED = entry_points(group="pytest11", name="redis_replay")
PLUGIN = [] if INSTALLED else ["-p", "redis_replay.testing"]


@pytest.fixture
def run_suite(tmp_path):
    """Runs a user's test file with the plugin alone; gives what pytest printed."""

    def run(text, *, before=""):
        (tmp_path / "test_user.py").write_text(text)
        (tmp_path / "conftest.py").write_text(before)
        command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "-q"]
        arguments = ["-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
        )
        return done.stdout + done.stderr

    return run


def test_pytest_finds_the_plugin_by_itself_when_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"redis_replay": "redis_replay.testing"}
    assert {point.value for point in INSTALLED} <= {"redis_replay.testing"}


def test_a_user_gets_an_empty_buffer(run_suite):
    text = """
def test_it(fake_replay_buffer):
    assert len(fake_replay_buffer) == 0
    fake_replay_buffer.add({"x": 1.0})
    assert len(fake_replay_buffer) == 1

def test_the_next_test_has_its_own(fake_replay_buffer):
    assert len(fake_replay_buffer) == 0
"""
    assert "2 passed" in run_suite(text)


def test_two_handles_of_one_name_are_one_buffer(run_suite):
    text = """
def test_it(replay_buffer_factory):
    actor, learner = replay_buffer_factory("a"), replay_buffer_factory("a")
    actor.add({"x": 1.0})
    assert len(learner) == 1
    assert len(replay_buffer_factory("b", capacity=5)) == 0
"""
    assert "1 passed" in run_suite(text)


def test_buffers_are_closed_after_the_test(run_suite):
    text = """
import pytest
from redis_replay.exceptions import BufferClosedError
kept = []

def test_it(fake_replay_buffer):
    kept.append(fake_replay_buffer)

def test_after_it():
    with pytest.raises(BufferClosedError):
        kept[0].add({"x": 1.0})
"""
    assert "2 passed" in run_suite(text)


@pytest.mark.parametrize("module", ["fakeredis", "lupa"])
def test_without_fakeredis_only_its_users_fail_and_say_why(run_suite, module):
    text = "def test_plain(): pass\n\ndef test_it(fake_replay_buffer): pass\n"
    printed = run_suite(text, before=f"import sys; sys.modules[{module!r}] = None")
    assert "1 passed, 1 error" in printed
    assert "pip install 'redis-replay[testing]'" in printed
