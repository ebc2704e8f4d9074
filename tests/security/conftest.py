"""Fixtures of the tests of security."""

import pytest

from tests._rights import rights, url_of, user


@pytest.fixture
def client(real_server):
    return real_server.client()


@pytest.fixture
def url(real_server, client, name):
    """The address for a user with the documented rights on the buffer of this test, and no others."""
    with user(client, rights(name=name)):
        yield url_of(real_server)
