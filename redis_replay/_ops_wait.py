"""Waiting: a call that does not find enough joins the line, blocks, and looks again. Generators without I/O: see _steps."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, LOG_SECONDS, PATIENCE_SECONDS, Core, Lane, log
from redis_replay._limited import SIDES, Limited
from redis_replay._options import FOREVER
from redis_replay._scripts import Script
from redis_replay._steps import Listen, Notice, Pause, Step
from redis_replay._types import Reply
from redis_replay.exceptions import (
    ArgumentError,
    BufferClosedError,
    BufferShutDownError,
    ConnectionLostError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
    ServerRefusedError,
    StalledError,
)

AT_ONCE = 2e-6  # seconds: what scripts answer for a lease whose time is over
SLACK_SECONDS = 0.005  # behind the end of a turn or a lease
TURN_US = 500_000  # microseconds for which a waiter that was notified has its turn
TURN_BYTES = 16 * 2**20  # for each, a write has another second
GRACE_SECONDS = 1.0  # for the reply of a script that was sent just before the deadline


class Standing(TypedDict):
    """A wait's place in the line, as the scripts `sample` and `wait` are told it."""

    wait: bool
    keep_place: bool
    poll_us: int
    shutdowns: int
    channel: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What a draw or a wait asks for. `script` makes its script from the wait's standing and random numbers."""

    script: Callable[[Standing, Callable[[], list[int]]], Script]
    what: str
    need: int
    wait: bool
    timeout: float = 0.0
    cancel_event: Any = None
    stall_timeout: float = FOREVER
    lease: float | None = None  # seconds
    owner: Any = None  # of the batch
    before: Any = None  # whose batches before this draw acknowledges
    side: str = "r"  # that waits: r, to draw, or w, to write


@dataclass(slots=True)
class _Line:
    """What the last answer to a wait said."""

    have: int = 0
    shutdowns: int = -1
    turn: float = 0.0  # seconds until a turn ahead or a lease ends, or 0
    placed: bool = False
    waited: bool = False
    idle: float = 0.0  # seconds since the last write, or inf
    writers: int = 0
    leased: int = 0
    hidden: int = 0
    limiter: str = ""  # what the rate limiter says, if it is against it
    never: ArgumentError | None = None  # why it will always be

    def stalls_in(self, wish: Wish, waited: float) -> float:
        """Seconds from the last answer until the wait is stalled, if nobody writes."""
        return wish.stall_timeout - min(self.idle, waited)

    def standing(self, core: Core, join: bool) -> Standing:
        """What the next script is told about the wait."""
        return Standing(
            wait=join, keep_place=self.placed, poll_us=int(core.poll_interval * 1.2e6), shutdowns=self.shutdowns,
            channel=core.channel,
        )  # fmt: skip


def reach(core: Core, lane: Lane, wish: Wish, deadline: float) -> Generator[Step, Any, Reply]:
    """Runs the wish's script until it succeeds, waiting in between if it may. Gives the answer that ended it."""
    started = logged = core.clock()
    line = _Line()
    listening = stalled = False
    while True:
        cancelled = wish.cancel_event is not None and wish.cancel_event.is_set()
        final = cancelled or stalled or not wish.wait or core.clock() >= deadline
        until = patience(core, wish, deadline)
        if cancelled:
            yield from _leave_cancelled(core, lane, wish, line, min(until, core.clock() + GRACE_SECONDS))
        if core.listening and not (listening or final):  # the subscription stands: the first look may join at once
            listening = yield from _listen(core, lane, deadline)
        reply = yield from _attempt(core, lane, wish, line, join=listening and not final, until=until)
        if reply.word != "NOT_READY":
            _note_end(core, started, line)
            return reply
        yield from _end_hopeless(core, lane, wish, line, until)
        if 0 < line.turn < AT_ONCE:  # more leases have run out than one script takes back
            continue
        stall = line.stalls_in(wish, core.clock() - started)
        if stalled and stall > 0 and core.clock() < deadline:  # somebody has written since
            stalled = False
            continue
        if final:
            raise _ended(core, wish, line, stalled=stalled and stall <= 0)
        core.local.waits += not line.waited
        line.waited = True
        if listening:
            logged = _log(core, wish, line, logged)
            stall_at = core.clock() + stall
            yield from _pause(core, lane, wish, line, min(deadline, stall_at))
            stalled = core.clock() >= stall_at
        else:
            listening = yield from _listen(core, lane, deadline)


