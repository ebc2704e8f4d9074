"""Fixtures of the tests of limits."""

import pytest


@pytest.fixture
def client(_any_server):
    """A client of the test's server, to look at what is stored."""
    return _any_server.client()


@pytest.fixture
def configure(real_server, client):
    """Gives `configure(name, value)`: CONFIG SET for the time of the test."""
    before = {}

    def set_it(name, value):
        before.setdefault(name, client.config_get(name)[name])
        client.config_set(name, value)

    yield set_it
    for name, value in before.items():
        client.config_set(name, value)
