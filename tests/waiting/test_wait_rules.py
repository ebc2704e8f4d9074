"""The rules of a wait: which reason counts, what a timeout means, who stands in the line and in which order."""

import math
import threading
import time

import pytest

from redis_replay import ReplayBuffer, samplers
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferShutDownError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
    StalledError,
)
from tests._helpers import SOON, wait_until
from tests._waiting import Frozen, Running, blocked, deaf, record, records, tags

QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


class Set:
    """A cancel_event that is set."""

    @staticmethod
    def is_set():
        return True


@pytest.fixture
def queue(server, make_buffer):
    """A handle on a queue, for writing and looking."""
    return make_buffer(**QUEUE)


@pytest.fixture
def reader(queue, make_buffer):
    """Gives `reader(**options)`: another handle on the queue, which polls every half minute only."""
    return lambda **options: make_buffer(attach=True, **{"poll_interval": 30} | options)


# Which reason counts


def test_shutdown_comes_before_cancelled(queue):
    """A cancelled wait on a buffer that is shut down says that it is shut down."""
    queue.shutdown()
    with pytest.raises(BufferShutDownError):
        queue.sample(1, wait=True, cancel_event=Set())


def test_cancelled_comes_before_ready(queue):
    """A wait whose event is set takes nothing, though a batch is there."""
    queue.extend(records(2))
    with pytest.raises(ReplayCancelledError):
        queue.sample(2, wait=True, cancel_event=Set())
    assert len(queue) == 2


def test_ready_comes_before_timed_out(queue, reader):
    """A wait that missed its notice looks once more at its timeout, and takes the batch."""
    buffer = reader()
    deaf(buffer._now.listener)
    call = Running(buffer.sample, 2, wait=True, timeout=0.4)
    blocked(queue)
    queue.extend(records(2))
    assert (call.how(), call.seconds >= 0.4) == ([0, 1], True)


def test_late_reply_still_gives_batch(queue, reader):
    """A batch that was handed out is returned, even when its reply comes after the timeout."""
    queue.extend(records(2))
    buffer = reader()
    run = buffer._now.connection.run

    def slowly(step):
        reply = run(step)
        time.sleep(0.2)
        return reply

    buffer._now.connection.run = slowly
    assert tags(buffer.sample(2, wait=True, timeout=0.1)) == [0, 1]


def test_timeout_tells_have_and_need(queue):
    """With 63 of 64 records the timeout says so, and the buffer is as it was."""
    queue.extend(records(63))
    with pytest.raises(ReplayTimeoutError, match=r"have 63, need 64") as caught:
        queue.sample(64, wait=True, timeout=0.05)
    assert (caught.value.have, caught.value.need, len(queue)) == (63, 64, 63)


# What a timeout means

WAITS = {
    "sample": lambda b, t: b.sample(1, wait=True, timeout=t),
    "sample without wait": lambda b, t: b.sample(1, timeout=t),
    "wait_until_sampleable": lambda b, t: b.wait_until_sampleable(1, timeout=t),
}


@pytest.mark.parametrize("there", [0, 1])
@pytest.mark.parametrize("way", WAITS)
@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (-1, ArgumentError),
        (math.nan, ArgumentError),
        (-math.inf, ArgumentError),
        (True, ArgumentTypeError),
        ("1", ArgumentTypeError),
        ([], ArgumentTypeError),
    ],
)
def test_bad_timeout_is_always_refused(queue, way, timeout, error, there):
    """A timeout that is none is refused, whether or not the call would wait, and nothing is taken."""
    if there:
        queue.extend(records(1))
    with pytest.raises(error, match="timeout"):
        WAITS[way](queue, timeout)
    assert len(queue) == there


@pytest.mark.parametrize("timeout", [-1, math.nan, True, "1"])
def test_bad_timeout_of_attach_is_refused(queue, name, timeout):
    """`attach` refuses them, too, even where the buffer exists."""
    with pytest.raises((ArgumentError, ArgumentTypeError), match="timeout"):
        ReplayBuffer.attach(queue._setup.address.url or queue, name, timeout=timeout)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
