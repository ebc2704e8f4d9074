"""The buffer in plain Python: what docs/architecture.md promises, without Redis. One step at a time, no waits."""

import math
from dataclasses import dataclass, field

from tests._mrg import M1, Mrg32k3a

FIT = 1023 / 1024  # lua/include/bucket.lua


@dataclass
class Bins:
    """The weights of lua/include/bucket.lua: bin -> indices in their places."""

    alpha: float
    eps: float
    seats: dict = field(default_factory=dict)

    def part(self, priority):
        """The bin of a priority, and its weight as a part of the bin's upper end."""
        part, k = math.frexp((priority + self.eps) ** self.alpha * FIT)
        return (k - 1, 1.0) if part == 0.5 else (k, part)

    def same(self, one, other):
        """Whether both lie in one bin."""
        return self.part(one)[0] == self.part(other)[0]

    def sit(self, index, priority):
        self.seats.setdefault(self.part(priority)[0], []).append(index)

    def stand_up(self, index, priority):
        """The last one has the place now."""
        seats = self.seats[self.part(priority)[0]]
        place, last = seats.index(index), seats.pop()
        if last != index:
            seats[place] = last

    def draw(self, n, random, priorities, distinct):
        full = [[k, list(self.seats[k])] for k in sorted(self.seats, reverse=True) if self.seats[k]]
        drawn = []
        while len(drawn) < n:
            seats = self._bin(full, random)
            place = random.below(len(seats))
            _, part = self.part(priorities[seats[place]])
            if part == 1 or random.next() < part * M1:
                drawn.append(seats[place])
                if distinct:
                    seats[place] = seats[-1]
                    seats.pop()
        return drawn

    def _bin(self, full, random):
        sizes = [len(seats) * 2.0 ** (k - full[0][0]) for k, seats in full]
        at = (random.next() + random.next() / M1) / M1 * sum(sizes)
        for (_, seats), size in zip(full, sizes, strict=True):
            if at < size:
                return seats
            at -= size
        return [seats for _, seats in full if seats][-1]


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


