"""A handle in many processes: forked, spawned, pickled; processes that exit in every way; and one that is killed."""

import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import cloudpickle
import pytest

from redis_replay import ReplayBuffer, samplers
from tests import _workers
from tests._helpers import SOON, is_alive, wait_until
from tests._waiting import Running, blocked, record, records, tags

pytestmark = pytest.mark.fault
ROOT = Path(__file__).parents[2]
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")


# Forked

ENDS = ["return"] * 6 + ["exit", "_exit"]
N = 1_000


@pytest.fixture
def forked(real_server, make_buffer):
    """A buffer that was used before 8 children were forked, which write through the same handle while the parent waits.

    Gives the buffer, the tags that the parent sampled meanwhile, and the exit codes of the children.
    """
    buffer = make_buffer(capacity=20_000)
    buffer.add(record(-1))
    asleep = Running(buffer.wait_until_sampleable, 6 * N)
    blocked(buffer)
    children = [FORK.Process(target=_workers.write_tagged, args=(buffer, i * N, N, how)) for i, how in enumerate(ENDS)]
    for child in children:
        child.start()
    seen = set()
    while any(child.is_alive() for child in children):
        seen |= set(tags(buffer.sample(8)))
    for child in children:
        child.join()
    return buffer, asleep, seen, [child.exitcode for child in children]


def test_forked_children_and_parent_share_nothing(forked):
    """Each child's records are all there, once and whole; the parent's samples and wait went right meanwhile."""
    buffer, asleep, seen, codes = forked
    stored = [int(r["i"]) for r in buffer.records()]
    assert sorted(stored) == [-1, *range(6 * N), 6 * N, 7 * N]
    assert (seen <= set(stored), len(seen) > 1, asleep.how()) == (True, True, True)
    assert (codes, buffer.doctor().findings) == ([0] * 6 + [3, 4], ())


def test_forked_child_wakes_the_parent(real_server, make_buffer):
    """A record that a child writes wakes the parent's wait, without its poll."""
    buffer = make_buffer(poll_interval=30, **QUEUE)
    buffer.stats()
    call = Running(buffer.sample, 1, wait=True)
    blocked(buffer)
    child = FORK.Process(target=_workers.write_when, args=(buffer, 7, pipe := FORK.Pipe(duplex=False)))
    child.start()
    written_at = pipe[0].recv()
    assert (call.how(), call.ended_at - written_at < SOON) == ([7], True)
    child.join()


def test_forked_child_that_waits_is_served(real_server, make_buffer):
    """A child waits through a handle whose subscription the parent had open; both are served."""
    buffer = make_buffer(poll_interval=30, **QUEUE)
    call = Running(buffer.sample, 1, wait=True)
    blocked(buffer)
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_workers.sample_one, args=(buffer, theirs))
    child.start()
    blocked(buffer, 2)
    buffer.extend(records(2))
    assert sorted(call.how() + ours.recv()) == [0, 1]
    child.join()


def test_forked_handle_draws_its_own_numbers(real_server, make_buffer):
    """A seeded handle and its forked copy draw different records."""
    buffer = make_buffer(seed=1)
    buffer.extend(records(100))
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_workers.draw, args=(buffer, 50, theirs))
    child.start()
    child.join()
    assert ours.recv() != tags(buffer.sample(50))


def test_child_that_closes_ends_nothing_of_the_parent(real_server, make_buffer):
    """A child that closes its copy of the handle leaves the parent's open."""
    buffer = make_buffer(**QUEUE)
    call = Running(buffer.sample, 1, wait=True)
    blocked(buffer)
    child = FORK.Process(target=buffer.close)
    child.start()
    child.join()
    buffer.add(record(5))
    assert call.how() == [5]


# Copied, and handed to another process

COPIES = {
    "pickled": lambda buffer: pickle.loads(pickle.dumps(buffer)),
    "cloudpickled": lambda buffer: pickle.loads(cloudpickle.dumps(buffer)),
    "deep-copied": copy.deepcopy,
}


