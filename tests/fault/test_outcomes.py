"""Writes whose reply never came in time: the error says which request it was, and what became of it when it is asked."""

import copy
import pickle

import pytest

from redis_replay import _ops_write, _requests, _resolve
from redis_replay._keys import Keys
from redis_replay._lua import load, verbs
from redis_replay.exceptions import BufferClosedError, ConnectionLostError, OutcomeLostError, OutcomeUnknownError
from tests._helpers import SOON, wait_until
from tests._server import turns
from tests._waiting import Running, open_handle, record, records, tags
from tests.fault.test_connections import MAKE, deliver, stored

pytestmark = pytest.mark.fault
TURNS = pytest.mark.parametrize(("handle", "real_server"), turns(), indirect=True)


@pytest.fixture(autouse=True)
def quick_calls(monkeypatch):
    """Calls without a timeout of their own give up after 0.3 s instead of five; `resolve()` does not."""
    for module in (_requests, _ops_write):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)


@pytest.fixture
def direct(make_buffer):
    """A handle that no fault touches, on a buffer with the records 0 to 4."""
    made = make_buffer(capacity=1_000, max_staleness=0)
    made.extend(records(5))
    return made


@pytest.fixture
def handle(request, real_server, proxy, direct, name):
    """A handle behind the proxy that has written once, so that its lane is known; of either kind. All scripts are loaded."""
    for verb in verbs():
        real_server.client().script_load(load(verb).text)
    made = open_handle(request.param, None, name, target=proxy.url)
    made.run("add", record(5))
    yield made
    made.end()


def unknown(handle, call, *args):
    """The error of a write whose reply does not come. It names the call that was made."""
    error = Running(handle.run, call, *args).error()
    assert (type(error), error.verb, f": {call} (request" in str(error)) == (OutcomeUnknownError, call, True)
    return error


def resolved(handle, error):
    """What `resolve()` gives, on either kind of handle."""
    return handle.ask(error.resolve)


def lost(proxy):
    """From now on every reply is lost."""
    proxy.replies = lambda data: 0


def healed(proxy):
    """From now on the network is good."""
    proxy.replies, proxy.kept = lambda data: None, None


WRITES = {  # call, arguments; what the outcome must hold; stored afterwards
    "add": ("add", (record(6),), ([7], 0), 7),
    "extend": ("extend", (records(3, 6),), ([7, 8, 9], 0), 9),
    "remove": ("remove", ([1, 2, 99],), ([], 2), 4),
    "set_version": ("set_version", (1,), ([], 0), 0),
    "empty": ("empty", (), ([], 0), 0),
    "shutdown": ("shutdown", (), ([], 0), 6),
}
EACH = pytest.mark.parametrize("write", WRITES)


@TURNS
@EACH
def test_applied_write_is_told(proxy, direct, handle, write):
    """A write that was applied is told so, with what it gave, every time it is asked; and it was applied once."""
    call, args, expected, left = WRITES[write]
    lost(proxy)
    error = unknown(handle, call, *args)
    healed(proxy)
    outcomes = [resolved(handle, error) for _ in range(2)]
    assert [(o.applied, o.index.tolist(), o.removed) for o in outcomes] == [(True, *expected)] * 2
    assert (len(stored(direct)), direct.doctor().findings) == (left, ())


@TURNS
@EACH
def test_write_that_never_arrived_is_told(proxy, direct, handle, write):
    """A write that never arrived is told so, and its late copy is not applied after that."""
    call, args, _, _ = WRITES[write]
    proxy.kept = late = bytearray()
    error = unknown(handle, call, *args)
    healed(proxy)
    outcomes = [resolved(handle, error) for _ in range(2)]
    deliver(proxy, late)
    assert [(o.applied, o.index.tolist(), o.removed) for o in outcomes] == [(False, [], 0)] * 2
    assert (stored(direct), direct.stats()["state"]) == ([0, 1, 2, 3, 4, 5], "open")


@MAKE
def test_both_ways_of_writing_are_told(proxy, make_buffer, make):
    """Small and large writes: what `resolve()` gives are the indices under which the records are."""
    buffer, reader = make_buffer(target=proxy.url, capacity=1_000), make_buffer(capacity=1_000)
    buffer.extend(make(1))
    proxy.mute = b""  # no reply passes; a cut at the first one could keep the rest of a large write back
    error = Running(buffer.extend, make(3, 1)).error()
    proxy.mute = None
    outcome = error.resolve()
    assert (error.verb, outcome.applied, tags(reader.get(outcome.index))) == ("extend", True, [1, 2, 3])
    assert (reader.write_count, reader.doctor().findings) == (4, ())


