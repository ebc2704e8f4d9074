"""Operations that change what is stored: add, extend, remove, empty. Generators without I/O: see _steps."""

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, SLOWEST, Core, Lane
from redis_replay._encode import Rows
from redis_replay._ops_read import stored_schema
from redis_replay._ops_wait import GRACE_SECONDS, reach, room_wish
from redis_replay._options import FOREVER
from redis_replay._schema import MAX_STEP, check
from redis_replay._steps import Pipe, Step
from redis_replay._types import Origin, Reply, Updated
from redis_replay.exceptions import ArgumentError, BufferDamagedError, ReplayError
from redis_replay.samplers import MAX_CHOSEN, Fifo

STEP_BYTES = MAX_STEP
NOBODY = Origin()
SMALL, SMALL_STEP = (
    4096,
    4 * 2**20,
)  # bytes of a record, of a step: above, native XADDs cost less (docs/benchmarks.md, limits.md)


@dataclass(frozen=True, slots=True)
class Terms:
    """For how many seconds a write may wait, and what ends it before."""

    timeout: float = FOREVER
    cancel_event: Any = None

    def after(self, seconds: float) -> "Terms":
        """What is left of them."""
        return Terms(max(0.0, self.timeout - seconds), self.cancel_event)


def write(
    core: Core, lane: Lane, rows: Rows, terms: Terms = Terms(), priority: Sequence[str] = (), origin: Origin = NOBODY
) -> Generator[Step, Any, NDArray[np.int64]]:  # fmt: skip
    """Writes all of `rows`, cut into steps in order, within the timeout; without end a step waits for its room, and then has
    CALL_SECONDS, and what its bytes need on a slow line. `priority`: a text for each, one for all, or none; `origin`: the
    writer, and the versions likewise. Gives their indices, int64 (n,).

    Raises:
        ArgumentError: a record is empty, or above the limit of one step or of the server.
        whatever refuses a step; its attribute `done` says how many records were written before it.
    """
    check_rows(core, rows)
    out: list[NDArray[np.int64]] = []
    done, deadline = 0, core.clock() + terms.timeout
    for low, high in _cut(rows, core.step if core.remover == Fifo() else MAX_CHOSEN):
        try:
            first, last = yield from _write_step(core, lane, rows, low, high, deadline, terms, priority, origin)
        except ReplayError as error:
            error.done = done
            raise
        out.append(np.arange(first, last + 1, dtype=np.int64))
        done = high
    return out[0] if len(out) == 1 else np.concatenate(out)


def check_rows(core: Core, rows: Rows) -> None:
    """Before anything is sent: a server closes the connection on a longer value than it takes.

    Raises:
        ArgumentError: a record is empty, or above the limit of one step or of the server.
    """
    if any(leaf.path == () and leaf.kind == "empty" for leaf in rows.schema.leaves):
        raise ArgumentError(name="record", allowed="a dict with at least one leaf", found={})
    size = rows.largest
    if size > STEP_BYTES:
        raise ArgumentError(name="record", allowed=f"at most {STEP_BYTES:,} bytes, the limit of one step", found=size)
    if core.bulk_limit is not None and size > core.bulk_limit:
        limit = f"at most {core.bulk_limit:,} bytes, the server's proto-max-bulk-len"
        raise ArgumentError(name="record", allowed=limit, found=size)


def _cut(rows: Rows, most: int) -> Iterator[tuple[int, int]]:
    if rows.nbytes <= STEP_BYTES and len(rows) <= most:
        yield 0, len(rows)
        return
    low, size = 0, 0
    for i, more in enumerate(rows.sizes):
        if i - low == most or size + more > STEP_BYTES:
            yield low, i
            low, size = i, 0
        size += more
    yield low, len(rows)


def _write_step(
    core: Core,
    lane: Lane,
    rows: Rows,
    low: int,
    high: int,
    deadline: float,
    terms: Terms,
    priority: Sequence[str],
    origin: Origin,
) -> Generator[Step, Any, tuple[int, int]]:
    """One step, all of it or nothing. Sends the schema's text only where none is stored yet. Where the rate limiter is against
    it, it waits for its turn, without its bytes.
    """
    send = _add if rows.largest <= SMALL and (high - low) * rows.largest <= SMALL_STEP else _gate
    nbytes = min(rows.nbytes, STEP_BYTES)
    room = room_wish(high - low, high - low, nbytes, wait=True, timeout=terms.timeout, cancel_event=terms.cancel_event)
    text, seed, has_turn = "", " ".join(map(str, core.seeds())) if core.remover.random else "", False
    while True:
        if terms.cancel_event is not None and terms.cancel_event.is_set():
            yield from reach(core, lane, room, deadline)  # which says so
        until = deadline + GRACE_SECONDS if deadline < FOREVER else core.clock() + CALL_SECONDS + nbytes / SLOWEST
        about = _about(rows, low, high, text, priority, origin, seed, has_turn)
        reply = yield from send(core, lane, rows, low, high, about, until)
        if reply.word == "OK":
            core.schema, core.record_bytes = core.schema or rows.schema, max(core.record_bytes, rows.largest)
            first, last = rq.numbers(core, reply, 2)
            if not 0 < first <= last == first + high - low - 1:
                raise rq.kept(core, reply)
            core.gave(last)
            return first, last
        if reply.word == "NOT_READY":
            yield from reach(core, lane, room, deadline)
            has_turn = True
        elif reply.word == "NO_SCHEMA":
            text = rows.schema.text
        elif reply.word == "FORGOTTEN":  # by the gate, and not applied: the lane registers and the step goes again
            lane.registered = has_turn = False
        elif reply.word == "SCHEMA":
            check((yield from stored_schema(core)), rows.schema)
            raise BufferDamagedError(
                name=core.name, key=core.keys.key("config"), found="has another schema_hash", expected="that of its schema"
            )
        else:
            raise rq.refused(core, "add", reply)


