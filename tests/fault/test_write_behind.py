"""Write-behind on a line that loses replies, and on a server that is gone: stored once, or told."""

import pytest

from redis_replay import _behind, _ops_behind, _ops_write, _requests
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ConnectionLostError, NotWrittenError, OutcomeUnknownError
from tests import _server
from tests._proxy import now_and_then
from tests._server import turns
from tests._waiting import open_handle, record
from tests.fault.test_connections import stored

pytestmark = pytest.mark.fault
KINDS = pytest.mark.parametrize(("kind", "real_server"), turns(), indirect=["real_server"])


@pytest.fixture
def quick_calls(monkeypatch):
    """Calls without a timeout of their own give up after 0.3 s instead of five."""
    for module in (_requests, _ops_write, _ops_behind, _behind):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)


@KINDS
def test_lost_replies_store_nothing_twice(proxy, make_buffer, name, monkeypatch, kind, seed):
    """200 records in small batches, 1 in 5 replies lost: each is there once, in order."""
    monkeypatch.setattr(_behind, "MOST", 7)
    direct = make_buffer(capacity=5_000)
    handle = open_handle(kind, None, name, target=proxy.url, write_behind=0.001)
    proxy.replies = now_and_then(5, seed)
    for tag in range(200):
        handle.run("add", record(tag))
    handle.run("flush")
    proxy.replies = lambda data: None
    assert (stored(direct), direct.write_count, proxy.cuts > 3) == (list(range(200)), 200, True)
    handle.end()


@KINDS
def test_without_a_retry_an_unknown_outcome_is_asked_for(proxy, make_buffer, name, quick_calls, monkeypatch, kind):
    """What was applied gives its index, and is not written again."""
    monkeypatch.setattr(_requests, "FIRST_BACKOFF", 10.0)
    direct = make_buffer(capacity=100)
    handle = open_handle(kind, None, name, target=proxy.url, write_behind=60)
    handle.run("add", record(0))
    for tag in range(1, 10):
        handle.run("add", record(tag))
        left = [1]

        def lose(data, left=left):
            left[0] -= 1
            return 0 if left[0] >= 0 else None

        proxy.replies = lose
        handle.run("flush")
    assert (stored(direct), direct.write_count) == (list(range(10)), 10)
    handle.end()


@KINDS
def test_a_server_that_is_gone_is_told(kind, real_server, name, quick_calls):
    """By `flush`, and by `close`, in time."""
    server = EmbeddedServer(binary=_server.find(real_server.kind))
    handle = open_handle(kind, None, name, target=server.url, capacity=100, write_behind=60)
    handle.run("add", record(0))
    handle.run("add", record(1))
    server.close()
    with pytest.raises(NotWrittenError) as caught:
        handle.run("flush")
    assert caught.value.n == 1
    assert isinstance(caught.value.__cause__, (ConnectionLostError, OutcomeUnknownError))
    handle.run("add", record(2))
    with pytest.raises(NotWrittenError):
        handle.close()
