"""What a damaged buffer can be made whole from: pure judgement of what is left of it. No I/O."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis_replay import _stored as stored
from redis_replay._arguments import MAX_INDEX
from redis_replay._contents import CONFIG, FORMAT, GONE, VERSION
from redis_replay._core import Core
from redis_replay._ops_doctor import COUNTERS, TOTALS, Row, has_order, is_whole
from redis_replay._ops_dump import RUNTIME
from redis_replay._types import as_text
from redis_replay.exceptions import BufferDamagedError, RepairError

SKIPPED = 1_000_000  # indices without a record in a row: where `skipped` is lost, nobody was given those
NEEDED = {"write_count", *TOTALS, *GONE}  # counters that nothing else tells
OWN = {"first", "last", "sampleable_size", "storage_size", "hidden", "leased", "parting", "used", "unseen"}  # counted anew
SEEN = 5  # ids that are named


def refuse(core: Core, what: str, reason: str) -> RepairError:
    """The error for what cannot be made good."""
    return RepairError(name=core.name, key=core.keys.key(what), reason=reason)


class Fenced(NamedTuple):
    """What lua/fence.lua tells, as texts."""

    last_id: str
    config: dict[str, str]
    counters: dict[str, str]
    shares: dict[str, str]
    leased: dict[str, str]

    @classmethod
    def of(cls, data: list[Any]) -> "Fenced":
        """Of its answer."""
        texts = [[as_text(value) for value in values] for values in data[1:5]]
        return cls(as_text(data[0]), *(dict(zip(each[::2], each[1::2], strict=True)) for each in texts))

    @property
    def numbers(self) -> dict[str, int]:
        """The counters that are numbers."""
        return {name: int(text) for name, text in self.counters.items() if is_whole(text)}

    @property
    def newest(self) -> int:
        """The newest index that the stream has given; 0: it does not say."""
        time, _, index = self.last_id.partition("-")
        return int(index) if time == "0" and index.isdigit() and int(index) <= MAX_INDEX else 0

    @property
    def lent(self) -> dict[str, list[int]]:
        """Index by lease, of those that make sense."""
        out = {}
        for lease, text in self.leased.items():
            _, *words = text.split()
            if all(word.isdigit() for word in words):
                out[lease] = [int(word) for word in words]
        return out


@dataclass
class Tally:
    """What would be in the buffer, by one of its keys."""

    key: str
    has: Callable[[Row], bool]
    n: int = 0
    hidden: int = 0
    from_ranked: int = 0
    unseen: int = 0
    first: int = 0
    newest: int = 0
    why: tuple[str, str] | None = None  # what of it is lost: key, reason
    wide: list[tuple[int, int]] = field(default_factory=list)

    def take(self, core: Core, row: Row) -> None:
        """Counts a row, if it is in."""
        if not self.has(row):
            return
        if self.n and row.index - self.newest - 1 > SKIPPED:
            self.wide.append((self.newest + 1, row.index - 1))
        self.first = self.first if self.n else row.index
        self.n, self.newest = self.n + 1, row.index
        self.unseen += row.writer is not None
        priority = row.ranked if row.priority is None else row.priority
        self.from_ranked += row.priority is None and row.ranked is not None
        self.hidden += core.weighs and core.sampler.weighs and core.sampler.bins and priority == 0
        self.why = self.why or _lost(core, row, priority)


def _lost(core: Core, row: Row, priority: float | None) -> tuple[str, str] | None:
    if core.consume is not None and core.consume > 1 and not 0 <= (row.uses or 0) < core.consume:
        return "uses", f"has {row.uses} as the times that index {row.index} was handed out, of fewer than {core.consume}"
    if core.weighs and priority is None:
        return "priorities", f"has no priority of index {row.index}"
    if core.dates and row.version is None:
        return "versions", f"has no version of index {row.index}"
    return None


class Looked:
    """What the first look at the whole stream found: entries, and who is in by each of the keys that say it."""

    def __init__(self, core: Core, fenced: Fenced) -> None:
        self.core = core
        self.fenced = fenced
        n, lent = fenced.numbers, {index for indices in fenced.lent.values() for index in indices}
        self.last = n.get("last", fenced.newest)
        self.marks = dict.fromkeys(("parting", "order", "uses"), 0)
        self.foreign: list[str] = []
        self.by = [Tally("parting", lambda row: not row.is_out)]
        if has_order(core):
            self.by.append(Tally("order", lambda row: "o" in row.where or row.index in lent))
        else:
            first = n.get("first", 0)
            self.by.append(Tally("holes", lambda row: "h" not in row.where and row.index >= first))
        self.rows = 0

    def take(self, row: Row) -> None:
        """One entry."""
        if not 0 < row.index <= self.last:
            self.foreign.append(row.id)
            return
        self.rows += 1
        self.marks["parting"] += row.is_out
        self.marks["order"] += "o" in row.where
        self.marks["uses"] += row.uses is not None
        for tally in self.by:
            tally.take(self.core, row)

    def is_ours(self, row: Row, tally: Tally) -> bool:
        """Whether an entry is a record in the buffer."""
        return 0 < row.index <= self.last and tally.has(row)


@dataclass
class Plan:
    """What the buffer will be."""

    head: dict[str, Any]  # of the checkpoint
    totals: str
    shares: dict[str, str]
    high: int
    did: list[str]


def check(core: Core, fenced: Fenced) -> None:
    """Counters that nothing else tells.

    Raises:
        RepairError: one is lost.
    """
    n = fenced.numbers
    if not n:
        raise refuse(core, "counters", "is missing: nobody knows what was written, and what is gone")
    needed = NEEDED - (set() if core.dates else {"stale"}) | ({"version"} if core.dates else set())
    if fenced.config.get("law") and not _is_queue(core, fenced):
        needed |= {"diff"}
    for name in sorted(needed):
        if n.get(name, -1) < 0 and not (name == "diff" and name in n):
            raise refuse(core, "counters", f"has no number as {name}")
    if not ("last" in n or fenced.newest):
        raise refuse(core, "counters", "has no number as last, and the stream does not say it either")


def plan(looked: Looked, tally: Tally, found: Mapping[str, str]) -> Plan:
    """The buffer as it will be. `found`: what was wrong, by key.

    Raises:
        RepairError: something of it is lost.
    """
    core, fenced = looked.core, looked.fenced
    if tally.why:
        raise refuse(core, *tally.why)
    if tally.n > int(fenced.config["capacity"]):
        raise refuse(core, "records", f"has {tally.n} records, and room for {fenced.config['capacity']}")
    if tally.n and "schema" not in fenced.config:
        raise refuse(core, "config", "has no schema, and records are there")
    did = [f"{key} was rebuilt: {what}" for key, what in found.items()]
    if looked.foreign:
        some = ", ".join(looked.foreign[:SEEN]) + (", …" if len(looked.foreign) > SEEN else "")
        did.append(f"{len(looked.foreign)} entries of the stream that are none of the buffer's were left out: {some}")
    if tally.from_ranked:
        did.append(f"{tally.from_ranked} priorities were taken from {core.keys.key('ranked')}")
    n = _numbers(looked, tally, did)
    counters = {name: number for name, number in n.items() if name not in RUNTIME}
    high = max(looked.last, fenced.newest, tally.newest)
    config = {key: fenced.config[key] for key in CONFIG if key in fenced.config}
    config["skipped"] = _skipped(looked, tally, did)
    shares = _shares(fenced.shares)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": core.name,
        "epoch": core.epoch,
        "records": tally.n,
        "last": high,
        "config": config,
        "counters": counters,
        "shares": shares,
    }
    totals = " ".join(f"{name} {number}" for name, number in n.items() if name not in OWN)
    return Plan(head, totals, shares, high, did)


def _numbers(looked: Looked, tally: Tally, did: list[str]) -> dict[str, int]:
    """Every counter, each a number."""
    core, fenced = looked.core, looked.fenced
    n = fenced.numbers
    lost = sorted(COUNTERS - OWN - n.keys())
    if wrong := [name for name in lost if name in fenced.counters]:
        did.append(f"counters that were no numbers begin anew: {', '.join(wrong)}")
    n |= dict.fromkeys(lost, 0)
    if "era" in lost:
        n["era"] = 2**20 + secrets.randbelow(2**20)  # none that a batch drawn before names
    if "authors" in lost:
        n["authors"] = max([int(key) for key in fenced.shares if key.isdigit()], default=0)
    _balance(core, n, tally.n, did)
    _end_leases(looked, n, did)
    if _is_queue(core, fenced):
        n["diff"] = (tally.n - tally.hidden) * int(fenced.config["law"].split()[0])
    n |= {"sampleable_size": tally.n - tally.hidden, "storage_size": tally.n, "hidden": tally.hidden, "leased": 0}
    return n


def _balance(core: Core, n: dict[str, int], there: int, did: list[str]) -> None:
    """I2: a record that is neither there nor counted as gone is one whose bytes are lost.

    Raises:
        RepairError: more or fewer are missing than bytes are lost, so that one of the totals is wrong.
    """
    missing = n["write_count"] - there - sum(n[name] for name in GONE)
    counted = [n[name] for name in ("sampleable_size", "hidden", "leased") if name in n]
    lost = sum(counted) - there if len(counted) == 3 else missing
    if missing < 0 or missing not in (0, lost):
        gone = " + ".join(f"{name} {n[name]}" for name in GONE)
        raise refuse(core, "counters", f"has write_count {n['write_count']}; {there} records are there, and gone are {gone}")
    if missing:
        n["removed"] += missing
        did.append(f"{missing} records whose bytes are lost count as removed")


def _end_leases(looked: Looked, n: dict[str, int], did: list[str]) -> None:
    """Their records are live, as if they had been given back."""
    core, fenced = looked.core, looked.fenced
    lent = sum(map(len, fenced.lent.values()))
    if not fenced.leased and not n.get("leased"):
        return
    if lent != n.get("leased", lent) or len(fenced.lent) != len(fenced.leased):
        did.append("all leases ended, and their draws count as made: what was lent is lost")
        return
    did.append(f"{len(fenced.leased)} leases ended: their {lent} records can be drawn again")
    n["sample_calls"] = max(0, n["sample_calls"] - len(fenced.leased))
    n["samples_returned"] = max(0, n["samples_returned"] - lent)
    law = fenced.config.get("law", "").split()
    if law and not _is_queue(core, fenced):
        for lease, indices in fenced.lent.items():
            if fenced.leased[lease].split()[0].partition(":")[2] == str(n["era"]):
                n["diff"] += len(indices) * int(law[1])


def _is_queue(core: Core, fenced: Fenced) -> bool:
    """As lua/include/limit.lua: the rate limiter's difference follows from what is there."""
    return core.consume == 1 and fenced.config.get("law", "").endswith(" 1")


