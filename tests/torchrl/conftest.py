"""Fixtures of the tests against the installed torchrl: the stable one, or the nightly one (`make nightly`)."""

from importlib.util import find_spec

import pytest

if find_spec("torchrl") is None:
    collect_ignore_glob = ["test_[!m]*.py"]  # all but test_missing.py, which says so


@pytest.fixture
def make(_any_server, name):
    """Gives `make(kind=RedisReplayBuffer, buffer_name=None, *, attach=False, **options)`: a handle on the test's server."""
    from redis_replay.torchrl import RedisReplayBuffer
    from tests.conftest import end

    handles, names = [], set()

    def made(kind=RedisReplayBuffer, buffer_name=None, *, target=None, attach=False, **options):
        if not attach:
            options.setdefault("capacity", 100)
        names.add(buffer_name or name)
        build = kind.attach if attach else kind
        handles.append(build(target or _any_server.target(), buffer_name or name, **options))
        return handles[-1]

    yield made
    end(_any_server, [handle.buffer for handle in handles], names)
    for handle in handles:
        handle.close()
