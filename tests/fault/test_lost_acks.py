"""Leases whose ack or release got no reply: what became of it is learnt, and nothing is ended twice and called late."""

import signal

import pytest

from redis_replay import AsyncReplayBuffer, _ops_lease, _ops_wait, _requests, samplers
from redis_replay._lua import load, verbs
from redis_replay._types import LeasesEnded
from redis_replay.exceptions import OutcomeUnknownError
from tests._server import turns
from tests._waiting import open_handle, records, tags

pytestmark = pytest.mark.fault
TURNS = pytest.mark.parametrize(("lent", "real_server"), turns(), indirect=True)
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1, "lease": 60}


@pytest.fixture(autouse=True)
def quick_calls(monkeypatch):
    """Calls without a timeout of their own give up after 0.3 s instead of five."""
    for module in (_requests, _ops_lease, _ops_wait):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(_ops_wait, "GRACE_SECONDS", 0.1)


@pytest.fixture
def direct(real_server, make_buffer):
    """A handle that no fault touches, on a buffer with the records 0 to 9; all scripts are loaded."""
    for verb in verbs():
        real_server.client().script_load(load(verb).text)
    made = make_buffer(capacity=100, **QUEUE)
    made.extend(records(10))
    return made


@pytest.fixture
def lent(request, proxy, direct, name, caplog):
    """A handle behind the proxy, of either kind, that was lent record 0; and the lease."""
    made = open_handle(request.param, None, name, target=proxy.url)
    data, info = made.run("sample", 1, True)
    assert tags(data) == [0]
    yield made, info.lease
    made.end()
    assert [line.getMessage() for line in caplog.records if "lease" in line.getMessage()] == []


def counts(buffer):
    """How the leases of the buffer ended."""
    found = buffer.stats()
    return {name: found[name] for name in ("consumed", "leased", "late")}


WAYS = {"reply": ("replies", True), "request": ("requests", False)}
LOST = pytest.mark.parametrize("lost", WAYS)
VERBS = pytest.mark.parametrize("verb", ["ack", "release"])


def lose(proxy, lost, call, *args):
    """A call of which the request or the reply is lost, until it gives up."""
    setattr(proxy, WAYS[lost][0], lambda data: 0)
    with pytest.raises(OutcomeUnknownError) as caught:
        call(*args)
    setattr(proxy, WAYS[lost][0], lambda data: None)
    return caught.value


@pytest.fixture
def reader(make_buffer, direct, proxy):
    """A handle behind the proxy, whose thread was lent record 0; and the lease."""
    made = make_buffer(target=proxy.url, attach=True)
    return made, made.sample(1, return_info=True)[1].lease


@LOST
@pytest.mark.parametrize("way", ["ack", "sample"])
def test_next_draw_acknowledges_once(proxy, direct, reader, lost, way):
    """The next draw of the same thread knows what became of it, whether it was `ack` or another draw that acknowledged."""
    buffer, lease = reader
    lose(proxy, lost, buffer.ack if way == "ack" else buffer.sample, lease if way == "ack" else 1)
    assert [tags(buffer.sample(1)) for _ in range(2)] == [[1], [2]]
    assert counts(direct) == {"consumed": 2, "leased": 1, "late": 0}


@LOST
async def test_next_draw_of_a_task_acknowledges_once(proxy, direct, name, lost):
    """So does that of the same task, while another one asks."""
    async with AsyncReplayBuffer(proxy.url, name) as buffer:
        lease = (await buffer.sample(1, return_info=True))[1].lease
        setattr(proxy, WAYS[lost][0], lambda data: 0)
        with pytest.raises(OutcomeUnknownError):
            await buffer.ack(lease)
        setattr(proxy, WAYS[lost][0], lambda data: None)
        assert [tags(await buffer.sample(1)) for _ in range(2)] == [[1], [2]]
        assert counts(direct) == {"consumed": 2, "leased": 1, "late": 0}


@TURNS
@LOST
@VERBS
def test_call_that_is_made_again_is_not_late(proxy, direct, lent, lost, verb):
    """Who calls it again is told that it ended the lease."""
    handle, lease = lent
    lose(proxy, lost, handle.run, verb, lease)
    assert handle.run(verb, lease) == LeasesEnded(1, 0)
    assert counts(direct) == {"consumed": verb == "ack", "leased": 0, "late": 0}


@TURNS
@LOST
@VERBS
def test_resolve_tells_it_too(proxy, direct, lent, lost, verb):
    """So it is where the error was asked first."""
    handle, lease = lent
    error = lose(proxy, lost, handle.run, verb, lease)
    assert handle.ask(error.resolve).applied is WAYS[lost][1]
    assert handle.run(verb, lease) == LeasesEnded(1, 0)
    assert counts(direct)["late"] == 0


@TURNS
@LOST
def test_closing_acknowledges_once(proxy, direct, lent, lost):
    """And so it is where the handle is closed next."""
    handle, lease = lent
    lose(proxy, lost, handle.run, "ack", lease)
    handle.close()
    assert counts(direct) == {"consumed": 1, "leased": 0, "late": 0}


def test_interrupted_ack_is_not_late(proxy, direct, reader):
    """An ack that a signal ended while its reply was on its way was applied, and is not sent again."""
    buffer, lease = reader
    proxy.delay_s = 0.2

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            buffer.ack(lease)
    finally:
        signal.signal(signal.SIGALRM, before)
    proxy.delay_s = 0.0
    assert tags(buffer.sample(1)) == [1]
    assert counts(direct) == {"consumed": 1, "leased": 1, "late": 0}
