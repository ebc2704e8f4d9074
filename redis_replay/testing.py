"""A pytest plugin: replay buffers on fakeredis, for the unit tests of programs that use one. No server is needed.

    def test_actor_writes_a_step(replay_buffer_factory):
        buffer = replay_buffer_factory(capacity=10)
        run_actor(buffer, steps=1)
        assert len(buffer) == 1

It is there as soon as `redis-replay[testing]` is installed. All buffers of one test live on one fake server, so two
handles with the same name are one buffer, as two processes would see it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from redis_replay import ReplayBuffer

__all__ = ["fake_replay_buffer", "replay_buffer_factory"]


def _fake_server() -> tuple[Any, Any]:
    """The `fakeredis` module and a new server of it, or a failure that says what to install."""
    try:
        import fakeredis
        import lupa  # type: ignore[import-untyped,unused-ignore]  # without it, fakeredis has no Lua
    except ImportError as error:
        text = f"redis-replay's pytest fixtures need fakeredis with Lua: pip install 'redis-replay[testing]' ({error})"
        pytest.fail(text, pytrace=False)
    del lupa
    return fakeredis, fakeredis.FakeServer()


@pytest.fixture
def replay_buffer_factory() -> "Iterator[Callable[..., ReplayBuffer]]":
    """A function `make(name="test", *, capacity=1000, **options)` that gives a `ReplayBuffer` on this test's server.

    All that it made is closed when the test ends, and the server is gone then.
    """
    from redis_replay import ReplayBuffer

    fakeredis, server = _fake_server()
    handles: list[ReplayBuffer] = []

    def make(name: str = "test", *, capacity: int = 1000, **options: Any) -> ReplayBuffer:
        handles.append(ReplayBuffer(fakeredis.FakeRedis(server=server), name, capacity=capacity, **options))
        return handles[-1]

    yield make
    for handle in handles:
        handle.close()


@pytest.fixture
def fake_replay_buffer(replay_buffer_factory: "Callable[..., ReplayBuffer]") -> "ReplayBuffer":
    """An empty `ReplayBuffer` named "test" with a capacity of 1000, on a fake server of this test's own."""
    return replay_buffer_factory()
