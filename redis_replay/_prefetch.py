"""How a call that is given a batch which was drawn ahead (`prefetch`) asks for it, and how long it waits. See _ahead."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from redis_replay import _handle as h
from redis_replay import _ops_sample, _ops_wait
from redis_replay._core import CALL_SECONDS, Core


def ahead_wish(core: Core, batch_size: int | None, place: object, done: object) -> _ops_wait.Wish:
    """The wish of a draw ahead: of a full batch, to a place."""
    n, least = h.sizes(core, batch_size, None, None)
    how = {"wait": False, "lease": core.lease, "owner": place, "before": done}
    return _ops_sample.sample_wish(core, n, least, **how)


def is_ahead(setup: h.Setup, batch_size: object, min_items: object, lease: object) -> bool:
    """Whether a call asks for such a batch as is drawn ahead."""
    return batch_size in (None, setup.batch_size) and min_items is None and lease is None


def is_held(core: Core) -> Callable[[Any], bool]:
    """Whether a batch that was drawn ahead, with its SampleInfo, is the handle's still: not where its lease may have run out
    since, or ended with an `empty()`.
    """
    return lambda batch: batch[1].lease is None or core.leases.holds(batch[1].lease, core.clock())


class Turn(NamedTuple):
    """The time that a call has: for a batch that is on its way, and for drawing one itself."""

    core: Core
    wish: _ops_wait.Wish
    deadline: float

    @classmethod
    def of(cls, core: Core, wish: _ops_wait.Wish) -> "Turn":
        """From now on."""
        return cls(core, wish, core.clock() + (wish.timeout if wish.wait else core.bound(CALL_SECONDS)))

    @property
    def until(self) -> float:
        """Until when a server that does not answer is waited for."""
        return _ops_wait.patience(self.core, self.wish, self.deadline)

    def ended(self) -> bool:
        """Whether the call shall wait no longer for a batch that is on its way."""
        stopped = _ops_wait.stop(self.core, self.wish)
        return self.core.clock() >= self.deadline or (stopped() if stopped else self.core.closed)

    def rest(self) -> _ops_wait.Wish:
        """The wish, with the time that is left."""
        return replace(self.wish, timeout=max(0.0, self.deadline - self.core.clock())) if self.wish.wait else self.wish
