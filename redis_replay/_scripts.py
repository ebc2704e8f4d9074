"""One typed wrapper for each script in lua/: arguments by keyword, in the order of its ARGV. No policy.

A test holds the names against the scripts' headers. What every request starts with (epoch, lane, number, open_number) is
put in front by _requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from redis_replay._reading import Reading

Argument = bytes | str | int  # a bool is an int: 0 or 1


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its own arguments. `packed` holds `count` more of them as RESP bulk strings."""

    verb: str
    args: tuple[bytes, ...]
    packed: bytes = b""
    count: int = 0
    where: str = "buffer"  # whose keys it is given: the buffer's, the `copy`'s that a load builds, or `both`
    along: Reading | None = None  # what is read in the same trip, before it


def _script(verb: str, *args: Argument) -> Script:
    return Script(verb, tuple(a if isinstance(a, bytes) else b"%d" % a if isinstance(a, int) else a.encode() for a in args))


def open(*, format: str, mode: str, option: Mapping[str, tuple[str, bool]]) -> Script:  # noqa: A001, A002
    """`option`: each setting's text, and whether the caller named it."""
    return _script("open", format, mode, *(part for name, (text, named) in option.items() for part in (name, text, named)))


def delete() -> Script:
    """No key is left."""
    return _script("delete")


def stats() -> Script:
    """Every counter."""
    return _script("stats")


def doctor() -> Script:
    """Totals for the invariants."""
    return _script("doctor")


def audit(*, what: str, cursor: str) -> Script:
    """A page of a side key."""
    return _script("audit", what, cursor)


def get(*, index: Sequence[int]) -> Script:
    """Payloads by index."""
    return _script("get", *index)


def weights(*, cursor: str) -> Script:
    """A page of the blocks of priorities."""
    return _script("weights", cursor)


def page(*, after: int, page_size: int) -> Script:
    """Stored records behind an index."""
    return _script("page", after, page_size)


def greet(*, given: int, numbers: str) -> Script:
    """What this handle was given and answered, on a new connection."""
    return _script("greet", given, numbers)


def renew(*, name: Sequence[str]) -> Script:
    """Keeps holds and leases alive."""
    return _script("renew", *name)


def ack(*, lease: Sequence[str]) -> Script:
    """The reader is done with what it was lent."""
    return _script("ack", *lease)


def release(*, lease: Sequence[str]) -> Script:
    """Gives back what was lent."""
    return _script("release", *lease)


def add(
    *, schema_hash: str, schema: str, record_bytes: int, total_bytes: int, priority: str, seed: str, origin: str,
    keep_place: bool, payload: bytes, n: int,
) -> Script:  # fmt: skip
    """`payload`: those of `n` records, as RESP bulk strings."""
    head = _script("add", schema_hash, schema, record_bytes, total_bytes, priority, seed, origin, keep_place)
    return Script("add", head.args, payload, n)


def gate(
    *, step: str, schema_hash: str, schema: str, record_bytes: int, total_bytes: int, n: int, priority: str, seed: str,
    origin: str, keep_place: bool,
) -> Script:  # fmt: skip
    """Opens or closes the way for `n` large records."""
    return _script("gate", step, schema_hash, schema, record_bytes, total_bytes, n, priority, seed, origin, keep_place)


def sample(
    *, batch_size: int, min_items: int, wait: bool, keep_place: bool, poll_us: int, shutdowns: int, channel: str,
    lease_us: int, with_bytes: bool, foreseen: str, seed: Sequence[int],
) -> Script:  # fmt: skip
    """A draw."""
    return _script(
        "sample", batch_size, min_items, wait, keep_place, poll_us, shutdowns, channel, lease_us, with_bytes, foreseen, *seed
    )  # fmt: skip


def wait(
    *, side: str, min_items: int, take: int, wait: bool, keep_place: bool, poll_us: int, shutdowns: int, channel: str,
    turn_us: int,
) -> Script:  # fmt: skip
    """A look, or a wait, that draws and writes nothing."""
    return _script("wait", side, min_items, take, wait, keep_place, poll_us, shutdowns, channel, turn_us)


def settle(*, forget: bool) -> Script:
    """An empty request."""
    return _script("settle", forget)


def resolve() -> Script:
    """What became of a write, under the write's own number."""
    return _script("resolve")


def update(*, index: bytes, priority: bytes) -> Script:
    """Sets priorities. Both: 8 bytes for each record, float64, lowest byte first."""
    return _script("update", index, priority)


def pace(*, rate_limiter: str, law: str) -> Script:
    """Another rate limiter."""
    return _script("pace", rate_limiter, law)


def alpha(*, alpha: str, cursor: str, process: str) -> Script:
    """Another exponent of priorities, or some more of the records weighed by it."""
    return _script("alpha", alpha, cursor, process)


def version(*, version: int) -> Script:
    """Raises the buffer's version, or drops some of what would be too old."""
    return _script("version", version)


def remove(*, index: Sequence[int]) -> Script:
    """Takes records out."""
    return _script("remove", *index)


def empty(*, reset: bool) -> Script:
    """Takes all records out."""
    return _script("empty", reset)


def shutdown(*, drain: bool) -> Script:
    """Ends the buffer's work for everyone."""
    return _script("shutdown", drain)


def cut(*, id: str, step: str, most_bytes: int) -> Script:  # noqa: A002
    """Begins a dump, or ends it."""
    return _script("cut", id, step, most_bytes)


def rows(*, id: str, after: int, page_size: int) -> Script:  # noqa: A002
    """A page of a dump."""
    return _script("rows", id, after, page_size)


def stage(*, first: int, ttl_ms: int, config: Mapping[str, str]) -> Script:
    """Begins a copy beside the buffer."""
    head = _script("stage", first, ttl_ms, *(part for item in config.items() for part in item))
    return replace(head, where="copy")


def restore(
    *, ttl_ms: int, index: str, uses: str, priority: str, version: str, writer: str, upto: int, skipped: bool,
    payload: bytes, n: int,
) -> Script:  # fmt: skip
    """Records into the copy. `payload`: those of `n` records, as RESP bulk strings."""
    head = _script("restore", ttl_ms, index, uses, priority, version, writer, upto, skipped)
    return Script("restore", head.args, payload, n, "copy")


def survey(*, after: str, page_size: int, with_bytes: bool) -> Script:
    """A page of the stream, and what the side keys say of it."""
    return _script("survey", after, page_size, with_bytes)


def fence(*, id: str, hold_us: int, renew: bool) -> Script:  # noqa: A002
    """Keeps all others out while a buffer is repaired."""
    return _script("fence", id, hold_us, renew)


def mend(*, id: str, copy: str, high: int, forget: bool, totals: str, shares: Mapping[str, str]) -> Script:  # noqa: A002
    """The copy takes a damaged buffer's place."""
    head = _script("mend", id, copy, high, forget, totals, *(part for item in shares.items() for part in item))
    return replace(head, where="both")


def swap(*, copy: str, high: int, own: bool, totals: str, shares: Mapping[str, str]) -> Script:
    """The copy takes the buffer's place."""
    head = _script("swap", copy, high, own, totals, *(part for item in shares.items() for part in item))
    return replace(head, where="both")


def reopen() -> Script:
    """Undoes a shutdown."""
    return _script("reopen")
