"""Every error that redis-replay raises on purpose.

    ReplayError
    ├── ArgumentError (ValueError), ArgumentTypeError (TypeError)   a bad option or argument
    ├── SchemaError (ValueError)            a record that does not fit the buffer's schema
    │   ├── LeafTypeError (TypeError)       a leaf of a type that cannot be stored at all
    │   └── CheckpointSchemaError           a checkpoint's records do not fit it
    ├── ConfigMismatchError (ValueError)    attached with other settings than the buffer has
    ├── LimitError (ValueError)             an index or a counter has reached its last value
    ├── BufferFullError                     every record is lent to readers, so none can be evicted
    ├── NotReadyError (RuntimeError)        fewer records than the call needs, and it does not wait
    ├── ReplayTimeoutError (TimeoutError)   a wait reached its timeout
    ├── StalledError                        nobody has written for as long as a wait allows
    ├── ReplayCancelledError (RuntimeError) a wait's cancel_event was set
    ├── BufferShutDownError (RuntimeError)  the buffer was shut down for everyone
    ├── BufferClosedError                   this handle was closed
    ├── BufferNotFoundError (LookupError)   nobody has created the buffer
    ├── BufferGoneError                     the buffer was deleted, or deleted and created anew
    ├── BufferDamagedError                  a key of the buffer is not what it must be
    ├── FormatError                         the stored format is of another version of this library
    ├── RecordNotFoundError (LookupError)   no record is stored under the index
    ├── RecordDecodeError                   stored bytes are not a record of the schema
    ├── OutcomeUnknownError                 a write was sent, and its reply never came
    ├── NotWrittenError                     so of records that add had taken, to be written later
    ├── OutcomeLostError                    what became of such a write cannot be learnt
    ├── ConnectionLostError (ConnectionError)  the server cannot be reached, or does not answer
    │   └── MemberDownError                 so of a member of an ensemble
    ├── CertificateError                    the server's TLS certificate is not to be trusted
    ├── EmbeddedServerError                 a server of our own cannot be started
    ├── ServerTooOldError                   the server lacks a command that is needed
    ├── OutOfMemoryError                    the server's maxmemory is reached
    ├── ServerRefusedError                  the server refused a command for another reason
    │   ├── ServerNotReadyError             it serves nobody for now: it loads, is busy, or is a replica
    │   └── NoPermissionError               its user lacks a right
    ├── ProtocolError                       a script gave an answer that this version does not know
    ├── CheckpointError (ValueError)        what lies there is no whole checkpoint that this version reads
    │   ├── CheckpointNotFoundError (FileNotFoundError)  nothing lies there
    │   └── CheckpointMismatchError         it is of a buffer with other settings
    ├── DumpError                           a dump ended before its end
    ├── LoadError                           a load ended before its end
    │   └── PartlyLoadedError               so of an ensemble, when some of its members were loaded
    ├── RepairError                         what is lost can only be invented
    └── UnderWayError                       another dump, load or repair of the buffer is under way

Each error carries its data as attributes, and its text is made from them. All of them pickle and copy whole.
"""

import sys
from typing import Any, cast

from redis_replay._checkpoint_errors import (
    CheckpointError,
    CheckpointNotFoundError,
    DumpError,
    LoadError,
    PartlyLoadedError,
    RepairError,
    UnderWayError,
)
from redis_replay._error import ReplayError
from redis_replay._server_errors import (
    CertificateError,
    ConnectionLostError,
    EmbeddedServerError,
    MemberDownError,
    NoPermissionError,
    OutOfMemoryError,
    ProtocolError,
    ServerNotReadyError,
    ServerRefusedError,
    ServerTooOldError,
)


class ArgumentError(ReplayError, ValueError):
    """An argument has a value that is not allowed."""

    text = "{name} must be {allowed}, not {found!r}"
    name: str
    allowed: str
    found: object


class ArgumentTypeError(ReplayError, TypeError):
    """An argument has a type that is not allowed."""

    text = "{name} must be {allowed}, not {found!r}"
    name: str
    allowed: str
    found: object


class SchemaError(ReplayError, ValueError):
    """A record does not fit the schema that the first write fixed. `path` names the leaf, `expected` and `found` both sides."""

    text = "leaf {path!r}: expected {expected}, found {found}"
    path: str
    expected: str
    found: str


class LeafTypeError(SchemaError, TypeError):
    """A leaf of a type that no buffer stores, such as an array of Python objects."""


