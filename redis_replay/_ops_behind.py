"""Records that `add` has taken and that are written together. Generators without I/O: see _steps."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from redis_replay import _ops_wait as waits
from redis_replay import _ops_write as write
from redis_replay import _requests as rq
from redis_replay._core import CALL_SECONDS, Core, Lane
from redis_replay._encode import Rows, joined
from redis_replay._options import FOREVER
from redis_replay._steps import Step
from redis_replay._types import Origin, Outcome
from redis_replay.exceptions import OutcomeUnknownError, ReplayError, ReplayTimeoutError


@dataclass(slots=True)
class Item:
    """A record on its way: its bytes, the text of its priority or none, its writer and version; `future` is told its index."""

    rows: Rows
    priority: Sequence[str]
    origin: Origin
    future: Any

    @classmethod
    def of(cls, core: Core, rows: Rows, priority: Sequence[str], origin: Origin) -> Self:
        """A record that may be written.

        Raises:
            ArgumentError: no buffer, or not this server, takes it.
        """
        write.check_rows(core, rows)
        return cls(rows, priority, origin, None)

    @property
    def kind(self) -> tuple[object, ...]:
        """Records that are written together are of one."""
        return bool(self.priority), self.origin.writer, bool(self.origin.versions)


def write_out(
    core: Core, lane: Lane, items: Sequence[Item], settled: Callable[[Sequence[Item]], None]
) -> Generator[Step, Any, None]:  # fmt: skip
    """Writes them in order. Tells each its index, or why it is not stored; then it is `settled`."""
    for _, group in groupby(items, lambda item: item.kind):
        yield from _together(core, lane, list(group), settled)


def _together(
    core: Core, lane: Lane, items: list[Item], settled: Callable[[Sequence[Item]], None]
) -> Generator[Step, Any, None]:  # fmt: skip
    """At once, where the rate limiter lets so many in; else one by one: who waits for the first must not wait for all."""
    n = len(items)
    if n > 1 and (yield from _room(core, lane, n)) and (yield from _piece(core, lane, items, CALL_SECONDS)):
        settled(items)
        return
    for item in items:
        yield from _piece(core, lane, [item], FOREVER)
        settled([item])


def _room(core: Core, lane: Lane, n: int) -> Generator[Step, Any, bool]:
    try:
        return bool((yield from waits.can(core, lane, waits.room_wish(n, n, wait=False))))
    except ReplayError:
        return True  # the write will say it


def _piece(core: Core, lane: Lane, items: list[Item], timeout: float) -> Generator[Step, Any, bool]:
    """One write. False: the rate limiter was against so many for too long, and nothing is settled."""
    rows = joined([item.rows for item in items])
    priority = [text for item in items for text in item.priority]
    origin = Origin(items[0].origin.writer, [text for item in items for text in item.origin.versions])
    while True:
        try:
            index = yield from write.write(core, lane, rows, write.Terms(timeout), priority, origin)
        except OutcomeUnknownError as error:
            outcome = yield from _learn(core, error)
            if outcome is not None and not outcome.applied:
                continue
            if outcome is None:
                return _fail(items, error)
            index = outcome.index
        except ReplayError as error:
            if isinstance(error, ReplayTimeoutError) and len(items) > 1:
                return False
            return _fail(items, error)
        for item, number in zip(items, index.tolist(), strict=True):
            if not item.future.cancelled():
                item.future.set_result(number)
        return True


def _learn(core: Core, error: OutcomeUnknownError) -> Generator[Step, Any, Outcome | None]:
    """What became of a write whose reply never came; None: that cannot be learnt now."""
    try:
        yield from rq.learn(core, error.question, core.clock() + CALL_SECONDS)
    except ReplayError:
        return None
    answer: Outcome | None = error.question.answer
    return answer


def _fail(items: Sequence[Item], error: ReplayError) -> bool:
    for item in items:
        if not item.future.cancelled():
            item.future.set_exception(error)
    return True
