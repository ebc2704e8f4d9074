"""Fixtures of all tests. A test that asks for `server` runs on fakeredis, Valkey and Redis; for `real_server`, on two.

`make_buffer(...)` and `make_async_buffer(...)` give buffers on the test's server, closed and deleted at its end. Then
the leak check looks for keys, threads and connections that are still there (`tests/_leaks.py`).
"""

import contextlib
import gc
import hashlib
import os
import random
import signal
import threading

import hypothesis
import pytest

from redis_replay.exceptions import ReplayError
from tests import _leaks
from tests._server import KINDS, REAL, Server

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")

_SEED = "REDIS_REPLAY_TEST_SEED"
_failed = pytest.StashKey[bool]()


def pytest_configure(config):
    os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(2**32)))  # workers inherit it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job: interrupts are under test


def pytest_collection_finish(session):
    """What was imported and collected stays to the end: no `gc.collect()`, here or in a forked child, walks it again."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config):
    return f"seed of random tests: {os.environ[_SEED]} (set {_SEED} to repeat a run)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def _report(request, leaked):
    """Fail a test that passed but left something. After a failure its leaks would hide the cause."""
    if leaked and not request.node.stash.get(_failed, False):
        pytest.fail("left behind: " + "; ".join(f"{what}: {found}" for what, found in leaked.items()), pytrace=False)


@pytest.fixture
def seed(request):
    """A number for a test's random choices: of the run's seed and the test's name, and printed when it fails."""
    text = f"{os.environ[_SEED]} {request.node.nodeid}"
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    print(f"seed = {value}")
    return value


@pytest.fixture
def name(request):
    """A buffer name that no other test has."""
    return f"t-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:10]}-{os.getpid()}"


@pytest.fixture(autouse=True)
def no_thread_is_left(request):
    """After each test, and after all its other fixtures: no thread that would keep the process from ending."""
    leaves = _leaks.Leaves(request.node.get_closest_marker("leaves"))
    before = set(threading.enumerate())
    yield
    threads = _leaks.leaked_threads(before, leaves)
    _report(request, {"threads": threads} if threads else {})


def _serve(request, kind):
    made = Server(kind)
    yield made
    leaves = _leaks.Leaves(request.node.get_closest_marker("leaves"))
    _report(request, _leaks.leaked_from_server(made, leaves))


@pytest.fixture(params=KINDS)
def server(request, no_thread_is_left):
    """A server with nothing on it: fakeredis, Valkey and Redis in turn. See `tests/_server.py` for what it offers."""
    yield from _serve(request, request.param)


@pytest.fixture(params=REAL)
def real_server(request, no_thread_is_left):
    """As `server`, on Valkey and Redis alone, for what the fake cannot do."""
    yield from _serve(request, request.param)


@pytest.fixture
def _any_server(request):
    """The test's own server, under whichever name it asked for it."""
    for fixture in ("server", "real_server"):
        if fixture in request.fixturenames:
            return request.getfixturevalue(fixture)
    raise pytest.UsageError("a test that makes buffers asks for `server` or `real_server`, too")


def _delete(server, names):
    from redis_replay import ReplayBuffer
    from redis_replay.exceptions import BufferDamagedError, BufferNotFoundError

    for name in names:
        with contextlib.suppress(BufferNotFoundError):
            try:
                handle = ReplayBuffer(server.target(), name)
            except BufferDamagedError:  # a test took its config away
                handle = ReplayBuffer(server.target(), name, capacity=1, fresh=True)
            handle.delete()


def end(server, handles, names):
    """Deletes the buffers, by handles that are there: to open another one would take longer than most tests."""
    for handle in handles:
        with contextlib.suppress(ReplayError):
            handle.delete()
    client = server.client()
    left = [name for name in names if next(client.scan_iter(match=f"rr:{{{name}}}:*", count=1000), None) is not None]
    _delete(server, left)


@pytest.fixture
def make_buffer(_any_server, name):
    """Gives `make(name=None, *, target=None, **options)`: a `ReplayBuffer`, with a capacity of 100 if none is given.

    `make(attach=True)` leaves the capacity out. All handles are closed, and all buffers deleted, at the end.
    """
    from redis_replay import ReplayBuffer

    handles, direct, names = [], [], set()

    def make(buffer_name=None, *, target=None, attach=False, **options):
        if not attach:
            options.setdefault("capacity", 100)
        names.add(buffer_name or name)
        handles.append(ReplayBuffer(target or _any_server.target(), buffer_name or name, **options))
        if target is None:
            direct.append(handles[-1])
        return handles[-1]

    yield make
    end(_any_server, direct, names)
    for handle in handles:
        handle.close()


@pytest.fixture
async def make_async_buffer(_any_server, name):
    """As `make_buffer`, for `AsyncReplayBuffer`. It opens at its first await."""
    from redis_replay import AsyncReplayBuffer

    handles, names = [], set()

    def make(buffer_name=None, *, target=None, attach=False, **options):
        if not attach:
            options.setdefault("capacity", 100)
        names.add(buffer_name or name)
        handles.append(AsyncReplayBuffer(target or _any_server.async_target(), buffer_name or name, **options))
        return handles[-1]

    yield make
    for handle in handles:
        await handle.close()
    await _any_server.close_async()
    _delete(_any_server, names)
