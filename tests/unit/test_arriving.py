"""Records taken apart as they come: the same batch as decoding them together; and the receiver that hands them on."""

import itertools

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
        found.put(row, scratch)
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
    return b"*1\r\n*2\r\n$%d\r\n0-%d\r\n*2\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (len(str(index)) + 2, index, len(payload), payload)


class Got(dict):
    """What was put where."""

    def put(self, row, payload):
        self[row] = bytes(payload)

    def put_block(self, rows, block):
        self.update((row, line.tobytes()) for row, line in zip(rows.tolist(), block, strict=True))


def step_of(indices, size):
    step = Fetch(b"k", np.array(indices, np.int64), lambda: b"last", size, Got(), base=5)
    packed = _burst.request(step)
    order = [row for group in step.groups for row in group.rows.tolist()]
    return step, packed, order


def receive(stream, indices, size, pieces, buffer=None):
    """What `_burst.receive` makes of a stream that comes in pieces of the given sizes, in turn: the replies that are left, what
    has come of them or not come yet, and the step."""
    left, sizes = bytearray(stream), iter(pieces)

    step, _, _ = step_of(indices, size)
    taking = _burst.receive(step, memoryview(bytearray(buffer or _burst.buffer_bytes(size))))
    try:
        view = next(taking)
        while True:
            n = min(next(sizes), len(view), len(left))
            view[:n] = left[:n]
            del left[:n]
            view = taking.send(n)
    except StopIteration as done:
        n, rest = done.value
        return n, bytes(rest) + bytes(left), step


LAST = b"$5\r\nepoch\r\n"
IDS = (900, 12, 7, 13, 12)
PAYLOADS = [bytes([i]) * 50 for i in range(5)]
ORDER = (2, 1, 3, 4, 0)  # those with fewer digits come first
STREAM = [reply(IDS[row], PAYLOADS[row]) for row in ORDER]


def test_what_is_asked_for_is_what_plain_commands_ask_for():
    """Indices of any length, each where its reply will be looked for."""
    ids = [10**k + d for k in range(16) for d in (0, 7)] + [2**53 - 1, 9]
    _, packed, order = step_of(ids, 1)
    assert sorted(order) == list(range(len(ids)))
    plain = [b"*4\r\n$6\r\nXRANGE\r\n$1\r\nk\r\n" + 2 * (b"$%d\r\n0-%d\r\n" % (len(str(ids[r])) + 2, ids[r])) for r in order]
    assert packed == b"".join(plain) + b"last"


@pytest.mark.parametrize("piece", [1, 2, 37, 90, 1000])
@pytest.mark.parametrize("buffer", [100, 101, 190, 100_000])
def test_every_cut_of_the_stream_gives_the_same_records(piece, buffer):
    """Pieces and buffers of any size, as long as one record fits."""
    n, rest, step = receive(b"".join(STREAM) + LAST, IDS, 50, iter(lambda: piece, 0), buffer)
    assert (n, rest) == (1, LAST)
    assert _burst.hand_on(step, [b"epoch"]) == b"epoch"
    assert step.into == {5 + row: payload for row, payload in enumerate(PAYLOADS)}
    assert step.lacks is False


@pytest.mark.parametrize(
    "other", [b"*0\r\n", b"-OOM no memory\r\n", reply(11, PAYLOADS[1]), reply(12, b"x" * 49)],
    ids=["missing", "error", "other id", "other size"],
)  # fmt: skip
@pytest.mark.parametrize(("piece", "place"), list(itertools.product([1, 60, 1000], range(5))))
def test_a_reply_of_another_form_is_left_to_be_parsed(other, piece, place):
    """It is noticed by what has come, without waiting for more; what came before it is in its row, nothing else is."""
    stream = b"".join([*STREAM[:place], other])
    n, rest, step = receive(stream, IDS, 50, iter(lambda: piece, 0))
    assert (n, rest) == (6 - place, other)
    assert step.into == {5 + row: PAYLOADS[row] for row in ORDER[:place]}


def test_parsed_replies_go_where_the_others_would_have_gone():
    """What is missing, or was refused, is told; the first refusal counts."""
    error = ValueError("no memory")
    for parsed, lacks in (([], True), (error, error)):
        step, _, order = step_of(IDS, 50)
        tail = [[[b"0-13", [b"d", b"x"]]], parsed, [[b"0-900", [b"d", b"y"]]]]
        assert _burst.hand_on(step, [*tail, b"last"]) == b"last"
        assert step.into == {5 + order[2]: b"x", 5 + order[4]: b"y"}
        assert step.lacks is lacks


def test_a_closed_connection_is_an_error():
    """Not an endless loop."""
    with pytest.raises(ConnectionError):
        receive(STREAM[0][:-5], IDS, 50, iter(lambda: 1000, 0))