@dataclass
class Model:
    """A buffer. `lane` arguments name who calls: a draw's hold ends with the lane's next request."""

    capacity: int
    sampler: str
    consume: int | None
    fetches: bool = False  # whether records are so large that a draw's payloads follow it, and are held for that
    state: str = "open"
    drained: bool = False
    last: int = 0
    passed: int = 0  # the highest index that eviction has passed
    live: dict = field(default_factory=dict)  # index -> what was written
    bins: Bins | None = None  # where the sampler is Prioritized
    hidden: dict = field(default_factory=dict)  # those of priority 0
    priorities: dict = field(default_factory=dict)  # index -> priority
    set: float | None = None  # the largest priority ever set
    limit: int | None = None  # max_staleness
    version: int = 0
    versions: dict = field(default_factory=dict)  # index -> version, of whatever was written
    unseen: dict = field(default_factory=dict)  # index -> its writer, of those that were never handed out
    shares: dict = field(default_factory=dict)  # writer -> {written, stale, evicted}, the latter two of those never handed out
    uses: dict = field(default_factory=dict)  # index -> times handed out, live or parting
    parting: dict = field(default_factory=dict)
    leases: dict = field(default_factory=dict)  # lease -> what it lent: index -> value
    draws: dict = field(default_factory=dict)  # lane -> its last Draw
    counts: dict = field(
        default_factory=lambda: dict.fromkeys(
            (
                "write_count",
                "records_total",
                "consumed",
                "evicted",
                "removed",
                "sample_calls",
                "samples_returned",
                "lapsed",
                "reclaimed",
                "late",
                "stale",
            ),
            0,
        )
    )

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
    def heap(self):
        return self.sampler in ("MaxHeap()", "MinHeap()")

    @property
    def dates(self):
        return self.limit is not None or self.sampler == "Freshest()"

    def lags(self):
        """As `stats()["lag"]`: exact below 16, then by powers of two."""
        lags = [max(0, self.version - self.versions[index]) for index in self.present] if self.dates else []
        least = [lag if lag < 16 else 1 << (lag.bit_length() - 1) for lag in lags]
        return {lag: least.count(lag) for lag in least}

    @property
    def weighs(self):
        return self.heap or self.bins is not None

    @property
    def present(self):
        """Live and hidden."""
        return self.live | self.hidden

    def choose(self, n, seeds):
        """The indices that a draw with these seeds gives."""
        live = sorted(self.live)
        if self.sampler == "Fifo()":
            return live[:n]
        if self.sampler == "Lifo()":
            return live[::-1][:n]
        if self.heap:
            order = sorted(self.live, key=lambda index: (self.priorities[index], index), reverse=self.sampler == "MaxHeap()")
            return order[:n]
        if self.sampler == "Freshest()":
            return sorted(self.live, key=lambda index: (self.versions[index], index), reverse=True)[:n]
        random = Mrg32k3a(seeds)
        if self.bins:
            return self.bins.draw(n, random, self.priorities, self.distinct)
        ranks = random.different(n, len(live)) if self.distinct else [random.below(len(live)) for _ in range(n)]
        return [live[rank] for rank in ranks]

    # Calls. Each begins with `request`, as a lane's next number ends what the one before it held.

    def request(self, lane, undo=False):
        """The lane's next request. `undo`: the reply of its last one never came."""
        draw = self.draws.pop(lane, None)
        if draw is not None and undo:
            self._go_back(draw)
        if draw is not None:
            self._let_go(draw)
        self._make_room()

    def settle(self, lane, undo=False):
        self.request(lane, undo)
        self._end()

    def extend(self, lane, values, priority=None, version=None):
        self.request(lane)
        if self.state != "open":
            self._refuse("SHUT")
        if len(self.leased) >= self.capacity:
            self._refuse("FULL", self.capacity)
        indices = list(range(self.last + 1, self.last + len(values) + 1))
        if self.weighs:
            self._set_largest(priority or [])
            self.priorities |= dict(
                zip(indices, priority or [1.0 if self.set is None else self.set] * len(values), strict=True)
            )
        for index, value in zip(indices, values, strict=True):
            self._enter(index, value)
        self.last += len(values)
        self._count(write_count=len(values), records_total=len(values))
        if self.dates:
            self.versions |= dict(zip(indices, version or [self.version] * len(values), strict=True))
            self.unseen |= dict.fromkeys(indices, lane)
            self.shares.setdefault(lane, {"written": 0, "stale": 0, "evicted": 0})["written"] += len(values)
            self._drop_stale(self.version)
        self._make_room()
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

    def update(self, lane, pairs):
        """How many have the priority now, and how many are not in the buffer."""
        self.request(lane)
        applied = [(index, priority) for index, priority in pairs.items() if index in self.present | self.leased]
        for index, priority in applied:
            same = self.heap or (index in self.live and priority and self.bins.same(priority, self.priorities[index]))
            if same or index in self.leased:
                self.priorities[index] = priority
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
        have = len(self.live)
        if self.state == "draining" and not self.leases:
            need = max(1, min(need, have))
        if have < need:
            self._refuse("NOT_READY", have, need)
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
        draw = self.draws[lane] = Draw(drawn, len(indices), held=self.consume is not None or self.fetches)
        for index, consumed in draw.records:
            if consumed:
                self.parting[index] = self._leave(index)
                self._count(consumed=1)
        self._count(sample_calls=1, samples_returned=len(indices))
        last = self.state == "draining" and not self.live and not self.leases
        self._end()
        return told, last

    def _lend(self, lane, indices, lease):
        others = bool(self.leases)
        self._see(indices)
        self.draws[lane] = Draw([(index, False) for index in indices], len(indices), held=True, lease=lease)
        self.leases[lease] = {index: self._leave(index) for index in indices}
        self._count(sample_calls=1, samples_returned=len(indices))
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
        self._part(found)
        self._end()
        return len(found)

    def empty(self, lane, reset):
        self.request(lane)
        self._count(removed=len(self.present) + len(self.leased))
        for gone in (self.live, self.hidden, self.priorities, self.uses, self.parting, self.leases, self.unseen):
            gone.clear()
        if self.bins:
            self.bins.seats.clear()
        self.set = None
        for draw in self.draws.values():
            draw.held = False
        if reset:
            self.counts |= dict.fromkeys(("write_count", "consumed", "evicted", "removed", "stale"), 0)
            self.shares.clear()
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
        self.state = "open"

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
            self.priorities.pop(index, None)
        self.unseen.pop(index, None)
        self.uses.pop(index, None)

    def _enter(self, index, value):
        """May be drawn from now on, if its priority is not 0."""
        if self.bins and self.priorities[index] == 0:
            self.hidden[index] = value
            return
        self.live[index] = value
        if self.bins:
            self.bins.sit(index, self.priorities[index])

    def _leave(self, index):
        if index in self.hidden:
            return self.hidden.pop(index)
        if self.bins:
            self.bins.stand_up(index, self.priorities[index])
        return self.live.pop(index)

    def _return(self, back):
        """What comes back to the buffer: to its place, or evicted where eviction has passed it."""
        for index, value in back.items():
            if index > self.passed and not self._is_stale(index, self.version):
                self._enter(index, value)
            else:
                self._count(**{"stale" if index > self.passed else "evicted": 1})
                self._drop(index, value)

    def _set_largest(self, given):
        self.set = max([self.set, *given]) if self.set is not None else max(given, default=None)

    def _let_go(self, draw):
        for index, _ in draw.records if draw.held else ():
            if not self._held(index) and index in self.parting:
                del self.parting[index]
                self.uses.pop(index, None)
                self.priorities.pop(index, None)

    def _give_back(self, lease):
        lent = self.leases.pop(lease, None)
        if lent is None:
            return False
        self._count(sample_calls=-1, samples_returned=-len(lent))
        self._return(lent)
        return True

    def _go_back(self, draw):
        """Exactly what the draw did is undone. What has left since in another way stays gone."""
        if draw.lease:
            self._let_go(draw)
            draw.held = False
            self._give_back(draw.lease)
            return
        self._count(sample_calls=-1, samples_returned=-draw.n)
        if self.consume is None:
            return
        back = [index for index, consumed in draw.records if consumed and index in self.parting]
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
        if self.state == "shut" and self.drained and back:
            self.state, self.drained = "draining", False

    def _make_room(self):
        oldest = sorted(self.present)[: max(0, len(self.present) + len(self.leased) - self.capacity)]
        if oldest:
            self.passed = max(self.passed, oldest[-1])
        self._count(evicted=len(oldest))
        self._lose(oldest, "evicted")
        self._part(oldest)

    def _refuse(self, *why):
        self._end()
        raise RefusedError(*why)

    def _end(self):
        if self.state == "draining" and not self.live and not self.leases:
            self.state, self.drained = "shut", True
