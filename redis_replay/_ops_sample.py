"""Operations that draw or wait. Generators without I/O: see _steps."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from redis_replay import _ops_lease as leases
from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._core import CALL_SECONDS, LOG_SECONDS, PATIENCE_SECONDS, SLOWEST, Core, Lane, log
from redis_replay._decode import Arriving
from redis_replay._ops_read import PAGE_BYTES, stored_schema
from redis_replay._options import FOREVER
from redis_replay._scripts import Script
from redis_replay._steps import Fetch, Listen, Notice, Pause, Step
from redis_replay._types import Reply, as_text
from redis_replay.exceptions import (
    BufferClosedError,
    BufferDamagedError,
    BufferGoneError,
    BufferShutDownError,
    ConnectionLostError,
    NotReadyError,
    OutcomeUnknownError,
    ReplayCancelledError,
    ReplayError,
    ReplayTimeoutError,
    ServerRefusedError,
    StalledError,
)
from redis_replay.samplers import Whole

AT_ONCE = 2e-6  # seconds: what scripts answer for a lease whose time is over
SLACK_SECONDS = 0.005  # behind the end of a turn or a lease
GRACE_SECONDS = 1.0  # for the reply of a script that was sent just before the deadline
RENEW_SECONDS = 20.0
TRIES = 3  # draws whose payloads were gone before they could be fetched


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
    owner: Any = None  # of the batch, and of the one before, which this draw acknowledges


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch as the script gave it out, before it is decoded."""

    index: NDArray[np.int64]
    times_sampled: NDArray[np.int64] | None
    priority: NDArray[np.float64] | None
    whole: Whole | None
    version: NDArray[np.int64] | None
    live: int
    last: bool
    lease: str | None
    payloads: list[bytes] | Arriving


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

    def stalls_in(self, wish: Wish, waited: float) -> float:
        """Seconds from the last answer until the wait is stalled, if nobody writes."""
        return wish.stall_timeout - min(self.idle, waited)

    def standing(self, core: Core, join: bool) -> Standing:
        """What the next script is told about the wait."""
        return Standing(
            wait=join, keep_place=self.placed, poll_us=int(core.poll_interval * 1.2e6), shutdowns=self.shutdowns,
            channel=core.channel,
        )  # fmt: skip


def sample(core: Core, lane: Lane, wish: Wish, decode: Callable[[Core, Drawn], Any]) -> Generator[Step, Any, Any]:
    """A batch, reserved, fetched and decoded. Whatever happens before it is the caller's, it goes back.

    Raises:
        NotReadyError, ReplayTimeoutError, ReplayCancelledError, BufferShutDownError, BufferGoneError, ArgumentError.
    """
    deadline = core.clock() + wish.timeout
    yield from _acknowledge(core, lane, wish, deadline)
    drew, before = False, lane.number
    try:
        for _ in range(TRIES):
            reply = yield from reach(core, lane, wish, deadline)
            drew = True
            until = _patience(core, wish, deadline)
            drawn = (yield from _collect(core, lane, reply, until)) if reply.word == "OK" else None
            if drawn is not None:
                return _handed_out(core, wish, drawn, decode)
            lane.open_number = lane.number  # what was drawn in vain goes back with the next request
    except BaseException as error:
        if lane.number > before and (drew or not isinstance(error, ReplayError)):  # not what an earlier call was given
            core.take_back(lane)
        raise
    raise BufferDamagedError(
        name=core.name, key=core.keys.key("records"), found="lacks records that were drawn", expected="their entries"
    )


def _acknowledge(core: Core, lane: Lane, wish: Wish, deadline: float) -> Generator[Step, Any, None]:
    """Ends the lease of the caller's batch before, within the bound of this call."""
    try:
        yield from leases.acknowledge_own(core, lane, wish.owner, _patience(core, wish, deadline), _stop(core, wish))
    except (OutcomeUnknownError, ConnectionLostError, ServerRefusedError) as error:
        raise _why(core, wish, _Line(), error) from error


def _handed_out(core: Core, wish: Wish, drawn: Drawn, decode: Callable[[Core, Drawn], Any]) -> Any:
    """The batch for the caller, who has it on lease from now on, if it was lent."""
    batch = decode(core, drawn)
    if drawn.lease is not None:
        core.leases.add(drawn.lease, wish.owner, wish.lease or 0.0)
    return batch


