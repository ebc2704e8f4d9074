"""A repair: what is left of a damaged buffer is judged, dumped, built anew beside it, and put in its place. No I/O: see _steps.

Meanwhile the buffer is fenced: everybody else's calls wait. The fence of a repair that was killed ends by itself.
"""

import math
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from redis_replay import _blocks as blocks
from redis_replay import _mending as mending
from redis_replay import _ops_admin as admin
from redis_replay import _ops_doctor as doctor
from redis_replay import _ops_load as load
from redis_replay import _ops_read as read
from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import checkpoint
from redis_replay._contents import NONE
from redis_replay._core import Core
from redis_replay._mending import Fenced, Looked, Plan, Tally
from redis_replay._ops_doctor import Row
from redis_replay._steps import Operation, Step, Work
from redis_replay._types import Report, as_text
from redis_replay.checkpoint import Page
from redis_replay.exceptions import (
    BufferDamagedError,
    BufferNotFoundError,
    FormatError,
    RepairError,
    ReplayError,
    UnderWayError,
)

FENCE_SECONDS = 60
RENEW_SECONDS = 20.0
BREAK = "was not fenced any more: the repair took a break of a minute, and nothing was changed"


@dataclass(frozen=True)
class Repaired:
    """What a repair did.

    Attributes:
        before: what the doctor found.
        after: what it finds now: nothing.
        path: the dump that the buffer was built anew from; None where nothing was wrong, and nothing was changed.
        did: what was done, a sentence each.
    """

    before: Report
    after: Report
    path: str | None
    did: tuple[str, ...]


def attach(core: Core) -> Generator[Step, Any, None]:
    """Opens a buffer that may be damaged: its settings must be sound, and nothing else.

    Raises:
        BufferNotFoundError, FormatError; BufferDamagedError: the settings are not what they must be.
    """
    server = yield from admin.probe(core, core.clock() + admin.OPEN_SECONDS)
    keys = [key.encode() for key in core.keys.all[:-1]]
    replies = yield from rq.deliver_once(core, rq.commands((b"HGETALL", keys[0]), (b"EXISTS", *keys)))
    if isinstance(replies[0], BufferDamagedError):
        raise _config(core, "is no hash")
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    texts = [as_text(value) for value in replies[0]]
    config = dict(zip(texts[::2], texts[1::2], strict=True))
    if not config and not replies[1]:
        raise BufferNotFoundError(name=core.name)
    if not config:
        raise _config(core, "is missing, and other keys of the buffer are there")
    if config.get("format") != admin.FORMAT:
        raise FormatError(name=core.name, found=config.get("format", "none"), supported=admin.FORMAT)
    core.configure(config)
    core.capacity = 0  # what a new connection is greeted with goes by what may be damaged
    server.tell(core)


def _config(core: Core, found: str) -> BufferDamagedError:
    return BufferDamagedError(name=core.name, key=core.keys.key("config"), found=found, expected="the hash of settings")


