"""torchrl is an extra: without it this folder is skipped by a person, and fails in CI."""

from importlib.util import find_spec

from tests._server import missing


def test_torchrl_is_installed():
    if find_spec("torchrl") is None:
        missing("torchrl")
