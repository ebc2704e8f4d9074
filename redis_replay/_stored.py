"""What lies in a buffer's hashes, as values: anybody may have written there, so that nothing is taken for granted."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import limiters
from redis_replay._keys import Keys
from redis_replay._options import lease_seconds
from redis_replay._schema import Schema
from redis_replay._types import as_text
from redis_replay.exceptions import BufferDamagedError, RecordDecodeError
from redis_replay.samplers import Sampler, Whole, not_negative, parse

MAX_SAMPLER = 200  # characters
BLOCK, BLOCK_BYTES = 8, 168  # records of a block of priorities, and its bytes: lua/include/block.lua
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_RANGES = re.compile(r"([0-9]{1,16}:[0-9]{1,16}( |$))*", re.ASCII)


def damaged(keys: Keys, what: str, field: str, text: str, expected: str) -> BufferDamagedError:
    """The error for a field of the hash `what`. A long text is cut."""
    return BufferDamagedError(name=keys.name, key=keys.key(what), found=f"has {text[:60]!r} as {field}", expected=expected)


def number(keys: Keys, what: str, field: str, text: str | None) -> int:
    """A field of the hash `what` as a whole number.

    Raises:
        BufferDamagedError: it is none.
    """
    if text is None or not _NUMBER.fullmatch(text):
        raise damaged(keys, what, field, text or "", "a whole number")
    return int(text)


def uses(keys: Keys, config: Mapping[str, str]) -> int | None:
    """consume_after_n_samples."""
    text = config.get("consume_after_n_samples")
    return None if text == "None" else number(keys, "config", "consume_after_n_samples", text)


def setting(name: str, text: str) -> object:
    """A setting as it is passed; the text itself where it is none."""
    try:
        if text == "None":
            return None
        kinds = {"sampler": parse, "remover": parse, "rate_limiter": limiters.parse}
        return kinds[name](text[:MAX_SAMPLER]) if name in kinds else float(text) if name == "lease" else int(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def skipped(keys: Keys, text: str, first: int, last: int) -> int:
    """How many of the indices first..last are in the ranges "low:high" that nobody is given.

    Raises:
        BufferDamagedError: the text has no such ranges.
    """
    if not _RANGES.fullmatch(text):
        raise damaged(keys, "config", "skipped", text, "ranges of indices")
    ranges = [(int(low), int(high)) for low, high in (word.split(":") for word in text.split())]
    past = 0
    for low, high in ranges:
        if not past < low <= high <= max(last, past):
            raise damaged(keys, "config", "skipped", text, "ranges of indices, up to the last one, in order")
        past = high
    return sum(max(0, min(high, last) - max(low, first) + 1) for low, high in ranges)


def lease(keys: Keys, config: Mapping[str, str]) -> float | None:
    """The lease that readers have where they name none, in seconds.

    Raises:
        BufferDamagedError: it is no number of seconds that is allowed.
    """
    text = config.get("lease", "")
    if text == "None":
        return None
    try:
        return lease_seconds(float(text))
    except ValueError:
        raise damaged(keys, "config", "lease", text, "a number of seconds, or None") from None


def max_staleness(keys: Keys, config: Mapping[str, str]) -> int | None:
    """How much older than the buffer's version a record may be.

    Raises:
        BufferDamagedError: it is no number.
    """
    text = config.get("max_staleness", "None")
    return None if text == "None" else number(keys, "config", "max_staleness", text)


def lags(keys: Keys, text: str) -> dict[int, int]:
    """Lag -> records, as lua/include/lag.lua tells it.

    Raises:
        BufferDamagedError: it is no such text.
    """
    try:
        return {int(lag): int(n) for lag, n in (word.split(":") for word in text.split())}
    except ValueError:
        raise damaged(keys, "versions", "lags", text, "numbers alone") from None


def by_writer(keys: Keys, text: str) -> dict[str, dict[str, int]]:
    """Writer -> what it wrote, as lua/include/shares.lua tells it.

    Raises:
        BufferDamagedError: it is no such text.
    """
    words = text.split()
    try:
        rows = zip(words[::4], *([int(n) for n in words[i::4]] for i in (1, 2, 3)), strict=True)
        return {writer: {"written": a, "stale": b, "evicted": c} for writer, a, b, c in rows}
    except ValueError:
        raise damaged(keys, "shares", "a writer's share", text, "a name and three numbers") from None


def selector(keys: Keys, config: Mapping[str, str], which: str) -> Sampler:
    """The sampler or the remover, as `which` says.

    Raises:
        BufferDamagedError: this version has none that is stored by this text.
    """
    text = config.get(which, "")
    try:
        found = parse(text) if len(text) <= MAX_SAMPLER else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        found = None
    if found is None or repr(found) != text:
        raise damaged(keys, "config", which, text, "a sampler of this version")
    return found


def schema(keys: Keys, text: str, expected_hash: str | None) -> Schema:
    """The schema of records whose scripts say it has this hash.

    Raises:
        BufferDamagedError: the text is no schema, or one of another hash.
    """
    try:
        found = Schema.from_text(text)
    except RecordDecodeError as error:
        raise damaged(keys, "config", "schema", text, f"a schema ({error.reason})") from None
    if expected_hash not in (None, found.hash):
        raise damaged(keys, "config", "schema_hash", str(expected_hash), f"{found.hash}, that of its schema")
    return found


def indices(keys: Keys, text: str) -> NDArray[np.int64]:
    """Indices with spaces between, as a draw gives them.

    Raises:
        BufferDamagedError: one is none.
    """
    words: list[Any] = text.split()
    try:
        return np.array(words, np.int64)
    except (ValueError, OverflowError):
        wrong = next(word for word in words if not _NUMBER.fullmatch(word) or len(word) > 16)
        raise damaged(keys, "order", "a live index", wrong, "indices alone") from None


def versions(keys: Keys, text: str) -> NDArray[np.int64]:
    """Versions with spaces between, as a draw gives them.

    Raises:
        BufferDamagedError: one is none.
    """
    try:
        return np.array(text.split(), np.int64)
    except (ValueError, OverflowError):
        raise damaged(keys, "versions", "a version", text, "whole numbers alone") from None


def priorities(keys: Keys, blocks: Mapping[bytes, bytes]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Index and priority of each record in blocks of lua/include/block.lua, by index.

    Raises:
        BufferDamagedError: one is no block.
    """
    wrong = [text for number, text in blocks.items() if not number.isdigit() or len(text) != BLOCK_BYTES]
    if wrong:
        raise damaged(keys, "priorities", "a block", as_text(wrong[0]), f"{BLOCK_BYTES} bytes")
    first = np.array([int(number) for number in blocks], np.int64) * BLOCK
    found = np.frombuffer(b"".join(blocks.values()), "<f8").reshape(-1, BLOCK_BYTES // 8)[:, -BLOCK:]
    index = (first[:, None] + np.arange(BLOCK)).reshape(-1)
    order = np.argsort(index, kind="stable")
    index, priority = index[order], found.reshape(-1)[order]
    return index[priority >= 0], priority[priority >= 0]


def odds(keys: Keys, priorities: bytes, whole: str) -> tuple[NDArray[np.float64], Whole]:
    """Priorities of 8 bytes each, and what a draw says of all that could be drawn, as lua/include/weighted.lua makes it.

    Raises:
        BufferDamagedError: one is no number.
    """
    try:
        sums, exponent, *more = whole.split()
        total, least, alpha = (None if text == "-" else float(text) for text in (sums, *more))
        found = np.frombuffer(priorities, "<f8").astype(np.float64)
        known = None if alpha is None else not_negative("alpha", alpha)
        return found, Whole(total, None if exponent == "-" else int(exponent), least, known)
    except (ValueError, OverflowError):
        raise damaged(keys, "buckets", "the sum of weights", whole, "numbers alone") from None
