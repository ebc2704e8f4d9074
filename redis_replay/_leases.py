"""What a handle has on lease in this process: which batch, whose, for how long. No I/O."""

import asyncio
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

REMEMBERED = 1000  # leases whose end was learnt late


def caller() -> Any:
    """The task that runs, or the thread: the one whose next `sample` acknowledges the batch it had before."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop runs here
        return threading.current_thread()


@dataclass(slots=True)
class Lease:
    """A batch on lease: its name, who drew it, its length in seconds, and until when it lasts at least."""

    name: str
    owner: Any
    seconds: float
    until: float

    @property
    def lives(self) -> bool:
        """Whether somebody can still acknowledge it: a thread that has ended cannot, nor a task that failed. One that ended
        well gave the batch to whoever awaited it.
        """
        if not isinstance(self.owner, asyncio.Task):
            return bool(self.owner.is_alive())
        return not self.owner.done() or not (self.owner.cancelled() or self.owner.exception())


class Leases:
    """The open leases of a handle, by name."""

    def __init__(self) -> None:
        self._open: dict[str, Lease] = {}
        self._asked: dict[str, Any] = {}  # lease -> the Question of an ack or a release whose reply never came
        self._ending: set[str] = set()  # an ack or a release of which is under way
        self._ended: dict[str, str] = {}  # lease -> ack or release, where such a question turned out like that

    def __len__(self) -> int:
        return len(self._open)

    def add(self, name: str, owner: Any, seconds: float, asked: float) -> None:
        """A batch was drawn, by a request that was sent after the moment `asked`."""
        self._open[name] = Lease(name, owner, seconds, asked + seconds)

    def prolong(self, names: Sequence[str], asked: float) -> None:
        """They begin anew, by a request that was sent after the moment `asked`."""
        for lease in filter(None, map(self._open.get, names)):
            lease.until = asked + lease.seconds

    def holds(self, name: str, now: float) -> bool:
        """Whether nobody else can have been given its records."""
        lease = self._open.get(name)
        return lease is not None and now < lease.until

    def hand(self, giver: Any, taker: Any) -> None:
        """What one has is the other's."""
        for lease in tuple(self._open.values()):
            if lease.owner is giver:
                lease.owner = taker

    @contextmanager
    def ending(self, names: Iterable[str]) -> Iterator[None]:
        """An ack or a release of them is under way: that they have ended is no news."""
        self._ending.update(names)
        try:
            yield
        finally:
            self._ending.difference_update(names)

    def ran_out(self, names: Sequence[str]) -> list[str]:
        """Of those that the server does not know any more, the ones that nobody has ended."""
        return [name for name in names if name in self._open and name not in self._ending and name not in self._asked]

    def end(self, names: list[str]) -> None:
        """They were acknowledged, released, or have run out."""
        for name in names:
            self._open.pop(name, None)

    def ask(self, question: Any, names: tuple[str, ...]) -> None:
        """The reply to an ack or a release never came."""
        question.leases = names
        if not question.closed:
            self._asked.update(dict.fromkeys(names, question))

    def questions(self, names: Sequence[str]) -> list[Any]:
        """What is to be asked before these may be ended."""
        return list({id(asked): asked for name in names if (asked := self._asked.get(name)) is not None}.values())

    def learn(self, question: Any, ended: int, late: int) -> None:
        """The question has its answer: `ended` of its leases, the first ones, but for `late`, which had ended before."""
        for name in question.leases:
            self._asked.pop(name, None)
        done = question.leases[: ended + late]
        self.end(list(done))
        if not late:  # else it is not known which
            self._ended.update(dict.fromkeys(done, question.verb))
            for old in list(self._ended)[:-REMEMBERED]:
                del self._ended[old]

    def take_ended(self, names: Sequence[str]) -> dict[str, str]:
        """Those that had been ended by an ack or a release whose reply never came, and by which of them; told once."""
        return {name: self._ended.pop(name) for name in names if name in self._ended}

    def names(self) -> list[str]:
        """All of them."""
        return list(self._open)

    def of(self, owner: Any) -> list[str]:
        """Those that a thread or task drew."""
        return [lease.name for lease in tuple(self._open.values()) if lease.owner is owner]

    def forsaken(self, kind: type = object) -> list[str]:
        """Those that nobody can acknowledge; of one kind of owners."""
        return [lease.name for lease in tuple(self._open.values()) if isinstance(lease.owner, kind) and not lease.lives]

    def living(self) -> list[str]:
        """Those to renew. The others are given up: they end when they run out."""
        self.end(self.forsaken())
        return self.names()

    @property
    def period(self) -> float:
        """Seconds after which to renew: a third of the shortest lease."""
        return min((lease.seconds for lease in tuple(self._open.values())), default=1.0) / 3
