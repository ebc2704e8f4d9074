"""Fixtures of the contract tests."""

import pytest

from tests._contract import LARGE, SMALL, RawLane, Records


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def records(request):
    """Numbered records: a test that asks for them runs over both ways of writing and of fetching."""
    return Records(request.param)


@pytest.fixture
def small():
    """Numbered records of a few bytes, where the way they travel does not matter."""
    return Records(SMALL)


@pytest.fixture
def client(_any_server):
    """A client of the test's server, to look at what is stored."""
    return _any_server.client()


@pytest.fixture
def make_raw(client, name):
    """Gives `make(lane="raw")`: a registered lane on the test's buffer, for requests that the test numbers itself."""
    return lambda lane="raw": RawLane(client, name, lane).register()
