"""The doctor: the invariants I1 to I5, and each structure. Generators without I/O: see _steps."""

import math
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from redis_replay import _ops_read as read
from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._core import Core
from redis_replay._keys import KINDS, Keys
from redis_replay._steps import Step
from redis_replay._types import Finding, Report, as_text
from redis_replay.exceptions import BufferDamagedError
from redis_replay.samplers import Fifo

AUDITED = ("order", "uses", "parting", "held", "holes", "leased", "priorities", "places", "ranked", "versions", "authors",
           "holds", "lanes", "waiters", "writers", "shares", "kept", "noted")  # fmt: skip
PAGE_RECORDS = 1000  # of a page with bytes
SURVEY_RECORDS = 200  # of one without: some milliseconds

# What the doctor must know to judge.
_COUNTED = {
    "capacity", "consumed", "evicted", "first", "hidden", "last", "leased", "parting", "removed", "sampleable_size",
    "storage_size", "stale", "unseen", "write_count",
}  # fmt: skip

TOTALLED = ("I1", "I2", "I4", "I5")  # what goes by counters

TOTALS = {"records_total", "bytes_total", "sample_calls", "samples_returned"}  # beside these, what only time tells
COUNTERS = {
    *_COUNTED, *TOTALS, "used", "diff", "era", "clock", "clock_offset", "last_write", "version", "lapsed", "reclaimed", "late",
    "notices", "foreign", "arrivals", "authors", "rewound", "restarts", "ignored",
} - {"capacity"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of the stream, and what the side keys say of it. None: they say nothing."""

    index: int  # 0: its id is none of ours
    id: str
    where: str
    uses: int | None
    priority: float | None
    version: int | None
    writer: int | None
    ranked: float | None
    payload: bytes

    @classmethod
    def of(cls, id: bytes, where: bytes, fact: bytes, ranked: bytes, payload: bytes) -> Self:  # noqa: A002
        """As lua/survey.lua tells it. A number that is none is as good as not there."""
        uses, priority, version, writer = fact.split()
        time, _, index = as_text(id).partition("-")
        return cls(
            index=int(index) if time == "0" else 0,
            id=as_text(id),
            where=as_text(where),
            uses=_whole(uses),
            priority=_not_negative(priority),
            version=_whole(version),
            writer=_whole(writer),
            ranked=_not_negative(ranked),
            payload=payload,
        )

    @property
    def is_out(self) -> bool:
        """Whether it is out of the buffer, by `parting`."""
        return "p" in self.where


def _whole(word: bytes) -> int | None:
    return int(word) if word.lstrip(b"-").isdigit() and word != b"-" else None


def _not_negative(word: bytes) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def examine(core: Core) -> Generator[Step, Any, Report]:
    """The invariants I1 to I5 of docs/architecture.md, the totals at one moment, then each side key by pages."""
    config, findings = yield from _settings(core)
    if findings:  # no script goes by these, and no other key can be judged
        return Report(tuple(findings), unchecked=TOTALLED)
    try:
        facts = yield from read.facts(core)
    except BufferDamagedError as damage:
        return Report((Finding("I3", damage.key, damage.expected, damage.found),), unchecked=TOTALLED)
    unchecked: tuple[str, ...] = TOTALLED
    lost = 0
    if not (findings := _uncounted(core, facts)):
        try:
            findings = [*_judge(core, facts), *_spoiled(core, facts), *(yield from _unread(core, config, facts))]
            unchecked, lost = (), max(0, int(facts["storage_size"]) - int(facts["xlen"]))
        except BufferDamagedError as damage:
            findings = [Finding("I3", damage.key, damage.expected, damage.found)]
    checked = {"records": int(facts["xlen"])}
    for what in AUDITED:
        looked, wrong = yield from read.audit(core, what)
        checked[what] = looked
        findings += [_entry(core.keys.key(what), entry) for entry in wrong]
    surveyed = yield from _survey(core)
    return Report((*findings, *surveyed), checked, unchecked, lost)


def _entry(key: str, entry: str) -> Finding:
    index, odd, value = entry.partition("=")
    if odd:
        text = f"{value[:40]!r}" if value.isascii() and value.isprintable() else f"{len(value)} bytes"
        return Finding("I3", key, "what scripts write", f"{text} of {index}", index)
    return Finding("I3", key, "a stored record", f"index {index} without one", index)


def _settings(core: Core) -> Generator[Step, Any, tuple[dict[str, str], list[Finding]]]:
    """The stored settings; and each key of another type, each setting that no script can go by."""
    keys = [core.keys.key(name) for name in KINDS]
    commands = [(b"TYPE", key.encode()) for key in keys]
    replies = yield from rq.deliver_once(core, rq.commands(*commands, (b"HGETALL", keys[0].encode())))
    for reply in replies[:-1]:
        if isinstance(reply, Exception):
            raise reply
    findings = []
    for key, expected, reply in zip(keys, KINDS.values(), replies[:-1], strict=True):
        if (found := as_text(reply)) not in (expected, "none"):
            findings.append(Finding("I3", key, f"a {expected}", f"is a {found}"))
    if findings or not isinstance(replies[-1], list):
        return {}, findings
    texts = [as_text(value) for value in replies[-1]]
    config = dict(zip(texts[::2], texts[1::2], strict=True))
    if config.get("epoch") == core.epoch:
        findings = [Finding("I3", error.key, error.expected, error.found) for error in wrong_settings(core.keys, config)]
    return config, findings


def wrong_settings(keys: Keys, config: dict[str, str]) -> Iterator[BufferDamagedError]:
    """Those that no script can go by, and that nothing else tells: all but `skipped`."""
    checks: list[Callable[[], object]] = [
        *(partial(stored.number, keys, "config", name, config.get(name)) for name in ("capacity", "shutdowns", "record_bytes")),
        partial(stored.selector, keys, config, "sampler"),
        partial(stored.selector, keys, config, "remover"),
        partial(stored.uses, keys, config),
        partial(stored.lease, keys, config),
        partial(stored.max_staleness, keys, config),
        partial(_matches, keys, config, "state", "open|draining|shut", "open, draining or shut"),
        partial(_matches, keys, config, "law", r"|\d+ \d+ \d+ -?\d+ -?\d+ -?\d+ [01]", "seven numbers of a rate limiter"),
        partial(_schema, keys, config),
        partial(_max_priority, keys, config),
    ]
    for check in checks:
        try:
            check()
        except BufferDamagedError as error:
            yield error


def _matches(keys: Keys, config: dict[str, str], name: str, pattern: str, expected: str) -> None:
    if not re.fullmatch(pattern, config.get(name, "")):
        raise stored.damaged(keys, "config", name, config.get(name, ""), expected)


def _schema(keys: Keys, config: dict[str, str]) -> None:
    if "schema" in config or "schema_hash" in config:
        stored.schema(keys, config.get("schema", ""), config.get("schema_hash", ""))


def _max_priority(keys: Keys, config: dict[str, str]) -> None:
    text = config.get("max_priority")
    if text is not None and _not_negative(text.encode()) is None:
        raise stored.damaged(keys, "config", "max_priority", text, "a number")


def _survey(core: Core) -> Generator[Step, Any, list[Finding]]:
    """Each entry of the stream against each side key: a page at a moment."""
    findings: list[Finding] = []
    after = "0"
    while after:
        after, page = yield from survey_page(core, after)
        findings += [finding for row in page for finding in _judge_row(core, row)]
    return findings


def survey_page(core: Core, after: str, *, with_bytes: bool = False) -> Generator[Step, Any, tuple[str, list[Row]]]:
    """Some entries behind an index. Gives where the next page starts (empty at the end), and the rows."""
    size = PAGE_RECORDS if with_bytes else SURVEY_RECORDS
    reply = yield from rq.ask(core, scripts.survey(after=after, page_size=size, with_bytes=with_bytes))
    words = reply.data[1:]
    rows = [Row.of(*words[i : i + 5]) for i in range(0, len(words), 5)]
    return as_text(reply.data[0]), rows


def _judge_row(core: Core, row: Row) -> Iterator[Finding]:
    def finding(what: str, expected: str, found: object) -> Finding:
        return Finding("I3", core.keys.key(what), expected, f"{found} of index {row.index}", str(row.index))

    if row.index == 0:
        yield Finding("I4", core.keys.key("records"), "ids 0-<index>", row.id)
        return
    if row.is_out:
        if "o" in row.where:
            yield finding("order", "none of a record that is out of the buffer", "an entry")
        return
    if core.consume is not None and core.consume > 1 and not 0 <= (row.uses or 0) < core.consume:
        yield finding("uses", f"below {core.consume}", row.uses)
    if core.weighs and row.priority is None:
        yield finding("priorities", "one", "none")
    if core.dates and row.version is None:
        yield finding("versions", "one", "none")
    is_ranked = (core.sampler.ranks or core.remover.heap) and ("o" in row.where or not has_order(core))
    if is_ranked and row.priority is not None and row.ranked != row.priority:
        yield finding("ranked", repr(row.priority), row.ranked)


def _spoiled(core: Core, facts: dict[str, str]) -> Iterator[Finding]:
    """Counters that the invariants do not name."""
    lacking = [name for name in sorted(COUNTERS - _COUNTED) if not is_whole(facts.get(name, "0"))]
    lacking += [name for name in sorted(TOTALS - _COUNTED) if name not in facts]
    if lacking:
        yield Finding("I2", core.keys.key("counters"), f"a number each: {', '.join(lacking)}", "none")


def _unread(core: Core, config: dict[str, str], facts: dict[str, str]) -> Generator[Step, Any, list[Finding]]:
    """Records that nobody can read."""
    if "schema" not in config and facts["xlen"] != "0":
        config, _ = yield from _settings(core)  # the first ones may have come since
        if "schema" not in config:
            return [Finding("I3", core.keys.key("config"), "a schema", "none")]
    return []


def is_whole(text: str) -> bool:
    """Whether a counter is one."""
    return re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is not None


def has_order(core: Core) -> bool:
    """Whether `order` holds the live and the hidden indices."""
    return core.consume is not None or core.remover != Fifo()


def _uncounted(core: Core, facts: dict[str, str]) -> list[Finding]:
    """Counters without which nothing can be judged."""
    lacking = sorted(name for name in _COUNTED if not is_whole(facts.get(name, "")))
    return [Finding("I2", core.keys.key("counters"), f"a number each: {', '.join(lacking)}", "none")] if lacking else []


def _judge(core: Core, facts: dict[str, str]) -> Iterator[Finding]:
    n = {name: int(value) for name, value in facts.items() if is_whole(value)}
    present, size = n["sampleable_size"] + n["hidden"], n["storage_size"]
    live = present + n["leased"]
    counters, records = core.keys.key("counters"), core.keys.key("records")
    last_id = int(facts.get("last_id", "0-0").split("-")[1])
    half = core.keys.key("leased" if n["leases"] else "leases")
    rules: list[tuple[str, str, str, int, int]] = [
        ("I1", records, "entries", size, n["xlen"]),
        ("I1", core.keys.key("inbox"), "keys", 0, n["inbox"]),
        ("I1", counters, "storage_size = live + hidden + leased + parting", live + n["parting"], size),
        ("I2", counters, "write_count = live + hidden + leased + consumed + evicted + removed + stale",
         live + n["consumed"] + n["evicted"] + n["removed"] + n["stale"], n["write_count"]),
        ("I3", core.keys.key("parting"), "entries", n["parting"], n["parting_size"]),
        ("I3", core.keys.key("uses"), "entries", n.get("used", 0), n["uses_size"]),
        ("I3", half, "entries, as its other half has", n["leases"], n["leased_size"]),
        ("I3", core.keys.key("holds" if n["held"] else "held"), "there as its other half is",
         n["held"] > 0, n["holds"] + n["kept"] > 0),
        ("I3", core.keys.key("waiting"), "entries", n["waiters"], n["waiting"]),
        ("I3", core.keys.key("requests"), "entries", n["lanes"], n["requests"]),
        ("I4", records, "the last id", n["last"], last_id),
    ]  # fmt: skip
    skipped = stored.skipped(core.keys, facts["skipped"], n["first"], n["last"])
    if has_order(core):
        rules.append(("I3", core.keys.key("order"), "entries", present, n["order"]))
    else:
        span = n["last"] - n["first"] + 1 - n["holes"] - skipped
        rules.append(("I3", core.keys.key("holes"), "live and hidden in first..last", present, span))
    if core.weighs:
        rules.append(("I3", core.keys.key("priorities"), "blocks", n["blocks"], n["priorities"]))
    if core.sampler.bins or core.remover.bins:
        rules.append(("I3", core.keys.key("places"), "rows", n["rows"], n["places"]))
        rules.append(("I3", core.keys.key("buckets"), "records", n["sampleable_size"], n["weighed"]))
    if core.sampler.ranks or core.remover.heap:
        rules.append(("I3", core.keys.key("ranked"), "entries", present, n["ranked"]))
    if core.dates:
        rules.append(("I3", core.keys.key("versions"), "entries", size, n["versions"]))
        rules.append(("I3", core.keys.key("versions"), "live and hidden", present, n["dated"]))
        rules.append(("I3", core.keys.key("authors"), "entries", n["unseen"], n["authors_size"]))
    for invariant, key, what, expected, found in rules:
        if expected != found:
            yield Finding(invariant, key, f"{what}: {expected}", str(found))
    if live > n["capacity"]:
        yield Finding("I5", counters, f"at most {n['capacity']} live, hidden and leased", str(live))
