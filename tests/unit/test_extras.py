"""What a module says whose libraries are not installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("gymnasium", "gymnasium", "gym"),
        ("torch", "torch", "torch"),
        ("stable_baselines3", "stable_baselines3", "sb3"),
        ("torchrl", "torchrl", "torchrl"),
        ("torchrl", "tensordict", "torchrl"),
    ],
)
def test_a_missing_library_names_its_extra(module, missing, extra):
    program = f"import sys; sys.modules[{missing!r}] = None; import redis_replay.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    said = f"ModuleNotFoundError: redis_replay.{module} needs {missing}: pip install 'redis-replay[{extra}]'"
    assert done.stderr.splitlines()[-1] == said