def unused(buffer):
    """Before first use."""


def used(buffer):
    """After use."""
    buffer.add(record(1))
    buffer.sample(1)


def waiting(buffer):
    """While a wait runs in another thread."""
    Running(buffer.wait_until_sampleable, 99)
    wait_until(lambda: buffer.stats()["waiters"], description="the wait")


@pytest.mark.parametrize("before", [unused, used, waiting])
@pytest.mark.parametrize("how", COPIES)
def test_copied_handle_works_on_its_own(real_server, make_buffer, how, before):
    """A copy is a handle on the same buffer with sockets of its own: it works, and outlives the original."""
    buffer = make_buffer()
    before(buffer)
    with COPIES[how](buffer) as copied:
        buffer.close()
        index = copied.extend(records(1, 42))
        assert (tags(copied.get(index)), copied.wait_until_sampleable(1, timeout=5)) == ([42], True)


@pytest.mark.parametrize(("method", "before"), [("spawn", unused), ("spawn", waiting), ("forkserver", used)])
def test_handle_is_an_argument_of_a_process(real_server, make_buffer, method, before):
    """A handle can be handed to a spawned process, or to one of a fork server, whatever it is doing."""
    buffer, context = make_buffer(), multiprocessing.get_context(method)
    before(buffer)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_workers.write_through, args=(buffer, 42, theirs))
    process.start()
    wait_until(lambda: ours.poll(0.1), 20, "the process")
    index, there, ready = ours.recv()
    process.join()
    assert (tags(buffer.get([index])), there, ready) == ([42], [42], True)


def test_pickled_handle_holds_no_data(real_server, make_buffer):
    """What is pickled does not grow with what is stored."""
    buffer = make_buffer(capacity=10_000)
    buffer.add(record(0))
    size = len(pickle.dumps(buffer))
    buffer.extend(records(10_000))
    assert len(pickle.dumps(buffer)) == size < 2_000


def test_handle_on_fakeredis_says_why_not():
    """A handle on fakeredis lives in this process: pickling it is a TypeError that says so."""
    import fakeredis

    with ReplayBuffer(fakeredis.FakeRedis(), "here", capacity=1) as buffer, pytest.raises(TypeError, match="threads"):
        pickle.dumps(buffer)


# The end of a process

SCRIPT = """
import sys, threading, time
from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferClosedError

buffer = ReplayBuffer.attach(sys.argv[1], sys.argv[2], timeout=20)  # a busy machine may need more than opening has


def block(daemon):
    threading.Thread(target=lambda: buffer.sample(1, wait=True, timeout=None), daemon=daemon).start()
    while not buffer.stats()["waiters"]:
        time.sleep(0.01)

"""


