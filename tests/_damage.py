"""A buffer whose keys a test damages one by one, and what must be there after a repair."""

import io

import numpy as np

from redis_replay import ReplayBuffer, checkpoint, doctor
from redis_replay._blocks import Writer
from redis_replay._keys import KINDS
from redis_replay._ops_dump import dump
from redis_replay.exceptions import RepairError
from redis_replay.limiters import Queue
from redis_replay.samplers import Fifo, Prioritized
from tests._contract import SMALL, RawLane, Records, contents

ROWS = Records(SMALL)
BUFFERS = {
    "ring": {},
    "queue": {"consume_after_n_samples": 1, "rate_limiter": Queue(9), "sampler": Fifo()},
    "thrice": {"consume_after_n_samples": 3},
    "weighed": {"sampler": Prioritized(alpha=0.7, beta=1.0, normalize="buffer")},
    "dated": {"max_staleness": 2},
}
WAYS = ("deleted", "string", "taken", "spoiled")


class Scene:
    """A buffer with records, leases, holds and records on their way out, as it is, and as it shall be after a repair."""

    def __init__(self, server, name, kind):
        self.server, self.name, self.kind, self.client = server, name, kind, server.client()
        self.buffer = ReplayBuffer(server.target(), name, capacity=9, **BUFFERS[kind])
        self.reader = ReplayBuffer(server.target(), name)
        self.raw = RawLane(self.client, name).register()
        for i in range(9):
            self.buffer.add(ROWS.one(i), **self.about(i))
        if kind in ("queue", "thrice"):
            self.reader.sample(2)
            self.reader.sample(2, lease=600.0)
        else:
            assert self.raw.sample(3)[0] == "OK"
            self.buffer.remove([3, 5])
            self.buffer.extend(ROWS.many(9, 14), **({"priority": np.arange(5.0)} if kind == "weighed" else {}))
            self.buffer.remove([12])
        assert RawLane(self.client, name, "waiter").register().wait(9, take=9, wait=1)[0] == "NOT_READY"
        self.sound = {key: self.client.dump(key) for key in self.keys()}
        self.records = self.dumped()
        self.restore()

    def about(self, i):
        return {"weighed": {"priority": i / 2}, "dated": {"version": i // 4}}.get(self.kind, {})

    def keys(self):
        return sorted(self.client.scan_iter(match=f"rr:{{{self.name}}}:*", count=1000))

    def key(self, what):
        return f"rr:{{{self.name}}}:{what}"

    def restore(self):
        self.client.delete(*self.keys())
        for key, value in self.sound.items():
            self.client.restore(key, 0, value)

    def dumped(self):
        """Index -> payload, uses, priority, version of each record in the buffer, what is lent included."""
        file = io.BytesIO()
        self.buffer._read("dumps", dump, Writer(file).write, 2**30, None)
        out = {}
        for page in checkpoint.open(file.getvalue()).pages():
            columns = (page.payload, page.uses.tolist(), page.priority.tolist(), page.version.tolist())
            out |= dict(zip(page.index.tolist(), zip(*columns, strict=True), strict=True))
        return out

    def damage(self, what, way):
        """Whether there is something to be damaged."""
        key, client = self.key(what), self.client
        if way == "string":
            client.delete(key)
            client.set(key, "mine")
            return True
        if not client.exists(key):
            return False
        if way == "deleted":
            return client.delete(key) == 1
        return bool(getattr(self, "_" + KINDS[what])(key, way))

    def _hash(self, key, way):
        name = {self.key("config"): "skipped", self.key("counters"): "sampleable_size"}.get(key)
        field = name or min(self.client.hkeys(key))
        return self.client.hset(key, field, "mine") + 1 if way == "spoiled" else self.client.hdel(key, field)

    def _zset(self, key, way):
        taken = self.client.zpopmax(key)
        if way == "spoiled":
            self.client.zadd(key, {"mine": 5})
        return taken

    def _set(self, key, way):
        if way == "spoiled":
            self.client.sadd(key, "mine")
        return self.client.srem(key, min(self.client.smembers(key) - {b"mine"}))

    def _stream(self, key, way):
        if way == "spoiled":
            return self.client.xadd(key, {"d": "mine"}, id="0-99")
        return self.client.xdel(key, self.client.xrange(key)[-1][0])

    def repair(self, tmp_path):
        """What it came to: repaired, unseen, or the key that is lost for good."""
        before = contents(self.client)
        path = tmp_path / "before.ckpt"
        try:
            done = doctor.repair(self.server.target(), self.name, path)
        except RepairError as error:
            assert contents(self.client) == before
            assert not path.exists()
            return error.key.rpartition(":")[2]
        assert done.after.ok
        if done.path is None:
            assert contents(self.client) == before
            return "unseen"
        assert path.exists()
        assert done.did
        return "repaired"

    def check(self, bytes_gone=()):
        """All that has bytes is there, and the handles that were open go on."""
        assert self.buffer.doctor().ok
        expected = {index: record for index, record in self.records.items() if index not in bytes_gone}
        assert self.dumped() == expected
        stats = self.buffer.stats()
        gone = sum(stats[name] for name in ("consumed", "evicted", "removed", "stale"))
        assert stats["write_count"] == stats["sampleable_size"] + stats["hidden"] + stats["leased"] + gone
        top = max(self.records)
        assert self.buffer.add(ROWS.one(99), **self.about(9)) > top
        self.reader.sample(1)
        assert self.buffer.doctor().ok

    def close(self):
        self.restore()
        self.buffer.delete()
        for handle in (self.buffer, self.reader):
            handle.close()
