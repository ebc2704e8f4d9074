"""Operations that draw. Generators without I/O: see _steps."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _ops_lease as leases
from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._core import SLOWEST, Core, Lane
from redis_replay._decode import Arriving
from redis_replay._foresight import Foreseen
from redis_replay._ops_read import PAGE_BYTES, stored_schema
from redis_replay._ops_wait import GRACE_SECONDS, Standing, Wish, ended_early, patience, reach, stop
from redis_replay._reading import Reading
from redis_replay._scripts import Script
from redis_replay._steps import Step
from redis_replay._types import Reply, as_text
from redis_replay.exceptions import (
    BufferDamagedError,
    BufferGoneError,
    ConnectionLostError,
    OutcomeUnknownError,
    ReplayError,
    ServerRefusedError,
)
from redis_replay.samplers import Whole

RENEW_SECONDS = 20.0
TRIES = 3  # draws whose payloads were gone before they could be fetched


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
            asked = core.clock()
            reply = yield from reach(core, lane, wish, deadline)
            drew = True
            until = patience(core, wish, deadline)
            drawn = (yield from _collect(core, lane, reply, until)) if reply.word == "OK" else None
            if drawn is not None:
                return _handed_out(core, wish, drawn, decode, asked)
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
        yield from leases.acknowledge_own(core, lane, wish.before, patience(core, wish, deadline), stop(core, wish))
    except (OutcomeUnknownError, ConnectionLostError, ServerRefusedError) as error:
        raise ended_early(core, wish, error) from error


def _handed_out(core: Core, wish: Wish, drawn: Drawn, decode: Callable[[Core, Drawn], Any], asked: float) -> Any:
    """The batch for the caller, who has it on lease from now on, if it was lent."""
    batch = decode(core, drawn)
    if drawn.lease is not None:
        core.leases.add(drawn.lease, wish.owner, wish.lease or 0.0, asked)
    return batch


def _collect(core: Core, lane: Lane, reply: Reply, until: float) -> Generator[Step, Any, Drawn | None]:
    """The batch of an answer; None where its payloads are gone already. It may be late only while it comes fast enough."""
    try:
        told = (*reply.data[:7], "", *reply.data[8:11])
        n, live, schema_hash, flags, lease, indices, uses, _, whole, versions, first = map(as_text, told)
        core.foresight.note(int(first), int(live))
        counted = np.array(uses.split(), np.int64) if uses else None
        size, size_live, record_bytes = int(n), int(live), 0 if "p" in flags else int(reply.data[11])
    except (ValueError, IndexError, OverflowError):
        raise rq.kept(core, reply) from None
    yield from stored_schema(core, schema_hash, until)
    if "f" in flags and reply.along is None:
        core.foresight.note(0, 0)  # the next draw is the script's alone: it says what is missing
        return None
    index = reply.along.index if "f" in flags else stored.indices(core.keys, indices)
    core.gave(int(index.max(initial=0)))
    priority, of_all = stored.odds(core.keys, reply.data[7], whole) if whole else (None, None)
    if of_all is not None and of_all.alpha is not None:
        core.weigh_by(of_all.alpha)
    version = stored.versions(core.keys, versions) if versions else None
    payloads: Any = reply.data[11:]
    if "f" in flags:
        payloads = reply.along.payloads()
    elif "p" not in flags:
        core.record_bytes = record_bytes
        payloads = yield from _fetch(core, lane, index, until)
    elif len(payloads) != size:
        payloads = None
    if payloads is None:
        return None
    name = lease if lease != "-" else None
    return Drawn(index, counted, priority, of_all, version, size_live, "l" in flags, name, payloads)


def _fetch(
    core: Core, lane: Lane, index: NDArray[np.int64], until: float
) -> Generator[Step, Any, list[bytes] | Arriving | None]:  # fmt: skip
    """Payloads by native XRANGE, in bursts, with a look at whose they are; a slow fetch keeps its hold alive. None where one is
    gone.
    """
    assert core.schema is not None
    reading = Reading(core.schema, index, core.cache)
    guard = partial(rq.pack, b"HGET", core.keys.key("config").encode(), b"epoch")
    renewed, burst = core.clock(), _burst_length(core)
    for low in range(0, len(reading.wanted), burst):
        step = rq.entries(core, reading, guard, low, low + burst)
        soonest = core.clock() + len(step.index) * core.record_bytes / SLOWEST
        epoch = yield from rq.deliver_once(core, step, max(until, soonest))
        if isinstance(step.lacks, Exception):
            raise step.lacks
        if step.lacks or epoch is None:
            return None
        if epoch != core.epoch.encode():
            raise BufferGoneError(name=core.name)
        if core.clock() - renewed > RENEW_SECONDS:
            renewed = core.clock()
            yield from rq.ask(core, scripts.renew(name=(lane.name,)), max(until, core.clock() + GRACE_SECONDS))
    return reading.payloads()


def _burst_length(core: Core) -> int:
    return max(1, PAGE_BYTES // max(1, core.record_bytes))


def _along(core: Core, foreseen: Foreseen | None) -> Reading | None:
    """What to read in the same trip as a draw: all of what it will choose, if that is known, and no more than one burst."""
    if foreseen is None or core.schema is None:
        return None
    reading = Reading(core.schema, foreseen.chosen, core.cache)
    return reading if len(reading.wanted) <= _burst_length(core) else None


def sample_wish(core: Core, batch_size: int, min_items: int, **how: Any) -> Wish:
    """The wish of a draw. `how`: the fields of a Wish that concern the wait, and the lease. With a cache the payloads come in a
    second step, those that are not in it.
    """
    of: dict[str, Any] = {"batch_size": batch_size, "min_items": min_items, "lease_us": int(1e6 * (how.get("lease") or 0))}
    of["with_bytes"] = core.cache is None

    def script(standing: Standing, seeds: Callable[[], list[int]]) -> Script:
        seed = seeds()
        foreseen = core.foresight.look(seed, batch_size)
        along = _along(core, foreseen)
        told = foreseen.range if foreseen and along else ""
        return replace(scripts.sample(**of, foreseen=told, seed=seed, **standing), along=along)

    what = f"a batch of {batch_size}" + (f" (at least {min_items})" if min_items != batch_size else "")
    return Wish(script, what, min_items, **how)
