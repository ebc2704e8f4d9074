"""Every error that redis-replay raises on purpose.

    ReplayError
    ├── ArgumentError (ValueError), ArgumentTypeError (TypeError)   a bad option or argument
    ├── SchemaError (ValueError)            a record that does not fit the buffer's schema
    │   └── LeafTypeError (TypeError)       a leaf of a type that cannot be stored at all
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
    └── ProtocolError                       a script gave an answer that this version does not know

Each error carries its data as attributes, and its text is made from them. All of them pickle and copy whole.
"""

from typing import Any, Self, cast

from redis_replay._briefly import fill, portable


def _rebuild(kind: "type[ReplayError]", data: dict[str, Any], more: dict[str, Any]) -> "ReplayError":
    error = kind(**data)
    error.__dict__.update(more)
    return error


def _elsewhere(leased: int | None, hidden: int | None) -> str:
    lent = f"; {leased} more are lent to readers, and can be drawn once they come back" if leased else ""
    return lent + (f"; {hidden} more have priority 0, and are hidden" if hidden else "")


_OF_THE_CALL = ("_data", "question", "ask")


class ReplayError(Exception):
    """Root of the tree. `text` is the message, filled in from the keyword arguments, which become attributes."""

    text = "{reason}"
    done: int  # records (of ack and release: leases) that a call in steps had handled before this error; set only there

    def __init__(self, **data: Any) -> None:
        self.__dict__.update(data)
        self._data = data
        super().__init__(self._message(**data))

    def _message(self, **data: Any) -> str:
        text = fill(self.text, data)
        if data.get("side") != "insert":
            text += _elsewhere(data.get("leased"), data.get("hidden"))
        return f"{text}; {limiter}" if (limiter := data.get("limiter")) else text

    def restate(self, **data: Any) -> Self:
        """The same error with other data."""
        self._data = self._data | data
        self.__dict__.update(data)
        self.args = (self._message(**self._data),)
        return self

    def _more(self) -> dict[str, Any]:
        """What was set on it since: `done`, notes. Not what belongs to the call that raised it."""
        own = {*self._data, *_OF_THE_CALL}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {name: portable(value) for name, value in self._data.items()}, self._more())

    def __copy__(self) -> "ReplayError":
        return _rebuild(type(self), self._data, self._more())

    def __deepcopy__(self, _: Any) -> "ReplayError":
        return self.__copy__()


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
    """The buffer exists with other settings. `differences` maps each option to (stored, given), as they are passed."""

    text = (
        "buffer {name!r} exists with other settings: {listing}; leave these options out to attach as it is, or use another name"
    )
    name: str
    differences: dict[str, tuple[object, object]]

    def _message(self, **data: Any) -> str:
        listing = ", ".join(f"{option}: stored {a!r}, given {b!r}" for option, (a, b) in data["differences"].items())
        return super()._message(listing=listing, **data)


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

    text = (
        "buffer {name!r}: {have} records can be drawn now and {need} are needed; pass wait=True to wait, or a smaller min_items"
    )
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

    text = "buffer {name!r}: {have} of {need} records are there, and nobody has written for {idle_s:.1f} s ({writers} live writers, stall_timeout {stall_timeout_s} s); see whether the actors still run"
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


class ConnectionLostError(ReplayError, ConnectionError):
    """The server cannot be reached or does not answer. `address` names it, without a password."""

    text = "no answer from the server at {address}: {reason}"
    address: str
    reason: str


class MemberDownError(ConnectionLostError):
    """Of an ensemble: the server of the buffer `name`, its member `member` (0 is the first), does not answer."""

    text = "member {member} of the ensemble, buffer {name!r}: no answer from the server: {reason}"
    member: int
    name: str


class CertificateError(ReplayError):
    """TLS: the server's certificate names another host, or is signed by an unknown authority. Nothing was sent."""

    text = (
        "the certificate of the server at {address} is not to be trusted: {reason}; docs/security.md tells what it must be like"
    )
    address: str
    reason: str


class EmbeddedServerError(ReplayError):
    """A server of our own cannot be started. `reason` says why."""

    text = "{reason}"
    reason: str


class ServerTooOldError(ReplayError):
    """The server lacks what redis-replay needs."""

    text = "the server at {address} is too old ({found}); redis-replay needs {need}"
    address: str
    found: str
    need: str


class OutOfMemoryError(ReplayError):
    """The server has reached its maxmemory. Nothing was written; what frees memory still works."""

    text = "buffer {name!r}: the server is out of memory (maxmemory): {reason}; nothing was written; raise maxmemory, or draw, remove or empty: what frees memory still works"
    name: str
    reason: str


class ServerRefusedError(ReplayError):
    """The server refused a call: rights, a wrong password or database, and so on. `verb` is the call."""

    text = "the server at {address} refused {verb}: {reason}"
    address: str
    verb: str
    reason: str


class ServerNotReadyError(ServerRefusedError):
    """The server served nobody until the call's timeout: it loads, is busy, or is a replica. The call did nothing."""

    text = "the server at {address} serves nobody for now, and {verb} was not done: {reason}"


class NoPermissionError(ServerRefusedError):
    """The server's ACL does not allow it. `rights` are those that the user lacks, each as ACL SETUSER takes it."""

    text = "the server at {address} refused {verb}: its user lacks {rights} ({reason}); docs/security.md tells which rights are needed"
    rights: tuple[str, ...]

    def _message(self, **data: Any) -> str:
        return super()._message(**data | {"rights": " ".join(data["rights"])})


class ProtocolError(ReplayError):
    """A script gave an answer that this version does not know."""

    text = "script {verb!r} gave an answer that this version of redis-replay does not know: {reply!r}; let all its clients run one version"
    verb: str
    reply: object