def test_wait_keeps_its_own_timeout(queue, reader, timeout):
    """A wait ends at its timeout: not before it, and not at its poll, which would be half a minute later."""
    call = Running(reader().sample, 1, wait=True, timeout=timeout)
    assert (call.how(), timeout <= call.seconds < timeout + SOON) == (ReplayTimeoutError, True)


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_wait_without_end_is_interruptible(queue, reader, timeout):
    """None and inf wait on, through many polls, until something ends it."""
    buffer = reader(poll_interval=0.01)
    call = Running(buffer.sample, 1, wait=True, timeout=timeout)
    wait_until(lambda: buffer.local_stats.wakeups_by_poll > 20, description="polls")
    queue.add(record(7))
    assert call.how() == [7]


def test_timeout_zero_registers_nothing(queue):
    """`timeout=0` asks once: no waiter, no subscription, no arrival in the line."""
    with pytest.raises(ReplayTimeoutError):
        queue.sample(1, wait=True, timeout=0)
    assert queue.wait_until_sampleable(1, timeout=0) is False
    assert (queue.stats()["waiters"], queue._now.listener._pubsub, queue.local_stats.waits) == (0, None, 0)


def test_refused_sample_registers_nothing(queue):
    """`sample` without `wait` leaves no waiter."""
    with pytest.raises(NotReadyError):
        queue.sample(1)
    assert queue.stats()["waiters"] == 0


def test_timeout_goes_by_callers_clock(queue, reader):
    """When the caller's monotonic clock has passed the deadline, the wait has timed out."""
    buffer, ahead = reader(poll_interval=0.05), []
    buffer._now.core.clock = lambda: time.monotonic() + sum(ahead)
    call = Running(buffer.sample, 1, wait=True, timeout=1000)
    blocked(queue)
    ahead.append(1001)
    assert call.how(timeout=SOON) == ReplayTimeoutError


def test_wall_clock_ends_no_wait(queue, reader, monkeypatch):
    """A wall clock that is set forward by a day ends no wait."""
    buffer, now = reader(poll_interval=0.05), time.time
    call = Running(buffer.sample, 1, wait=True, timeout=1000)
    blocked(queue)
    monkeypatch.setattr(time, "time", lambda: now() + 86400)
    polls = buffer.local_stats.wakeups_by_poll
    wait_until(lambda: buffer.local_stats.wakeups_by_poll > polls + 3, description="more polls")
    queue.add(record(7))
    assert call.how() == [7]


DAY_US = 86400 * 10**6


def set_server_clock(server, name, us):
    """Has the buffer's scripts see the server's clock set by so many microseconds."""
    server.client().hincrby(f"rr:{{{name}}}:counters", "clock_offset", us)


def test_server_clock_set_back_delays_nothing(server, queue, reader, name):
    """When the server's clock goes back by a day, a wait is woken, and another times out, as if nothing had been."""
    call = Running(reader().sample, 2, wait=True)
    blocked(queue)
    set_server_clock(server, name, -DAY_US)
    late = Running(reader().sample, 3, wait=True, timeout=0.3)
    assert (late.how(), late.seconds < SOON) == (ReplayTimeoutError, True)
    queue.extend(records(2))
    assert call.how(timeout=SOON) == [0, 1]


def test_server_clock_set_forward_costs_a_poll(server, queue, reader, name):
    """When it goes forward by a day, which ends every registration, a wait ends within its poll interval."""
    call = Running(reader(poll_interval=0.3).sample, 2, wait=True)
    blocked(queue)
    set_server_clock(server, name, DAY_US)
    queue.extend(records(2))
    assert call.how(timeout=SOON) == [0, 1]


