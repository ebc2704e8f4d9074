"""Operations that read: schema, stats, records by index, pages, the doctor. Generators without I/O: see _steps."""

import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._core import Core
from redis_replay._limited import SIDES, Limited
from redis_replay._schema import Schema
from redis_replay._steps import Step
from redis_replay._types import as_text
from redis_replay.exceptions import ArgumentError, BufferGoneError

TEXTS = ("state", "whole", "max_priority", "blocked", "limiter", "rate_limiter", "lag", "by_writer")  # of what `stats` tells
PAGE_BYTES = 8 * 2**20
PAGE_RECORDS = 1000
GET_RECORDS = 4096  # of one script: the server answers nobody else meanwhile


def stored_schema(core: Core, expected_hash: str | None = None, until: float | None = None) -> Generator[Step, Any, Schema]:
    """The buffer's schema: the one that is known here, or the stored one. None of that hash any more: it is gone."""
    if core.schema is not None and expected_hash in (None, core.schema.hash):
        return core.schema
    config = core.keys.key("config").encode()
    step = rq.commands((b"HMGET", config, b"epoch", b"schema", b"record_bytes"))
    replies = yield from rq.deliver_once(core, step, until)
    if isinstance(replies[0], Exception):
        raise replies[0]
    epoch, text, record_bytes = (as_text(value) if value is not None else None for value in replies[0])
    if epoch != core.epoch or text is None:
        raise BufferGoneError(name=core.name)
    core.schema = stored.schema(core.keys, text, expected_hash)
    core.record_bytes = stored.number(core.keys, "config", "record_bytes", record_bytes)
    return core.schema


def stats(core: Core, within: float | None = None) -> Generator[Step, Any, dict[str, Any]]:
    """Every counter, in one round trip, that may take `within` seconds; None: as any call."""
    reply = yield from rq.ask(core, scripts.stats(), None if within is None else core.clock() + within)
    texts = reply.texts()
    raw: dict[str, Any] = {
        name: value if name in TEXTS else stored.number(core.keys, "counters", name, value)
        for name, value in zip(texts[::2], texts[1::2], strict=True)
    }
    raw["blocked"] = _blocked(core, str(raw.pop("blocked")))
    raw["limiter_difference"] = _difference(core, str(raw.pop("limiter")))
    raw |= _priorities(core, str(raw.pop("whole")), str(raw.pop("max_priority")))
    raw |= {"lag": stored.lags(core.keys, raw["lag"]), "by_writer": stored.by_writer(core.keys, raw["by_writer"])}
    raw["size"] = raw["sampleable_size"]
    raw["utilization"] = int(raw["storage_size"]) / int(raw["capacity"])
    raw["initialized"] = True
    raw["seconds_since_write"] = int(raw["idle_us"]) // 1_000_000  # whole, so that two looks in a row show the same
    internal = ("clock", "clock_offset", "arrivals", "first", "last", "last_write", "idle_us", "rewound_at", "rewound_to",
                "diff", "era", "authors")  # fmt: skip
    return {name: raw[name] for name in sorted(raw) if name not in internal}


def moment(core: Core, until: float | None = None) -> Generator[Step, Any, tuple[str, ...]]:
    """What a batch is good for that was drawn ahead: the state, and the numbers that change with `empty`, with the rate limiter
    and with the version.
    """
    config, counters = (core.keys.key(what).encode() for what in ("config", "counters"))
    asked = rq.commands((b"HMGET", config, b"epoch", b"state"), (b"HMGET", counters, b"era", b"version"))
    replies = yield from rq.deliver_once(core, asked, until)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    (epoch, state), (era, version) = replies
    if epoch != core.epoch.encode():
        raise BufferGoneError(name=core.name)
    return tuple(as_text(value or b"") for value in (state, era, version))


def _blocked(core: Core, text: str) -> list[dict[str, Any]]:
    """Who waits: the longest first of each side."""
    try:
        return [_waiter(core, *line.split(" ", 5)) for line in filter(None, text.split(";"))]
    except (TypeError, ValueError, KeyError):  # a channel of somebody's own making
        raise stored.damaged(core.keys, "waiting", "a waiter", text, "what scripts wrote") from None


