"""One call of a script: packed, sent until a script has answered, and its answer read. No I/O here."""

from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import Any

from redis_replay import _codes
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, Core, Lane
from redis_replay._lua import load
from redis_replay._scripts import Script
from redis_replay._steps import Call, Fetch, LostError, Pipe, ScriptMissingError, Sleep, Step, UnansweredError
from redis_replay._types import Reply, as_text
from redis_replay.exceptions import OutcomeUnknownError, ProtocolError, ReplayError

Stop = Callable[[], bool]  # whether a call that is not answered shall give up
STOP_SECONDS = 1.0  # between two looks at it
FIRST_BACKOFF, LAST_BACKOFF = 0.01, 0.5  # seconds between tries; the real one is jittered


def pack(*parts: bytes) -> bytes:
    """A command as RESP."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def commands(*each: Sequence[bytes]) -> Pipe:
    """The step of plain commands."""
    return Pipe(lambda: (pack(*parts) for parts in each), len(each))


def pack_script(core: Core, script: Script) -> bytes:
    """A script call as RESP."""
    sha, size = load(script.verb).sha.encode(), 3 + core.key_count + len(script.args) + script.count
    head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % (size, sha)
    return b"".join((head, core.packed_keys, *(b"$%d\r\n%b\r\n" % (len(a), a) for a in script.args), script.packed))


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
    return Reply(as_text(raw[0]), as_text(raw[1]), list(raw[2:]))


def numbers(verb: str, reply: Reply, n: int) -> list[int]:
    """The first `n` data of an answer as whole numbers.

    Raises:
        ProtocolError: they are none.
    """
    try:
        found = [int(value) for value in reply.data[:n]]
    except ValueError:
        found = []
    if len(found) != n:
        raise ProtocolError(verb=verb, reply=[reply.word, *reply.texts()[:n]])
    return found


def refused(core: Core, verb: str, reply: Reply) -> ReplayError:
    """The exception for an answer that is a refusal."""
    return _codes.error(verb, reply.word, core.name, reply.texts())


def deliver(
    core: Core, step: Call | Pipe | Fetch, until: float, stop: Stop | None = None
) -> Generator[Step, Any, tuple[Any, int]]:
    """Sends `step` until an answer comes, at most until `until` or until `stop` says so. Gives the answer, and how often it
    was sent.

    Raises:
        UnansweredError: none came in time.
    """
    sent, backoff = 0, FIRST_BACKOFF
    while True:
        left = until - core.clock()
        try:
            step.timeout = max(0.05, min(left, STOP_SECONDS if stop else CALL_SECONDS))
            reply = yield step
            return reply, sent + 1
        except UnansweredError as lost:
            sent += isinstance(lost, LostError)
            lost.sent = sent
            if core.clock() + backoff >= until or (stop and stop()):
                raise
        yield Sleep(backoff * core.random.uniform(0.5, 1.5))
        backoff = min(LAST_BACKOFF, backoff * 2)


def deliver_once(core: Core, step: Call | Pipe | Fetch, until: float | None = None) -> Generator[Step, Any, Any]:
    """Sends what may safely be repeated. Gives the answer.

    Raises:
        ConnectionLostError, ServerRefusedError: none came in time.
    """
    try:
        answer, _ = yield from deliver(core, step, core.clock() + CALL_SECONDS if until is None else until)
    except UnansweredError as lost:
        raise lost.error from lost.error.__cause__
    return answer


def ask(
    core: Core, script: Script, until: float | None = None, answers: tuple[str, ...] = ("OK", "LAPSED")
) -> Generator[Step, Any, Reply]:
    """A call without a number: a read, or one that may safely be repeated.

    Raises:
        the error of `_codes` for a refusal; ConnectionLostError, ServerRefusedError.
    """
    step = Call(Script(script.verb, (core.epoch.encode(), *script.args), script.packed, script.count))
    reply = read((yield from deliver_once(core, step, until)))
    if reply.word not in answers:
        raise refused(core, script.verb, reply)
    return reply


def numbered(core: Core, lane: Lane, number: int, script: Script) -> Script:
    """The script with ARGV[1..4] of every numbered request in front."""
    head = core.epoch.encode(), lane.name.encode(), b"%d" % number, b"%d" % lane.open_number
    return Script(script.verb, (*head, *script.args), script.packed, script.count)


def register(core: Core, lane: Lane, until: float) -> Generator[Step, Any, None]:
    """Makes the lane known to the server, or settles what it left open.

    Raises:
        NoPermissionError: the user may only read.
    """
    if core.lacks is not None:
        raise copy(core.lacks)
    reply = yield from _request(core, lane, scripts.settle(forget=False), until, writes=False)
    if reply.word != "OK":
        raise refused(core, "settle", reply)
    lane.registered = True


def request(
    core: Core, lane: Lane, script: Script, until: float, *, writes: bool = False, stop: Stop | None = None
) -> Generator[Step, Any, Reply]:
    """A numbered request: applied at most once. `writes`: it is a write, whose outcome must be known.

    Raises:
        OutcomeUnknownError: a write was sent, and no answer came until `until`.
        ConnectionLostError, ServerRefusedError: no answer came, or the server let nothing through.
    """
    while True:
        if not lane.registered:
            yield from register(core, lane, until)
        reply = yield from _request(core, lane, script, until, writes=writes, stop=stop)
        if reply.word != "FORGOTTEN":
            return reply
        lane.registered = False


def _request(
    core: Core, lane: Lane, script: Script, until: float, *, writes: bool, stop: Stop | None = None
) -> Generator[Step, Any, Reply]:
    step = Call(numbered(core, lane, lane.next_number(), script))
    raw = yield from answered(core, lane, script.verb, step, until, writes, stop)
    return read(raw)


def answered(
    core: Core, lane: Lane, verb: str, step: Call | Pipe, until: float, writes: bool, stop: Stop | None = None
) -> Generator[Step, Any, Any]:
    """Delivers a numbered step; keeps the lane's book on what was answered."""
    try:
        raw, sent = yield from deliver(core, step, until, stop)
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
    if writes and sent > 1 and _first_word(raw) == b"FORGOTTEN":
        raise OutcomeUnknownError(name=core.name, verb=verb, lane=lane.name, number=lane.number)
    return raw


def _first_word(raw: Any) -> Any:
    """Of a script's answer, or of the first one in a MULTI."""
    if isinstance(raw[-1], list) and raw[-1] and isinstance(raw[-1][0], list):
        raw = raw[-1][0]
    return raw[0]