def patience(core: Core, wish: Wish, deadline: float) -> float:
    """Until when a server that does not answer is waited for: the caller's deadline, if a wait has one; and a little more."""
    if wish.wait:
        return (deadline if deadline < FOREVER else core.clock() + PATIENCE_SECONDS) + GRACE_SECONDS
    return min(deadline, core.clock() + core.bound(CALL_SECONDS)) + GRACE_SECONDS


def _listen(core: Core, lane: Lane, deadline: float) -> Generator[Step, Any, bool]:
    yield Listen(lane.name, min(CALL_SECONDS, max(0.05, deadline - core.clock())))
    core.listening = True
    return True


def _attempt(core: Core, lane: Lane, wish: Wish, line: _Line, *, join: bool, until: float) -> Generator[Step, Any, Reply]:
    script = wish.script(line.standing(core, join), core.seeds)
    try:
        reply: Reply = yield from rq.request(core, lane, script, until, stop=stop(core, wish))
    except (ConnectionLostError, ServerRefusedError) as error:
        raise _why(core, wish, line, error) from error
    if reply.word == "NOT_READY":
        have, _, shutdowns, turn, idle, line.writers, line.leased, line.hidden, live = rq.numbers(core, reply, 9)
        line.have, line.shutdowns, line.turn, line.placed = have, shutdowns, turn / 1e6, join
        line.limiter = _limited(core, wish, line, live, reply)
        line.idle = idle / 1e6 if idle >= 0 else FOREVER
    elif reply.word not in ("OK", "READY", "LAPSED"):
        raise rq.refused(core, script.verb, reply)
    return reply


def _limited(core: Core, wish: Wish, line: _Line, live: int, reply: Reply) -> str:
    """What the rate limiter says, where the buffer has one. `line.never`: it will not let the call through."""
    texts = reply.texts()[9:]
    if texts == ["-"]:
        return ""
    try:
        found = Limited.of(texts[0], live)
    except (ValueError, IndexError):
        raise rq.kept(core, reply) from None
    line.never = found.never(wish.side, wish.need, consumes=core.consume is not None)
    return found.against(wish.side, wish.need)


def stop(core: Core, wish: Wish) -> rq.Stop | None:
    return partial(_stopped, core, wish) if wish.wait else None


def _stopped(core: Core, wish: Wish) -> bool:
    return core.closed or (wish.cancel_event is not None and wish.cancel_event.is_set())


def ended_early(core: Core, wish: Wish, error: Exception) -> Exception:
    """Why a call ends that has not come to ask yet."""
    return _why(core, wish, _Line(), error)


def _why(core: Core, wish: Wish, line: _Line, error: Exception) -> Exception:
    """Why a call that got no answer ends. Its open number goes with the lane's next request."""
    if core.closed:
        return BufferClosedError(name=core.name)
    if wish.wait and _stopped(core, wish):
        return _cancelled(core, wish, line)
    return error


def _leave(core: Core, lane: Lane, wish: Wish, line: _Line, until: float) -> Generator[Step, Any, Reply]:
    """Gives up the place in the line."""
    line.placed = False
    script = scripts.wait(side=wish.side, min_items=wish.need, take=0, turn_us=TURN_US, **line.standing(core, join=False))
    return (yield from rq.request(core, lane, script, until))


def _end_hopeless(core: Core, lane: Lane, wish: Wish, line: _Line, until: float) -> Generator[Step, Any, None]:
    """What the rate limiter will never let through gives up its place, and says so.

    Raises:
        ArgumentError: it will not.
    """
    if line.never is None:
        return
    if line.placed:
        yield from _leave(core, lane, wish, line, until)
    raise line.never


