"""What an operation asks of its shell: generators yield these and are sent the results. No I/O here."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

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


@dataclass(slots=True)
class Fetch:
    """Read entries of a stream, in one go, and `field` of the hash `config`, which tells whose they are. `put` is given each
    payload with its row, 0 for the first index. Sent back: the field's value; or None where an entry is not there, or
    the server's refusal.
    """

    key: bytes
    indices: tuple[bytes, ...]
    config: bytes
    field: bytes
    value: bytes  # that is expected
    size: int | None  # bytes of every payload, where they are all equal
    put: Callable[[int, Any], None]
    timeout: float = 5.0
    slack: float = 0.0


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
