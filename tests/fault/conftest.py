"""Fixtures of the tests of faults."""

import contextlib

import pytest

from tests._proxy import Proxy


@pytest.fixture
def proxy(real_server):
    """A byte proxy before the server, which harms nothing yet."""
    with contextlib.closing(Proxy(real_server.url)) as made:
        yield made
