"""The buffer in plain Python: what docs/architecture.md promises, without Redis. One step at a time, no waits."""

import re
from dataclasses import dataclass, field

from tests._bins import SIZE, Bins
from tests._mrg import Mrg32k3a
from tests._pace import Paced, Rule

COUNTED = (
    "write_count", "records_total", "consumed", "evicted", "removed", "sample_calls", "samples_returned", "lapsed", "reclaimed",
    "late", "stale",
)  # fmt: skip


class RefusedError(Exception):
    """A refusal: SHUT, or NOT_READY with have and need."""


@dataclass
class Draw:
    """What a lane was given last: each record with whether this use consumed it, and the lease under which it was lent.
    `held`: its bytes are kept for the lane."""

    records: list
    n: int
    held: bool
    lease: str | None = None
    era: int = 0  # of the rate limiter


@dataclass
class Model(Paced):
    """A buffer. `lane` arguments name who calls: a draw's hold ends with the lane's next request."""

    capacity: int
    sampler: str
    consume: int | None
    remover: str = "Fifo()"
    fetches: bool = False  # whether records are so large that a draw's payloads follow it, and are held for that
    state: str = "open"
    drained: bool = False
    last: int = 0
    passed: int = 0  # the highest index that eviction has passed, where the oldest go first
    live: dict = field(default_factory=dict)  # index -> what was written
    bins: Bins | None = None  # where the sampler or the remover is Prioritized
    hidden: dict = field(default_factory=dict)  # those of priority 0
    priorities: dict = field(default_factory=dict)  # index -> priority
    set: float | None = None  # the largest priority ever set
    limit: int | None = None  # max_staleness
    pace: Rule | None = None  # the rate limiter
    keeps_unread: bool = False  # of a queue or a stack: what goes undrawn counts no more
    era: int = 0
    version: int = 0
    versions: dict = field(default_factory=dict)  # index -> version, of whatever was written
    unseen: dict = field(default_factory=dict)  # index -> its writer, of those that were never handed out
    shares: dict = field(default_factory=dict)  # writer -> {written, stale, evicted}, the latter two of those never handed out
    uses: dict = field(default_factory=dict)  # index -> times handed out, live or parting
    parting: dict = field(default_factory=dict)
    leases: dict = field(default_factory=dict)  # lease -> what it lent: index -> value
    eras: dict = field(default_factory=dict)  # lease -> the rate limiter's era when it began
    draws: dict = field(default_factory=dict)  # lane -> its last Draw
    counts: dict = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))

    # What can be seen

    def counters(self):
        """Those of `stats()` that follow from what was done."""
        sizes = {"sampleable_size": len(self.live), "parting": len(self.parting), "leased": len(self.leased)}
        sizes["hidden"] = len(self.hidden)
        rest = {"state": self.state, "version": self.version, "unseen": len(self.unseen)}
        return self.counts | sizes | {"storage_size": sum(sizes.values())} | rest

    @property
    def leased(self):
        """What is lent: index -> value."""
        return {index: value for lent in self.leases.values() for index, value in lent.items()}

    @property
    def distinct(self):
        return self.consume is not None or "replacement=True" not in self.sampler

    @property
    def dates(self):
        return self.limit is not None or "Freshest()" in (self.sampler, self.remover)

    def lags(self):
        """As `stats()["lag"]`: exact below 16, then by powers of two."""
        lags = [max(0, self.version - self.versions[index]) for index in self.present] if self.dates else []
        least = [lag if lag < 16 else 1 << (lag.bit_length() - 1) for lag in lags]
        return {lag: least.count(lag) for lag in least}

    @property
    def weighs(self):
        return self.bins is not None or not {"MaxHeap()", "MinHeap()"}.isdisjoint((self.sampler, self.remover))

    @property
    def present(self):
        """Live and hidden."""
        return self.live | self.hidden

    def choose(self, n, seeds):
        """The indices that a draw with these seeds gives."""
        return self._select(self.sampler, n, seeds, self.live, self.distinct)

    def _select(self, rule, n, seeds, among, distinct):
        """By the rule of a sampler or a remover. Those without a weight are the last to go, the oldest first."""
        order = sorted(among)
        if rule == "Fifo()":
            return order[:n]
        if rule == "Lifo()":
            return order[::-1][:n]
        if rule == "Freshest()":
            return sorted(among, key=lambda index: (self.versions[index], index), reverse=True)[:n]
        if "Heap" in rule:
            return sorted(among, key=lambda index: (self.priorities[index], index), reverse=rule == "MaxHeap()")[:n]
        random = Mrg32k3a(seeds)
        if rule.startswith("Prioritized"):
            weighed = min(n, self.bins.count()) if distinct else n
            drawn = self.bins.draw(weighed, random, distinct)
            return (drawn + [index for index in order if index not in drawn])[:n]
        ranks = random.different(n, len(order)) if distinct else [random.below(len(order)) for _ in range(n)]
        return [order[rank] for rank in ranks]

    # Calls. Each begins with `request`, as a lane's next number ends what the one before it held.

    def request(self, lane, undo=False):
        """The lane's next request. `undo`: the reply of its last one never came."""
        self._put_in_order()
        draw = self.draws.pop(lane, None)
        if draw is not None and undo:
            self._go_back(draw)
        if draw is not None:
            self._let_go(draw)

    def settle(self, lane, undo=False):
        self.request(lane, undo)
        self._end()

    def extend(self, lane, values, priority=None, seeds=None, version=None):
        self.request(lane)
        if self.state != "open":
            self._refuse("SHUT")
        if len(self.leased) >= self.capacity:
            self._refuse("FULL", self.capacity)
        if (room := self._room(len(values))) < len(values):
            self._refuse("NOT_READY", room, len(values))
        indices = list(range(self.last + 1, self.last + len(values) + 1))
        if self.weighs:
            self._set_largest(priority or [])
            priority = priority or [1.0 if self.set is None else self.set] * len(values)
        if self.dates:
            self.versions |= dict(zip(indices, version or [self.version] * len(values), strict=True))
        late = sum(self._is_stale(index, self.version) for index in indices) if self.dates else 0
        self._evict(self._select(self.remover, self._excess(len(values) - late), seeds, self.present, True))
        if self.dates:
            self.unseen |= dict.fromkeys(indices, lane)
            self.shares.setdefault(lane, {"written": 0, "stale": 0, "evicted": 0})["written"] += len(values)
        self.priorities |= dict(zip(indices, priority or (), strict=False))
        for index, value in zip(indices, values, strict=True):
            self._enter(index, value)
        self.last += len(values)
        self._count(write_count=len(values), records_total=len(values))
        if self.pace:
            self.pace.inserted(len(values))
        self._drop_stale(self.version)
        self._evict(sorted(self.present)[: self._excess()])
        return indices

    def set_version(self, lane, version):
        """How many were dropped."""
        self.request(lane)
        if version < self.version:
            self._refuse("LOWER", self.version)
        dropped = self._drop_stale(version)
        self.version = version
        self._end()
        return dropped

    def set_alpha(self, lane, alpha):
        """Of all that can be drawn, in order of index."""
        self.request(lane)
        rules = re.sub(r"alpha=[^,)]+", f"alpha={alpha!r}", f"{self.sampler}\n{self.remover}")
        self.sampler, self.remover = rules.splitlines()
        self.bins.alpha = alpha
        for index in sorted(self.live):
            self.bins.reweigh(index, self.priorities[index])
        self._end()

    def update(self, lane, pairs):
        """How many have the priority now, and how many are not in the buffer."""
        self.request(lane)
        applied = [(index, priority) for index, priority in pairs.items() if index in self.present | self.leased]
        for index, priority in pairs.items():
            if (index, priority) not in applied:
                self._look_for(index)
                continue
            drawn = index in self.live and (priority or not self.sampler.startswith("Prioritized"))
            if not self.bins or index in self.leased or drawn:
                self._change(index, priority)
            else:
                value = self._leave(index)
                self.priorities[index] = priority
                self._enter(index, value)
        self._set_largest([priority for _, priority in applied])
        self._end()
        return len(applied), len(pairs) - len(applied)

    def batch(self, n, need):
        """How many records a draw gives, or the reason why it gives none."""
        if self.state == "shut":
            self._refuse("SHUT")
        have = self.there()
        if self.state == "draining" and not self.leases:
            need = max(1, min(need, have))
        if have < need:
            self._refuse("NOT_READY", have, need)
        self._put_in_order()
        if self.pace and self.state != "draining":
            n = self._most(self.pace.can_sample, n)
        return min(n, have) if self.distinct else n

    def sample(self, lane, indices, lease=None):
        """Hands `indices` out, as `choose` or a server chose them. Gives the uses of each, and whether it was the last."""
        if lease:
            return self._lend(lane, indices, lease)
        self._see(indices)
        drawn, told = [], []
        for index in indices:
            self.uses[index] = self.uses.get(index, 0) + 1 if self.consume else 0
            told.append(self.uses[index])
            drawn.append((index, self.consume is not None and self.uses[index] == self.consume))
        held = self.consume is not None or self.fetches
        draw = self.draws[lane] = Draw(drawn, len(indices), held=held, era=self.era)
        for index, consumed in draw.records:
            if consumed:
                self.parting[index] = self._leave(index)
                self._count(consumed=1)
        self._count_draw(len(indices))
        last = self.state == "draining" and not self.live and not self.leases
        self._end()
        return told, last

    def _lend(self, lane, indices, lease):
        others = bool(self.leases)
        self._see(indices)
        self.draws[lane] = Draw([(index, False) for index in indices], len(indices), held=True, lease=lease)
        self.leases[lease] = {index: self._leave(index) for index in indices}
        self.eras[lease] = self.era
        self._count_draw(len(indices))
        uses = [self.uses.get(index, 0) + 1 for index in indices]
        last = self.state == "draining" and not self.live and not others and set(uses) == {self.consume}
        return uses, last

    def ack(self, lane, lease):
        """Whether the lease was still open."""
        self.request(lane)
        lent = self.leases.pop(lease, None)
        back = {}
        for index, value in (lent or {}).items():
            self.uses[index] = self.uses.get(index, 0) + 1
            if self.uses[index] == self.consume:
                self._count(consumed=1)
                self._drop(index, value)
            else:
                back[index] = value
        self._return(back)
        self._count(late=lent is None)
        self._end()
        return lent is not None

    def release(self, lane, lease):
        """Whether the lease was still open."""
        self.request(lane)
        ended = self._give_back(lease)
        self._end()
        return ended

    def let_leases_run_out(self):
        for lease, lent in list(self.leases.items()):
            self._count(reclaimed=len(lent))
            self._give_back(lease)

    def remove(self, lane, indices):
        self.request(lane)
        found = [index for index in dict.fromkeys(indices) if index in self.present]
        self._count(removed=len(found))
        self._pass_over(len(found))
        self._part(found)
        self._end()
        return len(found)

    def empty(self, lane, reset):
        self.request(lane)
        self._count(removed=len(self.present) + len(self.leased))
        for gone in (self.live, self.hidden, self.priorities, self.uses, self.parting, self.leases, self.unseen):
            gone.clear()
        if self.bins:
            self.bins = Bins(self.bins.alpha, self.bins.eps)
        self.set = None
        for draw in self.draws.values():
            draw.held = False
        if reset:
            self.counts |= dict.fromkeys(("write_count", "consumed", "evicted", "removed", "stale"), 0)
            self.shares.clear()
        self._begin_pace()
        self._end()

    def shutdown(self, lane, drain):
        self.request(lane)
        drain = drain and self.consume is not None and bool(self.live or self.leases)
        if self.state != "shut" and not drain:
            self.state, self.drained = "shut", False
        elif self.state == "open":
            self.state = "draining"

    def reopen(self, lane):
        self.request(lane)
        if self.state == "draining" or (self.state == "shut" and self.drained):
            self._begin_pace()
        self.state, self.drained = "open", False

    def let_holds_lapse(self):
        """60 s go by: what was drawn and not confirmed stays drawn."""
        for lane, draw in list(self.draws.items()):
            if draw.held:
                del self.draws[lane]
                self._let_go(draw)
                self._count(lapsed=1)

    def forget_lanes(self):
        """An hour goes by."""
        self.let_holds_lapse()
        self.draws.clear()

    # Rules

    def _count(self, **changes):
        for name, n in changes.items():
            self.counts[name] += n

    def _see(self, indices):
        for index in indices:
            self.unseen.pop(index, None)

    def _lose(self, indices, how):
        for index in indices:
            if index in self.unseen:
                self.shares[self.unseen[index]][how] += 1

    def _is_stale(self, index, version):
        return self.limit is not None and self.versions[index] < version - self.limit

    def _drop_stale(self, version):
        old = [index for index in self.present if self._is_stale(index, version)]
        self._count(stale=len(old))
        self._pass_over(len(old))
        self._lose(old, "stale")
        self._part(old)
        return len(old)

    def _held(self, index):
        return any(draw.held and index in dict(draw.records) for draw in self.draws.values())

    def _part(self, indices):
        """Out of the live ones; the bytes stay where somebody was given the index."""
        for index in indices:
            self._drop(index, self._leave(index))

    def _drop(self, index, value):
        if self._held(index):
            self.parting[index] = value
        else:
            self._forget(index)
        self.unseen.pop(index, None)
        self.uses.pop(index, None)

    def _enter(self, index, value):
        """May be drawn from now on, if its priority is not 0 where draws go by it."""
        if self.sampler.startswith("Prioritized") and self.priorities[index] == 0:
            self.hidden[index] = value
            self.bins.leave(index)
            return
        self.live[index] = value
        if self.bins:
            self.bins.enter(index, self.priorities[index])

    def _change(self, index, priority):
        """Another priority for what stays where it is."""
        self.priorities[index] = priority
        if self.bins and index in self.live:
            self.bins.change(index, priority)
        elif self.bins:
            self.bins.touch(index)

    def _look_for(self, index):
        if self.bins and index not in self.parting:
            self.bins.opened.add(index // SIZE)

    def _forget(self, index):
        if self.priorities.pop(index, None) is not None and self.bins:
            self.bins.leave(index)

    def _put_in_order(self):
        """What a script does before it draws, and at its end."""
        if self.bins:
            self.bins.settle()

    def _leave(self, index):
        if index in self.hidden:
            return self.hidden.pop(index)
        if self.bins:
            self.bins.leave(index)
        return self.live.pop(index)

    def _return(self, back):
        """What comes back to the buffer: to its place, or evicted where eviction has passed it (if the oldest go first)."""
        for index, value in back.items():
            if index > self.passed and not self._is_stale(index, self.version):
                self._enter(index, value)
            else:
                self._count(**{"stale" if index > self.passed else "evicted": 1})
                self._pass_over(1)
                self._drop(index, value)

    def _set_largest(self, given):
        self.set = max([self.set or 0, *given]) or None  # zeros hide no new records

    def _let_go(self, draw):
        for index, _ in draw.records if draw.held else ():
            if not self._held(index) and index in self.parting:
                del self.parting[index]
                self.uses.pop(index, None)
                self._forget(index)

    def _give_back(self, lease):
        lent = self.leases.pop(lease, None)
        if lent is None:
            return False
        self._uncount_draw(len(lent), len(lent), self.eras[lease])
        self._return(lent)
        return True

    def _go_back(self, draw):
        """Exactly what the draw did is undone. What has left since in another way stays gone."""
        if draw.lease:
            self._let_go(draw)
            draw.held = False
            self._give_back(draw.lease)
            return
        back = [index for index, consumed in draw.records if consumed and index in self.parting]
        self._uncount_draw(draw.n, len(back), draw.era)
        if self.consume is None:
            return
        for index, _ in draw.records:
            if index in self.uses:
                self.uses[index] -= 1
        for index in back:
            value = self.parting[index]
            self._count(consumed=-1)
            if index > self.passed and not self._is_stale(index, self.version):
                del self.parting[index]
                self._enter(index, value)
            else:
                self._count(**{"stale" if index > self.passed else "evicted": 1})
                self._pass_over(1)
        self._let_go(draw)
        draw.held = False
        random = self.remover.startswith(("Uniform", "Prioritized"))  # and nobody sends a seed: those that came back go
        over = self._excess()
        self._evict(back[:over] if random else self._select(self.remover, over, None, self.present, True))
        if self.state == "shut" and self.drained and back:
            self.state, self.drained = "draining", False

    def _excess(self, more=0):
        """How many of those present have no room beside so many more."""
        return max(0, min(len(self.present), len(self.present) + len(self.leased) + more - self.capacity))

    def _evict(self, indices):
        if self.remover == "Fifo()":
            self.passed = max([self.passed, *indices])
        self._count(evicted=len(indices))
        self._pass_over(len(indices))
        self._lose(indices, "evicted")
        self._part(indices)

    def _refuse(self, *why):
        self._end()
        raise RefusedError(*why)

    def _end(self):
        if self.state == "draining" and not self.live and not self.leases:
            self.state, self.drained = "shut", True