@pytest.mark.parametrize("how", ["client", "url"])
def test_short_socket_timeout_shortens_no_wait(real_server, make_buffer, how):
    """A wait that is longer than the socket timeout of the user's client is kept."""
    parts = "&" if "?" in real_server.url else "?"
    client = real_server.client(socket_timeout=0.1)
    target = client if how == "client" else f"{real_server.url}{parts}socket_timeout=0.1"
    call = Running(make_buffer(target=target).sample, 1, wait=True, timeout=0.8)
    assert (call.how(), 0.8 <= call.seconds < SOON) == (ReplayTimeoutError, True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["client", "url"])
def test_socket_timeout_of_a_second_keeps_five(real_server, make_buffer, how):
    """With a socket timeout of 1 s, a wait of 5 s is kept, and a record put at 3 s arrives within it."""
    parts = "&" if "?" in real_server.url else "?"
    client = real_server.client(socket_timeout=1)
    target = client if how == "client" else f"{real_server.url}{parts}socket_timeout=1"
    buffer = make_buffer(target=target)
    empty = Running(buffer.sample, 1, wait=True, timeout=5)
    assert (empty.how(timeout=7), 5 <= empty.seconds < 5 + SOON) == (ReplayTimeoutError, True)
    call = Running(buffer.sample, 1, wait=True, timeout=5)
    assert not call.thread.join(3)
    buffer.add(record(3))
    assert (call.how(), call.seconds < SOON) == ([3], True)


def test_cancel_event_is_seen_soon(queue):
    """A cancel_event is looked at every 0.1 s: the quickest of five waits ends within that of its setting."""

    def delay():
        event = threading.Event()
        call = Running(queue.sample, 1, wait=True, cancel_event=event)
        blocked(queue)
        set_at = time.monotonic()
        event.set()
        return [call.how(), call.ended_at - set_at]

    ends, delays = zip(*(delay() for _ in range(5)), strict=True)
    assert (set(ends), min(delays) < 0.15) == ({ReplayCancelledError}, True)


def test_cancel_event_is_only_looked_at_if_given(queue, reader, monkeypatch):
    """Without a cancel_event a wait rests for longer than 0.1 s at a time."""
    buffer, rests = reader(), []
    pubsub_read = buffer._now.listener._read
    monkeypatch.setattr(buffer._now.listener, "_read", lambda seconds: (rests.append(seconds), pubsub_read(seconds)))
    call = Running(buffer.sample, 1, wait=True, timeout=0.6)
    assert (call.how(), max(rests) > 0.1) == (ReplayTimeoutError, True)


# Who stands in the line


LEAVINGS = {
    "ready": lambda queue, buffer, event: queue.extend(records(2)),
    "cancelled": lambda queue, buffer, event: event.set(),
    "closed": lambda queue, buffer, event: buffer.close(),
    "shut down": lambda queue, buffer, event: queue.shutdown(),
    "timed out": lambda queue, buffer, event: None,
}


@pytest.mark.parametrize("way", ["sample", "wait_until_sampleable"])
@pytest.mark.parametrize("reason", LEAVINGS)
def test_waiter_leaves_when_its_wait_ends(queue, reader, way, reason):
    """However a wait ends, nobody stands in the line after it."""
    buffer, event = reader(batch_size=2), threading.Event()
    options = {"timeout": 0.2 if reason == "timed out" else 30, "cancel_event": event}
    call = Running(getattr(buffer, way), **options, **({"wait": True} if way == "sample" else {}))
    if reason != "timed out":
        blocked(queue)
    LEAVINGS[reason](queue, buffer, event)
    call.error()
    assert queue.stats()["waiters"] == 0


def test_waiter_that_missed_polls_is_dropped(queue, reader):
    """Who has not polled for three intervals holds up nobody."""
    frozen = Frozen(reader(poll_interval=0.05))
    call = Running(frozen.buffer.sample, 9, wait=True)
    blocked(queue)
    queue.extend(records(1))
    behind = Running(reader(poll_interval=0.05).sample, 1, wait=True)
    assert behind.how(timeout=SOON) == [0]
    frozen.thaw()
    queue.extend(records(9, 1))
    assert call.how() == list(range(1, 10))


