"""Fixtures of the tests of waiting: handles of each kind, and processes of our own."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests._waiting import open_handle


@pytest.fixture(scope="module")
def processes():
    """Other processes, started at first use and kept: `submit` runs a function of tests._workers in one of them."""
    with ProcessPoolExecutor(8, multiprocessing.get_context("spawn")) as pool:
        pool.submit(int).result(20)
        yield pool


@pytest.fixture
def open_kind(_any_server, name, make_buffer):
    """Gives `open_kind(kind, **options)`: a handle of that kind on the test's buffer, which exists already."""
    handles = []

    def open_one(kind, **options):
        if "unpickled" in kind and not _any_server.is_real:
            pytest.skip("a handle on fakeredis lives in its process and does not pickle")
        handles.append(open_handle(kind, _any_server, name, **options))
        return handles[-1]

    yield open_one
    for handle in handles:
        handle.end()


@pytest.fixture
def client(_any_server):
    """A client of the test's server."""
    return _any_server.client()
