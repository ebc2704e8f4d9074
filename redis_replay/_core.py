"""What a handle knows: its buffer's identity and settings, its lanes, its random numbers. No I/O."""

import logging
import os
import platform
import random
import re
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis_replay import _stored as stored
from redis_replay._cache import Cache
from redis_replay._foresight import M1, M2, Foresight
from redis_replay._keys import Keys
from redis_replay._leases import Leases
from redis_replay._schema import Schema
from redis_replay._types import Outcome
from redis_replay.exceptions import NoPermissionError
from redis_replay.samplers import MAX_ENDS, MAX_NOTED, MAX_RANDOM, Fifo, Sampler, Uniform

HOST = re.sub(r"[^A-Za-z0-9.]", "_", platform.node())[:40] or "host"
log = logging.getLogger("redis_replay")

CALL_SECONDS = 5.0  # for a call without a timeout of its own, retries included
SLOWEST = 2**20  # bytes a second: what goes so fast may take longer than its time
PATIENCE_SECONDS = 60.0  # for an unreachable server, in a wait without a timeout
LOG_SECONDS = 10.0  # between two log lines of one wait
LANES = 256  # calls of one handle in one process at once; more queue


def _pack(keys: tuple[str, ...]) -> tuple[int, bytes]:
    """How many keys there are, and their number and names as RESP bulk strings."""
    words = [str(word).encode() for word in (len(keys), *keys)]
    return len(keys), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@dataclass(slots=True, eq=False)
class Question:
    """What became of a write whose reply never came. Its lane and its error share it; who learns the answer first sets it."""

    verb: str  # the script
    lane: str
    number: int
    open_number: int
    answer: Outcome | None = None
    forgotten: bool = False  # the server does not know the lane any more: there will be no answer
    call: str = ""  # as the caller knows it, where that is another name
    leases: tuple[str, ...] = ()  # that it was to end

    @property
    def closed(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.forgotten or self.answer is not None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Lane:
    """A call slot with at most one open request: a random name and a running number."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0
    open_number: int = 0  # the lowest number that no script has answered, or 0
    registered: bool = False
    holder: int = 0  # the thread whose call has it, or had it last
    resent: bool = False  # a copy of a request may be under way still
    question: Question | None = None  # while there is one, no other request goes over the lane
    heavy: bool = False  # it holds so many records that settling them takes a script of its own

    def next_number(self) -> int:
        """The number of the next request."""
        self.number += 1
        return self.number

    def leave_open(self) -> None:
        """The current number got no answer: the next request names it."""
        self.open_number = self.open_number or self.number
        self.resent = True

    def begin_anew(self) -> None:
        """Under another name: what is remembered of this one is not ours."""
        self.name, self.number, self.registered = secrets.token_hex(8), 0, False

    def answered(self) -> None:
        """A script has answered: what was open is settled."""
        self.open_number = 0


@dataclass
class LocalStats:
    """What this handle's waits went through. `wait_ms` holds the last 10,000 durations."""

    waits: int = 0
    wakeups_by_notice: int = 0
    wakeups_by_poll: int = 0
    wait_ms: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))


