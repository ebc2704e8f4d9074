"""The verdict, from the ledgers alone. What they prove of calls whose end nobody saw:

- A write is *sure* (its indices came back), *refused* (an error that says it never was), or *unknown* (its process was killed
  inside it, or OutcomeUnknownError). Sure records are there once, under the index that was told; refused ones never; unknown
  ones once or never, and of one call all or none. Every stored record is drawn at some time, at the latest by the last drain.
- A draw whose end nobody saw may have lent records, but nobody has the name of its lease: they come back when it runs out.
- A lease is *acknowledged* (`ack` said applied), *late* (`ack` said that it had ended), or *doubtful*: an ack under way, or one
  that tells nothing (`close`, the next draw). Acknowledged records are never drawn again. Of a doubtful lease all records
  are drawn again (it came to nothing) or none (it was applied). Every other lease's records are drawn again, and not before
  it was released or ran out. So each record's last lease is acknowledged or doubtful, and no earlier one is.

Two calls that overlap in time can have happened in either order; then nothing is concluded from their order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos._ledger import Call, Line, calls

MARGIN_S = 0.05  # between the clocks of processes and server
INF = float("inf")


@dataclass
class Lease:
    """A batch that came back from a draw: what it held, and what is known of its end."""

    name: str
    who: str
    began: float
    ended: float
    tags: list[int]
    index: list[int]
    acknowledged: bool = False
    doubtful: bool = False
    released: float | None = None  # when its release began, if one did
    sure: bool = False  # the release was answered: applied

    def held_until(self, lease_s: float) -> float:
        """Until when, at least, nobody else could be given its records."""
        if self.acknowledged:
            return INF
        ran_out = self.began + lease_s - MARGIN_S
        if self.released is None:
            return ran_out
        return self.released if self.sure else min(ran_out, self.released)

    def before(self, other: "Lease") -> bool:
        """Whether it was drawn before, beyond doubt."""
        return self.ended < other.began


@dataclass
class Evidence:
    """What all ledgers say."""

    calls: list[Call] = field(default_factory=list)
    retries: int = 0
    broken: list[str] = field(default_factory=list)
    frozen: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    leases: dict[str, Lease] = field(default_factory=dict)

    @property
    def writes(self) -> Iterator[Call]:
        """Every write."""
        return (call for call in self.calls if call.what == "write")

    def drawn(self) -> dict[int, list[Lease]]:
        """The leases of each tag that was ever drawn."""
        out: dict[int, list[Lease]] = defaultdict(list)
        for lease in self.leases.values():
            for tag in lease.tags:
                out[tag].append(lease)
        return out


def gather(ledgers: dict[str, list[Line]], faults: list[Line]) -> Evidence:
    """The evidence of the processes' ledgers; `faults` is the ledger of who killed and froze them."""
    out = Evidence()
    killed = {line.data["who"]: line.at for line in faults if line.event == "killed"}
    for who, lines in ledgers.items():
        out.calls += calls(who, lines, killed.get(who))
        out.retries += sum(line.event == "retry" for line in lines)
        out.broken += [f"{who}: {line.data['error']}" for line in lines if line.event == "broke"]
    since: dict[str, float] = {}
    for line in faults:
        if line.event == "frozen":
            since[line.data["who"]] = line.at
        elif line.event in ("thawed", "killed") and line.data["who"] in since:
            out.frozen[line.data["who"]].append((since.pop(line.data["who"]), line.at))
    out.leases = _leases(out.calls)
    return out


def _leases(all_calls: list[Call]) -> dict[str, Lease]:
    out = {}
    for call in all_calls:
        if call.what == "draw" and call.result and "lease" in call.result:
            r = call.result
            out[r["lease"]] = Lease(r["lease"], call.who, call.began, call.ended or INF, r["tags"], r["index"])
    for call in all_calls:
        for name in call.data.get("acks", ()):
            out[name].doubtful = True
        for name in call.data.get("releases", ()):
            out[name].released = call.began
        if call.what == "ack":
            _note_ack(out[call.data["lease"]], call)
        elif call.what == "release":
            _note_release(out[call.data["lease"]], call)
    return out


def _note_ack(lease: Lease, call: Call) -> None:
    if call.unknown:
        lease.doubtful = True
    elif call.result and call.result.get("applied"):
        lease.acknowledged = True


def _note_release(lease: Lease, call: Call) -> None:
    lease.released = min(call.began, INF if lease.released is None else lease.released)
    lease.sure = lease.sure or bool(call.result and call.result.get("applied"))


def breaches(evidence: Evidence, lease_s: float) -> Iterator[str]:
    """Every broken promise about records, in words."""
    drawn = evidence.drawn()
    yield from _writes(evidence, drawn)
    yield from _batches(evidence)
    for tag, leases in drawn.items():
        yield from _ends(tag, leases)
        yield from _twice(tag, leases, lease_s)
    for lease in evidence.leases.values():
        yield from _halves(lease, drawn)


