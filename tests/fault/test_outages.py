"""Connections that are reset, refused, or dead without a word: seen in time, and told in one line for each end."""

import threading

import pytest

from redis_replay import _ops_wait, _ops_write, _requests, _wakeup, _wire, samplers
from redis_replay.exceptions import OutcomeUnknownError
from tests._helpers import SOON, wait_until
from tests._server import turns
from tests._waiting import Running, blocked, open_handle, record, records, tags

pytestmark = pytest.mark.fault
TURNS = pytest.mark.parametrize(("handle", "real_server"), turns(), indirect=True)
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


@pytest.fixture
def writer(make_buffer):
    """A handle that goes past the proxy."""
    return make_buffer(**QUEUE)


@pytest.fixture
def handle(request, proxy, writer, name):
    """A handle through the proxy, which has written and drawn once. Its poll does not help it."""
    made = open_handle(request.param, None, name, target=proxy.url, poll_interval=30)
    made.run("add", record(-1))
    made.run("sample", 1)
    yield made
    made.end()


def lines(caplog):
    """What was logged of connections."""
    return [r.getMessage() for r in caplog.records if r.name == "redis_replay" and "waiting for" not in r.getMessage()]


def told_once(caplog):
    """Whether there is one line of the loss, and one of its end."""
    wait_until(lambda: len(lines(caplog)) > 1, 3, "both lines")
    return ["is lost" in line for line in lines(caplog)] == [True, False]


# One line for each end


@TURNS
@pytest.mark.parametrize("resets", [False, True])
def test_loss_is_told_once(proxy, writer, handle, caplog, resets):
    """Where every connection ends, by FIN or by reset, a write and a wait go on, and one line tells each end."""
    call = handle.start("sample", batch_size=2, timeout=10)
    blocked(writer)
    proxy.resets = resets
    proxy.cut()
    handle.run("add", record(0))
    writer.add(record(1))
    assert (call.how(timeout=SOON), told_once(caplog)) == ([0, 1], True)


@TURNS
@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_kill_is_told_once(real_server, writer, handle, caplog, kind):
    """CLIENT KILL of subscriptions, or of all others, is told once, and ends soon, without the poll."""
    call = handle.start("sample", batch_size=2, timeout=10)
    blocked(writer)
    real_server.client().execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    handle.run("add", record(0))
    handle.run("add", record(1))
    assert (call.how(timeout=SOON), told_once(caplog)) == ([0, 1], True)


@TURNS
def test_outage_is_told_once_however_many_try(proxy, real_server, writer, handle, caplog):
    """A second during which every connection is refused or ends: 8 waits and a write make few tries, and one line."""
    calls = [handle.start("sample", batch_size=1, timeout=20) for _ in range(8)]
    blocked(writer, 8)
    before = proxy.arrived
    proxy.requests = lambda _: 0
    proxy.cut()
    write = Running(handle.run, "add", record(0))
    threading.Event().wait(1)
    tries, told = proxy.arrived - before, len(lines(caplog))
    proxy.requests = lambda _: None
    writer.extend(records(7, 1))
    assert (write.error(), sorted(t for c in calls for t in c.how(timeout=5))) == (None, list(range(8)))
    assert (told, tries < 200, told_once(caplog)) == (1, True, True)


@TURNS
def test_what_an_outage_took_is_not_told_later(proxy, writer, handle, caplog):
    """A subscription that was lost in an outage, and is found so only after it, is no outage of its own."""
    handle.start("wait_until_sampleable", min_items=1, timeout=0.05).error()
    proxy.cut()
    handle.run("add", record(0))
    handle.run("sample", 1)
    told = told_once(caplog)
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    writer.add(record(1))
    assert (call.how(timeout=SOON), told, len(lines(caplog))) == ([1], True, 2)


@TURNS
def test_two_outages_are_told_twice(proxy, handle, caplog):
    """What was told once is told again when it happens again."""
    for tag in range(2):
        proxy.cut()
        handle.run("add", record(tag))
    assert ["is lost" in line for line in lines(caplog)] == [True, False, True, False]


@TURNS
def test_quiet_network_is_not_told(handle, caplog):
    """Without a fault there is no line."""
    handle.run("add", record(0))
    assert (tags(handle.run("sample", 1)), lines(caplog)) == ([0], [])


# Subscriptions


