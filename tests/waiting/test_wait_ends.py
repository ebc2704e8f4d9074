"""Waits across the end of a buffer or a handle: shut down, reopened, drained, closed; and what a wait logs."""

import logging
import threading
from itertools import pairwise

import pytest

from redis_replay import _ops_wait, samplers
from redis_replay.exceptions import BufferClosedError, BufferGoneError, BufferShutDownError
from tests._helpers import SOON, wait_until
from tests._waiting import Frozen, Running, blocked, deaf, record, records, tags

QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


@pytest.fixture
def queue(server, make_buffer):
    """A handle on a queue, for writing and looking."""
    return make_buffer(**QUEUE)


@pytest.fixture
def reader(queue, make_buffer):
    """Gives `reader(**options)`: another handle on the queue, which polls every half minute only."""
    return lambda **options: make_buffer(attach=True, **{"poll_interval": 30} | options)


def test_wait_across_a_reopen_ends(queue, reader):
    """A wait that missed a shutdown ends with it, even if the buffer is open again and has a batch."""
    buffer = reader(poll_interval=0.3)
    deaf(buffer._now.listener)
    call = Running(buffer.sample, 2, wait=True)
    blocked(queue)
    queue.shutdown()
    queue.reopen()
    queue.extend(records(2))
    assert (call.how(timeout=SOON), len(queue)) == (BufferShutDownError, 2)


def test_wait_after_a_reopen_goes_on(queue, reader):
    """A wait that begins after the buffer was opened again knows nothing of the shutdown."""
    queue.shutdown()
    queue.reopen()
    call = Running(reader().sample, 2, wait=True)
    blocked(queue)
    queue.extend(records(2))
    assert call.how() == [0, 1]


def test_deleted_and_created_anew_is_gone(queue, reader, make_buffer):
    """A wait on a deleted buffer ends, even if another one has its name and a batch."""
    buffer = reader(poll_interval=0.3)
    deaf(buffer._now.listener)
    call = Running(buffer.sample, 2, wait=True)
    blocked(queue)
    anew = make_buffer(fresh=True, **QUEUE)
    anew.extend(records(2))
    assert (call.how(timeout=SOON), len(anew)) == (BufferGoneError, 2)


def test_keys_deleted_by_hand_end_waits(server, queue, reader):
    """A wait whose buffer somebody flushed away ends within the poll interval."""
    call = Running(reader(poll_interval=0.3).sample, 2, wait=True)
    blocked(queue)
    server.client().flushall()
    assert call.how(timeout=SOON) == BufferGoneError


def test_drain_gives_rest_to_first_waiter(queue, reader):
    """Draining hands the rest to the first in line as a short batch marked last, and ends the others."""
    calls = []
    for n in range(3):
        calls.append(Running(reader().sample, 4, return_info=True, wait=True))
        blocked(queue, n + 1)
    queue.extend(records(3))
    queue.shutdown()
    batch, info = calls[0].result()
    assert (tags(batch), info.last) == ([0, 1, 2], True)
    assert [type(call.error()) for call in calls[1:]] == [BufferShutDownError] * 2
    assert queue.stats()["state"] == "shut"


def test_drain_gives_full_batches_first(queue, reader):
    """Draining gives full batches while there are any; only the last is short and says so."""
    queue.extend(records(5))
    queue.shutdown()
    buffer = reader()
    got = [buffer.sample(2, return_info=True, wait=True, timeout=1) for _ in range(3)]
    assert [(tags(batch), info.last) for batch, info in got] == [([0, 1], False), ([2, 3], False), ([4], True)]


def test_drain_waits_for_a_notified_reader(queue, reader):
    """What is owed to a reader with a turn is not given to others by draining; and all is handed out once."""
    frozen = Frozen(reader())
    first = Running(frozen.buffer.sample, 2, wait=True)
    blocked(queue)
    second = Running(reader().sample, 2, wait=True)
    blocked(queue, 2)
    queue.extend(records(3))
    queue.shutdown()
    frozen.thaw()
    assert sorted(first.how() + second.how(timeout=SOON)) == [0, 1, 2]


