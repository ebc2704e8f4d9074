"""Operations on leases: acknowledge, release, renew. Generators without I/O: see _steps."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, Core, Lane, log
from redis_replay._scripts import Script
from redis_replay._steps import Step
from redis_replay._types import LeasesEnded, Reply
from redis_replay.exceptions import BufferGoneError, OutcomeUnknownError, ReplayError

MANY = 1000  # names in one request


def end(
    core: Core,
    lane: Lane,
    verb: Callable[..., Script],
    names: Sequence[str],
    until: float | None = None,
    stop: rq.Stop | None = None,
) -> Generator[Step, Any, LeasesEnded]:
    """Acknowledges or releases leases, in steps. Those that had ended are counted, and told in the log; those that an earlier
    call had ended, whose reply never came, are not sent again.

    Raises:
        OutcomeUnknownError: no answer came; BufferGoneError, ConnectionLostError, ServerRefusedError. Their `done` says how
        many leases were ended in steps before.
    """
    for question in core.leases.questions(names):
        yield from rq.learn(core, question, until or core.clock() + core.bound(CALL_SECONDS), stop)
    known = core.leases.take_ended(names)
    names = [name for name in names if name not in known]
    applied = late = 0
    while (done := applied + late) < len(names):
        some = names[done : done + MANY]
        with core.leases.ending(some):
            try:
                reply = yield from _ask(
                    core, lane, verb(lease=some), some, until or core.clock() + core.bound(CALL_SECONDS), stop
                )
            except ReplayError as error:
                error.done = done
                raise
            ended, before = rq.numbers(core, reply, 2)
            applied, late = applied + ended, late + before
            core.leases.end(list(names[done : applied + late]))
    if late:
        log.warning(
            "buffer %r: %d of the leases had ended before; if they ran out, others may have their records", core.name, late
        )
    same = sum(by == verb.__name__ for by in known.values())
    return LeasesEnded(applied + same, late + len(known) - same)


def _ask(
    core: Core, lane: Lane, script: Script, names: Sequence[str], until: float, stop: rq.Stop | None
) -> Generator[Step, Any, Reply]:
    before = lane.question
    try:
        reply = yield from rq.request(core, lane, script, until, writes=True, stop=stop)
    except BaseException as error:
        question = error.question if isinstance(error, OutcomeUnknownError) else lane.question
        if question is not None and question is not before:
            core.leases.ask(question, tuple(names))
        raise
    if reply.word != "OK":
        raise rq.refused(core, script.verb, reply)
    return reply


def acknowledge_own(core: Core, lane: Lane, owner: Any, until: float, stop: rq.Stop | None) -> Generator[Step, Any, None]:
    """What a thread or task drew before is done with when it draws again."""
    if names := core.leases.of(owner):
        yield from end(core, lane, scripts.ack, names, until, stop)


def close(core: Core, lane: Lane, *, release: bool, until: float) -> Generator[Step, Any, None]:
    """Ends every lease of the handle. Those of threads that have ended are released in any case."""
    if forsaken := core.leases.forsaken():
        yield from end(core, lane, scripts.release, forsaken, until)
    if names := core.leases.names():
        yield from end(core, lane, scripts.release if release else scripts.ack, names, until)


def renew(core: Core, until: float) -> Generator[Step, Any, None]:
    """Prolongs the leases of threads and tasks that live."""
    names = core.leases.living()
    try:
        yield from _renew(core, names, until)
    except BufferGoneError:
        core.leases.end(names)


def _renew(core: Core, names: list[str], until: float) -> Generator[Step, Any, None]:
    for low in range(0, len(names), MANY):
        asked = core.clock()
        reply = yield from rq.ask(core, scripts.renew(name=names[low : low + MANY]), until)
        core.leases.prolong(names[low : low + MANY], asked)
        ended = core.leases.ran_out(reply.texts())
        core.leases.end(ended)
        if ended:
            log.warning("buffer %r: %d leases ran out; others may be given their records", core.name, len(ended))
