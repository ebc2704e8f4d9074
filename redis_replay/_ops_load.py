"""A load: a copy is built beside the buffer from a checkpoint, and takes its place in one step. No I/O: see _steps."""

import math
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from redis_replay import _arguments as args
from redis_replay import _ops_write as write
from redis_replay import _requests as rq
from redis_replay import _schema as schemas
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay import _versions as versions
from redis_replay import checkpoint
from redis_replay._blocks import Source
from redis_replay._contents import GONE, NONE, TOTALS
from redis_replay._core import Core, Lane
from redis_replay._decode import decode_batch
from redis_replay._encode import encode_batch
from redis_replay._ops_admin import FORMAT
from redis_replay._ops_dump import Progress
from redis_replay._scripts import Script
from redis_replay._steps import Step, Work
from redis_replay._types import as_text
from redis_replay.checkpoint import Checkpoint, Page
from redis_replay.exceptions import (
    BufferDamagedError,
    BufferGoneError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointSchemaError,
    LoadError,
    ReplayError,
    SchemaError,
    UnderWayError,
)
from redis_replay.samplers import Fifo

TTL_MS = 60_000  # a copy that nobody goes on with goes after so long
SWAP_SECONDS = 30.0
GAP = 1000  # indices without a record between two: more go in a step of their own
HOLES = 20_000  # of one step
STEP = 1000  # records of one: with priorities a tenth of a second
NEAR, FAR = 2**24, 2**32  # indices left free for others to write meanwhile, at the first try and after
FIXED = ("capacity", "sampler", "remover", "consume_after_n_samples", "max_staleness")  # settings that no call changes


class Plan(NamedTuple):
    """What goes where."""

    name: str  # of the copy
    shift: int  # from an index of the checkpoint to one of the buffer
    own: bool  # it was dumped from this very buffer


class Loaded(NamedTuple):
    """What a load did: records, and what was added to each one's index."""

    records: int
    shift: int


def load(core: Core, lane: Lane, source: Source, progress: Progress | None) -> Generator[Step, Any, Loaded]:
    """Puts what a checkpoint holds in the place of what the buffer holds.

    Raises:
        CheckpointError, CheckpointNotFoundError, CheckpointMismatchError, SchemaError, LoadError, UnderWayError;
        BufferShutDownError, LimitError, OutOfMemoryError, BufferGoneError, ConnectionLostError, OutcomeUnknownError.
    """
    saved = yield from prove(core, source)
    margin = 0
    while True:
        plan = yield from _plan(core, saved, margin)
        try:
            yield from fill(core, saved, plan, progress)
            reply = yield from _swap(core, lane, saved, plan)
        except GeneratorExit:
            raise
        except BaseException:
            yield from discard(core, plan)
            raise
        if reply.word == "OK":
            return Loaded(len(saved), plan.shift)
        yield from discard(core, plan)
        if reply.word == "SCHEMA":
            core.schema = None
            _check_settings(core, (yield from _config(core)), saved)
        if reply.word != "MOVED":
            raise _ended(core) if reply.word == "CLOSED" else rq.refused(core, "swap", reply)
        margin = FAR


def prove(core: Core, source: Source) -> Generator[Step, Any, Checkpoint]:
    """The checkpoint, if it is whole and fits the buffer as it is. Changes nothing.

    Raises:
        CheckpointError, CheckpointNotFoundError, CheckpointMismatchError, SchemaError; BufferGoneError, ConnectionLostError.
    """
    saved: Checkpoint = yield Work(lambda: checkpoint.open(source))
    _check_sum(saved)
    _check_settings(core, (yield from _config(core)), saved)
    return saved


def merge(core: Core, lane: Lane, source: Source, progress: Progress | None) -> Generator[Step, Any, Loaded]:
    """Writes the records of a checkpoint as new ones. No index of theirs is kept.

    Raises:
        as `load` and `extend`; `done` of the error says how many were written.
    """
    saved: Checkpoint = yield Work(lambda: checkpoint.open(source))
    live = yield from _config(core)
    _check_schema(core, live, saved)
    schema, done, pages = saved.schema, 0, saved.pages()
    while (page := (yield Work(lambda: next(pages, None)))) is not None:
        assert schema is not None
        n = len(page.payload)
        rows = encode_batch(decode_batch(schema, page.payload, page.index.tolist()), core.schema)
        given = args.priorities(core, page.priority if core.weighs and page.priority[0] >= 0 else None, n)
        origin = versions.origin(core, page.version if core.dates and page.version[0] >= 0 else None, n)
        try:
            yield from write.write(core, lane, rows, write.Terms(math.inf, None), given, origin)
        except ReplayError as error:
            error.done = done + getattr(error, "done", 0)
            raise
        done += n
        if progress is not None:
            progress(done, len(saved))
    return Loaded(done, 0)