class ConfigMismatchError(ReplayError, ValueError):
    """The buffer exists with other settings. `differences` maps each option to (stored, given), as they are passed; given
    is a class where any of its kind would do.
    """

    text = (
        "buffer {name!r} exists with other settings: {listing}; leave these options out to attach as it is, or use another name"
    )
    name: str
    differences: dict[str, tuple[object, object]]

    def _message(self, **data: Any) -> str:
        rows = data["differences"].items()
        listing = ", ".join(
            f"{option}: stored {a!r}, given {b.__name__ if isinstance(b, type) else repr(b)}" for option, (a, b) in rows
        )
        return super()._message(listing=listing, **data)


class CheckpointMismatchError(CheckpointError, ConfigMismatchError):
    """It is of a buffer with other settings. `differences` maps each option to (this buffer's, the checkpoint's)."""

    text = "checkpoint {path!r} is of a buffer with other settings than {name!r}: {listing}; nothing was changed; create a buffer with the checkpoint's settings and load it there"

    def _message(self, **data: Any) -> str:
        rows = data["differences"].items()
        listing = ", ".join(f"{option}: buffer {a!r}, checkpoint {b!r}" for option, (a, b) in rows)
        return ReplayError._message(self, listing=listing, **data)


class CheckpointSchemaError(SchemaError):
    """A checkpoint's records (`file`) are none that this buffer takes. `expected` is the buffer's, `found` the checkpoint's."""

    text = "checkpoint {file!r}: leaf {path!r}: buffer {name!r} has {expected}, the checkpoint {found}; nothing was changed"
    file: str
    name: str


class LimitError(ReplayError, ValueError):
    """A write would carry an index or a counter past its last value. Nothing was written."""

    text = "buffer {name!r}: {what} is {value}, and {n} more would pass its limit {limit}; nothing was written"
    name: str
    what: str
    value: int
    n: int
    limit: int


class BufferFullError(ReplayError):
    """Every record that the buffer can hold is lent to readers under a lease: none can be evicted. Nothing was written."""

    text = "buffer {name!r}: all its {capacity} records are lent to readers; nothing was written until one acks or a lease ends"
    name: str
    capacity: int


class NotReadyError(ReplayError, RuntimeError):
    """`have` records can be drawn (less what is owed to waiters ahead), and the call needs `need`; `leased` more are lent.
    `limiter`: what the rate limiter has against it; `side`: sample, or insert; `hidden`: records of priority 0. So on each
    error of a wait.
    """

    text = "buffer {name!r}: {have} records can be drawn now and {need} are needed; pass wait=True to wait, or ask for fewer"
    name: str
    have: int
    need: int
    leased: int = 0
    limiter: str = ""
    side: str = "sample"


class ReplayTimeoutError(ReplayError, TimeoutError):
    """A wait reached its timeout: `have` of `need` after `timeout_s` seconds; `leased` more are lent to readers."""

    text = "buffer {name!r}: waited {timeout_s:g} s for {what}: have {have}, need {need}"
    name: str
    what: str
    have: int
    need: int
    timeout_s: float
    leased: int = 0


class StalledError(ReplayError):
    """Nobody has written for as long as the wait allows. `idle_s`: seconds since the last write (inf: there was none);
    `writers`: those that wrote within the last minute and have not closed their handle; `leased`: records lent to readers.
    """

    text = "buffer {name!r}: {have} of {need} records are there, and nobody has written for {idle_s:.1f} s (live writers: {writers}, stall_timeout {stall_timeout_s} s); see whether the actors still run"
    name: str
    have: int
    need: int
    idle_s: float
    writers: int
    stall_timeout_s: float
    leased: int = 0


class ReplayCancelledError(ReplayError, RuntimeError):
    """The cancel_event of a wait was set: `have` of `need` at that moment."""

    text = "buffer {name!r}: the wait was cancelled: have {have}, need {need}"
    name: str
    have: int
    need: int


class BufferShutDownError(ReplayError, RuntimeError):
    """The buffer was shut down for everyone: no more will come. Open it with `reopen()`, or create it with fresh=True."""

    text = "buffer {name!r} was shut down: no more will come; reopen() opens it again, fresh=True creates it anew"
    name: str


class NotWrittenError(ReplayError):
    """Of `n` records that `add` had taken (write_behind) it is not known that they are stored. Its cause is why of the first; the
    future of each has its own.
    """

    text = "buffer {name!r}: {n} records that add had taken are not known to be stored: {reason}"
    name: str
    n: int
    reason: str


class BufferClosedError(ReplayError):
    """This handle was closed; the buffer itself goes on. Make a new handle."""

    text = "this handle of buffer {name!r} was closed; make a new one"
    name: str


