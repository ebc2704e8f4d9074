"""One call of a script: packed, sent until a script has answered, and its answer read. No I/O here."""

from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from redis_replay import _codes
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, SLOWEST, Core, Lane, Question
from redis_replay._lua import header, load
from redis_replay._reading import Reading
from redis_replay._scripts import Script
from redis_replay._steps import Call, Fetch, LostError, Pipe, Sleep, Step, UnansweredError
from redis_replay._types import Outcome, Reply, as_text
from redis_replay.exceptions import BufferDamagedError, OutcomeUnknownError, ProtocolError, ReplayError
from redis_replay.samplers import MAX_ENDS

Take = Callable[[Any], Any]  # what to make of a reply
Stop = Callable[[], bool]  # whether a call that is not answered shall give up
UNKEPT = (b"GONE", b"DAMAGED", b"FORGOTTEN", b"STALE")  # answers that the server does not keep with the lane's number
UNNUMBERED = (
    "open", "delete", "stats", "doctor", "audit", "get", "page", "weights", "renew", "greet", "cut", "rows", "stage", "restore",
    "survey", "fence", "mend",
)  # fmt: skip
WRITES = (
    "stats",
    "delete",
    "renew",
    "cut",
    "rows",
    "stage",
    "restore",
    "fence",
    "mend",
)  # scripts without a number that change something
ENDS = ("ack", "release")  # whose leases the handle would else end again
STOP_SECONDS = 1.0  # between two looks at it
HEAVY = 4096  # records of a batch: above, what was held ends by a script of its own, so that no script takes long
TRY_SECONDS = 0.1  # what a further try has at least: one that cannot be answered in time would only hide why
FIRST_BACKOFF, LAST_BACKOFF = 0.01, 0.5  # seconds between tries; the real one is jittered


def pack(*parts: bytes) -> bytes:
    """A command as RESP."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def commands(*each: Sequence[bytes]) -> Pipe:
    """The step of plain commands."""
    return Pipe(lambda: (pack(*parts) for parts in each), len(each))


def pack_script(core: Core, script: Script) -> bytes:
    """A script call as RESP."""
    key_count, keys = core.packed_keys[script.where]
    sha, size = load(script.verb).sha.encode(), 3 + key_count + len(script.args) + script.count
    head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % (size, sha)
    return b"".join((head, keys, *(b"$%d\r\n%b\r\n" % (len(a), a) for a in script.args), script.packed))


def inner_replies(replies: list[Any]) -> list[Any]:
    """The answers inside a MULTI … EXEC.

    Raises:
        ReplayError: the server refused the MULTI, or a command in it.
    """
    refusals = [r for r in replies if isinstance(r, Exception)]
    if refusals:
        raise refusals[0]
    answers: list[Any] = replies[-1]
    failed = [a for a in (answers[0], answers[-1]) if isinstance(a, Exception)]
    if failed:
        raise failed[0]
    return answers


def read(raw: Sequence[Any]) -> Reply:
    """A script's reply as a Reply."""
    return Reply(as_text(raw[0]), as_text(raw[1]), list(raw[2:]))


def kept(core: Core, reply: Reply) -> BufferDamagedError:
    """The error for an answer that no script of ours gives: the server keeps it with the lane, and somebody wrote there."""
    found = f"has {' '.join([reply.word, *reply.texts()])[:60]!r} as the answer to a request"
    if reply.word == "STALE":
        found = "has a later request of a lane than was ever made"
    return BufferDamagedError(name=core.name, key=core.keys.key("requests"), found=found, expected="what scripts wrote")


def checked(core: Core, verb: str, reply: Reply) -> Reply:
    """The answer to a numbered request, if the script's header has its word.

    Raises:
        BufferDamagedError: it has not.
    """
    if reply.word == "STALE" or reply.word not in header(verb).returns:
        raise kept(core, reply)
    return reply


def numbers(core: Core, reply: Reply, n: int) -> list[int]:
    """The first `n` data of an answer to a numbered request, as whole numbers.

    Raises:
        BufferDamagedError: they are none.
    """
    try:
        found = [int(value) for value in reply.data[:n]]
    except ValueError:
        found = []
    if len(found) != n:
        raise kept(core, reply)
    return found


def refused(core: Core, verb: str, reply: Reply) -> ReplayError:
    """The exception for an answer that is a refusal."""
    error = _codes.error(verb, reply.word, core.name, reply.texts())
    return kept(core, reply) if isinstance(error, ProtocolError) and verb not in UNNUMBERED else error


def _as_it_is(reply: Any) -> Any:
    return reply


