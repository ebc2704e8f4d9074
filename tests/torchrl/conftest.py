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


@pytest.fixture
def pair(server, make, name):
    """Gives `pair(a, b, options=, **of_the_ensemble)`: an ensemble of two buffers with `a` and `b` records, 0 up and 100 up."""
    from redis_replay.torchrl import ReplayBufferEnsemble
    from tests._torchrl import data

    made = []

    def build(a, b, options=None, **more):
        members = [make(buffer_name=f"{name}-{k}", **(options or {})) for k in range(2)]
        for low, n, member in ((0, a, members[0]), (100, b, members[1])):
            if n:
                member.extend(data(low, low + n))
        made.append(ReplayBufferEnsemble(*members, **{"batch_size": 8, "seed": 0} | more))
        return made[-1]

    yield build
    for ensemble in made:
        ensemble.close()
