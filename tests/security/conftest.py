"""Fixtures of the tests of security."""

import pytest

from redis_replay import _ops_admin
from tests._rights import rights, url_of, user


@pytest.fixture
def soon(monkeypatch):
    """Opening gives up after 0.3 s instead of 1.5."""
    monkeypatch.setattr(_ops_admin.open_buffer, "__defaults__", (0.3,))
    monkeypatch.setattr(_ops_admin, "OPEN_SECONDS", 0.3)


@pytest.fixture
def client(real_server):
    return real_server.client()


@pytest.fixture
def url(real_server, client, name):
    """The address for a user with the documented rights on the buffer of this test, and no others."""
    with user(client, rights(name=name)):
        yield url_of(real_server)