def _leave_cancelled(core: Core, lane: Lane, wish: Wish, line: _Line, until: float) -> Generator[Step, Any, None]:
    """Leaves the line. A buffer that was shut down says so first."""
    try:
        reply = yield from _leave(core, lane, wish, line, until)
    except (ConnectionLostError, ServerRefusedError) as error:  # the lane's next request takes it out of the line
        raise _cancelled(core, wish, line) from error
    if reply.word not in ("READY", "NOT_READY"):
        raise rq.refused(core, "wait", reply)
    line.have = rq.numbers(core, reply, 1)[0]
    raise _cancelled(core, wish, line)


def _cancelled(core: Core, wish: Wish, line: _Line) -> ReplayCancelledError:
    return ReplayCancelledError(name=core.name, have=line.have, need=wish.need, limiter=line.limiter, side=SIDES[wish.side])


def _ended(core: Core, wish: Wish, line: _Line, *, stalled: bool) -> Exception:
    facts: dict[str, Any] = {
        "name": core.name, "have": line.have, "need": wish.need, "leased": line.leased, "hidden": line.hidden,
        "limiter": line.limiter,
        "side": SIDES[wish.side],
    }  # fmt: skip
    if not wish.wait:
        return NotReadyError(**facts)
    if stalled:
        return StalledError(idle_s=line.idle, writers=line.writers, stall_timeout_s=wish.stall_timeout, **facts)
    return ReplayTimeoutError(what=wish.what, timeout_s=wish.timeout, **facts)


def _pause(core: Core, lane: Lane, wish: Wish, line: _Line, deadline: float) -> Generator[Step, Any, None]:
    """Blocks until there is a reason to run the script again."""
    wake_at = core.clock() + core.poll_interval * core.jitter.uniform(0.8, 1.2)
    if line.turn:
        wake_at = min(wake_at, core.clock() + line.turn + SLACK_SECONDS)
    while True:
        left = min(wake_at, deadline) - core.clock()
        notice: Notice = yield Pause(lane.name, max(0.0, left), wish.cancel_event)
        if notice.reason != "standby":
            break
        wake_at = min(wake_at, core.clock() + notice.seconds + SLACK_SECONDS)
    if notice.reason == "wake":
        core.local.wakeups_by_notice += 1
    elif core.clock() < deadline:
        core.local.wakeups_by_poll += 1


def _note_end(core: Core, started: float, line: _Line) -> None:
    if line.waited:
        core.local.wait_ms.append((core.clock() - started) * 1e3)


def _log(core: Core, wish: Wish, line: _Line, logged: float) -> float:
    if core.clock() - logged < LOG_SECONDS:
        return logged
    told = f"; {line.limiter}" if line.limiter else ""
    log.warning("buffer %r: still waiting for %s: have %d, need %d%s", core.name, wish.what, line.have, wish.need, told)
    return core.clock()


def wait_until(core: Core, lane: Lane, wish: Wish) -> Generator[Step, Any, bool]:
    """True when enough is there; False at the timeout or when cancelled."""
    try:
        yield from reach(core, lane, wish, core.clock() + wish.timeout)
    except (ReplayTimeoutError, ReplayCancelledError):
        return False
    return True


def can(core: Core, lane: Lane, wish: Wish) -> Generator[Step, Any, bool]:
    """Whether enough is there now."""
    try:
        yield from reach(core, lane, wish, core.clock())
    except (NotReadyError, BufferShutDownError, ArgumentError):  # the last: the rate limiter never lets so many through
        return False
    return True


def wait_wish(n: int, take: int, **how: Any) -> Wish:
    """The wish of a wait that draws nothing."""

    def script(standing: Standing, _: Callable[[], list[int]]) -> Script:
        return scripts.wait(side="r", min_items=n, take=take, turn_us=TURN_US, **standing)

    return Wish(script, f"{n} records", n, **how)


def room_wish(n: int, take: int, nbytes: int = 0, **how: Any) -> Wish:
    """The wish of a write for its room: `take` is n, and the bytes follow; or of a look, 0."""
    turn_us = TURN_US + nbytes * 1_000_000 // TURN_BYTES

    def script(standing: Standing, _: Callable[[], list[int]]) -> Script:
        return scripts.wait(side="w", min_items=n, take=take, turn_us=turn_us, **standing)

    return Wish(script, f"room for {n} record{'s' if n > 1 else ''}", n, side="w", **how)