def test_turn_that_ran_out_goes_last(queue, reader):
    """Who does not use its turn goes to the end of the line: the next notice is for those who came after it."""
    frozen, last = Frozen(reader()), reader()
    told = spy(last._now.listener)
    first = Running(frozen.buffer.sample, 1, wait=True)
    blocked(queue)
    second = Running(reader().sample, 1, wait=True)
    blocked(queue, 2)
    third = Running(last.sample, 1, wait=True)
    blocked(queue, 3)
    queue.add(record(10))
    got = [second.how(timeout=SOON)]
    queue.add(record(11))
    got.append(third.how(timeout=SOON))
    frozen.thaw()
    queue.add(record(12))
    assert ([*got, first.how()], told) == ([[10], [11], [12]], ["wake"])


def test_next_in_line_is_told_to_stand_by(queue, reader):
    """While one has its turn, the next in line alone is told to stand by, and looks when the turn has run out."""
    frozen = Frozen(reader())
    Running(frozen.buffer.sample, 1, wait=True)
    blocked(queue)
    second, third = reader(), reader()
    told = [spy(buffer._now.listener) for buffer in (second, third)]
    call = Running(second.sample, 1, wait=True)
    blocked(queue, 2)
    Running(third.sample, 1, wait=True)
    blocked(queue, 3)
    queue.add(record(1))
    assert (call.how(timeout=SOON), told) == ([1], [["standby"], []])
    frozen.thaw()


def spy(listener):
    """The kinds of notices that a listener has taken in, as they come."""
    kinds, put = [], listener.put

    def note(found):
        if found and found["type"] == "message" and b" " in found["data"]:
            kinds.append(found["data"].split()[0].decode())
        put(found)

    listener.put = note
    return kinds


def test_newcomer_does_not_overtake_a_turn(queue, reader):
    """What is owed to a notified wait is nobody else's: a newcomer finds too few."""
    frozen = Frozen(reader())
    call = Running(frozen.buffer.sample, 2, wait=True)
    blocked(queue)
    queue.extend(records(3))
    with pytest.raises(NotReadyError) as caught:
        queue.sample(2)
    frozen.thaw()
    assert (caught.value.have, call.how()) == (1, [0, 1])


def test_waits_that_take_nothing_all_wake(server, make_buffer):
    """Where draws take nothing away, all whose need is met are woken, once each; the others sleep on."""
    writer = make_buffer()
    buffer = make_buffer(poll_interval=30)
    calls = [Running(buffer.wait_until_sampleable, need) for need in (2, 2, 2, 5)]
    blocked(writer, 4)
    writer.extend(records(2))
    assert [call.how(timeout=SOON) for call in calls[:3]] == [True] * 3
    assert (calls[3].is_over, writer.stats()["notices"]) == (False, 3)


def test_emptied_and_refilled_buffer_wakes(queue, reader):
    """A wait outlives an `empty()`, and the next records wake it."""
    queue.extend(records(1))
    call = Running(reader().sample, 2, wait=True)
    blocked(queue)
    queue.empty()
    queue.extend(records(2, 5))
    assert call.how(timeout=SOON) == [5, 6]


def test_emptied_turn_passes_to_refill(queue, reader):
    """A wait that was notified, and finds the buffer emptied, waits on and gets its place's next batch."""
    frozen = Frozen(reader())
    call = Running(frozen.buffer.sample, 2, wait=True)
    blocked(queue)
    queue.extend(records(2))
    queue.empty()
    frozen.thaw()
    wait_until(lambda: frozen.buffer.local_stats.wakeups_by_poll, description="its look at the empty buffer")
    queue.extend(records(2, 5))
    assert call.how(timeout=SOON) == [5, 6]


# Nobody writes


