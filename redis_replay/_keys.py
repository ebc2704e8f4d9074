"""Every key and channel of a buffer: the only place where one is spelled."""

import re
from dataclasses import dataclass, replace
from functools import cached_property

from redis_replay.exceptions import ArgumentError, ArgumentTypeError

# In the order of KEYS in lua/include/keys.lua; a test compares the two.
NAMES = (
    "config", "counters", "records", "inbox", "order", "holes", "uses", "parting", "held", "holds", "leases", "leased",
    "priorities", "places", "buckets", "ranked", "versions", "authors", "shares", "noted", "kept", "lanes", "requests",
    "writers", "waiters", "waiting", "none", "events",
)  # fmt: skip

# What is stored under each of them, but for the last two, which are no keys of ours; as lua/open.lua judges them.
KINDS = dict(zip(NAMES, (
    "hash", "hash", "stream", "stream", "zset", "zset", "hash", "set", "hash", "zset", "zset", "hash", "hash",
    "hash", "hash", "zset", "zset", "hash", "hash", "hash", "zset", "zset", "hash", "zset", "zset", "hash",
), strict=False))  # fmt: skip

_WORD = re.compile(r"[A-Za-z0-9_.\-/:@+=]+")


def check_word(what: str, value: object, most: int) -> str:
    """`value` if it can name something: a buffer, a writer.

    Raises:
        ArgumentTypeError: it is not a str.
        ArgumentError: it is empty, longer than `most`, or holds a character outside A-Z a-z 0-9 _ . - / : @ + =.
    """
    allowed = f"1 to {most} characters of A-Z a-z 0-9 _ . - / : @ + ="
    if not isinstance(value, str):
        raise ArgumentTypeError(name=what, allowed=allowed, found=value)
    if len(value) > most or not _WORD.fullmatch(value):
        raise ArgumentError(name=what, allowed=allowed, found=value)
    return value


def check_name(name: object) -> str:
    """`name` if it can name a buffer, as `check_word`."""
    return check_word("name", name, 200)


@dataclass(frozen=True)
class Keys:
    """The keys of the buffer `name`. All share the hash tag {name}, so they sit in one cluster slot."""

    name: str
    db: int = 0
    part: str = ""  # `new:`: of the copy that a load builds beside the buffer

    def key(self, what: str) -> str:
        """The key that holds `what`, one of NAMES."""
        return f"rr:{{{self.name}}}:{self.part}{what}"

    @property
    def copy(self) -> "Keys":
        """Those of the copy that a load builds beside the buffer, and then puts in its place."""
        return replace(self, part="new:")

    @cached_property
    def all(self) -> tuple[str, ...]:
        """KEYS of every script. The last two are no stored keys: one that is never there, and a channel."""
        return (*map(self.key, NAMES[:-1]), self.events)

    @property
    def events(self) -> str:
        """The channel of state changes. Pub/sub knows no database numbers, so the channel carries it."""
        return self.key("events") + self.suffix

    def wake(self, client: str) -> str:
        """The channel where one client's waiters get their notices."""
        return self.key("wake") + f":{client}" + self.suffix

    @property
    def suffix(self) -> str:
        return f":db{self.db}" if self.db else ""
