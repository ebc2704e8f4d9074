"""Every test of this folder has a buffer on one server: what is under test is in front of it."""

import pytest


@pytest.fixture
def server(request, no_thread_is_left):
    """As everywhere, but of one kind."""
    from tests.conftest import _serve

    yield from _serve(request, "fakeredis")


@pytest.fixture
def chunks(monkeypatch):
    """Small chunks, so that a few records are several; gives the lengths of all that are written."""
    from redis_replay import ReplayBuffer
    from redis_replay.transfer import _flow

    lengths, extend = [], ReplayBuffer.extend

    def counted(self, batch, **options):
        index = extend(self, batch, **options)
        lengths.append(len(index))
        return index

    monkeypatch.setattr(_flow.chunk_rows, "__defaults__", (_flow.CHUNK_BYTES, 7))
    monkeypatch.setattr(ReplayBuffer, "extend", counted)
    return lengths
