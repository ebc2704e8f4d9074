"""What the contract tests share: records of both sizes, everything that a server holds, and raw requests on a lane."""

import contextlib
import itertools
import time
from dataclasses import dataclass

import numpy as np
import pytest

from redis_replay._keys import Keys
from redis_replay._lua import header, load
from tests._helpers import SOON
from tests._server import REAL

AGE = {"seconds_since_write": 0}  # what goes on by itself in stats
SIZES = [1, 1000, 7999, 8000, 8001, 20_000]  # around the 8,000 values that Lua's stack takes
ANY_SIZE = pytest.mark.parametrize(  # fakeredis has the same Lua, and needs 9 s to evict or consume 20,000 records one by one
    ("server", "n"), [*itertools.product(REAL, SIZES), *[("fakeredis", n) for n in (1, 1000, 8001)]], indirect=["server"]
)
SMALL, LARGE = 2, 1500  # float32 values in a record's `x`: it goes through add.lua, or as a native XADD between the gates


@dataclass(frozen=True)
class Records:
    """Numbered records of one size: `i` is the number, every value of `x` is the number, too."""

    width: int

    def one(self, i):
        return {"i": np.int64(i), "x": np.full(self.width, i, np.float32)}

    def many(self, low, high):
        numbers = np.arange(low, high, dtype=np.int64)
        return {"i": numbers, "x": np.repeat(numbers[:, None], self.width, 1).astype(np.float32)}


def numbers(batch):
    """The numbers of a batch's records, after a look at their other leaf."""
    assert (batch["x"] == batch["i"][:, None].astype(np.float32)).all()
    return batch["i"].tolist()


def stored_numbers(buffer):
    """The numbers of all stored records, by index."""
    return [int(record["i"]) for record in buffer.records()]


