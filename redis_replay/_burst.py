"""Many entries of a stream by many XRANGEs in one go. The replies of equally long records have a known form, so they are
received into one buffer and handed on from there, instead of being parsed (docs/benchmarks.md).
"""

from collections.abc import Callable, Sequence
from typing import Any

from redis_replay._steps import Fetch

BUFFER_BYTES = 262144  # small enough to stay in a processor's cache between what the server sends and what is copied out


class IrregularError(Exception):
    """A reply has another form than that of a record: an entry is missing, or the server refuses."""


Receive = Callable[[memoryview], int]


def request(step: Fetch) -> bytes:
    """The commands, packed."""
    head = b"*4\r\n$6\r\nXRANGE\r\n$%d\r\n%b\r\n" % (len(step.key), step.key)
    ids = (b"$%d\r\n0-%b\r\n" % (len(index) + 2, index) for index in step.indices)
    guard = b"*3\r\n$4\r\nHGET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(step.config), step.config, len(step.field), step.field)
    return b"".join([head + entry + entry for entry in ids]) + guard


def hand_on(step: Fetch, replies: Sequence[Any]) -> Any:
    """Puts the payloads of parsed replies in their rows. Gives the field's value, or what came in a payload's stead:
    an error, or None for an entry that is not there.
    """
    for row, reply in enumerate(replies[:-1]):
        if isinstance(reply, Exception) or not reply:
            return reply or None
        step.put(row, reply[0][1][1])
    return replies[-1]


def buffer_bytes(size: int) -> int:
    """How large the buffer must be that `receive` is given, for records of `size` bytes."""
    return max(BUFFER_BYTES, 2 * size)


def receive(step: Fetch, receive_into: Receive, buffer: memoryview) -> bytes:
    """As `hand_on`, received without parsing.

    Raises:
        IrregularError: a reply has another form. What is left of it is unread.
        ConnectionError: the server closed the connection.
    """
    size = step.size or 0
    low = high = 0  # what has come and was not handed on yet
    guard = b"$%d\r\n%b\r\n" % (len(step.value), step.value)
    heads = [b"*1\r\n*2\r\n$%d\r\n0-%b\r\n*2\r\n$1\r\nd\r\n$%d\r\n" % (len(i) + 2, i, size) for i in step.indices]
    for row, head in enumerate([*heads, guard]):
        start = len(head)
        end = start if head is guard else start + size + 2
        if low + end > len(buffer):
            buffer[: high - low] = buffer[low:high]
            low, high = 0, high - low
        while True:
            # Only what has come is compared: a missing entry has a shorter reply, and nothing may follow it.
            if buffer[low : min(high, low + start)] != head[: high - low]:
                raise IrregularError
            if high - low >= end:
                break
            if not (more := receive_into(buffer[high:])):
                raise ConnectionError("the server closed the connection")
            high += more
        if head is not guard:
            step.put(row, buffer[low + start : low + end - 2])
        low += end
    return step.value
