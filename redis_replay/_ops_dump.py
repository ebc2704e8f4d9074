"""A dump: what the buffer is at one moment is read page by page while it goes on. Generators without I/O: see _steps."""

import math
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from redis_replay import _blocks as blocks
from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._contents import CONFIG, FORMAT, VERSION
from redis_replay._core import Core
from redis_replay._steps import Step, Work
from redis_replay._types import Reply, as_text
from redis_replay.checkpoint import Page
from redis_replay.exceptions import DumpError, ReplayError, UnderWayError

PAGE_RECORDS = 2000
# Counters that are the server's, or that follow from the records.
RUNTIME = ("clock", "clock_offset", "last_write", "arrivals", "notices", "era", "rewound_at", "rewound_to", "first", "last",
           "used", "unseen", "parting")  # fmt: skip
WHY = {
    "held": "more would have to be kept for it than max_hold_bytes allows, as much was changed meanwhile",
    "emptied": "the buffer was emptied meanwhile",
    "loaded": "a checkpoint was loaded meanwhile",
    "late": "it asked for nothing for a minute",
    "unknown": "the server knows nothing of it any more",
}

Write = Callable[[str, dict[str, Any]], None]
Progress = Callable[[int, int], None]


def dump_to(core: Core, path: str | PathLike[str], most_bytes: int, progress: Progress | None) -> Generator[Step, Any, int]:
    """`dump` to a file, which takes the place of what is there once it is whole. Gives how many records.

    Raises:
        as `dump`; UnderWayError: another process writes to it. OSError: it cannot be written.
    """
    stack = ExitStack()
    try:
        file = yield Work(lambda: stack.enter_context(blocks.replacing(path)))
        n = yield from dump(core, blocks.Writer(file).write, most_bytes, progress)
    except BaseException:
        stack.__exit__(*sys.exc_info())
        raise
    yield Work(stack.close)
    return n


def dump(core: Core, write: Write, most_bytes: int, progress: Progress | None) -> Generator[Step, Any, int]:
    """Writes what the buffer is at one moment as blocks. Gives how many records.

    Raises:
        DumpError; UnderWayError: another dump is. BufferGoneError, BufferDamagedError, ConnectionLostError.
    """
    name = secrets.token_hex(8)
    try:
        head = yield from begin(core, name, most_bytes)
        yield Work(lambda: write("head", head))
        n = yield from _pages(core, name, write, head["records"], progress)
        yield Work(lambda: write("end", {"records": n}))
    except GeneratorExit:
        raise
    except BaseException:
        yield from _end(core, name)
        raise
    yield from _end(core, name)
    return n


def begin(core: Core, name: str, most_bytes: int) -> Generator[Step, Any, dict[str, Any]]:
    """The moment of the dump `name`. Gives the head of its file."""
    reply = yield from rq.ask(core, scripts.cut(id=name, step="open", most_bytes=most_bytes), answers=("OK", "RUNNING"))
    if reply.word == "RUNNING":
        raise UnderWayError(name=core.name, what="dump", seconds=math.ceil(int(reply.data[0]) / 1e6))
    config, counters, shares = (dict(zip(texts[::2], texts[1::2], strict=True)) for texts in map(_texts, reply.data[1:4]))
    numbers = {key: stored.number(core.keys, "counters", key, text) for key, text in counters.items()}
    leases, lent, diff = (int(text) for text in _texts(reply.data[4]))
    numbers["sample_calls"] -= leases
    numbers["samples_returned"] -= lent
    numbers["diff"] = diff
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": core.name,
        "epoch": core.epoch,
        "records": numbers["sampleable_size"] + numbers["hidden"] + numbers["leased"],
        "last": numbers["last"],
        "config": {key: config[key] for key in CONFIG if key in config},
        "counters": {key: number for key, number in numbers.items() if key not in RUNTIME},
        "shares": shares,
    }


def _texts(values: Any) -> list[str]:
    return [as_text(value) for value in values]


def _pages(core: Core, name: str, write: Write, total: int, progress: Progress | None) -> Generator[Step, Any, int]:
    done, after = 0, "0"
    while after:
        script = scripts.rows(id=name, after=int(after), page_size=PAGE_RECORDS)
        reply = yield from rq.ask(core, script, answers=("OK", "CLOSED"))
        if reply.word == "CLOSED":
            raise DumpError(name=core.name, reason=WHY.get(as_text(reply.data[0]), as_text(reply.data[0])))
        after = as_text(reply.data[0])
        try:
            page = _page(reply)
        except (ValueError, OverflowError) as error:
            raise stored.damaged(core.keys, "uses", "what a record has", str(error), "numbers, as in authors") from None
        if len(page.payload):
            yield Work(partial(write, "rows", page.packed()))
        done += len(page.payload)
        if progress is not None:
            progress(done, total)
    if done != total:
        reason = f"{total} records were to be read, and {done} were found: `redis-replay doctor` tells more"
        raise DumpError(name=core.name, reason=reason)
    return done


def _page(reply: Reply) -> Page:
    words = b" ".join(reply.data[3::3]).split()
    uses, priority, version, writer = (["-1" if word == b"-" else word for word in words[i::4]] for i in range(4))
    return Page(
        index=np.array(reply.data[1::3], np.int64),
        payload=reply.data[2::3],
        uses=np.array(uses, np.int64),
        priority=np.array(priority, np.float64),
        version=np.array(version, np.int64),
        writer=np.array(writer, np.int64),
    )


def _end(core: Core, name: str) -> Generator[Step, Any, None]:
    """What was kept for it goes. If the server cannot be told, it goes after a minute."""
    try:
        yield from rq.ask(core, scripts.cut(id=name, step="close", most_bytes=0), answers=("OK", "RUNNING"))
    except ReplayError:
        return
