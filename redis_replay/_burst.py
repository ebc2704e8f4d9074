"""Many entries of a stream by many XRANGEs in one go. The replies of equally long records have a known form, so they are
received into one buffer and handed on from there in blocks, instead of being parsed (docs/benchmarks.md).
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redis_replay._steps import Fetch

BUFFER_BYTES = 262144  # small enough to stay in a processor's cache between what the server sends and what is copied out
_TENS = 10 ** np.arange(1, 16, dtype=np.int64)  # where an index has a digit more; it has 16 at most
_POWERS = 10 ** np.arange(15, -1, -1, dtype=np.int64)

Bytes = NDArray[np.uint8]


class _Group(NamedTuple):
    """Rows of a step whose indices have equally many digits, so that their commands are equally long, and their replies."""

    rows: NDArray[np.int64]
    digits: Bytes  # (rows, digits)

    def lines(self, text: bytes) -> Bytes:
        """`text` for each row, the row's index instead of every run of zero bytes in it."""
        lines = np.tile(np.frombuffer(text, np.uint8), (len(self.rows), 1))
        width, at = self.digits.shape[1], -1
        while (at := text.find(b"\0" * width, at + 1)) >= 0:
            lines[:, at : at + width] = self.digits
        return lines

    def commands(self, key: bytes) -> Bytes:
        """What asks for each row."""
        width = self.digits.shape[1]
        entry = b"$%d\r\n0-%b\r\n" % (width + 2, b"\0" * width)
        return self.lines(b"*4\r\n$6\r\nXRANGE\r\n$%d\r\n%b\r\n%b%b" % (len(key), key, entry, entry))

    def heads(self, size: int) -> Bytes:
        """What the reply to each row begins with, before its `size` bytes and the end of the line."""
        width = self.digits.shape[1]
        return self.lines(b"*1\r\n*2\r\n$%d\r\n0-%b\r\n*2\r\n$1\r\nd\r\n$%d\r\n" % (width + 2, b"\0" * width, size))


def _groups(index: NDArray[np.int64]) -> Iterator[_Group]:
    widths = np.searchsorted(_TENS, index, "right") + 1
    for width in range(widths.min(initial=16), widths.max(initial=0) + 1):
        rows = np.flatnonzero(widths == width)
        if len(rows):
            yield _Group(rows, (index[rows, None] // _POWERS[-width:] % 10 + ord("0")).astype(np.uint8))


def request(step: Fetch) -> bytes:
    """The commands, packed, in the order of the step's `groups`, which it has from now on."""
    step.groups = tuple(_groups(step.index))
    return b"".join([group.commands(step.key).tobytes() for group in step.groups]) + step.last()


def hand_on(step: Fetch, replies: Sequence[Any]) -> Any:
    """Puts the payloads of parsed replies in their rows: of those that were not received yet. Gives the last reply."""
    order = (row for group in step.groups for row in group.rows.tolist())
    step.lacks = False
    for row, reply in zip(islice(order, len(step.index) + 1 - len(replies), None), replies[:-1], strict=True):
        if isinstance(reply, Exception) or not reply:
            step.lacks = step.lacks or reply or True
        else:
            step.into.put(step.base + row, reply[0][1][1])
    return replies[-1]


def buffer_bytes(size: int) -> int:
    """How large the buffer must be that `receive` is given, for records of `size` bytes."""
    return max(BUFFER_BYTES, 2 * size)


def receive(step: Fetch, buffer: memoryview) -> Generator[memoryview, int, tuple[int, memoryview]]:
    """Takes replies without parsing, up to the first of another form, and puts their payloads in their rows. Yields the room
    for what comes next, and is sent how many bytes came. Gives how many replies are still to come, and what has come of them.

    Raises:
        ConnectionError: the server closed the connection.
    """
    low = high = 0  # what has come and was not handed on yet
    left, size = len(step.index) + 1, step.size or 0
    room = np.frombuffer(buffer, np.uint8)
    for group in step.groups if step.size is not None else ():
        heads, done = group.heads(size), 0
        start = heads.shape[1]
        end = start + size + 2
        while done < len(heads):
            n = min((high - low) // end, len(heads) - done)
            whole = room[low : low + n * end].reshape(n, end)
            good = (whole[:, :start] == heads[done : done + n]).all(axis=1)
            n = n if good.all() else int(good.argmin())
            if n:
                step.into.put_block(step.base + group.rows[done : done + n], whole[:n, start : end - 2])
                low, done, left = low + n * end, done + n, left - n
            if done == len(heads):
                break
            # Only what has come is compared: a missing entry has a shorter reply, and nothing may follow it.
            part = min(high - low, start)
            if (room[low : low + part] != heads[done, :part]).any():
                return left, buffer[low:high]
            if low + end > len(buffer):
                buffer[: high - low] = buffer[low:high]
                low, high = 0, high - low
            if not (more := (yield buffer[high:])):
                raise ConnectionError("the server closed the connection")
            high += more
    return left, buffer[low:high]