def reach(core: Core, lane: Lane, wish: Wish, deadline: float) -> Generator[Step, Any, Reply]:
    """Runs the wish's script until it succeeds, waiting in between if it may. Gives the answer that ended it."""
    started = logged = core.clock()
    line = _Line()
    listening = stalled = False
    while True:
        cancelled = wish.cancel_event is not None and wish.cancel_event.is_set()
        final = cancelled or stalled or not wish.wait or core.clock() >= deadline
        until = _patience(core, wish, deadline)
        if cancelled:
            yield from _leave_cancelled(core, lane, wish, line, min(until, core.clock() + GRACE_SECONDS))
        if core.listening and not (listening or final):  # the subscription stands: the first look may join at once
            listening = yield from _listen(core, lane, deadline)
        reply = yield from _attempt(core, lane, wish, line, join=listening and not final, until=until)
        if reply.word != "NOT_READY":
            _note_end(core, started, line)
            return reply
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


def _patience(core: Core, wish: Wish, deadline: float) -> float:
    """Until when a server that does not answer is waited for: the caller's deadline, if a wait has one; and a little more."""
    if wish.wait:
        return (deadline if deadline < FOREVER else core.clock() + PATIENCE_SECONDS) + GRACE_SECONDS
    return min(deadline, core.clock() + CALL_SECONDS) + GRACE_SECONDS


def _listen(core: Core, lane: Lane, deadline: float) -> Generator[Step, Any, bool]:
    yield Listen(lane.name, min(CALL_SECONDS, max(0.05, deadline - core.clock())))
    core.listening = True
    return True


def _attempt(core: Core, lane: Lane, wish: Wish, line: _Line, *, join: bool, until: float) -> Generator[Step, Any, Reply]:
    script = wish.script(line.standing(core, join), core.seeds)
    try:
        reply: Reply = yield from rq.request(core, lane, script, until, stop=_stop(core, wish))
    except (ConnectionLostError, ServerRefusedError) as error:
        raise _why(core, wish, line, error) from error
    if reply.word == "NOT_READY":
        have, _, shutdowns, turn, idle, line.writers, line.leased = rq.numbers(core, reply, 7)
        line.have, line.shutdowns, line.turn, line.placed = have, shutdowns, turn / 1e6, join
        line.idle = idle / 1e6 if idle >= 0 else FOREVER
    elif reply.word not in ("OK", "READY", "LAPSED"):
        raise rq.refused(core, script.verb, reply)
    return reply


def _stop(core: Core, wish: Wish) -> rq.Stop | None:
    return partial(_stopped, core, wish) if wish.wait else None


def _stopped(core: Core, wish: Wish) -> bool:
    return core.closed or (wish.cancel_event is not None and wish.cancel_event.is_set())


def _why(core: Core, wish: Wish, line: _Line, error: Exception) -> Exception:
    """Why a call that got no answer ends. Its open number goes with the lane's next request."""
    if core.closed:
        return BufferClosedError(name=core.name)
    if wish.wait and _stopped(core, wish):
        return ReplayCancelledError(name=core.name, have=line.have, need=wish.need)
    return error


def _leave_cancelled(core: Core, lane: Lane, wish: Wish, line: _Line, until: float) -> Generator[Step, Any, None]:
    """Leaves the line. A buffer that was shut down says so first."""
    line.placed = False
    script = scripts.wait(min_items=wish.need, take=0, **line.standing(core, join=False))
    try:
        reply = yield from rq.request(core, lane, script, until)
    except (ConnectionLostError, ServerRefusedError) as error:  # the lane's next request takes it out of the line
        raise ReplayCancelledError(name=core.name, have=line.have, need=wish.need) from error
    if reply.word not in ("READY", "NOT_READY"):
        raise rq.refused(core, "wait", reply)
    raise ReplayCancelledError(name=core.name, have=rq.numbers(core, reply, 1)[0], need=wish.need)