def deliver(
    core: Core, step: Call | Pipe | Fetch, until: float, stop: Stop | None = None, take: Take = _as_it_is
) -> Generator[Step, Any, tuple[Any, int]]:
    """Sends `step` until an answer comes, at most until `until` or until `stop` says so. Gives what `take` made of it, and how
    often it was sent.

    Raises:
        UnansweredError: none came in time; or the server refused one copy, and another may have been applied.
        ReplayError: the server refused what was sent once.
    """
    sent, backoff = 0, FIRST_BACKOFF
    first = step
    while True:
        left = until - core.clock()
        try:
            step.timeout = max(0.05, min(left, (STOP_SECONDS if stop else CALL_SECONDS) + step.slack))
            return take((yield step)), sent + 1
        except UnansweredError as lost:
            sent += isinstance(lost, LostError)
            lost.sent = sent
            if core.clock() + backoff + TRY_SECONDS >= until or (stop and stop()):
                raise
        except ReplayError as found:
            refusal = (yield from _named(core, found)) if isinstance(found, BufferDamagedError) else found
            if sent:
                raise UnansweredError(refusal, sent) from refusal
            raise refusal from found.__cause__
        if isinstance(first, Fetch) and first.instead is not None:
            step = first.instead
        yield Sleep(backoff * core.jitter.uniform(0.5, 1.5))
        backoff = min(LAST_BACKOFF, backoff * 2)


def _named(core: Core, damage: BufferDamagedError) -> Generator[Step, Any, BufferDamagedError]:
    """A server that meets a key of another type does not say which: `open` looks at each, and changes nothing."""
    if damage.key != core.keys.key("*"):
        return damage
    try:
        looks = Script("open", (core.epoch.encode(), *scripts.open(format="", mode="attach", option={}).args))
        reply = read((yield Call(looks)))
    except (UnansweredError, ReplayError):
        return damage
    found = refused(core, "open", reply) if reply.word == "DAMAGED" else damage
    return found if isinstance(found, BufferDamagedError) else damage


def deliver_once(
    core: Core, step: Call | Pipe | Fetch, until: float | None = None, stop: Stop | None = None
) -> Generator[Step, Any, Any]:
    """Sends what may safely be repeated. Gives the answer.

    Raises:
        ConnectionLostError, ServerRefusedError: none came in time.
    """
    try:
        answer, _ = yield from deliver(core, step, core.clock() + core.bound(CALL_SECONDS) if until is None else until, stop)
    except UnansweredError as lost:
        raise lost.error from lost.error.__cause__
    return answer


def ask(
    core: Core, script: Script, until: float | None = None, answers: tuple[str, ...] = ("OK", "LAPSED"), epoch: str = ""
) -> Generator[Step, Any, Reply]:
    """A call without a number: a read, or one that may safely be repeated. `epoch`: where it is not that of the buffer.

    Raises:
        the error of `_codes` for a refusal; ConnectionLostError, ServerRefusedError.
    """
    if script.verb in WRITES:
        check_rights(core)
    step = Call(replace(script, args=((epoch or core.epoch).encode(), *script.args)), slack=len(script.packed) / SLOWEST)
    reply = read((yield from deliver_once(core, step, until)))
    if reply.word not in answers:
        raise refused(core, script.verb, reply)
    return reply


def check_rights(core: Core) -> None:
    """Before a script that writes: one that is refused in its middle has done half its work.

    Raises:
        NoPermissionError: the user may only read.
    """
    if core.lacks is not None:
        raise copy(core.lacks)


def numbered(core: Core, lane: Lane, number: int, script: Script) -> Script:
    """The script with ARGV[1..4] of every numbered request in front."""
    head = core.epoch.encode(), lane.name.encode(), b"%d" % number, b"%d" % lane.open_number
    return replace(script, args=(*head, *script.args))


def prepare(core: Core, lane: Lane, until: float, stop: Stop | None = None) -> Generator[Step, Any, None]:
    """What comes before a lane's next request: what became of a write is learnt, and the lane is known to the server.

    Raises:
        NoPermissionError: the user may only read.
    """
    check_rights(core)
    if (question := lane.question) is not None:
        if not question.closed:
            yield from learn(core, question, until, stop)
        lane.question = None
        lane.answered()
        lane.registered = lane.registered and not question.forgotten
    if lane.registered and not lane.heavy:
        return
    reply = yield from _request(core, lane, scripts.settle(forget=False), until, writes=False, stop=stop)
    if reply.word != "OK":
        raise refused(core, "settle", reply)
    lane.registered, lane.heavy = True, False


def learn(core: Core, question: Question, until: float, stop: Stop | None = None) -> Generator[Step, Any, None]:
    """Asks the server until it answers the question. Safe beside others who ask the same: they get the same answer.

    Raises:
        ConnectionLostError, ServerRefusedError, BufferGoneError, BufferDamagedError.
    """
    head = core.epoch.encode(), question.lane.encode(), b"%d" % question.number, b"%d" % question.open_number
    reply = read((yield from deliver_once(core, Call(Script("resolve", (*head, *scripts.resolve().args))), until, stop)))
    if reply.word == "OK":
        try:
            _close(core, question, reply.texts())
        except (ValueError, IndexError):
            question.forgotten = True  # as good as none
            core.leases.learn(question, 0, 0)
            raise kept(core, reply) from None
    elif reply.word in ("FORGOTTEN", "STALE"):  # stale: the lane goes on only when somebody else has the answer
        question.forgotten = question.answer is None
        core.leases.learn(question, 0, 0)
    else:
        raise refused(core, "resolve", reply)