@TURNS
def test_answer_outlives_other_calls(proxy, direct, handle):
    """Other calls over the same lane do not lose the answer."""
    lost(proxy)
    error = unknown(handle, "extend", records(2, 6))
    healed(proxy)
    for tag in range(8, 12):
        handle.run("add", record(tag))
    outcome = resolved(handle, error)
    assert (outcome.applied, tags(direct.get(outcome.index))) == (True, [6, 7])
    assert stored(direct) == list(range(12))


@TURNS
def test_answer_is_learnt_by_itself(proxy, direct, handle):
    """An idle handle learns what became of the write; afterwards nobody needs the server to be told."""
    lost(proxy)
    error = unknown(handle, "add", record(6))
    healed(proxy)
    wait_until(lambda: error.question.answer, 3, "the handle to have asked by itself")
    proxy.close()
    assert resolved(handle, error).index.tolist() == [7]


@TURNS
def test_each_of_many_unknown_writes_is_told(proxy, direct, handle):
    """Three writes in a row without a reply: only the first may have been sent, and each call says what it knows."""
    lost(proxy)
    first = unknown(handle, "add", record(6))
    others = [Running(handle.run, "add", record(tag)).how() for tag in (7, 8)]
    healed(proxy)
    assert (resolved(handle, first).applied, others) == (True, [ConnectionLostError] * 2)
    assert stored(direct) == list(range(7))


@TURNS
def test_asking_in_vain_may_be_repeated(proxy, direct, handle, monkeypatch):
    """While the server does not answer, `resolve()` says so in time; later it gives the answer."""
    lost(proxy)
    error = unknown(handle, "add", record(6))
    with monkeypatch.context() as quick:
        quick.setattr(_resolve, "CALL_SECONDS", 0.3)
        asked = Running(resolved, handle, error)
        assert (asked.how(timeout=10), asked.seconds < SOON) == (ConnectionLostError, True)
    healed(proxy)
    assert resolved(handle, error).applied


@TURNS
def test_threads_that_ask_get_one_answer(proxy, direct, handle):
    """Eight threads ask at once while the handle goes on: all are told the same."""
    proxy.kept = bytearray()
    error = unknown(handle, "add", record(6))
    healed(proxy)
    asking = [Running(resolved, handle, error) for _ in range(8)]
    going_on = [Running(handle.run, "add", record(tag)) for tag in (7, 8)]
    assert [call.result().applied for call in asking] == [False] * 8
    assert ([call.error() for call in going_on], sorted(stored(direct))) == ([None] * 2, [0, 1, 2, 3, 4, 5, 7, 8])


@TURNS
def test_closed_handle_says_so(proxy, direct, handle):
    """After `close()` that could not learn the answer, `resolve()` says that the handle was closed."""
    lost(proxy)
    error = unknown(handle, "add", record(6))
    assert Running(handle.close).error() is None
    healed(proxy)
    assert Running(resolved, handle, error).how() is BufferClosedError


@TURNS
def test_closing_learns_the_answer(proxy, direct, handle):
    """`close()` on a good network asks once more, so the error can tell afterwards."""
    lost(proxy)
    error = unknown(handle, "add", record(6))
    healed(proxy)
    handle.close()
    assert resolved(handle, error).applied


@TURNS
def test_forgotten_lane_cannot_be_asked(real_server, proxy, direct, handle, name):
    """Where the server has forgotten the lane, `resolve()` says that it cannot be learnt; the handle goes on."""
    lost(proxy)
    error = unknown(handle, "add", record(6))
    client, keys = real_server.client(), Keys(name)
    client.hdel(keys.key("requests"), error.lane)
    client.zrem(keys.key("lanes"), error.lane)
    healed(proxy)
    assert Running(resolved, handle, error).how() is OutcomeLostError
    handle.run("add", record(7))
    assert stored(direct) == [0, 1, 2, 3, 4, 5, 6, 7]


@TURNS
@pytest.mark.parametrize("trip", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copied", "pickled"])
def test_copied_error_cannot_ask(proxy, direct, handle, trip):
    """A copy of the error, as another process gets it, names the request but cannot ask; it says why."""
    lost(proxy)
    error = trip(unknown(handle, "add", record(6)))
    with pytest.raises(OutcomeLostError, match="a copy"):
        error.resolve()