def start(real_server, name, body, prelude=SCRIPT, **options):
    """Starts a program on the test's buffer."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", prelude + textwrap.dedent(body), real_server.url, name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes, **options)


def ended(process, after=None):
    """Waits until a program says "now", then for its end. Gives its exit code, whether it came in time, and its errors."""
    for line in process.stdout:
        if line == "now\n":
            break
    if after is not None:
        process.send_signal(after)
    began = time.monotonic()
    err = process.communicate(timeout=20)[1]
    return process.returncode, time.monotonic() - began < SOON, err


@pytest.mark.parametrize("daemon", [True, False])
def test_process_that_raises_exits(real_server, make_buffer, name, daemon):
    """A program whose main thread raises while another blocks in `sample(timeout=None)` shows its traceback and exits."""
    make_buffer()
    body = f"block({daemon})\nprint('now', flush=True)\nraise RuntimeError('of the main thread')"
    code, soon, err = ended(start(real_server, name, body))
    assert (code, soon, "RuntimeError: of the main thread" in err or err) == (1, True, True)


def test_process_that_never_closes_exits(real_server, make_buffer, name):
    """A program that ends without `close()`, with a wait running, exits by itself and in time."""
    make_buffer()
    code, soon, _ = ended(start(real_server, name, "block(False)\nprint('now', flush=True)"))
    assert (code, soon) == (0, True)


def test_process_that_closes_twice_is_told(real_server, make_buffer, name):
    """A second `close()` does nothing, and a call after it raises an error that says why."""
    make_buffer()
    body = """
    buffer.close()
    buffer.close()
    print("now", flush=True)
    try:
        buffer.add({"i": 1})
    except BufferClosedError as error:
        print(error, file=sys.stderr)
    """
    code, soon, err = ended(start(real_server, name, body))
    assert (code, soon, "was closed" in err) == (0, True, True)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_process_blocked_in_sample_obeys_signals(real_server, make_buffer, name, kind):
    """SIGTERM, or ctrl-C, ends a program whose main thread is blocked in `sample`."""
    buffer = make_buffer()
    body = """
    print("now", flush=True)
    buffer.sample(1, wait=True, timeout=None)
    """
    process = start(real_server, name, body)
    wait_until(lambda: buffer.stats()["waiters"], 20, "the program to wait")
    code, soon, err = ended(process, kind)
    assert (code in (-kind, 1, 130), soon, "KeyboardInterrupt" in err) == (True, True, kind == signal.SIGINT)


def test_interrupted_process_leaves_the_line(real_server, make_buffer, name):
    """Ctrl-C takes the wait out of the line before the program goes on."""
    buffer = make_buffer()
    body = """
    try:
        buffer.sample(1, wait=True)
    except KeyboardInterrupt:
        print(buffer.stats()["waiters"], flush=True)
    """
    process = start(real_server, name, body)
    wait_until(lambda: buffer.stats()["waiters"], 20, "the program to wait")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=5)
    assert (out, process.returncode) == ("0\n", 0)


ASYNC = """
import asyncio, sys
from redis_replay import AsyncReplayBuffer
from redis_replay.exceptions import BufferClosedError


async def main():
    buffer = AsyncReplayBuffer(sys.argv[1], sys.argv[2])
    blocked = asyncio.create_task(buffer.sample(1, wait=True))
    while not (await buffer.stats())["waiters"]:
        await asyncio.sleep(0.01)
    print("now", flush=True)
"""

ENDINGS = {  # what the loop's main task does while another waits: exit code, and the end of what is shown
    "raise RuntimeError('of the main task')": (1, "RuntimeError: of the main task"),
    "return": (0, ""),
    "await buffer.close(); await buffer.close(); await buffer.add({'i': 1})": (1, "make a new one"),
    "await blocked": (-signal.SIGTERM, ""),
}


@pytest.mark.parametrize("body", ENDINGS)
def test_event_loop_that_waits_ends(real_server, make_buffer, name, body):
    """A program of asyncio whose wait goes on: an error, the end, a closed handle or SIGTERM ends it in time."""
    make_buffer()
    code, shown = ENDINGS[body]
    script = ASYNC + textwrap.indent(body, "    ") + "\n\n\nasyncio.run(main())\n"
    found, soon, err = ended(start(real_server, name, script, prelude=""), signal.SIGTERM if code < 0 else None)
    assert (found, soon, err.rstrip()[-len(shown) :] if shown else err) == (code, True, shown)


def test_killed_process_holds_up_nobody(real_server, make_buffer, name):
    """A waiting process that is killed outright: the next write goes to whoever is alive, at once."""
    writer = make_buffer(poll_interval=30, **QUEUE)
    process = SPAWN.Process(target=_workers.wait_for_batch, args=(real_server.url, name, 1))
    process.start()
    wait_until(lambda: writer.stats()["waiters"], 20, "the process to wait")
    call = Running(writer.sample, 1, wait=True)
    blocked(writer, 2)
    process.kill()
    process.join()
    assert not is_alive(process.pid)
    writer.add(record(1))
    assert (call.how(timeout=SOON), writer.stats()["waiters"]) == ([1], 1)