def _config(core: Core) -> Generator[Step, Any, dict[str, str]]:
    """The buffer's settings as they are now."""
    texts = (yield from rq.ask(core, scripts.open(format=FORMAT, mode="attach", option={}))).texts()
    config = dict(zip(texts[::2], texts[1::2], strict=True))
    if config["epoch"] != core.epoch:
        raise BufferGoneError(name=core.name)
    return config


def _check_sum(saved: Checkpoint) -> None:
    """I2: each record that was written is there, or is counted as gone."""
    n = saved.counters
    gone = sum(n[name] for name in GONE)
    if n["write_count"] != len(saved) + gone:
        reason = f"write_count is {n['write_count']}, and {len(saved)} records are there, {gone} are gone"
        raise CheckpointError(path=saved.path, reason=reason)


def _check_settings(core: Core, live: dict[str, str], saved: Checkpoint) -> None:
    differences = {}
    for name in FIXED:
        ours, theirs = (stored.setting(name, config.get(name, "None")) for config in (live, saved.config))
        if _fixed(ours) != _fixed(theirs):
            differences[name] = ours, theirs
    if differences:
        raise CheckpointMismatchError(path=saved.path, reason="", name=core.name, differences=differences)
    _check_schema(core, live, saved)


def _fixed(setting: object) -> object:
    """Of priorities' alpha is what `set_alpha` says."""
    return setting.weighing_by(1.0) if hasattr(setting, "weighing_by") else setting


def _check_schema(core: Core, live: dict[str, str], saved: Checkpoint) -> None:
    ours, theirs = live.get("schema"), saved.schema
    if ours is None or theirs is None:
        return
    try:
        schemas.check(stored.schema(core.keys, ours, live.get("schema_hash")), theirs)
    except SchemaError as error:
        raise CheckpointSchemaError(
            file=saved.path, name=core.name, path=error.path, expected=error.expected, found=error.found
        ) from error


def newest(core: Core) -> Generator[Step, Any, int]:
    """The newest index that the buffer has given."""
    replies = yield from rq.deliver_once(core, rq.commands((b"HGET", core.keys.key("counters").encode(), b"last")))
    if isinstance(replies[0], Exception):
        raise replies[0]
    return stored.number(core.keys, "counters", "last", None if replies[0] is None else as_text(replies[0]))