class Core:
    """One handle's state in one process. After a fork, an unpickle or a copy there is a new one."""

    def __init__(self, keys: Keys, poll_interval: float, seed: int | None, clock: Callable[[], float]) -> None:
        self.keys = keys
        self.name = keys.name
        self.poll_interval = poll_interval
        self.clock = clock
        self.random = random.Random(seed) if seed is not None else random.Random(secrets.randbits(128))
        self.jitter = random.Random(secrets.randbits(128))  # of pauses: what is drawn does not depend on how long it took
        self.client = f"{HOST}-{os.getpid()}-{secrets.token_hex(3)}"  # as `stats` names who waits
        self.channel = keys.wake(self.client)
        self.local = LocalStats()
        copy = keys.copy.all
        self.packed_keys = {"buffer": _pack(keys.all), "copy": _pack(copy), "both": _pack((*keys.all, *copy))}
        self.lanes: list[Lane] = []  # idle ones
        self._all: weakref.WeakSet[Lane] = weakref.WeakSet()
        self.answers: dict[str, tuple[int, float]] = {}  # lane -> its last number that is kept on the server, and since when
        self.given = 0  # the largest index that the server gave to this handle
        self.closed = False
        self.listening = False  # whether the subscription was confirmed once
        self.lacks: NoPermissionError | None = None  # of what all but readers need
        self.epoch = ""
        self.capacity = 0
        self.sampler: Sampler = Uniform()
        self.remover: Sampler = Fifo()
        self.max_staleness: int | None = None
        self.writer = ""  # as the caller calls it
        self.beta = 0.0  # of the sampler at first, then as the caller sets it
        self.consume: int | None = None
        self.lease: float | None = None  # seconds
        self.leases = Leases()
        self.schema: Schema | None = None
        self.record_bytes = 0
        self.cache: Cache | None = None
        self.foresight = Foresight()
        self.bulk_limit: int | None = None  # bytes of one value, where the server tells
        self.call_timeout: float | None = None  # seconds

    def configure(self, config: dict[str, str]) -> None:
        """Takes over what `open` answered.

        Raises:
            BufferDamagedError: a setting is not what it must be.
        """
        self.epoch = config.get("epoch", "")
        self.capacity = stored.number(self.keys, "config", "capacity", config.get("capacity"))
        self.sampler, self.remover = (stored.selector(self.keys, config, which) for which in ("sampler", "remover"))
        self.beta = getattr(self.sampler, "beta", 0.0)
        self.consume = stored.uses(self.keys, config)
        self.lease = stored.lease(self.keys, config)
        self.max_staleness = stored.max_staleness(self.keys, config)
        if "schema" in config:
            self.schema = stored.schema(self.keys, config["schema"], config.get("schema_hash"))
            self.record_bytes = stored.number(self.keys, "config", "record_bytes", config.get("record_bytes"))

    def identity(self) -> dict[str, Any]:
        """What another handle on the same buffer starts from. Holds no data."""
        names = (
            "epoch", "capacity", "sampler", "remover", "beta", "consume", "lease", "schema", "record_bytes", "bulk_limit",
            "lacks", "max_staleness", "writer",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def identify(self, identity: dict[str, Any]) -> None:
        """Takes over an identity."""
        self.__dict__.update(identity)

    def renew(self) -> "Core":
        """The same buffer for another process: no lane, no channel and no random number in common."""
        new = Core(self.keys, self.poll_interval, None, self.clock)
        new.identify(self.identity())
        new.call_timeout = self.call_timeout
        new.keep_payloads(self.cache.limit if self.cache is not None else 0)
        return new

    def keep_payloads(self, limit: int) -> None:
        """Has a cache of so many bytes; 0: none."""
        self.cache = Cache(limit) if limit else None

    def bound(self, seconds: float) -> float:
        """What bounds a call that is given no timeout: the handle's, if it has one; else `seconds`."""
        return seconds if self.call_timeout is None else self.call_timeout

    @property
    def dates(self) -> bool:
        """Whether the buffer keeps the version of each record."""
        return self.max_staleness is not None or self.sampler.dates or self.remover.dates

    def seeds(self) -> list[int]:
        """Six seeds for a draw, as the script wants them."""
        bits = self.random.getrandbits(192)
        return [1 + (bits >> 32 * i) % 2**32 % ((M1 if i < 3 else M2) - 1) for i in range(6)]

    @property
    def max_batch(self) -> int:
        """Records that one draw takes at most."""
        return min(self.sampler.max_batch, MAX_RANDOM) if self.weighs or self.dates else self.sampler.max_batch

    @property
    def step(self) -> int:
        """Records that one script changes at most: so many that others do not wait long."""
        return MAX_NOTED if self.weighs or self.dates else MAX_ENDS

    @property
    def weighs(self) -> bool:
        """Whether records have priorities."""
        return self.sampler.weighs or self.remover.bins or self.remover.heap

    def weigh_by(self, alpha: float) -> None:
        """This is the exponent of priorities now: of the sampler and the remover, where they go by one."""
        self.sampler, self.remover = self.sampler.weighing_by(alpha), self.remover.weighing_by(alpha)

    def gave(self, index: int) -> None:
        """The server has given this index: to a record that was written here, or drawn."""
        self.given = max(self.given, index)

    def take_lane(self, holder: int) -> Lane | None:
        """The lane on top of the stack, or a new one, for the thread `holder`; None where LANES are in use.

        One that an interrupt let go of is collected, and counts no more: there is no lock and no count to get wrong.
        """
        try:
            lane = self.lanes.pop()
        except IndexError:
            if len(self._all) >= LANES:
                return None
            lane = Lane()
            self._all.add(lane)
        lane.holder = holder
        return lane

    @property
    def idle(self) -> bool:
        """Whether every lane is back."""
        return len(self.lanes) >= len(self._all)

    def take_back(self, lane: Lane) -> None:
        """What the lane's last number gave has not reached the caller: its next request undoes it."""
        lane.open_number = lane.open_number or lane.number
        self.leases.end([f"{lane.name}.{lane.number}"])  # as lua/sample.lua names it

    def withdraw_lane(self, lane: Lane, holder: int) -> bool:
        """Takes a lane off the stack if an interrupted call had put it back already. Whether the call has it: not if another
        thread took it meanwhile.
        """
        if lane.holder != holder:
            return False
        with suppress(ValueError):
            self.lanes.remove(lane)
        return True

    def put_lane(self, lane: Lane) -> None:
        """Back on the stack. Those with an open number lie on top, so that the next call settles them."""
        if lane.open_number:
            self.lanes.append(lane)
        else:
            self.lanes.insert(sum(not other.open_number for other in tuple(self.lanes)), lane)