class Fence:
    """Keeps others out, and keeps itself up while the repair goes on."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.id = secrets.token_hex(8)
        self.since = -math.inf

    def up(self, *, renew: bool = False) -> Generator[Step, Any, Fenced]:
        """It stands for a minute from now on. Gives what it guards.

        Raises:
            UnderWayError: another repair is. RepairError: it was to be renewed, and stands no more.
        """
        self.since = self.core.clock()
        script = scripts.fence(id=self.id, hold_us=FENCE_SECONDS * 10**6, renew=renew)
        reply = yield from rq.ask(self.core, script, answers=("OK", "RUNNING", "CLOSED"))
        if reply.word == "CLOSED":
            raise mending.refuse(self.core, "*", BREAK)
        if reply.word == "RUNNING":
            raise UnderWayError(name=self.core.name, what="repair", seconds=math.ceil(int(reply.data[0]) / 1e6))
        return Fenced.of(reply.data)

    def down(self) -> Generator[Step, Any, None]:
        """It is gone. If the server cannot be told, it goes by itself."""
        try:
            yield from rq.ask(self.core, scripts.fence(id=self.id, hold_us=0, renew=False), answers=("OK", "RUNNING", "GONE"))
        except ReplayError:
            return

    def around(self, inner: Operation) -> Operation:
        """Runs an operation inside it."""
        answer: Callable[[], Step] = partial(next, inner)
        while True:
            try:
                step = answer()
            except StopIteration as stop:
                return stop.value
            try:
                if self.core.clock() - self.since > RENEW_SECONDS:
                    yield from self.up(renew=True)
                result = yield step
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the operation that must judge it
                answer = partial(inner.throw, error)
            else:
                answer = partial(inner.send, result)


def repair(core: Core, path: str | PathLike[str]) -> Generator[Step, Any, Repaired]:
    """Mends what can be mended without inventing data, after a dump to `path`.

    Raises:
        RepairError, UnderWayError; OSError: the file cannot be written. BufferGoneError, ConnectionLostError, OutOfMemoryError.
    """
    try:
        yield from attach(core)
    except BufferDamagedError as error:
        raise RepairError(name=core.name, key=error.key, reason=error.found) from error
    before: Report = yield from doctor.examine(core)
    if before.ok:
        return Repaired(before, before, None, ())
    rq.check_rights(core)
    fence = Fence(core)
    fenced = yield from fence.up()
    try:
        plan: Plan = yield from fence.around(_mend(core, fence, fenced, before, path))
    except GeneratorExit:
        raise
    except BaseException:
        yield from fence.down()
        raise
    after: Report = yield from doctor.examine(core)
    if not after.ok:
        left = "; ".join(f"{finding.key}: expected {finding.expected}, found {finding.found}" for finding in after.findings)
        raise mending.refuse(core, "*", f"is not whole after it was built anew from {blocks.name_of(path)}: {left}")
    return Repaired(before, after, blocks.name_of(path), tuple(plan.did))


def _mend(core: Core, fence: Fence, fenced: Fenced, before: Report, path: str | PathLike[str]) -> Operation:
    for error in doctor.wrong_settings(core.keys, fenced.config):
        raise RepairError(name=core.name, key=error.key, reason=error.found) from error
    mending.check(core, fenced)
    looked = Looked(core, fenced)
    yield from _look(looked)
    tally = yield from _chosen(looked)
    found = {finding.key: f"expected {finding.expected}, found {finding.found}" for finding in before.findings}
    plan = mending.plan(looked, tally, found)
    forget = yield from _must_forget(core)
    if forget:
        plan.did.append("lanes, answers and waiters were forgotten: calls under way begin anew")
    yield from _dump(looked, tally, plan, path)
    yield from _exchange(core, fence, plan, path, forget=forget)
    return plan


def _look(looked: Looked) -> Generator[Step, Any, None]:
    after = "0"
    while after:
        after, page = yield from doctor.survey_page(looked.core, after)
        for row in page:
            looked.take(row)


def _chosen(looked: Looked) -> Generator[Step, Any, Tally]:
    """The key that says who is in the buffer.

    Raises:
        RepairError: none does.
    """
    core, n = looked.core, looked.fenced.numbers
    counts = core.consume is not None and core.consume > 1 and looked.rows
    if counts and not (yield from _is_whole(looked, "uses", n.get("used"))):
        raise mending.refuse(core, "uses", "has lost how often records were handed out")
    by_parting, other = looked.by
    if not looked.rows or (yield from _is_whole(looked, "parting", n.get("parting"))):
        return by_parting
    there = n.get("sampleable_size", -1) + n.get("hidden", -1)
    if other.key == "holes":
        sound = other.n == there
    else:
        lent = sum(map(len, looked.fenced.lent.values()))
        sound = lent == n.get("leased") and (yield from _is_whole(looked, "order", there))
    if not sound:
        reason = f"has lost who is out of the buffer, and {core.keys.key(other.key)} does not tell who is in"
        raise mending.refuse(core, "parting", reason)
    return other


def _is_whole(looked: Looked, what: str, counted: int | None) -> Generator[Step, Any, bool]:
    """Whether a side key has lost nothing: it has as many entries as were counted, each of a record that is or was there."""
    marks = looked.marks[what]
    if marks == counted:
        return True
    try:
        n, wrong = yield from read.audit(looked.core, what)
    except BufferDamagedError:
        return False
    return n == counted == marks + len(wrong) and all(i.isdigit() and 0 < int(i) <= looked.last for i in wrong)


def _must_forget(core: Core) -> Generator[Step, Any, bool]:
    """Whether what is remembered of calls is damaged."""
    names = (("ZCARD", "lanes"), ("HLEN", "requests"), ("ZCARD", "waiters"), ("HLEN", "waiting"), ("ZCARD", "writers"))
    commands = [(command.encode(), core.keys.key(name).encode()) for command, name in names]
    sizes = yield from rq.deliver_once(core, rq.commands(*commands))
    if any(isinstance(size, Exception) for size in sizes) or sizes[0] != sizes[1] or sizes[2] != sizes[3]:
        return True
    for what in ("lanes", "waiters", "writers"):  # each with its other half
        if (yield from read.audit(core, what))[1]:
            return True
    return False


def _dump(looked: Looked, tally: Tally, plan: Plan, path: str | PathLike[str]) -> Generator[Step, Any, None]:
    """The checkpoint: all that is left, and nothing else."""
    stack = ExitStack()
    file = yield Work(lambda: stack.enter_context(blocks.replacing(path)))
    try:
        write = blocks.Writer(file).write
        yield Work(partial(write, "head", plan.head))
        after = "0"
        while after:
            after, found = yield from doctor.survey_page(looked.core, after, with_bytes=True)
            rows = [row for row in found if looked.is_ours(row, tally)]
            if rows:
                yield Work(partial(write, "rows", _page(rows).packed()))
        yield Work(partial(write, "end", {"records": tally.n}))
    except BaseException:
        stack.__exit__(*sys.exc_info())
        raise
    yield Work(stack.close)


def _page(rows: list[Row]) -> Page:
    def column(values: list[Any], kind: Any = np.int64) -> Any:
        return np.array([NONE if value is None else value for value in values], kind)

    return Page(
        index=column([row.index for row in rows]),
        payload=[row.payload for row in rows],
        uses=column([row.uses for row in rows]),
        priority=column([row.ranked if row.priority is None else row.priority for row in rows], np.float64),
        version=column([row.version for row in rows]),
        writer=column([row.writer for row in rows]),
    )


def _exchange(
    core: Core, fence: Fence, plan: Plan, path: str | PathLike[str], *, forget: bool
) -> Generator[Step, Any, None]:  # fmt: skip
    """A copy is built from the dump, and takes the buffer's place."""
    saved = yield Work(lambda: checkpoint.open(path if isinstance(path, (str, bytes)) else str(path)))
    copy = load.Plan(secrets.token_hex(8), 0, own=True)
    try:
        yield from load.fill(core, saved, copy, None)
        yield from _swap(core, fence, plan, copy.name, forget=forget)
    except GeneratorExit:
        raise
    except BaseException:
        yield from load.discard(core, copy)
        raise


def _swap(core: Core, fence: Fence, plan: Plan, copy: str, *, forget: bool) -> Generator[Step, Any, None]:
    script = scripts.mend(id=fence.id, copy=copy, high=plan.high, forget=forget, totals=plan.totals, shares=plan.shares)
    reply = yield from rq.ask(core, script, answers=("OK", "CLOSED"))
    if reply.word == "CLOSED":
        raise mending.refuse(core, "*", BREAK)