class BufferNotFoundError(ReplayError, LookupError):
    """Nobody has created the buffer. Give capacity= to create it, or attach(timeout=) to wait for its creator."""

    text = "buffer {name!r} does not exist; give capacity= to create it, or use attach(timeout=) to wait for its creator"
    name: str


class BufferGoneError(ReplayError):
    """The buffer that this handle was opened on was deleted (and perhaps created anew). Nothing was touched."""

    text = "buffer {name!r} is gone: it was deleted, or deleted and created anew; make a new handle"
    name: str


class BufferDamagedError(ReplayError):
    """A key of the buffer is not what it must be. Nothing was changed, except where a script met a key of another type in its
    middle: the doctor tells.
    """

    text = "buffer {name!r} is damaged: key {key!r} {found}, expected {expected}; `redis-replay doctor` tells more"
    name: str
    key: str
    found: str
    expected: str


class FormatError(ReplayError):
    """The buffer was stored by another version of this library: `found` and `supported` are format numbers."""

    text = "buffer {name!r} is stored in format {found!r}, this version of redis-replay reads format {supported!r}; nothing was changed"
    name: str
    found: str
    supported: str


class RecordNotFoundError(ReplayError, LookupError):
    """No record is stored under `index` (it was consumed, evicted or removed, never written, or lost by a server)."""

    text = "buffer {name!r} has no record {index}"
    name: str
    index: int


class RecordDecodeError(ReplayError):
    """The bytes stored under `index` are not a record of the buffer's schema."""

    text = "record {index} cannot be decoded: {reason}; others can, and remove({index}) takes it out of the buffer"
    index: int
    reason: str


class OutcomeUnknownError(ReplayError):
    """A write was sent and its reply never came: it was applied once, or not at all. `verb` is the call (`ack` where a draw
    acknowledges the batch before), `lane` and `number` name its request.

    In a write of several steps this is about the step behind the first `done` records; none after it was sent.
    """

    text = "buffer {name!r}: {verb} (request {number} of lane {lane}) was sent, and no reply came: it was applied once or not at all; resolve() of this error says which"
    name: str
    verb: str
    lane: str
    number: int
    question = ask = cast(Any, None)  # set by the handle whose call this was

    def resolve(self) -> Any:
        """What became of the write: an `Outcome`, or on an AsyncReplayBuffer a coroutine that gives one. May be repeated.

        Says whether it was applied, and under which indices; if not, it never will be. Any later call of the handle that
        went the same way has asked already, and so has the handle itself within a second, if it could.

        Raises:
            ConnectionLostError, ServerRefusedError: the server gave no answer within 5 seconds; ask again later.
            BufferClosedError: the handle was closed before the answer was known.
            OutcomeLostError: the server does not know the request any more (after an hour), and will not apply it; or this
            is a copy of the error, in another process perhaps. BufferGoneError.
        """
        if self.ask is None:
            why = "this is a copy of the error: only the one that the call raised can ask, in its own process"
            raise OutcomeLostError(name=self.name, verb=self.verb, reason=why)
        return self.ask()


class OutcomeLostError(ReplayError):
    """What became of a write, which was applied once or not at all, cannot be learnt. `reason` says why."""

    text = "buffer {name!r}: what became of {verb} cannot be learnt: {reason}"
    name: str
    verb: str
    reason: str


__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BufferClosedError",
    "BufferDamagedError",
    "BufferFullError",
    "BufferGoneError",
    "BufferNotFoundError",
    "BufferShutDownError",
    "CertificateError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointSchemaError",
    "ConfigMismatchError",
    "ConnectionLostError",
    "DumpError",
    "EmbeddedServerError",
    "FormatError",
    "LeafTypeError",
    "LimitError",
    "LoadError",
    "MemberDownError",
    "NoPermissionError",
    "NotReadyError",
    "NotWrittenError",
    "OutOfMemoryError",
    "OutcomeLostError",
    "OutcomeUnknownError",
    "PartlyLoadedError",
    "ProtocolError",
    "RecordDecodeError",
    "RecordNotFoundError",
    "RepairError",
    "ReplayCancelledError",
    "ReplayError",
    "ReplayTimeoutError",
    "SchemaError",
    "ServerNotReadyError",
    "ServerRefusedError",
    "ServerTooOldError",
    "StalledError",
    "UnderWayError",
]

for _name in __all__:  # this is where they are found, whichever file they are written in
    getattr(sys.modules[__name__], _name).__module__ = __name__
