"""What is installed from the wheel works without the source tree, and holds every script as it is here."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "lua").rglob("*.lua"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

USE = """
import sys, pathlib, numpy as np, fakeredis, redis_replay
assert pathlib.Path(redis_replay.__file__).is_relative_to(sys.argv[1]), redis_replay.__file__
from redis_replay import ReplayBuffer
with ReplayBuffer(fakeredis.FakeRedis(), "wheel", capacity=100, seed=1) as buffer:
    index = buffer.extend({"x": np.arange(10, dtype=np.float32), "y": np.arange(10)})
    data, info = buffer.sample(4, return_info=True)
    assert (data["x"] == data["y"]).all() and set(info.index) <= set(index), (data, info)
    print(len(buffer), buffer.stats()["size"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist, which is built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(".git", ".venv", "dist", ".*_cache"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(tree)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with nothing but the wheel's content, unpacked as pip would."""
    folder = tmp_path_factory.mktemp("installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder),
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def run(code, installed, *arguments):
    """Runs `code` in a process that finds the installed wheel first, and works in an empty folder."""
    empty = installed / "empty"
    empty.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(installed)
    command = [sys.executable, "-c", code, str(installed), *arguments]
    return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)


def test_every_script_is_in_the_wheel_byte_for_byte(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = sorted(name for name in archive.namelist() if name.endswith(".lua"))
        assert held == [f"redis_replay/{script}" for script in SCRIPTS]
        assert [script for script in SCRIPTS if archive.read(f"redis_replay/{script}") != (ROOT / script).read_bytes()] == []


def test_every_module_and_the_type_marker_are_in_the_wheel(wheel):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "redis_replay").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith(".lua")}
    assert held == modules | {"redis_replay/py.typed"}


def test_the_installed_wheel_has_every_verb(installed):
    code = "from redis_replay import _lua; print(*_lua.verbs()); [_lua.load(verb) for verb in _lua.verbs()]"
    done = run(code, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [script[4:-4] for script in SCRIPTS if "include" not in script]


def test_the_installed_wheel_writes_and_samples(installed):
    done = run(USE, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "10 10\n"


def test_the_wheel_needs_what_the_core_needs_and_no_more(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    needs = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert sorted(line.split()[1].partition(">")[0] for line in needs) == ["msgpack", "numpy", "redis[hiredis]"]
