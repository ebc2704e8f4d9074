"""Exceptions that signal handlers raise, at any point of a call: the handle stays right, and nothing is lost or doubled."""

import contextlib
import signal
import time

import numpy as np
import pytest

from redis_replay import samplers
from redis_replay.exceptions import ReplayTimeoutError
from tests._helpers import SOON
from tests._interrupts import At, Interrupt
from tests._proxy import Proxy
from tests._server import REAL
from tests._waiting import Running, blocked, record, records, tags

pytestmark = [
    pytest.mark.fault,
    # a socket that an interrupt kept from its owner is closed when it is collected, and Python says so
    pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
QUEUE = {"capacity": 100_000, "sampler": samplers.Fifo(), "consume_after_n_samples": 1}
SHELL = ("_sync.py", "_drawing.py", "_shell.py")  # a batch on its way from there to the caller's own variable is the caller's


def large(n, first=0):
    """A batch of large records: they go in, and come out, by another way."""
    return records(n, first) | {"pixels": np.zeros((n, 6_000), np.uint8)}


MAKE = pytest.mark.parametrize("make", [records, large])
STRIDE = pytest.mark.parametrize("stride", [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])


def sweep(stride, seed, least=100):
    """An interrupt at each `stride`-th point of a call, until the call has no more, of `least` or more."""
    n = seed % stride
    while True:
        at = At(n)
        yield n, at
        n += stride
        if at.raised is None:
            assert n > least, "the call was hardly swept"
            return


@MAKE
@STRIDE
def test_draw_is_whole_or_undone(real_server, make_buffer, make, stride, seed):
    """A consuming draw that is interrupted anywhere has given its record to the caller, or given it back at once, in order."""
    buffer, writer = make_buffer(**QUEUE), make_buffer(**QUEUE)
    wrong = []
    for tag, at in sweep(stride, seed):
        writer.extend(make(2, 2 * tag))
        batch = at.run(buffer.sample, 1)
        given = tags(batch) if batch else []
        while writer.sampleable_size:
            given += tags(buffer.sample(1))
        if given != [2 * tag, 2 * tag + 1] and not at.raised.startswith(SHELL):
            wrong.append((at.raised, given))
    assert (wrong, writer.doctor().findings) == ([], ())


@MAKE
@STRIDE
def test_write_is_whole_or_absent(real_server, make_buffer, make, stride, seed):
    """A write that is interrupted anywhere is there whole or not at all, once the interrupt arrives; the next one is there."""
    buffer, writer = make_buffer(**QUEUE), make_buffer(**QUEUE)
    wrong = []
    for tag, at in sweep(stride, seed):
        at.run(buffer.extend, make(2, 3 * tag))
        then = writer.sampleable_size
        buffer.extend(make(1, 3 * tag + 2))
        there = tags(writer.sample(writer.sampleable_size))
        if there != [3 * tag, 3 * tag + 1, 3 * tag + 2][2 - then :]:
            wrong.append((at.raised, then, there))
    assert (wrong, writer.doctor().findings) == ([], ())


@STRIDE
@pytest.mark.parametrize("call", ["add", "flush"])
def test_what_is_written_behind_is_whole(real_server, make_buffer, call, stride, seed):
    """An `add` or a `flush` that is interrupted anywhere loses none of what was taken, and the next `flush` has all of it."""
    buffer, direct = make_buffer(**QUEUE, write_behind=0.001), make_buffer(**QUEUE)
    wrong = []
    for tag, at in sweep(*(stride, seed) if call == "add" else (1, seed, 20)):
        if call == "add":
            taken = at.run(buffer.add, record(2 * tag)) is not None
        else:
            taken = buffer.add(record(2 * tag)) is not None
            at.run(buffer.flush)
        buffer.add(record(2 * tag + 1))
        buffer.flush(timeout=5)
        there = tags(direct.sample(direct.sampleable_size))
        if there not in ([2 * tag, 2 * tag + 1], [2 * tag + 1][taken:]):
            wrong.append((at.raised, taken, there))
    assert (wrong, len(buffer._behind)) == ([], 0)


@STRIDE
def test_wait_has_left_the_line(real_server, make_buffer, stride, seed):
    """A wait that is interrupted anywhere has left the line; the handle's next draw is its own."""
    buffer, writer = make_buffer(**QUEUE), make_buffer(**QUEUE)
    wrong = []
    for tag, at in sweep(10 * stride, seed):
        with contextlib.suppress(ReplayTimeoutError):
            at.run(buffer.sample, 1, wait=True, timeout=0.01)
        waiters = writer.stats()["waiters"]
        writer.extend(records(1, tag))
        if (waiters, given := tags(buffer.sample(1))) != (0, [tag]):
            wrong.append((at.raised, waiters, given))
    assert wrong == []


def test_others_are_woken_after_an_interrupt(real_server, make_buffer, seed):
    """Where the call that reads notices for all is interrupted, another thread's wait is still woken, without its poll."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    late = []
    for tag, at in sweep(331, seed):
        other = Running(buffer.sample, 1, wait=True)
        blocked(writer)
        at.run(buffer.wait_until_sampleable, 99, timeout=0.01)
        writer.add(record(tag))
        written_at = time.monotonic()
        if other.how(timeout=40) != [tag] or other.ended_at - written_at > 2:
            late.append(at.raised)
    assert late == []


def once(owner, name):
    """Has a method of `owner` interrupted at its beginning, the first time that it is called."""
    real = getattr(owner, name)

    def raises(*_):
        setattr(owner, name, real)
        raise Interrupt

    setattr(owner, name, raises)


@pytest.fixture
def waited(make_buffer):
    """A handle that has waited once, and drawn record 0, and one that only writes."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    buffer.wait_until_sampleable(1, timeout=0.05)
    writer.add(record(0))
    assert tags(buffer.sample(1)) == [0]
    return buffer, writer


def test_interrupt_before_the_request_undoes_nothing(real_server, waited):
    """A wait that is interrupted before it asks for anything leaves what the call before it was given."""
    buffer, writer = waited
    once(buffer._now.listener, "open")
    with pytest.raises(Interrupt):
        buffer.sample(1, wait=True)
    assert (writer.sampleable_size, writer.stats()["consumed"]) == (0, 1)


def test_reader_interrupted_as_it_stops_is_replaced(real_server, waited):
    """Where the call that reads for all is interrupted as it stops reading, another thread reads on."""
    buffer, writer = waited
    once(buffer._now.listener, "_stop_reading")
    with pytest.raises(Interrupt):
        buffer.sample(1, wait=True)
    other = Running(buffer.sample, 1, wait=True)
    blocked(writer)
    writer.add(record(1))
    assert other.how(timeout=SOON) == [1]


def test_notice_that_was_half_read_spoils_no_other(real_server, waited, caplog):
    """An interrupt between two parts of a notice costs that subscription: the next notice is read from its beginning."""
    buffer, writer = waited
    wire = buffer._now.listener._pubsub

    class HalfReader:
        feed = staticmethod(lambda data, start, n: wire_reader.feed(data, start, n // 2))

    wire_reader, wire._reader = wire._reader, HalfReader
    HalfReader.gets = staticmethod(wire_reader.gets)
    once(wire._pulse, "beat")
    call = Running(buffer.sample, 1, wait=True)
    blocked(writer)
    writer.add(record(1))
    assert call.how() == Interrupt
    assert tags(writer.sample(1)) == [1]
    call = Running(buffer.sample, 1, wait=True)
    blocked(writer)
    writer.add(record(2))
    assert (call.how(timeout=SOON), buffer._now.listener._pubsub is wire) == ([2], False)
    assert [r.getMessage() for r in caplog.records if r.name == "redis_replay"] == []


# Signals


class Alarm:
    """SIGALRM after some seconds, with a handler that raises `error`."""

    def __init__(self, seconds, error):
        self.seconds, self.error = seconds, error

    def _raise(self, *_):
        raise self.error

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


@pytest.fixture
def error(request):
    """What a handler raises."""
    return request.param("of a handler")


RAISED = pytest.mark.parametrize(  # also what sockets do; what a call makes of it is the client's doing
    ("error", "real_server"),
    list(zip([TimeoutError, ConnectionResetError, OSError, ValueError], [*REAL, *REAL], strict=True)),
    indirect=True,
)


def interrupted(seconds, error, call, *args, **kwargs):
    """What a call raised, and after how long."""
    began = time.monotonic()
    with Alarm(seconds, error), pytest.raises(type(error)) as caught:
        call(*args, **kwargs)
    return caught.value, time.monotonic() - began


@RAISED
def test_handlers_exception_ends_a_wait(real_server, make_buffer, error):
    """A blocked wait ends with the very exception that a handler raises, whatever its class; the handle goes on."""
    buffer, writer = make_buffer(**QUEUE), make_buffer(**QUEUE)
    for tag in range(3):
        found, seconds = interrupted(0.1, error, buffer.sample, 1, wait=True, timeout=30)
        assert (found, seconds < SOON, writer.stats()["waiters"]) == (error, True, 0)
        writer.add(record(tag))
        assert tags(buffer.sample(1)) == [tag]


@RAISED
def test_handlers_exception_ends_a_silent_call(real_server, make_buffer, error):
    """It ends a call that the server does not answer, too; its write is there once, or not at all."""
    with contextlib.closing(Proxy(real_server.url)) as proxy:
        buffer, writer = make_buffer(target=proxy.url, **QUEUE), make_buffer(**QUEUE)
        buffer.add(record(0))
        proxy.hold()
        found, seconds = interrupted(0.1, error, buffer.add, record(1))
        proxy.let_go()
        assert (found, seconds < SOON) == (error, True)
        buffer.add(record(2))
        assert [int(r["i"]) for r in writer.records()] in ([0, 2], [0, 1, 2])
