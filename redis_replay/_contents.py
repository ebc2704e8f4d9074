"""Whether what a checkpoint says can be so: its blocks are as somebody wrote them, but anybody may have. No I/O."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT, VERSION = "redis-replay checkpoint", 1
GONE = ("consumed", "evicted", "removed", "stale")
TOTALS = (
    "write_count", "records_total", "bytes_total", *GONE, "sample_calls", "samples_returned", "lapsed", "reclaimed", "late",
    "foreign", "rewound", "restarts", "ignored", "diff", "version", "authors",
)  # fmt: skip
SIZES = ("sampleable_size", "storage_size", "hidden", "leased")
CONFIG = (
    "capacity", "sampler", "remover", "rate_limiter", "law", "consume_after_n_samples", "lease", "max_staleness", "schema",
    "schema_hash", "record_bytes", "max_priority", "skipped",
)  # fmt: skip
MAX_INDEX, MAX_COUNT, MAX_DIFF = 2**53 - 1, 2**63 - 1, 2**52
COLUMNS = ("index", "uses", "priority", "version", "writer")
NONE = -1  # of a number that a record does not have


def head(body: Any) -> dict[str, Any]:
    """The head of a checkpoint; counters that it has not are 0, and every record was written once.

    Raises:
        ValueError, TypeError, KeyError: it cannot be one.
    """
    if not isinstance(body, Mapping) or body.get("format") != FORMAT:
        raise ValueError(f"it is no {FORMAT}")
    if body.get("version") != VERSION:
        raise ValueError(f"it has format version {body.get('version')!r}, and this one reads {VERSION}")
    out = {name: body[name] for name in ("name", "epoch", "records", "last")}
    out["records"], out["last"] = _whole("records", out["records"], MAX_INDEX), _whole("last", out["last"], MAX_INDEX)
    out |= {which: _texts(which, body[which]) for which in ("config", "shares")}
    out["config"] = {name: text for name, text in out["config"].items() if name in CONFIG}
    found = {name: number for name, number in body["counters"].items() if name in (*TOTALS, *SIZES)}
    every = dict.fromkeys((*GONE, "sample_calls", "samples_returned"), 0) | found
    every = {"write_count": out["records"] + sum(every[name] for name in GONE)} | every
    for name, number in every.items():
        _whole(name, number, MAX_DIFF if name == "diff" else MAX_INDEX if name == "version" else MAX_COUNT)
    out["counters"] = every
    if not all(isinstance(out[name], str) for name in ("name", "epoch")):
        raise ValueError("its name and epoch are no texts")
    _ranges(out["config"].get("skipped", ""), out["last"])
    if out["records"] and not {"schema", "schema_hash"} <= out["config"].keys():
        raise ValueError("it has records, and no schema")
    return out


def _whole(name: str, number: object, most: int) -> int:
    least = -most if name == "diff" else 0
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"it has {number!r} as {name}, and not a whole number from {least} to {most}")
    return number


def _ranges(text: str, last: int) -> None:
    """Ranges "low:high" of indices, rising."""
    past = 0
    for word in text.split():
        low, high = map(int, word.split(":"))
        if not past < low <= high <= last:
            raise ValueError(f"{word!r} is no range of skipped indices")
        past = high


def _texts(which: str, table: Any) -> dict[str, str]:
    if not isinstance(table, Mapping) or not all(isinstance(word, str) for item in table.items() for word in item):
        raise ValueError(f"its {which} are no texts")
    return dict(table)


def column(body: Mapping[str, Any], name: str) -> NDArray[Any]:
    """The numbers of one of COLUMNS, of a block of rows."""
    return np.frombuffer(body[name], "<f8" if name == "priority" else "<i8")


def check_page(body: Any, before: int, last: int, size: int | None) -> int:
    """Looks at a page of records behind index `before`; `size`: the bytes of each, where they are equal. Gives the last index.

    Raises:
        ValueError, TypeError, KeyError: it cannot be one.
    """
    columns = {name: column(body, name) for name in COLUMNS}
    payload, index = body["payload"], columns["index"]
    if not isinstance(payload, list) or not all(isinstance(one, bytes) for one in payload):
        raise ValueError("payloads are no bytes")
    if not len(payload) or any(len(column) != len(payload) for column in columns.values()):
        raise ValueError("its columns are not equally long")
    if index[0] <= before or index[-1] > last or (np.diff(index) <= 0).any():
        raise ValueError(f"its indices do not rise from {before + 1} to {last} at most")
    if size is not None and any(len(one) != size for one in payload):
        raise ValueError(f"a record has not the {size} bytes of its schema")
    priority = columns["priority"]
    if not np.isfinite(priority).all() or (priority[priority != NONE] < 0).any():
        raise ValueError("a priority is no number >= 0")
    if any((columns[name] < NONE).any() for name in ("uses", "version", "writer")) or (columns["version"] > MAX_INDEX).any():
        raise ValueError("times handed out, a version or a writer is no number >= 0")
    return int(index[-1])
