"""Records and batches above a limit: refused with both numbers before anything is sent, or cut into steps."""

import subprocess
import sys
import time

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer
from redis_replay.exceptions import ArgumentError, OutcomeUnknownError, ServerRefusedError
from tests._contract import nothing_changes, refused

STEP = 64 * 2**20  # bytes
MEGABYTE = 2**20


def frame(size):
    """A record of exactly `size` bytes."""
    return {"frame": np.zeros(size, np.uint8)}


def commands_of(client):
    """How many commands the server has seen, this one included."""
    return client.info("stats")["total_commands_processed"]


@pytest.mark.parametrize("size", [STEP + 1, pytest.param(600 * MEGABYTE, marks=pytest.mark.slow)])
def test_a_record_above_the_limit_is_refused_before_it_is_sent(real_server, make_buffer, client, size):
    """A ValueError with the limit and the size; the connection and the buffer are as they were."""
    buffer = make_buffer()
    record, before = frame(size), commands_of(client)
    with pytest.raises(ValueError, match=f"{STEP:,}") as caught:
        buffer.add(record)
    assert str(size) in str(caught.value)
    assert commands_of(client) - before == 1  # the look itself
    buffer.add(frame(10))
    assert buffer.get(1)["frame"].nbytes == 10


@pytest.mark.slow
def test_a_record_of_exactly_the_limit_is_written(real_server, make_buffer):
    """64 MiB, to the byte, come back as they went in."""
    buffer = make_buffer()
    record = frame(STEP)
    record["frame"][-1] = 7
    index = buffer.add(record)
    assert (buffer.get(index)["frame"] == record["frame"]).all()
    assert buffer.sample(1)["frame"][0, -1] == 7


@pytest.mark.parametrize("size", [2 * MEGABYTE, MEGABYTE + 1])
def test_a_servers_own_limit_is_known_before(real_server, make_buffer, configure, client, size):
    """proto-max-bulk-len is read at open; both numbers are in the error, and nothing was sent."""
    configure("proto-max-bulk-len", MEGABYTE)
    buffer = make_buffer()
    with nothing_changes(client), pytest.raises(ValueError, match="1,048,576") as caught:
        buffer.add(frame(size))
    assert caught.value.found == size
    assert "proto-max-bulk-len" in str(caught.value)
    with nothing_changes(client), refused(ArgumentError):
        buffer.extend([{"frame": bytes(10)}, {"frame": bytes(size)}])
    assert buffer.add(frame(MEGABYTE)) == 1


async def test_a_servers_own_limit_is_known_before_async(real_server, make_async_buffer, configure):
    """So it is by the async handle, also after a record has gone well."""
    configure("proto-max-bulk-len", MEGABYTE)
    buffer = make_async_buffer()
    with pytest.raises(ArgumentError, match="proto-max-bulk-len"):
        await buffer.add(frame(2 * MEGABYTE))
    assert await buffer.add(frame(MEGABYTE)) == 1


def test_a_handle_in_another_process_knows_it_too(real_server, make_buffer, configure):
    """An unpickled handle does not open again, and refuses all the same."""
    import pickle

    configure("proto-max-bulk-len", MEGABYTE)
    with pickle.loads(pickle.dumps(make_buffer())) as copy, refused(ArgumentError):
        copy.add(frame(2 * MEGABYTE))


@pytest.fixture
def without_config(client, real_server):
    """The URL of a user that may not ask for the server's settings."""
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", "-config", "-info")
    yield real_server.url.replace("unix://", "unix://limited:secret@")
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.slow)])
async def test_a_limit_that_is_not_told_ends_the_call_all_the_same(
    real_server, make_buffer, configure, without_config, client, kind
):
    """The server closes the connection then. One typed error within the call's time, no storm; the buffer is fine after."""
    name = make_buffer().name
    configure("proto-max-bulk-len", MEGABYTE)
    started, before = time.monotonic(), client.info("stats")["total_connections_received"]
    if kind == "sync":
        with ReplayBuffer(without_config, name) as buffer:
            with pytest.raises(ServerRefusedError, match="bulk length"):
                buffer.add(frame(2 * MEGABYTE))
            assert buffer.add(frame(1000)) == 1
    else:
        async with AsyncReplayBuffer(without_config, name) as buffer:
            with pytest.raises(OutcomeUnknownError):
                await buffer.add(frame(2 * MEGABYTE))
            assert await buffer.add(frame(1000)) == 1
    assert time.monotonic() - started < 8
    assert client.info("stats")["total_connections_received"] - before < 30


def test_a_long_batch_goes_in_steps(real_server, make_buffer):
    """100 MB of records of 10 MB: in steps of at most 64 MiB, in order, each record as it was."""
    buffer = make_buffer(capacity=4)
    batch = {"i": np.arange(10), "frame": np.zeros((10, 10_000_000), np.uint8)}
    indices = buffer.extend(batch)
    assert indices.tolist() == list(range(1, 11))
    assert [int(record["i"]) for record in buffer.records()] == [6, 7, 8, 9]
    assert buffer.stats()["evicted"] == 6


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_gigabyte_goes_in_steps(real_server, make_buffer):
    """100 records of 10 MB in one call: every one is written, in order."""
    buffer = make_buffer(capacity=10)
    batch = {"i": np.arange(100), "frame": np.zeros((100, 10_000_000), np.uint8)}
    assert buffer.extend(batch).tolist() == list(range(1, 101))
    assert [int(record["i"]) for record in buffer.records()] == list(range(90, 100))


def test_a_batch_of_large_records_is_refused_by_its_bytes(real_server, make_buffer):
    """sample(256) of images of 4 MB would be 1 GB: a ValueError with the batch size, a record's bytes and the limit."""
    buffer = make_buffer(capacity=1000)
    buffer.extend({"frame": np.zeros((3, 4_000_000), np.uint8)})
    with refused(ArgumentError) as caught:
        buffer.sample(256, min_items=1)
    for number in ("67,108,864", "4,000,000", "256"):
        assert number in str(caught.value)
    assert buffer.sample(16, min_items=1)["frame"].shape == (16, 4_000_000)


_READER = """
import resource, sys
from redis_replay import ReplayBuffer
buffer = ReplayBuffer(sys.argv[1], sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
n = int(sys.argv[3])
batch = buffer.sample(n, min_items=1)
payload = sum(len(frame) for frame in batch["frame"])
print(payload, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
buffer.close()
"""


def peak(server, name, n):
    """Bytes of a batch that a process of its own draws, and by how much its memory grew for it at most."""
    done = subprocess.run(
        [sys.executable, "-c", _READER, server.url, name, str(n)], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units there")
@pytest.mark.parametrize(
    ("n", "same"),
    [(16, True), (16, False), pytest.param(256, False, marks=[pytest.mark.slow, pytest.mark.timeout(180)])],
)
def test_a_large_draw_takes_less_than_three_times_its_bytes(real_server, make_buffer, n, same):
    """Records of about 4 MB: what a draw allocates at its peak. 1 GB is drawn only where the sizes differ."""
    buffer = make_buffer(capacity=1000)
    for i in range(16):
        size = 4_000_000 if same else 4_000_000 - i
        buffer.add({"frame": bytes(size)})
    payload, grown = peak(real_server, buffer.name, n)
    assert payload > n * 3_999_000
    assert grown < 3 * payload