def _writes(evidence: Evidence, drawn: dict[int, list[Lease]]) -> Iterator[str]:
    tried = set()
    for call in evidence.writes:
        tags = call.data["tags"]
        tried |= set(tags)
        there = [tag for tag in tags if tag in drawn]
        if not call.unknown and call.error and there:
            yield f"refused, and yet there: {call.who} write of {tags}: {there} ({call.error})"
        elif not call.unknown and not call.error and len(there) < len(tags):
            yield f"acknowledged, and lost: {call.who} write of {tags}: only {there} were ever drawn"
        elif 0 < len(there) < len(tags):
            yield f"written in part: {call.who} write of {tags}: only {there} were ever drawn"
        if not call.unknown and not call.error:
            yield from _places(call, drawn)
    for tag in drawn.keys() - tried:
        yield f"nobody wrote {tag}"


def _places(call: Call, drawn: dict[int, list[Lease]]) -> Iterator[str]:
    assert call.result is not None
    for tag, index in zip(call.data["tags"], call.result["index"], strict=True):
        found = {lease.index[lease.tags.index(tag)] for lease in drawn.get(tag, ())}
        if found - {index}:
            yield f"another index: {tag} was written as {index}, drawn as {found}"


def _batches(evidence: Evidence) -> Iterator[str]:
    """Within one batch, and of one index, whoever drew it."""
    names: dict[int, int] = {}
    places: dict[int, int] = {}
    for lease in evidence.leases.values():
        if len(set(lease.tags)) < len(lease.tags):
            yield f"twice in one batch: {lease.name} {lease.tags}"
        for tag, index in zip(lease.tags, lease.index, strict=True):
            if names.setdefault(index, tag) != tag:
                yield f"index {index} means {names[index]} and {tag}"
            if places.setdefault(tag, index) != index:
                yield f"stored twice: {tag} under {places[tag]} and {index}"
    for call in evidence.calls:
        if call.result and call.result.get("wrong"):
            yield f"other bytes: {call.who} drew {call.result['wrong']}"


def _ends(tag: int, leases: list[Lease]) -> Iterator[str]:
    sure = [lease for lease in leases if lease.acknowledged]
    if len(sure) > 1:
        yield f"acknowledged {len(sure)} times: {tag} under {[lease.name for lease in sure]}"
    last = [lease for lease in leases if not any(lease.before(other) for other in leases)]
    if not sure and not any(lease.doubtful for lease in last):
        yield f"never acknowledged: {tag}, drawn last under {[lease.name for lease in last]}"


def _twice(tag: int, leases: list[Lease], lease_s: float) -> Iterator[str]:
    for one in leases:
        for other in leases:
            if one.before(other) and other.ended < one.held_until(lease_s):
                how = "acknowledged" if one.acknowledged else "still on lease"
                yield f"handed out again: {tag}, {how} under {one.name} of {one.who}, to {other.who} as {other.name}"


def _halves(lease: Lease, drawn: dict[int, list[Lease]]) -> Iterator[str]:
    back = 0
    for tag in lease.tags:
        others = [other for other in drawn[tag] if other is not lease]
        if any(not lease.before(other) and not other.before(lease) for other in others):
            return
        back += any(lease.before(other) for other in others)
    if 0 < back < len(lease.tags):
        yield f"came back in part: {back} of {len(lease.tags)} records of {lease.name} of {lease.who}"


def totals(evidence: Evidence, stats: dict[str, Any]) -> Iterator[str]:
    """Whether the buffer's own counters say what the ledgers say, after the last drain."""
    seen = len(evidence.drawn())
    expected = {
        "write_count": seen,
        "consumed": seen,
        "samples_returned": seen,
        "size": 0,
        "leased": 0,
        "evicted": 0,
        "removed": 0,
    }
    for name, value in expected.items():
        if stats[name] != value:
            yield f"counter {name}: {stats[name]}, and the ledgers say {value}"


@dataclass
class Waits:
    """How long calls of one kind took. `over` is by how much the worst one passed its bound (negative: it did not)."""

    calls: int = 0
    longest: float = 0.0
    bound: float = 0.0
    over: float = -INF
    worst: Call | None = None


def waits(evidence: Evidence, now: float) -> dict[str, Waits]:
    """By the name of the call. The time that a process was frozen does not count."""
    out: dict[str, Waits] = defaultdict(Waits)
    for call in evidence.calls:
        ended = now if call.ended is None else call.ended
        took = ended - call.began - _overlap(evidence.frozen[call.who], call.began, ended)
        kind = out[call.what]
        kind.calls += 1
        if took - call.data["bound"] > kind.over:
            kind.over, kind.longest, kind.bound, kind.worst = took - call.data["bound"], took, call.data["bound"], call
    return out


def _overlap(spans: Iterable[tuple[float, float]], began: float, ended: float) -> float:
    return sum(max(0.0, min(ended, b) - max(began, a)) for a, b in spans)
