"""What an operation asks of its shell: generators yield these and are sent the results. No I/O here."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from redis_replay._scripts import Script
from redis_replay.exceptions import ReplayError

EVENTS = "events"  # the lane, so to say, for whose Pause every change of the buffer's state is a notice


@dataclass(slots=True)
class Call:
    """Run a script once. Sent back: its reply."""

    script: Script
    timeout: float = 5.0  # seconds for all of it, from the first byte sent to the last that comes
    slack: float = 0.0  # seconds that its bytes may need to be sent, on a slow line


@dataclass(slots=True)
class Pipe:
    """Send commands, in one go. `packed` gives their bytes, each time anew. Sent back: the list of the replies; an error is
    an item of it.
    """

    packed: Callable[[], Iterator[bytes]]
    replies: int
    timeout: float = 5.0
    needs: tuple[str, ...] = ()  # verbs that must be loaded
    slack: float = 0.0


class Into(Protocol):
    """Where payloads go, each in its row. They may change afterwards."""

    def put(self, row: int, payload: bytes) -> None:
        """The payload of a row."""

    def put_block(self, rows: NDArray[np.int64], block: NDArray[np.uint8]) -> None:
        """The payloads of rows (n,), each of the size that was asked for: (n, size)."""


@dataclass(slots=True)
class Fetch:
    """Read entries of a stream and, behind them, do one command, in one go. Sent back: the reply to that command.

    Attributes:
        key: the stream.
        index: int64 (n,), of the entries.
        last: gives the bytes of the last command, each time anew.
        size: bytes of every payload, where they are all equal.
        into: is given the payloads; the first one is of row `base`.
        needs: verbs that must be loaded.
        groups: of its rows, as they are asked for (_burst).
        instead: what is sent in its stead when it was lost: what is known of the buffer may be so no more.
        lacks: True until it is done, and where an entry is not there; or the server's refusal to give it.
    """

    key: bytes
    index: NDArray[np.int64]
    last: Callable[[], bytes]
    size: int | None
    into: Into
    base: int = 0
    needs: tuple[str, ...] = ()
    timeout: float = 5.0
    slack: float = 0.0
    groups: Sequence[Any] = ()
    instead: Call | None = None
    lacks: Any = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Block until a notice for `lane`, at most `seconds`; ends at once when the subscription was lost. Sent back: a Notice."""

    lane: str
    seconds: float
    cancel_event: Any = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Have the subscription confirmed, before the first registration of a wait of `lane`. Sent back: None."""

    lane: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Why a Pause ended: `wake`, `standby`, `lost` (the subscription was opened anew), `poll` (time), `cancelled`."""

    reason: str
    seconds: float = 0.0  # of a `standby`: after which to look again


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let `seconds` pass before the next try. Sent back: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Do what blocks and is no call of the server, such as writing to a file; of an event loop: in a thread. Sent back: its
    result.
    """

    do: Callable[[], Any]


class UnansweredError(Exception):
    """Raised into an operation: no script has answered. `error` says why; `sent`: how often the request may have arrived."""

    def __init__(self, error: ReplayError, sent: int = 0) -> None:
        super().__init__(error)
        self.error = error
        self.sent = sent


class LostError(UnansweredError):
    """The request was, perhaps, sent, and its reply did not come."""


class NotSentError(UnansweredError):
    """No connection could be had, so nothing was sent."""


class NotNowError(UnansweredError):
    """The server refuses everything for now (loading, busy). Nothing was done."""


class ScriptMissingError(Exception):
    """A reply: the server does not know a script. It is loaded, and the step sent again."""


Step = Call | Pipe | Fetch | Pause | Listen | Sleep | Work
Operation = Generator[Step, Any, Any]