class _About(TypedDict):
    schema_hash: str
    schema: str
    record_bytes: int
    total_bytes: int
    n: int
    priority: str
    seed: str
    origin: str
    keep_place: bool


def _about(
    rows: Rows, low: int, high: int, text: str, priority: Sequence[str], origin: Origin, seed: str, has_turn: bool
) -> _About:  # fmt: skip
    total = rows.nbytes if high - low == len(rows) else sum(rows.sizes[low:high])
    given = " ".join(priority if len(priority) < len(rows) else priority[low:high])
    return _About(
        schema_hash=rows.schema.hash, schema=text, record_bytes=rows.largest, total_bytes=total, n=high - low, priority=given,
        seed=seed, origin=origin.text(low, high, len(rows)), keep_place=has_turn,
    )  # fmt: skip


def _add(core: Core, lane: Lane, rows: Rows, low: int, high: int, about: _About, until: float) -> Generator[Step, Any, Reply]:
    script = scripts.add(payload=rows.packed(b"", low, high), **about)
    return (yield from rq.request(core, lane, script, until, writes=True))


def _gate(core: Core, lane: Lane, rows: Rows, low: int, high: int, about: _About, until: float) -> Generator[Step, Any, Reply]:
    """Open, native XADDs, close, in one MULTI: large payloads do not go through Lua."""
    yield from rq.prepare(core, lane, until)
    number = lane.next_number()
    opening, closing = (
        rq.pack_script(core, rq.numbered(core, lane, number, scripts.gate(step=step, **about))) for step in ("open", "close")
    )
    inbox = core.keys.key("inbox").encode()
    prefix = b"*6\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n$3\r\n0-*\r\n$1\r\nd\r\n" % (len(inbox), inbox)

    def packed() -> Iterator[bytes]:
        return chain((rq.pack(b"MULTI"), opening), rows.pieces(prefix, low, high), (closing, rq.pack(b"EXEC")))

    step = Pipe(packed, replies=high - low + 4, needs=("gate",), slack=about["total_bytes"] / SLOWEST)
    answers = yield from rq.answered(core, lane, "gate", step, until, writes=True, take=rq.inner_replies)
    return _judge(core, answers[0], answers[-1])


def _judge(core: Core, opened: Any, closed: Any) -> Reply:
    first, last = (rq.checked(core, "gate", rq.read(answer)) for answer in (opened, closed))
    if first.word != "OPEN":
        return first
    if last.word == "CLOSED":
        raise BufferDamagedError(
            name=core.name, key=core.keys.key("inbox"), found="vanished inside a MULTI", expected="the stream"
        )
    return last


def remove(core: Core, lane: Lane, indices: list[int]) -> Generator[Step, Any, int]:
    """Takes live records out by index, in steps. Gives how many were live."""
    removed = 0
    for low in range(0, len(indices), core.step):
        try:
            reply = yield from change(core, lane, scripts.remove(index=indices[low : low + core.step]))
        except ReplayError as error:
            error.done = low
            raise
        removed += rq.numbers(core, reply, 1)[0]
    return removed


def update_priority(
    core: Core, lane: Lane, indices: list[int], priority: NDArray[np.float64]
) -> Generator[Step, Any, Updated]:  # fmt: skip
    """Sets the priority of each index, in steps; of an index named twice the last. `priority`: one for each, or one for all."""
    last = dict(zip(indices, np.broadcast_to(priority, len(indices)).tolist(), strict=True))
    index, each = np.array(list(last), "<f8"), np.array(list(last.values()), "<f8")
    applied = ignored = 0
    for low in range(0, len(last), core.step):
        step = slice(low, low + core.step)
        try:
            reply = yield from change(core, lane, scripts.update(index=index[step].tobytes(), priority=each[step].tobytes()))
        except ReplayError as error:
            error.done = low
            raise
        more, gone = rq.numbers(core, reply, 2)
        applied, ignored = applied + more, ignored + gone
    return Updated(applied, ignored)


def set_version(core: Core, lane: Lane, version: int) -> Generator[Step, Any, int]:
    """Drops what is too old under `version`, in steps, the last of which raises. Gives how many records were dropped."""
    dropped = 0
    while True:
        try:
            reply = yield from change(core, lane, scripts.version(version=version), ("OK", "MORE"))
        except ReplayError as error:
            error.done = dropped
            raise
        dropped += rq.numbers(core, reply, 1)[0]
        if reply.word == "OK":
            return dropped


def set_alpha(core: Core, lane: Lane, alpha: float) -> Generator[Step, Any, None]:
    """Another exponent of priorities, in steps, of which the first makes it hold for what is new."""
    cursor, process = "0", ""
    while True:
        script = scripts.alpha(alpha=repr(alpha), cursor=cursor, process=process)
        reply = yield from change(core, lane, script, ("OK", "MORE"))
        core.weigh_by(alpha)
        if reply.word == "OK":
            return
        cursor, process = (*reply.texts(), "", "")[:2]
        if not re.fullmatch("[0-9]{1,20}", cursor, re.ASCII):
            raise rq.kept(core, reply)


def change(
    core: Core, lane: Lane, script: scripts.Script, answers: tuple[str, ...] = ("OK",)
) -> Generator[Step, Any, Reply]:  # fmt: skip
    """A change without payloads: remove, empty, shutdown, reopen, another rate limiter."""
    reply: Reply = yield from rq.request(core, lane, script, core.clock() + core.bound(CALL_SECONDS), writes=True)
    if reply.word not in answers:
        raise rq.refused(core, script.verb, reply)
    return reply