def _close(core: Core, question: Question, answer: list[str]) -> None:
    """Takes in the answer that a write was given. Whatever is not OK was refused.

    Raises:
        ValueError, IndexError: no script of ours gives such an answer.
    """
    outcome, ended = Outcome(applied=answer[0] == "OK"), (0, 0)
    if outcome.applied and question.verb == "remove":
        outcome = Outcome(applied=True, removed=int(answer[1]))
    elif outcome.applied and question.verb in ("add", "gate"):
        first, last = int(answer[1]), int(answer[2])
        if not 0 < first <= last < first + MAX_ENDS:
            raise ValueError(answer)
        outcome = Outcome(applied=True, index=np.arange(first, last + 1, dtype=np.int64))
        core.gave(last)
    elif outcome.applied and question.verb in ENDS:
        ended = int(answer[1]), int(answer[2])
    core.leases.learn(question, *ended)
    question.answer = outcome


def request(
    core: Core, lane: Lane, script: Script, until: float, *, writes: bool = False, stop: Stop | None = None
) -> Generator[Step, Any, Reply]:
    """A numbered request: applied at most once. `writes`: it is a write, whose outcome must be known.

    Raises:
        OutcomeUnknownError: a write was sent, and no answer came until `until`.
        ConnectionLostError, ServerRefusedError: no answer came, or the server let nothing through.
    """
    while True:
        yield from prepare(core, lane, until, stop)
        reply = yield from _request(core, lane, script, until, writes=writes, stop=stop)
        lane.heavy = script.verb == "sample" and reply.word == "OK" and numbers(core, reply, 1)[0] > HEAVY
        if reply.word != "FORGOTTEN":
            return reply
        lane.registered = False
        script = replace(script, along=None)  # a server that came back may know less than what was read


def _request(
    core: Core, lane: Lane, script: Script, until: float, *, writes: bool, stop: Stop | None = None
) -> Generator[Step, Any, Reply]:
    script = numbered(core, lane, lane.next_number(), script)
    step: Call | Fetch = Call(script, slack=len(script.packed) / SLOWEST)
    if script.along is not None:
        step = entries(core, script.along, partial(pack_script, core, script), needs=(script.verb,))
        step.instead = Call(script)
    reply = read((yield from answered(core, lane, script.verb, step, until, writes=writes, stop=stop)))
    if isinstance(step, Fetch) and not step.lacks:
        reply = replace(reply, along=script.along)
    if reply.word == "STALE":  # none of its numbers would be judged any more
        lane.begin_anew()
    return checked(core, script.verb, reply)


def entries(
    core: Core, reading: Reading, last: Callable[[], bytes], low: int = 0, high: int | None = None, needs: tuple[str, ...] = ()
) -> Fetch:  # fmt: skip
    """The step that reads what is wanted, from the `low`-th on, and does the command `last`."""
    assert core.schema is not None
    size, records = core.schema.record_size, core.keys.key("records").encode()
    return Fetch(records, reading.wanted[low:high], last, size, reading.into, base=low, needs=needs)


def answered(
    core: Core, lane: Lane, verb: str, step: Call | Pipe | Fetch, until: float, *, writes: bool, stop: Stop | None = None,
    take: Take = _as_it_is,
) -> Generator[Step, Any, Any]:  # fmt: skip
    """Delivers a numbered step; keeps the lane's book on what was answered."""
    open_number = lane.open_number
    try:
        raw, sent = yield from deliver(core, step, until, stop, take)
    except UnansweredError as lost:
        lane.leave_open()
        if writes and lost.sent:
            lane.question = Question(verb, lane.name, lane.number, open_number)
            raise _unknown(core, lane.question) from lost.error
        raise lost.error from lost.error.__cause__
    except BaseException as error:
        lane.leave_open()
        if verb in ENDS and not isinstance(error, ReplayError):  # an interrupt
            lane.question = Question(verb, lane.name, lane.number, open_number)
        raise
    lane.resent = lane.resent or sent > 1
    lane.answered()
    word = _word(raw)
    if word not in UNKEPT:
        core.answers[lane.name] = lane.number, core.clock()
    elif word == b"FORGOTTEN":
        core.answers.pop(lane.name, None)
    if writes and sent > 1 and word == b"FORGOTTEN":
        lane.registered = False
        raise _unknown(core, Question(verb, lane.name, lane.number, open_number, forgotten=True))
    return raw


def _unknown(core: Core, question: Question) -> OutcomeUnknownError:
    error = OutcomeUnknownError(name=core.name, verb=question.verb, lane=question.lane, number=question.number)
    error.question = question
    return error


def _word(raw: Any) -> Any:
    """Of a script's answer, or of the first one in a MULTI."""
    return raw[0][0] if isinstance(raw[0], list) else raw[0]
