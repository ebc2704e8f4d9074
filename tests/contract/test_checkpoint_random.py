"""A dump amid all that a buffer can go through is the dump of the moment when it began."""

import contextlib
import random

import numpy as np
import pytest

from redis_replay import _handle as h
from redis_replay import _ops_sample as draw
from redis_replay import checkpoint
from redis_replay.exceptions import ReplayError
from tests._contract import SMALL, Records
from tests.contract.test_checkpoint import KINDS, lived

COLUMNS = ("index", "payload", "uses", "priority", "version", "writer")


def told(path):
    """All that a checkpoint holds, to be compared."""
    saved = checkpoint.open(path)
    columns = {name: [value for page in saved.pages() for value in getattr(page, name)] for name in COLUMNS}
    return columns | {"counters": saved.counters, "shares": saved.shares, "config": saved.config, "last": saved.last}


class Life:
    """Random calls on a buffer through two handles."""

    def __init__(self, buffer, other, rng):
        self.buffer, self.other, self.rng = buffer, other, rng
        self.leases, self.number = [], 2000

    def step(self):
        index = [self.rng.randint(1, 160) for _ in range(self.rng.randint(1, 20))]
        calls = [
            self.write, self.write, self.draw, self.draw, self.lend, self.end,
            lambda: self.buffer.remove(index[:5]),
            lambda: self.buffer.update_priority(index, [self.rng.choice([0.0, 0.5, 3.0, 90.0]) for _ in index]),
            lambda: self.buffer.set_version(self.buffer.stats()["version"] + 1),
            self.undo,
        ]  # fmt: skip
        with contextlib.suppress(ReplayError):  # too few, no priorities here, and so on: what is refused changes nothing
            self.rng.choice(calls)()

    def write(self):
        n = self.rng.choice([1, 3, 30])
        self.other.extend(Records(SMALL).many(self.number, self.number + n), timeout=0)
        self.number += n

    def draw(self):
        self.rng.choice([self.buffer, self.other]).sample(self.rng.choice([1, 4, 9]))

    def lend(self):
        self.leases.append(self.other.sample(4, True, lease=500.0)[1].lease)

    def end(self):
        if self.leases:
            self.rng.choice([self.other.ack, self.other.release])(self.leases.pop())

    def undo(self):
        """A draw whose reply does not arrive goes back with the lane's next request."""
        handle = self.buffer
        lane = handle._now.core.take_lane(0)
        try:
            wish = h.draw_wish(handle._now.core, None, 3, None, False, h.Patience(None, None, None), None)
            handle._now.drive(draw.sample(handle._now.core, lane, wish, lambda core, drawn: None))
            handle._now.core.take_back(lane)
        finally:
            handle._now.core.put_lane(lane)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dump_amid_everything_is_of_its_moment(real_server, make_buffer, tmp_path, monkeypatch, seed, kind):
    monkeypatch.setattr("redis_replay._ops_dump.PAGE_RECORDS", 7)
    rng = random.Random(f"{seed}{kind}")
    buffer = lived(make_buffer, kind)
    other = make_buffer(attach=True)
    life = Life(buffer, other, rng)
    for _ in range(30):
        life.step()
    buffer.stats()
    buffer.dumps(tmp_path / "quiet")
    buffer.dumps(tmp_path / "amid", progress=lambda *_: [life.step() for _ in range(4)])
    assert told(tmp_path / "amid") == told(tmp_path / "quiet")
    assert buffer.doctor().findings == ()
    buffer.loads(tmp_path / "amid")
    assert buffer.doctor().findings == ()
    buffer.dumps(tmp_path / "again")
    again, amid = told(tmp_path / "again"), told(tmp_path / "amid")
    for each in (again, amid):  # what was lent is live again, and the newest index stays where it was
        del each["last"]
        each["config"].pop("skipped", None)
        each["counters"]["live"] = sum(each["counters"].pop(name) for name in ("sampleable_size", "hidden", "leased"))
        del each["counters"]["storage_size"]
    assert again == amid
    for _ in range(20):
        life.step()
    assert buffer.doctor().findings == ()
    assert np.all(np.diff(amid["index"]) > 0)