@TURNS
def test_dead_subscription_is_opened_anew(proxy, writer, handle, monkeypatch, caplog):
    """A subscription that is dead without a word is asked, and opened anew, while the wait goes on; then the wait looks."""
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    monkeypatch.setattr(_wire, "PING_SECONDS", 0.3)
    monkeypatch.setattr(_wire, "PONG_SECONDS", 0.3)
    proxy.strand()
    writer.add(record(7))
    assert (call.how(timeout=SOON), told_once(caplog)) == ([7], True)


@TURNS
def test_silent_subscription_is_kept(proxy, writer, handle, monkeypatch, caplog):
    """A subscription that is silent, and answers, is asked now and then, and nothing else comes of it."""
    monkeypatch.setattr(_wire, "PING_SECONDS", 0.1)
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    before = proxy.arrived
    threading.Event().wait(1)
    asked, opened = proxy.arrived - before, handle.buffer._now.listener.generation
    writer.add(record(7))
    assert (call.how(), 2 <= asked < 12, opened, lines(caplog)) == ([7], True, 1, [])


@TURNS
def test_subscription_that_ends_at_once_is_not_chased(proxy, writer, handle, monkeypatch):
    """A subscription that is had and lost again and again is opened twice a second, no more, and no wait is lost by it."""
    monkeypatch.setattr(_wakeup, "REOPEN_SECONDS", 0.5)
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    before = handle.buffer._now.listener.generation
    proxy.replies = lambda data: len(data) if b"subscribe" in data else None
    proxy.cut()
    threading.Event().wait(1.2)
    opened = handle.buffer._now.listener.generation - before
    proxy.replies = lambda data: None
    writer.add(record(7))
    assert (opened <= 4, call.how(timeout=SOON)) == (True, [7])


@TURNS
def test_overrun_subscription_is_opened_anew(real_server, writer, handle):
    """A subscriber that the server cut because too much was sent to it is back with its next wait, without its poll."""
    client = real_server.client()
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    writer.add(record(0))
    assert call.how() == [0]
    client.config_set("client-output-buffer-limit", "pubsub 16kb 0 0")
    channel = handle.buffer._now.core.channel
    try:
        with client.pipeline(transaction=True) as flood:
            for _ in range(4_000):
                flood.publish(channel, "x" * 1_000)
            flood.execute()
        call = handle.start("sample", batch_size=1, timeout=20)
        blocked(writer)
        wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 1, 3, "the subscription")
        writer.add(record(1))
        assert call.how(timeout=SOON) == [1]
    finally:
        client.config_set("client-output-buffer-limit", "pubsub 33554432 8388608 60")


@TURNS
def test_notices_are_few_and_tiny(real_server, writer, handle, name):
    """What is published is no more than a line for each wait that is woken, however much is written, and nothing else."""
    with real_server.client().pubsub() as spy:
        spy.psubscribe(f"*{name}*")
        wait_until(lambda: spy.get_message(timeout=1), description="the confirmation")
        for tag in range(5):
            call = handle.start("sample", batch_size=1, timeout=20)
            blocked(writer)
            for more in range(20):
                writer.add(record(100 * tag + more))
            assert call.how() == [100 * tag]
            writer.empty()
        found = []
        while message := spy.get_message(timeout=0.2):
            found.append(message["data"])
    assert (5 <= len(found) <= 10, max(map(len, found)) <= 64) == (True, True), found


# Half-open sockets, and servers that are gone


@TURNS
def test_half_open_connection_is_left(proxy, handle, monkeypatch):
    """A call on a connection that is dead without a word ends in time; the next one has a new connection."""
    for module in (_requests, _ops_write):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    proxy.strand()
    call = Running(handle.run, "add", record(0))
    assert (call.how(), call.seconds < SOON) == (OutcomeUnknownError, True)
    handle.run("add", record(1))
    assert tags(handle.run("sample", 1)) == [1]


@TURNS
def test_garbled_reply_costs_the_connection(handle):
    """Bytes that are no reply of a server end their connection, and the question is asked again on another."""
    handle.buffer._now.connection._idle[-1]._reader.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert handle.run("stats")["write_count"] == 1


@TURNS
def test_timeout_is_longer_than_patience(proxy, writer, handle, monkeypatch):
    """A wait with a timeout of its own outlives an outage that ends within it, though one without would have given up."""
    monkeypatch.setattr(_ops_wait, "PATIENCE_SECONDS", 0.1)
    call = handle.start("sample", batch_size=1, timeout=20)
    blocked(writer)
    proxy.requests = lambda _: 0
    proxy.cut()
    threading.Event().wait(1.5)
    proxy.requests = lambda _: None
    writer.add(record(7))
    assert call.how(timeout=SOON) == [7]
