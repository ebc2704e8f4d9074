"""One call of a script: packed, sent until a script has answered, and its answer read. No I/O here."""

from collections.abc import Generator, Sequence
from typing import Any

from redis_replay import _codes
from redis_replay._core import CALL_SECONDS, Core, Lane
from redis_replay._lua import load
from redis_replay._steps import Call, LostError, Pipe, ScriptMissingError, Sleep, Step, UnansweredError
from redis_replay._types import Reply
from redis_replay.exceptions import OutcomeUnknownError, ReplayError

Argument = bytes | str | int
Deliver = Generator[Step, Any, Any]
FIRST_BACKOFF, LAST_BACKOFF = 0.01, 0.5  # seconds between tries; the real one is jittered


def as_bytes(value: Argument) -> bytes:
    """An argument as it is sent."""
    return value if isinstance(value, bytes) else str(value).encode()


def pack(*parts: bytes) -> bytes:
    """A command as RESP."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def pack_script(core: Core, verb: str, args: Sequence[bytes], packed: bytes = b"", count: int = 0) -> bytes:
    """A script call as RESP; `packed` holds `count` more arguments as bulk strings."""
    keys = core.packed_keys
    head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % (3 + core.key_count + len(args) + count, load(verb).sha.encode())
    return b"".join((head, keys, *(b"$%d\r\n%b\r\n" % (len(a), a) for a in args), packed))


def inner_replies(replies: list[Any]) -> list[Any] | None:
    """The answers inside a MULTI … EXEC; None where a script was not loaded, and the same step must be sent again.

    Raises:
        ReplayError: the server refused the MULTI, or a command in it.
    """
    refusals = [r for r in replies if isinstance(r, Exception)]
    if refusals:
        raise refusals[0]
    answers: list[Any] = replies[-1]
    failed = [a for a in (answers[0], answers[-1]) if isinstance(a, Exception)]
    if any(isinstance(f, ScriptMissingError) for f in failed):
        return None
    if failed:
        raise failed[0]
    return answers


def read(raw: Sequence[Any]) -> Reply:
    """A script's reply as a Reply."""
    return Reply(raw[0].decode(), raw[1].decode(), list(raw[2:]))


def refused(core: Core, verb: str, reply: Reply) -> ReplayError:
    """The exception for an answer that is a refusal."""
    return _codes.error(verb, reply.word, core.name, reply.texts())


def deliver(core: Core, step: Call | Pipe, until: float) -> Generator[Step, Any, tuple[Any, int]]:
    """Sends `step` until an answer comes, at most until `until`. Gives the answer, and how often it was sent.

    Raises:
        UnansweredError: none came in time.
    """
    sent, backoff = 0, FIRST_BACKOFF
    while True:
        left = until - core.clock()
        try:
            reply = yield _within(step, max(0.05, min(left, CALL_SECONDS)))
            return reply, sent + 1
        except UnansweredError as lost:
            sent += isinstance(lost, LostError)
            lost.sent = sent
            if core.clock() + backoff >= until:
                raise
        yield Sleep(backoff * core.random.uniform(0.5, 1.5))
        backoff = min(LAST_BACKOFF, backoff * 2)


def _within(step: Call | Pipe, seconds: float) -> Call | Pipe:
    if isinstance(step, Call):
        return Call(step.verb, step.args, step.packed, step.count, seconds)
    return Pipe(step.packed, step.replies, seconds, step.needs)


def ask(
    core: Core, verb: str, args: Sequence[Argument] = (), until: float | None = None,
    answers: tuple[str, ...] = ("OK", "LAPSED"),
) -> Generator[Step, Any, Reply]:  # fmt: skip
    """A call without a number: a read, or one that may safely be repeated.

    Raises:
        the error of `_codes` for a refusal; ConnectionLostError, ServerRefusedError.
    """
    step = Call(verb, (core.epoch.encode(), *map(as_bytes, args)))
    try:
        raw, _ = yield from deliver(core, step, core.clock() + CALL_SECONDS if until is None else until)
    except UnansweredError as lost:
        raise lost.error from lost.error.__cause__
    reply = read(raw)
    if reply.word not in answers:
        raise refused(core, verb, reply)
    return reply


def number_head(core: Core, lane: Lane, number: int) -> tuple[bytes, ...]:
    """ARGV[1..4] of every numbered request."""
    return core.epoch.encode(), lane.name.encode(), b"%d" % number, b"%d" % lane.open_number


def register(core: Core, lane: Lane, until: float) -> Generator[Step, Any, None]:
    """Makes the lane known to the server, or settles what it left open."""
    reply = yield from _numbered(core, lane, "settle", (0,), until, writes=False)
    if reply.word != "OK":
        raise refused(core, "settle", reply)
    lane.registered = True


def request(
    core: Core, lane: Lane, verb: str, args: Sequence[Argument], until: float, *, writes: bool = False,
    packed: bytes = b"", count: int = 0,
) -> Generator[Step, Any, Reply]:  # fmt: skip
    """A numbered request: applied at most once. `writes`: it is a write, whose outcome must be known.

    Raises:
        OutcomeUnknownError: a write was sent, and no answer came until `until`.
        ConnectionLostError, ServerRefusedError: no answer came, or the server let nothing through.
    """
    while True:
        if not lane.registered:
            yield from register(core, lane, until)
        reply = yield from _numbered(core, lane, verb, args, until, writes=writes, packed=packed, count=count)
        if reply.word != "FORGOTTEN":
            return reply
        lane.registered = False


def _numbered(
    core: Core, lane: Lane, verb: str, args: Sequence[Argument], until: float, *, writes: bool,
    packed: bytes = b"", count: int = 0,
) -> Generator[Step, Any, Reply]:  # fmt: skip
    number = lane.next_number()
    step = Call(verb, (*number_head(core, lane, number), *map(as_bytes, args)), packed, count)
    raw = yield from answered(core, lane, verb, step, until, writes)
    return read(raw)


def answered(
    core: Core, lane: Lane, verb: str, step: Call | Pipe, until: float, writes: bool
) -> Generator[Step, Any, Any]:
    """Delivers a numbered step; keeps the lane's book on what was answered."""
    try:
        raw, sent = yield from deliver(core, step, until)
    except UnansweredError as lost:
        lane.leave_open()
        if writes and lost.sent:
            raise OutcomeUnknownError(name=core.name, verb=verb, lane=lane.name, number=lane.number) from lost.error
        raise lost.error from lost.error.__cause__
    except BaseException:
        lane.leave_open()
        raise
    lane.resent = lane.resent or sent > 1
    lane.answered()
    if isinstance(step, Call) and raw[0] == b"FORGOTTEN" and writes and sent > 1:
        raise OutcomeUnknownError(name=core.name, verb=verb, lane=lane.name, number=lane.number)
    return raw

