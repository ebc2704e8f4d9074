"""One handle that many threads share."""

import threading
import time

import pytest

from redis_replay import _core, samplers
from redis_replay.exceptions import BufferClosedError, ReplayTimeoutError
from tests._helpers import SOON, wait_until
from tests._waiting import Running, blocked, record, records, tags

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


class Storm:
    """16 threads on one handle: 8 sample and 8 write, while another opens and ends waits, until `stop` is set."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.stop = threading.Event()
        self.written = [0] * 8
        self.got = [[] for _ in range(8)]
        self.errors = []

    def _until_stopped(self, call):
        while not self.stop.is_set():
            try:
                call()
            except ReplayTimeoutError:
                pass
            except Exception as error:
                self.errors.append(error)
                return

    def _sample(self, i):
        self.got[i] += tags(self.buffer.sample(1, wait=True, timeout=0.2))

    def _write(self, i):
        self.buffer.add(record(8 * self.written[i] + i))
        self.written[i] += 1

    def _wait(self):
        self.buffer.wait_until_sampleable(self.buffer.capacity, timeout=0.01)
        self.buffer.wait_until_sampleable(1, timeout=0.01)

    def run(self, seconds):
        """Lets it rage. Gives the tags that were written, and those that were drawn, in order."""
        calls = [lambda i=i: self._sample(i) for i in range(8)] + [lambda i=i: self._write(i) for i in range(8)]
        threads = [threading.Thread(target=self._until_stopped, args=(call,)) for call in [*calls, self._wait]]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        written = sorted(8 * n + i for i, count in enumerate(self.written) for n in range(count))
        return written, sorted(tag for got in self.got for tag in got)


@pytest.fixture(params=[2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(120)])])
def storm(request, server, make_buffer):
    """A storm that is over, on a buffer that has kept everything, and what it wrote and drew."""
    storm = Storm(make_buffer(capacity=1_000_000, poll_interval=5, **QUEUE))
    return storm, *storm.run(request.param)


def test_threads_meet_no_error(storm):
    """Threads that share a handle meet nothing but timeouts, each record is counted once, and none is lost or doubled."""
    raging, written, drawn = storm
    rest = [int(r["i"]) for r in raging.buffer.records()]
    stats = raging.buffer.stats()
    assert raging.errors == []
    assert sorted(drawn + rest) == written
    assert (stats["write_count"], stats["consumed"], stats["waiters"]) == (len(written), len(drawn), 0)
    assert raging.buffer.doctor().ok


def test_each_thread_is_woken_in_time(server, make_buffer):
    """Waits of 8 threads on one handle, fed one record at a time, each end soon, and half (noise only adds) in 0.5 s."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    calls = [Running(buffer.sample, 1, wait=True) for _ in range(8)]
    blocked(writer, 8)
    delays = []
    for n in range(8):
        written_at = time.monotonic()
        writer.add(record(n))
        wait_until(lambda: sum(call.is_over for call in calls) == len(delays) + 1, description="one more that is over")
        delays.append(max(call.ended_at for call in calls) - written_at)
    assert (sorted(delays)[3] < 0.5, max(delays) < SOON) == (True, True)


def test_threads_drain_a_queue_once(server, make_buffer):
    """8 threads that sample from one handle get each of 4,000 records once."""
    buffer = make_buffer(capacity=4_000, batch_size=16, consume_after_n_samples=1)
    buffer.extend(records(4_000))
    buffer.shutdown()
    calls = [Running(lambda: [tag for batch in buffer for tag in tags(batch)]) for _ in range(8)]
    assert sorted(tag for call in calls for tag in call.result(20)) == list(range(4_000))


def test_close_ends_waits_of_all_threads(server, make_buffer):
    """`close()` ends the waits of 8 threads with BufferClosedError, and returns when they are over."""
    buffer, other = make_buffer(**QUEUE), make_buffer(**QUEUE)
    calls = [Running(buffer.sample, 1, wait=True) for _ in range(8)]
    blocked(other, 8)
    buffer.close()
    assert [call.how(timeout=SOON) for call in calls] == [BufferClosedError] * 8
    assert other.stats()["waiters"] == 0


def test_closing_from_many_threads_is_quiet(server, make_buffer):
    """Closing from several threads at once raises nothing."""
    buffer = make_buffer()
    buffer.add(record(1))
    assert [call.error() for call in [Running(buffer.close) for _ in range(8)]] == [None] * 8


def test_wait_is_handed_from_reader_to_reader(server, make_buffer):
    """When the thread that reads notices for all is served and leaves, those behind it are still woken."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    reader = Running(buffer.sample, 1, wait=True)
    blocked(writer)
    others = [Running(buffer.sample, 1, wait=True) for _ in range(3)]
    blocked(writer, 4)
    writer.add(record(0))
    assert reader.how() == [0]
    writer.extend(records(3, 1))
    assert sorted(call.how(timeout=SOON)[0] for call in others) == [1, 2, 3]


def test_more_calls_than_lanes_queue(server, make_buffer, monkeypatch):
    """Calls beyond the number of lanes queue within their own timeout, and are served when a lane is free."""
    monkeypatch.setattr(_core, "LANES", 2)
    buffer, writer = make_buffer(**QUEUE), make_buffer(**QUEUE)
    waits = [Running(buffer.sample, 1, wait=True) for _ in range(2)]
    blocked(writer, 2)
    with pytest.raises(ReplayTimeoutError, match="a free lane"):
        buffer.sample(1, wait=True, timeout=0.1)
    queued = Running(buffer.sample, 1, wait=True, timeout=5)
    writer.extend(records(3))
    assert sorted(call.how()[0] for call in [*waits, queued]) == [0, 1, 2]
    buffer.close()
    writer.close()