def test_drain_of_an_empty_queue_ends_waits(queue, reader):
    """With nothing left to give, draining shuts the buffer at once."""
    calls = [Running(reader().sample, 2, wait=True) for _ in range(2)]
    blocked(queue, 2)
    queue.shutdown()
    assert [call.how() for call in calls] == [BufferShutDownError] * 2


def test_shutdown_without_drain_keeps_records(queue, reader):
    """Without draining the waits end at once, and what is stored stays for a reopen."""
    call = Running(reader().sample, 4, wait=True)
    blocked(queue)
    queue.extend(records(3))
    queue.shutdown(drain=False)
    assert call.how() == BufferShutDownError
    queue.reopen()
    assert tags(queue.sample(3)) == [0, 1, 2]


def test_interrupted_wait_leaves_the_line(queue, reader):
    """A wait that an exception of any kind ends has left the line when the exception arrives."""
    buffer = reader()

    class Broken:
        looks = 0

        def is_set(self):
            self.looks += 1
            if self.looks > 3:
                raise KeyError("the caller's own")
            return False

    with pytest.raises(KeyError):
        buffer.sample(2, wait=True, cancel_event=Broken())
    assert queue.stats()["waiters"] == 0


def test_closing_leaves_no_lane(queue, reader):
    """A closed handle has no lane, no hold and no waiter on the server."""
    before = queue.stats()["lanes"]
    buffer = reader()
    calls = [Running(buffer.sample, 2, wait=True) for _ in range(3)]
    blocked(queue, 3)
    buffer.close()
    assert [call.how() for call in calls] == [BufferClosedError] * 3
    stats = queue.stats()
    assert (stats["lanes"], stats["holds"], stats["waiters"]) == (before, 0, 0)


def test_iteration_drains_and_stops(queue, reader):
    """A loop over the buffer gets all of it, the short rest included, and ends at the shutdown."""
    buffer = reader(batch_size=2)
    call = Running(lambda: [tags(batch) for batch in buffer])
    blocked(queue)
    queue.extend(records(5))
    queue.shutdown()
    assert call.result() == [[0, 1], [2, 3], [4]]


def test_foreign_message_ends_no_wait(server, queue, reader, name):
    """A message that is not ours, on a channel of ours, harms nobody."""
    buffer = reader()
    call = Running(buffer.sample, 1, wait=True)
    blocked(queue)
    for message in (b"\xff\x00junk", b"", b"wake", b"wake nobody", b"other " + b"x" * 1000):
        server.client().publish(buffer._now.core.channel, message)
    queue.add(record(7))
    assert call.how(timeout=SOON) == [7]


# The log line


def test_wait_logs_what_is_missing(queue, reader, monkeypatch, caplog):
    """A long wait says what it waits for, what it has and what it needs."""
    monkeypatch.setattr(_ops_wait, "LOG_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "redis_replay")
    queue.extend(records(1))
    event = threading.Event()
    call = Running(reader(poll_interval=0.02).sample, 4, wait=True, cancel_event=event)
    wait_until(lambda: caplog.records, description="a line in the log")
    event.set()
    call.error()
    line = caplog.records[0].getMessage()
    assert (repr(queue.name) in line, "a batch of 4" in line, "have 1, need 4" in line) == (True, True, True)


def test_wait_logs_now_and_then(queue, reader, monkeypatch, caplog):
    """Between two lines of one wait there are at least LOG_SECONDS, however often it looks."""
    monkeypatch.setattr(_ops_wait, "LOG_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, "redis_replay")
    buffer = reader(poll_interval=0.01)
    Running(buffer.sample, 4, wait=True, timeout=1).error()
    made = [line.created for line in caplog.records]
    gaps = [after - before for before, after in pairwise(made)]
    assert (len(made) >= 2, min(gaps) > 0.19, buffer.local_stats.wakeups_by_poll > len(made)) == (True, True, True)


def test_short_wait_logs_nothing(queue, caplog):
    """A wait of less than 10 s leaves no line."""
    caplog.set_level(logging.WARNING, "redis_replay")
    Running(queue.sample, 4, wait=True, timeout=0.3).error()
    assert (caplog.records, _ops_wait.LOG_SECONDS) == ([], 10)
