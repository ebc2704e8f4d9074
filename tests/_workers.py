"""What tests run in other processes. Plain functions of a module, so that a spawned process can import them."""

import os
import sys
import time

from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferShutDownError, ReplayError, ReplayTimeoutError
from tests._waiting import record, records, tags


def act(url, name, verb, *args):
    """Calls one method on a handle of this process's own. Gives when, by the clock that all processes share."""
    with ReplayBuffer(url, name) as buffer:
        began = time.monotonic()
        getattr(buffer, verb)(*args)
        return began


def stats(url, name):
    """What a new process sees."""
    with ReplayBuffer(url, name) as buffer:
        return buffer.stats()


def learn(url, name, batch_size, timeout):
    """Samples until there is no more. Gives the batches, each as (tags, last), and how the last call ended."""
    batches = []
    with ReplayBuffer(url, name) as buffer:
        while True:
            try:
                batch, info = buffer.sample(batch_size, return_info=True, wait=True, timeout=timeout)
                batches.append((tags(batch), info.last))
            except BufferShutDownError:
                return batches, "shut down"
            except ReplayTimeoutError as error:
                return batches, error.have
            except ReplayError as error:
                return batches, repr(error)


def wait_for_batch(url, name, batch_size):
    """Waits for one batch, without looking by itself for half a minute."""
    with ReplayBuffer(url, name, poll_interval=30) as buffer:
        buffer.sample(batch_size, wait=True)


def write_tagged(buffer, first, n, how="return"):
    """Writes n records one by one; ends by returning, by `sys.exit`, or by `os._exit` after the first of them."""
    for tag in range(first, first + n):
        buffer.add(record(tag))
        if how == "exit":
            sys.exit(3)
        if how == "_exit":
            os._exit(4)


def write_through(buffer, tag, pipe):
    """Writes a record through a handle that came from another process, and tells what is stored under its index."""
    index = buffer.extend(records(1, tag))[0]
    pipe.send((int(index), tags(buffer.get([index])), buffer.wait_until_sampleable(1, timeout=5)))
    buffer.close()


def write_when(buffer, tag, pipe):
    """Writes a record, and tells when it began."""
    pipe[1].send(time.monotonic())
    buffer.add(record(tag))


def sample_one(buffer, pipe):
    """Waits for one record, and tells its tag."""
    pipe.send(tags(buffer.sample(1, wait=True, timeout=10)))


def draw(buffer, n, pipe):
    """Draws n records, and tells their tags."""
    pipe.send(tags(buffer.sample(n)))


def lend(url, name, n, lease, pipe):
    """Draws a batch on lease and tells it; then does what it is told: `ack`, whose result it tells."""
    buffer = ReplayBuffer(url, name)
    batch, info = buffer.sample(n, True, lease=lease)
    pipe.send(tags(batch))
    verb = pipe.recv()
    ended = getattr(buffer, verb)(info.lease)
    pipe.send((ended.applied, ended.late))
    pipe.recv()