@contextlib.contextmanager
def refused(kind, seconds=SOON):
    """`pytest.raises`, and it must come in time."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        yield caught
    assert time.monotonic() - started < seconds


def contents(client, leave_out=()):
    """Everything that a database holds, by key, in a form that can be compared; without the keys that end with a name of
    `leave_out`, and without the clock, which goes on whatever is refused."""
    keys = sorted(key for key in client.scan_iter(count=1000) if not key.decode().endswith(tuple(leave_out)))
    return {key.decode(): (client.type(key), _value(client, key)) for key in keys}


def _value(client, key):
    kind = client.type(key)
    if kind == b"hash":
        fields = client.hgetall(key)
        return {k: v for k, v in fields.items() if not (key.endswith(b":counters") and k in (b"clock", b"clock_offset"))}
    if kind == b"stream":
        return client.xinfo_stream(key)["last-generated-id"], client.xrange(key)
    if kind == b"zset":
        return client.zrange(key, 0, -1, withscores=True)
    if kind == b"set":
        return client.smembers(key)
    return client.lrange(key, 0, -1) if kind == b"list" else client.get(key)


REMEMBERED = (":requests", ":lanes", ":waiters", ":waiting")  # the traces that a refused request may leave


@contextlib.contextmanager
def nothing_changes(client, leave_out=REMEMBERED):
    """What the database holds is the same after as before."""
    before = contents(client, leave_out)
    yield
    assert contents(client, leave_out) == before


WHERE = {
    "stage": "copy",
    "restore": "copy",
    "swap": "both",
    "mend": "both",
}  # whose keys a script is given, if not the buffer's


class RawLane:
    """A lane whose requests a test numbers itself, straight to the scripts. Replies are lists of text; payloads stay bytes.

    `epoch` is that of the buffer when the lane was made.
    """

    def __init__(self, client, name, lane="raw"):
        self.client = client
        self.keys = Keys(name)
        self.name = lane
        self.number = 0
        self.epoch = client.hget(self.keys.key("config"), "epoch")
        self.channel = self.keys.wake(lane)
        self.seeds = [1, 2, 3, 4, 5, 6]

    def __call__(self, verb, number=None, open_number=0, epoch=None, **arguments):
        """Sends a request with these arguments, by their names in the script's header; by default the next number."""
        return _as_text(self.client.eval(*self.command(verb, number, open_number, epoch, **arguments)))

    def command(self, verb, number=None, open_number=0, epoch=None, **arguments):
        """What EVAL takes for a request."""
        arguments |= {"epoch": epoch or self.epoch, "lane": self.name, "open_number": open_number}
        slots = header(verb).argv
        if any(slot.name == "number" for slot in slots):
            arguments["number"] = self.number + 1 if number is None else number
            self.number = max(arguments["number"], self.number)
        values = [arguments[slot.name] for slot in slots]
        flat = [v for value in values for v in (value if isinstance(value, list | tuple) else [value])]
        keys = {"copy": self.keys.copy.all, "both": (*self.keys.all, *self.keys.copy.all)}.get(WHERE.get(verb), self.keys.all)
        return load(verb).text, len(keys), *keys, *flat

    def register(self):
        assert self("settle", forget=0)[0] == "OK"
        return self

    def settle(self, **kwargs):
        """An empty request, the lane's next."""
        return self("settle", forget=0, **kwargs)

    def write(self, rows, **kwargs):
        """As `extend` does: by add.lua, or through the gate where the records are large."""
        return self.add(rows, **kwargs) if rows.largest <= 4096 else self.gate(rows, **kwargs)[0]

    def add(self, rows, **kwargs):
        """A write of small records."""
        return self("add", payload=rows.payloads(), **about(rows) | kwargs)

    def gate(self, rows, steps=("open", "adds", "close"), number=None, **kwargs):
        """A write of large records: the answers of the gates that are sent, or what the server says instead."""
        number = self.number + 1 if number is None else number
        pipeline = self.client.pipeline(transaction=True)
        for step in steps:
            if step == "adds":
                for payload in rows.payloads():
                    pipeline.xadd(self.keys.key("inbox"), {"d": payload}, id="0-*", nomkstream=True)
            else:
                pipeline.eval(*self.command("gate", number, step=step, n=len(rows), **about(rows) | kwargs))
        replies = pipeline.execute(raise_on_error=False)
        gates = [reply for reply in replies if isinstance(reply, list)]
        return [_as_text(reply) for reply in gates] or replies

    def sample(self, n, need=None, *, wait=0, shutdowns=-1, lease=0, **kwargs):
        """One draw, which joins the line with wait=1; `lease` in seconds."""
        about = {"batch_size": n, "min_items": n if need is None else need, "lease_us": int(lease * 1e6)}
        about |= {"with_bytes": 1, "foreseen": ""}
        return self("sample", seed=self.seeds, **about, **self._standing(wait, shutdowns), **kwargs)

    def wait(self, need, take=0, *, side="r", wait=0, shutdowns=-1, **kwargs):
        """One look at whether enough is there."""
        kwargs = {"turn_us": 500_000} | kwargs
        return self("wait", side=side, min_items=need, take=take, **self._standing(wait, shutdowns), **kwargs)

    def _standing(self, wait, shutdowns):
        return {"wait": wait, "keep_place": 0, "poll_us": 1_000_000, "shutdowns": shutdowns, "channel": self.channel}

    def counters(self):
        """Every counter but the clock's, as it is stored."""
        stored = self.client.hgetall(self.keys.key("counters"))
        return {k.decode(): int(v) for k, v in stored.items() if not k.startswith(b"clock")}

    def pass_time(self, seconds):
        """Lets the buffer's own clock go forward."""
        self.client.hincrby(self.keys.key("counters"), "clock_offset", int(seconds * 1e6))


def about(rows):
    """What a write says about its records."""
    sizes = [len(payload) for payload in rows.payloads()]
    described = {"record_bytes": max(sizes), "total_bytes": sum(sizes)}
    described |= {"schema_hash": rows.schema.hash, "schema": rows.schema.text}
    return described | {"priority": "", "seed": "", "origin": "", "keep_place": 0}


def _as_text(reply):
    out = []
    for part in reply:
        try:
            out.append(part.decode() if isinstance(part, bytes) else part)
        except UnicodeDecodeError:
            out.append(part)
    return out
