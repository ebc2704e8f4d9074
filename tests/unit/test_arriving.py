"""Records taken apart as they come: the same batch as decoding them together; and the receiver that hands them on."""

import numpy as np
import pytest

from redis_replay import _burst
from redis_replay._decode import Arriving, decode_arrived, decode_batch
from redis_replay._encode import encode_batch
from redis_replay._steps import Fetch
from redis_replay.exceptions import RecordDecodeError

CASES = {
    "one large leaf": {"obs": np.arange(3 * 8000, dtype=np.float32).reshape(3, 8000)},
    "one small leaf": {"obs": np.arange(12, dtype=np.int16).reshape(3, 4)},
    "large and small": {
        "obs": np.arange(3 * 5000, dtype=np.uint8).reshape(3, 5000),
        "next": np.arange(3 * 6000, dtype=np.uint8).reshape(3, 6000),
        "done": np.array([True, False, True]),
        "reward": np.array([1.5, np.nan, -0.0]),
    },
    "no bytes": {"obs": np.zeros((3, 0), np.float64), "x": np.arange(3)},
}


def arrived(data, order=(0, 1, 2)):
    rows = encode_batch(data, None)
    found = Arriving(rows.schema.layout, len(rows))
    payloads = rows.payloads()
    for row in order:
        scratch = bytearray(payloads[row])
        found.put(row, memoryview(scratch))
        scratch[:] = bytes(len(scratch))  # the receiver's buffer is used again
    return rows, found


@pytest.mark.parametrize("case", CASES)
def test_arrived_records_are_those_that_decode_together(case):
    """Whatever the order in which they come, and though the bytes they came in change afterwards."""
    rows, found = arrived(CASES[case], order=(2, 0, 1))
    expected = decode_batch(rows.schema, rows.payloads(), [1, 2, 3])
    batch = decode_arrived(rows.schema, found, [1, 2, 3])
    assert list(batch) == list(expected)
    for key, column in expected.items():
        assert (batch[key].dtype, batch[key].shape) == (column.dtype, column.shape)
        assert batch[key].tobytes() == column.tobytes()
        assert batch[key].flags.writeable


def test_a_record_of_another_size_is_named():
    """The first of them, by its index."""
    rows, found = arrived(CASES["large and small"])
    found.put(2, b"short")
    found.put(1, b"")
    with pytest.raises(RecordDecodeError) as caught:
        decode_arrived(rows.schema, found, [7, 8, 9])
    assert caught.value.index == 8


def reply(index, payload):
    return b"*1\r\n*2\r\n$%d\r\n0-%b\r\n*2\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (len(index) + 2, index, len(payload), payload)


def receive(stream, indices, size, pieces, buffer=None):
    """What `_burst.receive` makes of a stream that comes in pieces of the given sizes, in turn."""
    got, left = {}, bytearray(stream)
    sizes = iter(pieces)

    def receive_into(view):
        n = min(next(sizes), len(view), len(left))
        view[:n] = left[:n]
        del left[:n]
        return n

    step = Fetch(b"k", indices, b"c", b"f", b"epoch", size, lambda row, payload: got.__setitem__(row, bytes(payload)))
    room = memoryview(bytearray(buffer or _burst.buffer_bytes(size)))
    return _burst.receive(step, receive_into, room), got


GUARD = b"$5\r\nepoch\r\n"
IDS = (b"7", b"12", b"900")
PAYLOADS = [bytes([i]) * 50 for i in range(3)]


@pytest.mark.parametrize("piece", [1, 2, 37, 90, 1000])
@pytest.mark.parametrize("buffer", [100, 101, 190, 100_000])
def test_every_cut_of_the_stream_gives_the_same_records(piece, buffer):
    """Pieces and buffers of any size, as long as one record fits."""
    stream = b"".join(map(reply, IDS, PAYLOADS)) + GUARD
    value, got = receive(stream, IDS, 50, iter(lambda: piece, 0), buffer)
    assert value == b"epoch"
    assert got == dict(enumerate(PAYLOADS))


@pytest.mark.parametrize(
    "stream",
    [
        b"*0\r\n" + reply(b"12", PAYLOADS[1]),
        reply(b"7", PAYLOADS[0]) + b"-OOM no memory\r\n",
        reply(b"7", PAYLOADS[0]) + reply(b"13", PAYLOADS[1]),
        reply(b"7", b"x" * 49),
        b"".join(map(reply, IDS, PAYLOADS)) + b"$5\r\nother\r\n",
        b"".join(map(reply, IDS, PAYLOADS)) + b"$-1\r\n",
    ],
    ids=["missing", "error", "other id", "other size", "other epoch", "no epoch"],
)
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_reply_of_another_form_is_irregular(stream, piece):
    """It is noticed by what has come, without waiting for more."""
    with pytest.raises(_burst.IrregularError):
        receive(stream, IDS, 50, iter(lambda: piece, 0))


def test_a_closed_connection_is_an_error():
    """Not an endless loop."""
    with pytest.raises(ConnectionError):
        receive(reply(b"7", PAYLOADS[0])[:-5], IDS, 50, iter(lambda: 1000, 0))