def _skipped(looked: Looked, tally: Tally, did: list[str]) -> str:
    """The ranges that nobody was given: as they are stored, if that can be."""
    text = looked.fenced.config.get("skipped", "")
    try:
        stored.skipped(looked.core.keys, text, 1, looked.last)
        known = list(_ranges(text))
        if any(low <= i <= high for low, high in known for i in (tally.first, tally.newest)):
            known = []
    except BufferDamagedError:
        known = []
    found = [gap for wide in tally.wide for gap in _uncovered(wide, known)]
    if found or len(known) != len(text.split()):
        did.append(f"skipped was not what it must be: {len(found)} gaps of more than a million indices count as never given")
    return " ".join(f"{low}:{high}" for low, high in sorted(known + found))


def _uncovered(wide: tuple[int, int], known: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a gap, above a million indices, that no range has."""
    start, end = wide
    for low, high in [*known, (end + 1, end + 1)]:
        if low > start:
            if min(low - 1, end) - start >= SKIPPED:
                yield start, min(low - 1, end)
            start = max(start, high + 1)
        elif high >= start:
            start = high + 1


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for word in text.split():
        low, _, high = word.partition(":")
        yield int(low), int(high)


def _shares(found: Mapping[str, str]) -> dict[str, str]:
    """The rows that lua/include/shares.lua can have written, and the number of each one's name."""
    rows = {key: text for key, text in found.items() if key.isdigit() and re.fullmatch(r"\S+( \d+){4}", text, re.ASCII)}
    numbers = {"=" + text.split()[0]: key for key, text in rows.items() if key != "0"}
    return {key: text for key, text in rows.items() if key == "0" or key in numbers.values()} | numbers