def _plan(core: Core, saved: Checkpoint, margin: int) -> Generator[Step, Any, Plan]:
    name, own = secrets.token_hex(8), saved.epoch == core.epoch
    last = yield from newest(core)
    if own or (last == 0 and not margin):
        return Plan(name, 0, own)
    free = min(margin or NEAR, (args.MAX_INDEX - last) // 65536)
    return Plan(name, last + free + 1 - saved.first, own)


def fill(core: Core, saved: Checkpoint, plan: Plan, progress: Progress | None) -> Generator[Step, Any, None]:
    """Builds the copy beside the buffer.

    Raises:
        CheckpointError: it makes no sound buffer. UnderWayError: another load is. LoadError: the copy went meanwhile.
    """
    config = {name: text for name, text in saved.config.items() if name != "skipped"}
    first = saved.first + plan.shift
    begin = scripts.stage(first=first, ttl_ms=TTL_MS, config={"record_bytes": "0"} | config)
    reply = yield from rq.ask(core, begin, epoch=plan.name, answers=("OK", "RUNNING"))
    if reply.word == "RUNNING":
        raise UnderWayError(name=core.name, what="load", seconds=math.ceil(int(reply.data[0]) / 1e6))
    done, last, pages = 0, first - 1, saved.pages()
    most = sum(saved.counters.get(name, 0) for name in ("records_total", "foreign")) + GAP
    keeps_gaps = core.consume is None and core.remover == Fifo()
    skipped = _ranges(saved.config.get("skipped", ""), plan.shift) if keeps_gaps else []
    while (page := (yield Work(lambda: next(pages, None)))) is not None:
        moved = replace(page, index=page.index + plan.shift)
        passed = sum(high - low + 1 for low, high in skipped if high < moved.index[-1])
        if keeps_gaps and moved.index[-1] - first + 1 - passed > most:
            raise CheckpointError(path=saved.path, reason=f"its indices have more gaps than {most:,} writes can have left")
        for script in _steps(moved, last, skipped, keeps_gaps):
            yield from _restore(core, saved, plan, script)
        last, done = int(moved.index[-1]), done + len(page.payload)
        if progress is not None:
            progress(done, len(saved))
    yield from _restore(core, saved, plan, _rows(None, 0, 0))  # the copy is looked at as a whole


def _restore(core: Core, saved: Checkpoint, plan: Plan, script: Script) -> Generator[Step, Any, None]:
    try:
        yield from rq.ask(core, script, epoch=plan.name)
    except BufferGoneError as error:
        raise _ended(core) from error
    except BufferDamagedError as error:
        reason = f"it makes no sound buffer: {error.key} {error.found}, expected {error.expected}"
        raise CheckpointError(path=saved.path, reason=reason) from error


def _ended(core: Core) -> LoadError:
    return LoadError(name=core.name, reason="the copy that it built is gone: it was not written to for a minute, or deleted")


def _ranges(text: str, shift: int) -> list[tuple[int, int]]:
    return [(int(low) + shift, int(high) + shift) for low, _, high in (word.partition(":") for word in text.split())]


def _steps(page: Page, last: int, skipped: Sequence[tuple[int, int]], keeps_gaps: bool) -> Iterator[Script]:
    """The scripts that put a page behind index `last`: rows, and the long gaps between them."""
    before = np.concatenate(([last], page.index[:-1]))
    gaps = np.where(page.index - before - 1 > GAP, 0, page.index - before - 1)  # the short ones
    wide = page.index - before - 1 > GAP if keeps_gaps else np.zeros(len(before), bool)
    for low, high in skipped:
        wide |= (before < low) & (page.index > high)
    starts = {0, len(page.payload), *np.flatnonzero(wide).tolist(), *range(0, len(page.payload), STEP)}
    if keeps_gaps:
        starts |= set((np.flatnonzero(np.diff(np.cumsum(gaps) // HOLES)) + 1).tolist())
    for a, b in pairwise(sorted(starts)):
        if wide[a]:
            yield from _gap(int(before[a]), int(page.index[a]) - 1, skipped)
        yield _rows(page, a, b)


def _gap(last: int, upto: int, skipped: Sequence[tuple[int, int]]) -> Iterator[Script]:
    """Indices behind `last` up to `upto` that hold nothing: some were taken out, some never given."""
    for low, high in [(low, high) for low, high in skipped if last < low and high <= upto] + [(upto + 1, upto)]:
        while last < low - 1:
            last = min(last + HOLES, low - 1)
            yield _rows(None, 0, 0, upto=last)
        if high >= low:
            last = high
            yield _rows(None, 0, 0, upto=high, skipped=True)


def _rows(page: Page | None, a: int, b: int, upto: int = 0, *, skipped: bool = False) -> Script:
    """Records a..b of a page."""

    def words(column: Any, as_text: Callable[[Any], str] = str) -> str:
        part = column[a:b].tolist()
        return " ".join("-" if value == NONE else as_text(value) for value in part) if any(v != NONE for v in part) else ""

    if page is None:
        texts, payloads = dict.fromkeys(("index", "uses", "priority", "version", "writer"), ""), []
    else:
        texts = {name: words(getattr(page, name)) for name in ("index", "uses", "version", "writer")}
        texts["priority"], payloads = words(page.priority, repr), page.payload[a:b]
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(payload), payload) for payload in payloads)
    return scripts.restore(ttl_ms=TTL_MS, upto=upto, skipped=skipped, payload=packed, n=len(payloads), **texts)


def _swap(core: Core, lane: Lane, saved: Checkpoint, plan: Plan) -> Generator[Step, Any, Any]:
    totals = " ".join(f"{name} {saved.counters[name]}" for name in TOTALS if name in saved.counters)
    script = scripts.swap(copy=plan.name, high=saved.last + plan.shift, own=plan.own, totals=totals, shares=saved.shares)
    return (yield from rq.request(core, lane, script, core.clock() + SWAP_SECONDS, writes=True))


def discard(core: Core, plan: Plan) -> Generator[Step, Any, None]:
    """The copy goes. If the server cannot be told, it goes after a minute."""
    try:
        yield from rq.ask(core, replace(scripts.delete(), where="copy"), epoch=plan.name, answers=("OK", "GONE"))
    except ReplayError:
        return
