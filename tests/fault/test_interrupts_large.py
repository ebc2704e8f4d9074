"""Ctrl-C, or an exception of a signal's handler, inside calls that carry 10 MB: what follows on the handle is right."""

import gc
import random
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

from redis_replay import samplers
from tests._helpers import SOON
from tests._server import REAL

pytestmark = [
    pytest.mark.fault,
    pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
QUEUE = {"capacity": 6, "sampler": samplers.Fifo(), "consume_after_n_samples": 1}
LENGTH = 0.03  # seconds that such a call takes, about
TIMES = pytest.mark.parametrize("times", [8, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(120)])])


def item(tag):
    """A record of 10 MB, all of it made of its tag."""
    return {"tag": np.int64(tag), "pixels": np.full(10_000_000, tag % 251, np.uint8)}


def whole(batch):
    """The tags of a batch. Each record has the bytes that belong to its tag."""
    for tag, pixels in zip(batch["tag"].tolist(), batch["pixels"], strict=True):
        assert (pixels[0], pixels.min(), pixels.max()) == (tag % 251,) * 3
    return batch["tag"].tolist()


class HandlersError(Exception):
    """What the handler of SIGALRM raises."""


WAYS = {"ctrl-c": (signal.SIGINT, KeyboardInterrupt), "alarm": (signal.SIGALRM, HandlersError)}


EACH = pytest.mark.parametrize(("interrupt", "real_server"), list(zip(WAYS, REAL, strict=True)), indirect=True)


@pytest.fixture
def interrupt(request):
    """Gives `interrupt(after, call, *args)`: what the call gave or None, and how long the interrupt took to get through."""
    number, kind = WAYS[request.param]

    def handler(*_):
        raise kind

    def run(after, call, *args):
        result, sent = None, []
        timer = threading.Timer(after, lambda: [sent.append(time.monotonic()), signal.pthread_kill(here, number)])
        try:
            timer.start()
            result = call(*args)
            while True:
                threading.Event().wait(0.01)  # it ended first: the interrupt comes here
        except kind:
            return result, time.monotonic() - sent[0]

    here, before = threading.main_thread().ident, signal.signal(number, handler)
    gc.disable()  # an interrupt that falls into a __del__ is lost, by the rules of Python
    yield run
    gc.enable()
    signal.signal(number, before)
    gc.collect()


@EACH
@TIMES
def test_interrupted_put_of_10_megabytes(real_server, make_buffer, interrupt, times, seed):
    """Such a write is there whole or not at all; then `stats`, a put and a draw are answered with what is theirs."""
    buffer, generator, wrong = make_buffer(**QUEUE), random.Random(seed), []
    for tag in range(0, 2 * times, 2):
        _, took = interrupt(generator.uniform(0, LENGTH), buffer.add, item(tag))
        there = buffer.stats()["sampleable_size"]
        buffer.add(item(tag + 1))
        given = [whole(buffer.sample(1))[0] for _ in range(there + 1)]
        if given != [tag, tag + 1][1 - there :] or took > SOON or len(buffer):
            wrong.append((tag, there, given, took))
    assert (wrong, buffer.doctor().findings) == ([], ())


@EACH
@TIMES
def test_interrupted_sample_of_10_megabytes(real_server, make_buffer, interrupt, times, seed):
    """Such a draw was the caller's or goes back; then `stats`, a put and a draw are answered with what is theirs."""
    buffer, generator, wrong = make_buffer(**QUEUE), random.Random(seed), []
    for tag in range(0, 2 * times, 2):
        buffer.add(item(tag))
        batch, took = interrupt(generator.uniform(0, LENGTH), buffer.sample, 1)
        given = whole(batch) if batch else []
        there = buffer.stats()["sampleable_size"]
        buffer.add(item(tag + 1))
        given += [whole(buffer.sample(1))[0] for _ in range(there + 1)]
        if given != [tag, tag + 1] or took > SOON or len(buffer):
            wrong.append((tag, there, given, took))
    assert (wrong, buffer.doctor().findings) == ([], ())


@EACH
@TIMES
def test_interrupted_wait_then_10_megabytes(real_server, make_buffer, interrupt, times, seed):
    """A blocked wait ends by it soon and leaves the line; `stats`, a put and a draw have answers of their own."""
    buffer, generator, wrong = make_buffer(**QUEUE), random.Random(seed), []
    for tag in range(times):
        batch, took = interrupt(generator.uniform(0, 0.1), partial(buffer.sample, 1, wait=True, timeout=30))
        seen = buffer.stats()["waiters"], buffer.stats()["write_count"]
        buffer.add(item(tag))
        if (batch, seen, whole(buffer.sample(1)), took < SOON) != (None, (0, tag), [tag], True):
            wrong.append((tag, seen, took))
    assert (wrong, buffer.doctor().findings) == ([], ())