def _waiter(core: Core, side: str, need: str, take: str, since: str, turn: str, channel: str) -> dict[str, Any]:
    client = channel.removeprefix(core.keys.wake("").removesuffix(core.keys.suffix))
    return {
        "side": SIDES[side], "need": int(need), "take": int(take), "seconds": int(since) / 1e6, "has_turn": turn == "1",
        "client": client,
    }  # fmt: skip


def _difference(core: Core, word: str) -> float:
    """Of the rate limiter: inserts * samples_per_insert - samples. 0 without one."""
    try:
        return 0.0 if word == "-" else Limited.of(word, 0).difference
    except ValueError:
        raise stored.damaged(core.keys, "config", "law", word, "numbers of a rate limiter") from None


def _priorities(core: Core, whole: str, largest: str) -> dict[str, float]:
    """Those of `stats` that concern priorities."""
    if not whole:
        return {}
    _, all_of_them = stored.odds(core.keys, b"", whole)
    try:
        out = {"max_priority": float(largest or 1)}
    except ValueError:
        raise stored.damaged(core.keys, "config", "max_priority", largest, "a number") from None
    if all_of_them.total is not None and all_of_them.exponent is not None:
        out["total_weight"] = math.ldexp(all_of_them.total, min(all_of_them.exponent, 1000))
    if all_of_them.least is not None:
        out["min_priority"] = all_of_them.least
    return out


def get(core: Core, indices: list[int]) -> Generator[Step, Any, list[bytes | None]]:
    """The payloads of records by index; None where there is no record. The script answers for as many as are not too much."""
    out: list[bytes | None] = []
    while len(out) < len(indices):
        reply = yield from rq.ask(core, scripts.get(index=indices[len(out) : len(out) + GET_RECORDS]))
        if any(payload is not None for payload in reply.data[1:]):
            yield from stored_schema(core, as_text(reply.data[0]))
        out += reply.data[1:]
    return out


def page(core: Core, after: int) -> Generator[Step, Any, tuple[int, list[int], list[bytes]]]:
    """A page of stored records behind index `after`. Gives where the next starts (0 at the end), indices, payloads."""
    reply = yield from rq.ask(core, scripts.page(after=after, page_size=PAGE_RECORDS))
    indices, payloads = [int(i) for i in reply.data[2::2]], list(reply.data[3::2])
    if indices:
        yield from stored_schema(core, as_text(reply.data[0]))
    return int(reply.data[1] or 0), indices, payloads


def priorities(core: Core) -> Generator[Step, Any, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Index and priority of each stored record, by index. A page that came twice counts once."""
    if not core.weighs:
        allowed = f"called where the sampler or the remover goes by priority, not {core.sampler!r} and {core.remover!r}"
        raise ArgumentError(name="priorities()", allowed=allowed, found=None)
    blocks: dict[bytes, bytes] = {}
    cursor = "0"
    while True:
        reply = yield from rq.ask(core, scripts.weights(cursor=cursor))
        cursor = as_text(reply.data[0])
        blocks |= zip(reply.data[1::2], reply.data[2::2], strict=True)
        if cursor == "0":
            return stored.priorities(core.keys, blocks)


def facts(core: Core) -> Generator[Step, Any, dict[str, str]]:
    """What the doctor judges the totals by."""
    texts = (yield from rq.ask(core, scripts.doctor())).texts()
    return dict(zip(texts[::2], texts[1::2], strict=True))


def audit(core: Core, what: str) -> Generator[Step, Any, tuple[int, list[str]]]:
    """Looks at every entry of a side key. Gives how many, and the indices that name no stored record."""
    wrong: list[str] = []
    cursor, looked = "0", 0
    while True:
        texts = (yield from rq.ask(core, scripts.audit(what=what, cursor=cursor))).texts()
        cursor, looked, wrong = texts[0], looked + int(texts[1]), wrong + texts[2:]
        if cursor == "0":
            return looked, wrong