def test_a_wait_that_stalls_says_so(queue, reader):
    """No write for as long as the wait allows: it ends with what it saw, and has left the line."""
    queue.extend(records(3))
    began = time.monotonic()
    with pytest.raises(StalledError) as caught:
        reader().sample(5, wait=True, stall_timeout=0.4)
    error = caught.value
    assert (error.have, error.need, error.writers, error.stall_timeout_s) == (3, 5, 1, 0.4)
    assert 0.4 <= error.idle_s < SOON
    assert 0.4 <= time.monotonic() - began < SOON
    assert queue.stats()["waiters"] == 0


def test_a_buffer_that_was_never_written_stalls_too(queue, reader):
    """The wait itself is the measure then; also of a wait that takes nothing."""
    with pytest.raises(StalledError) as caught:
        reader().wait_until_sampleable(1, stall_timeout=0.2)
    assert (caught.value.idle_s, caught.value.writers) == (math.inf, 0)


def test_what_is_lent_is_told_with_the_reason(queue, reader, server):
    """All records are in readers' hands: each error of a draw that found too few says how many."""
    queue.extend(records(4))
    holder = reader()
    holder.sample(3, lease=100.0)
    waits = {NotReadyError: {}, ReplayTimeoutError: {"timeout": 0.05}, StalledError: {"stall_timeout": 0.05}}
    for kind, how in waits.items():
        with pytest.raises(kind) as caught:
            reader().sample(2, wait=bool(how), **how)
        assert (caught.value.have, caught.value.leased, "3 more are lent" in str(caught.value)) == (1, 3, True)


def test_a_write_puts_the_stall_off(queue, reader):
    """Counted from the last write, whether or not it was enough for anybody."""
    call = Running(reader().sample, 5, wait=True, stall_timeout=0.6)
    blocked(queue)
    time.sleep(0.4)
    queue.add(record(0))
    time.sleep(0.4)
    assert not call.is_over
    queue.extend(records(4, 1))
    assert call.how() == [0, 1, 2, 3, 4]


def test_an_idle_buffer_is_given_the_whole_time(queue, reader, client):
    """A write long ago does not end a wait that has only begun."""
    queue.extend(records(3))
    client.hincrby(f"rr:{{{queue.name}}}:counters", "clock_offset", 3_600_000_000)
    call = Running(reader().sample, 5, wait=True, stall_timeout=0.5)
    blocked(queue)
    queue.extend(records(2, 3))
    assert call.how() == [0, 1, 2, 3, 4]


def test_the_timeout_comes_before_the_stall(queue, reader):
    """Whichever is first."""
    with pytest.raises(ReplayTimeoutError):
        reader().sample(5, wait=True, timeout=0.2, stall_timeout=5)


def test_stats_tell_who_writes(queue, make_buffer, client):
    """Live writers, and the age of the last write: one that closed is none, nor is one that has been silent for a minute."""
    assert (queue.stats()["writers"], queue.stats()["seconds_since_write"]) == (0, -1)
    queue.extend(records(1))
    with make_buffer(attach=True) as other:
        other.extend(records(1))
        stats = queue.stats()
        assert stats["writers"] == 2
        assert 0 <= stats["seconds_since_write"] < 2
    assert queue.stats()["writers"] == 1
    client.hincrby(f"rr:{{{queue.name}}}:counters", "clock_offset", 61_000_000)
    assert queue.stats()["writers"] == 0
    assert 61 <= queue.stats()["seconds_since_write"] < 63


@pytest.mark.parametrize("wrong", [-1, math.nan])
def test_a_stall_timeout_is_checked_like_a_timeout(queue, wrong):
    """Whether or not the call would wait."""
    with pytest.raises(ArgumentError, match="stall_timeout"):
        queue.sample(1, stall_timeout=wrong)
    with pytest.raises(ArgumentTypeError, match="stall_timeout"):
        queue.wait_until_sampleable(1, stall_timeout=True)
