"""The leak check finds what a test leaves, passes over what is named, and cleans up."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from tests import _leaks
from tests._leaks import Leaves

ROOT = Path(__file__).parents[2]


@pytest.fixture
def briefly(monkeypatch):
    """What is left for good is given 0.2 s to end."""
    monkeypatch.setattr(_leaks, "SETTLE_SECONDS", 0.2)


def leaves(*args, **kwargs):
    return Leaves(pytest.mark.leaves(*args, **kwargs).mark)


def test_a_clean_server_has_no_leak(server):
    client = server.client()
    client.set("a", 1)
    client.delete("a")
    assert _leaks.leaked_from_server(server, Leaves(None)) == {}


def test_a_left_key_is_found_and_removed(server):
    server.client().set("rr:{x}:config", 1)
    assert _leaks.leaked_from_server(server, Leaves(None)) == {"keys": ["rr:{x}:config"]}
    assert server.client().dbsize() == 0


def test_a_left_connection_is_found_and_closed(real_server, briefly):
    other = redis.Redis.from_url(real_server.url, client_name="forgotten")
    other.ping()
    found = _leaks.leaked_from_server(real_server, Leaves(None))
    assert found == {"connections": ["forgotten (last command ping)"]}
    assert _leaks.leaked_from_server(real_server, Leaves(None)) == {}
    other.close()


def test_a_left_subscription_is_found(real_server, briefly):
    client = redis.Redis.from_url(real_server.url)
    with client.pubsub() as subscription:
        subscription.subscribe("rr:{x}:wake:1")
        found = _leaks.leaked_from_server(real_server, Leaves(None))
    assert found == {"connections": ["unnamed (last command subscribe)"]}
    client.close()


def test_a_left_thread_is_found(briefly):
    release = threading.Event()
    before = set(threading.enumerate())
    thread = threading.Thread(target=release.wait, name="forgotten")
    thread.start()
    try:
        assert _leaks.leaked_threads(before, Leaves(None)) == ["forgotten"]
        assert _leaks.leaked_threads(before, leaves("a reason", threads="forgot*")) == []
    finally:
        release.set()
        thread.join()


def test_a_named_exemption_lets_only_that_key_pass(server):
    client = server.client()
    client.mset({"foreign": 1, "other": 1})
    assert _leaks.leaked_from_server(server, leaves("a reason", keys="foreign")) == {"keys": ["other"]}


def test_an_exemption_without_a_reason_is_refused():
    with pytest.raises(pytest.UsageError, match="starts with a reason"):
        leaves(keys="foreign")


def test_an_exemption_of_an_unknown_kind_is_refused():
    with pytest.raises(pytest.UsageError, match="'scripts'"):
        leaves("a reason", scripts="*")


SUITE = """
import threading
import pytest

def test_leaves_a_key(server):
    server.client().set("left", 1)

def test_after_it_the_server_is_clean(server):
    assert server.client().dbsize() == 0

@pytest.mark.leaves("it is foreign", keys="left")
def test_may_leave_a_key(server):
    server.client().set("left", 1)

def test_leaves_a_thread():
    threading.Timer(1.5, lambda: None).start()

def test_fails_and_leaves_a_key(server):
    server.client().set("left", 1)
    assert False, "its own reason"
"""


def test_a_test_that_leaves_something_fails(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-k", "fakeredis or thread", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    summary = done.stdout.rpartition("short test summary info")[2]
    verdicts = [line.split()[:2] for line in summary.splitlines() if line.startswith(("ERROR", "FAILED"))]
    assert sorted((word, test.partition("::")[2]) for word, test in verdicts) == [
        ("ERROR", "test_leaves_a_key[fakeredis]"),
        ("ERROR", "test_leaves_a_thread"),
        ("FAILED", "test_fails_and_leaves_a_key[fakeredis]"),
    ]
    assert "left behind: keys: ['left']" in done.stdout
    assert "left behind: threads: ['Thread-" in done.stdout