def _ended(core: Core, wish: Wish, line: _Line, *, stalled: bool) -> Exception:
    if not wish.wait:
        return NotReadyError(name=core.name, have=line.have, need=wish.need, leased=line.leased)
    if stalled:
        return StalledError(
            name=core.name, have=line.have, need=wish.need, idle_s=line.idle, writers=line.writers,
            stall_timeout_s=wish.stall_timeout, leased=line.leased,
        )  # fmt: skip
    return ReplayTimeoutError(
        name=core.name, what=wish.what, have=line.have, need=wish.need, timeout_s=wish.timeout, leased=line.leased
    )


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
    log.warning("buffer %r: still waiting for %s: have %d, need %d", core.name, wish.what, line.have, wish.need)
    return core.clock()


def _collect(core: Core, lane: Lane, reply: Reply, until: float) -> Generator[Step, Any, Drawn | None]:
    """The batch of an answer; None where its payloads are gone already. It may be late only while it comes fast enough."""
    try:
        n, live, schema_hash, flags, lease, indices, uses, priorities, whole, versions = map(as_text, reply.data[:10])
        counted = np.array(uses.split(), np.int64) if uses else None
        size, size_live, record_bytes = int(n), int(live), 0 if "p" in flags else int(reply.data[10])
    except (ValueError, IndexError, OverflowError):
        raise rq.kept(core, reply) from None
    yield from stored_schema(core, schema_hash, until)
    index = stored.indices(core.keys, indices)
    core.gave(int(index.max(initial=0)))
    priority, of_all = stored.odds(core.keys, priorities, whole) if whole else (None, None)
    version = stored.versions(core.keys, versions) if versions else None
    payloads: Any = reply.data[10:]
    if "p" not in flags:
        core.record_bytes = record_bytes
        payloads = yield from _fetch(core, lane, indices.split(), until)
    elif len(payloads) != size:
        payloads = None
    if payloads is None:
        return None
    name = lease if lease != "-" else None
    return Drawn(index, counted, priority, of_all, version, size_live, "l" in flags, name, payloads)


def _fetch(
    core: Core, lane: Lane, indices: list[str], until: float
) -> Generator[Step, Any, list[bytes] | Arriving | None]:  # fmt: skip
    """Payloads by native XRANGE, in bursts; a slow fetch keeps its hold alive. None where one is gone."""
    assert core.schema is not None
    size = core.schema.record_size
    out: Any = [b""] * len(indices) if size is None else Arriving(core.schema.layout, len(indices))
    put = out.__setitem__ if size is None else out.put
    records, config = (core.keys.key(what).encode() for what in ("records", "config"))
    renewed = core.clock()
    burst = max(1, PAGE_BYTES // max(1, core.record_bytes))
    for low in range(0, len(indices), burst):
        wanted = tuple(i.encode() for i in indices[low : low + burst])
        step = Fetch(records, wanted, config, b"epoch", core.epoch.encode(), size, partial(_put_behind, put, low))
        soonest = core.clock() + len(wanted) * core.record_bytes / SLOWEST
        epoch = yield from rq.deliver_once(core, step, max(until, soonest))
        if isinstance(epoch, Exception):
            raise epoch
        if epoch is None:
            return None
        if epoch != core.epoch.encode():
            raise BufferGoneError(name=core.name)
        if core.clock() - renewed > RENEW_SECONDS:
            renewed = core.clock()
            yield from rq.ask(core, scripts.renew(name=(lane.name,)), max(until, core.clock() + GRACE_SECONDS))
    return out  # type: ignore[no-any-return]


def _put_behind(put: Callable[[int, Any], None], low: int, row: int, payload: Any) -> None:
    put(low + row, payload)


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
    except (NotReadyError, BufferShutDownError):
        return False
    return True


def sample_wish(batch_size: int, min_items: int, **how: Any) -> Wish:
    """The wish of a draw. `how`: the fields of a Wish that concern the wait, and the lease."""
    lease_us = int(1e6 * (how.get("lease") or 0))

    def script(standing: Standing, seeds: Callable[[], list[int]]) -> Script:
        return scripts.sample(batch_size=batch_size, min_items=min_items, lease_us=lease_us, seed=seeds(), **standing)

    what = f"a batch of {batch_size}" + (f" (at least {min_items})" if min_items != batch_size else "")
    return Wish(script, what, min_items, **how)


def wait_wish(n: int, take: int, **how: Any) -> Wish:
    """The wish of a wait that draws nothing."""

    def script(standing: Standing, _: Callable[[], list[int]]) -> Script:
        return scripts.wait(min_items=n, take=take, **standing)

    return Wish(script, f"{n} records", n, **how)
