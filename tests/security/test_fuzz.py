"""The decoder against bytes that no encoder made: a typed error with the index, soon, and without much memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_no_bytes_surprise_the_decoder(seed):
    """Cut records, lying lengths, 10,000 levels, 1,000 seeds of up to 1 MB of noise for each kind of record; and schemas."""
    words = [sys.executable, "-X", "faulthandler", "tests/security/_fuzz.py", str(seed)]
    done = subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert (found["slowest_s"] < 1, found["grown_bytes"] < 100e6, found["refused"] > 8000) == (True, True, True), found


def test_nothing_of_ours_unpickles():
    """No module imports pickle, or hands bytes to what can run code: the doors are looked for by name."""
    doors = (
        "import pickle",
        "pickle.load",
        "allow_pickle=True",
        "torch.load",
        "marshal",
        "cloudpickle.load",
        "eval(",
        "yaml.load",
    )
    for path in (ROOT / "redis_replay").rglob("*.py"):
        text = path.read_text()
        assert [door for door in doors if door in text.replace("literal_eval(", "")] == [], path
