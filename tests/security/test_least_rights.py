"""The whole contract holds for a user that has the documented rights and no others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_the_contract_holds_with_least_rights(kind):
    """Every contract test passes when buffers, in this process and in others, may do what docs/security.md grants."""
    environ = os.environ | {"REDIS_REPLAY_TEST_LEAST_RIGHTS": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract"]
    words += ["-k", f"({kind}) and not ({'redis' if kind == 'valkey' else 'valkey'} or fakeredis)"]
    done = subprocess.run(words, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=880)
    assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout[-4000:]
