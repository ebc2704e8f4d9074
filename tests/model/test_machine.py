"""Random histories of a buffer, compared with a plain-Python one after each step, the doctor's verdict included.

Two handles of the public interface (`a` and `b`) and two raw lanes, whose replies may be lost and whose draws are undone.
"""

import contextlib
import itertools
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from redis_replay import LeasesEnded, ReplayBuffer, Updated
from redis_replay.exceptions import (
    ArgumentError,
    BufferFullError,
    BufferShutDownError,
    NotReadyError,
    RecordNotFoundError,
    ReplayTimeoutError,
)
from redis_replay.limiters import MinSize, Queue, SampleToInsertRatio
from redis_replay.samplers import Fifo, Freshest, Lifo, MaxHeap, MinHeap, Prioritized, Uniform
from tests._bins import SIZE, Bins, finish
from tests._contract import RawLane
from tests._model import Model, RefusedError
from tests._server import in_turn

NAMES = itertools.count()
HANDLES = st.sampled_from("ab")
LANES = st.sampled_from(("lost_1", "lost_2"))
SIZES = st.sampled_from((0, 8, 5000))  # of a record's bytes: both ways of writing, in one buffer
LEAST = st.sampled_from((1, 1, 1, 2, 4))  # most draws find enough
REMOVERS = (
    Freshest(),
    Fifo(), Fifo(), Uniform(), Lifo(), MaxHeap(), MinHeap(), Prioritized(alpha=0.6, beta=0.0),
    Prioritized(alpha=1.0, beta=0.0, eps=0.0),
)  # fmt: skip
SEEDS = st.tuples(*[st.integers(1, 4294944442)] * 6)
LAGS = st.sampled_from((0, 0, 0, 1, 2, 4, -1))  # -1: of a version that the buffer does not have yet
PRIORITIES = st.sampled_from((0.0, 1e-6, 0.3, 0.7, 1.0, 1.5, 40.0, 1e9))
BY_PRIORITY = Prioritized(alpha=0.6, beta=0.4), Prioritized(alpha=1.0, beta=0.4, eps=0.0, replacement=False, normalize="buffer")
LIMITERS = st.sampled_from((
    None, None, None, MinSize(2), Queue(2), Queue(3), Queue(5), SampleToInsertRatio(1.5, 1, 6),
    SampleToInsertRatio(0.5, 2, (-3.5, 8.0)), SampleToInsertRatio(4, 1, (-30.0, 40.0)), SampleToInsertRatio(1, 1, 12),
))  # fmt: skip
OUT = st.sampled_from((*["remove"] * 6, "empty", "empty and reset"))

WHY = {
    BufferShutDownError: lambda error: ("SHUT",),
    BufferFullError: lambda error: ("FULL", error.capacity),
    NotReadyError: lambda error: ("NOT_READY", error.have, error.need),
    ReplayTimeoutError: lambda error: ("NOT_READY", error.have, error.need),
    ArgumentError: lambda error: (
        ("NEVER", error.found) if "lets through" in error.allowed else ("LOWER", int(re.search(r"\d+", error.allowed)[0]))
    ),
}


def has_records(machine):
    return machine.model.live or machine.value % 4 == 0


class Machine(RuleBasedStateMachine):
    """The rules. `server` is set by the test."""

    server = None

    @initialize(
        capacity=st.integers(1, 7),
        sampler=st.sampled_from(
            [Uniform(), Uniform(replacement=False), Fifo(), Lifo(), MaxHeap(), MinHeap(), Freshest(), *BY_PRIORITY]
        ),
        remover=st.sampled_from(REMOVERS),
        consume=st.sampled_from([None, 1, 1, 2, 2, 3]),
        limit=st.sampled_from([None, None, 0, 1, 3]),
        limiter=LIMITERS,
        sizes=st.lists(SIZES, min_size=1, max_size=10),
    )
    def create(self, capacity, sampler, remover, consume, limit, limiter, sizes):
        name = f"m{next(NAMES)}"
        if sampler.bins and remover.bins:  # there is one set of weights
            remover = sampler
        if isinstance(limiter, Queue):  # which is for such buffers; `pace` brings it to others, too
            consume, capacity = 1, max(capacity, limiter.size)
        options = {
            "capacity": capacity, "sampler": sampler, "remover": remover, "consume_after_n_samples": consume,
            "max_staleness": limit,
        }  # fmt: skip
        self.handles = {"a": ReplayBuffer(self.server.target(), name, seed=1, **options)}
        self.handles["b"] = ReplayBuffer(self.server.target(), name, seed=2)
        for who, handle in self.handles.items():
            handle.writer = who
        self.client = self.server.client()
        self.lanes = {lane: RawLane(self.client, name, lane).register() for lane in ("lost_1", "lost_2")}
        for handle in self.handles.values():
            handle._now.core.seeds = lambda: self.seeds
        self.model = Model(capacity, repr(sampler), consume, repr(remover), limit=limit)
        if bins := next((one for one in (sampler, remover) if one.bins), None):
            self.model.bins = Bins(bins.alpha, bins.eps)
        self.value = 0  # of the next record
        self.own = {}  # handle -> the lease of its last draw
        self.write("a", sizes, None, None, (1, 2, 3, 4, 5, 6))
        self.pace("b", limiter)

    def teardown(self):
        if hasattr(self, "handles"):
            self.handles["a"].delete()
            self.handles["b"].close()
            self.client.close()

    def both(self, expected, real, side="r"):
        """Runs both; both give something, or both refuse for the same reason. A handle says more of what never comes."""
        try:
            ours = expected()
        except RefusedError as refusal:
            why = refusal.args
            if why[0] == "NOT_READY" and self.model.never(side, why[2]):
                why = "NEVER", why[2]
            with pytest.raises(tuple(WHY)) as caught:
                real()
            assert WHY[type(caught.value)](caught.value) == why
            return None, None
        return ours, real()

    def look_at_sizes(self):
        """Whether a draw's payloads would follow it: that goes by the mean size of what was written."""
        stored = self.client.hget(self.lanes["lost_1"].keys.key("config"), "record_bytes")
        self.model.fetches = int(stored) > 4096

    @rule(
        who=HANDLES, sizes=st.lists(SIZES, min_size=1, max_size=10),
        priority=st.none() | st.lists(PRIORITIES, min_size=10, max_size=10),
        behind=st.none() | st.lists(LAGS, min_size=10, max_size=10), seeds=SEEDS,
    )  # fmt: skip
    def write(self, who, sizes, priority, behind, seeds):
        self.seeds = list(seeds)
        values = list(range(self.value, self.value + len(sizes)))
        self.value += len(sizes)
        batch = [{"i": value, "b": bytes([value % 256]) * size} for value, size in zip(values, sizes, strict=True)]
        handle = self.handles[who]
        given = priority[: len(sizes)] if priority and self.model.weighs else None
        dated = [max(0, self.model.version - lag) for lag in behind[: len(sizes)]] if behind and self.model.dates else None
        one = {"priority": given and given[0], "version": dated and dated[0]}
        write = partial(handle.extend, batch, priority=given, version=dated, timeout=0)
        if len(batch) == 1:
            write = lambda: np.array([handle.add(batch[0], **one, timeout=0)])  # noqa: E731
        ours, theirs = self.both(lambda: self.model.extend(who, values, given, seeds, dated), write, "w")
        theirs = theirs if theirs is None else theirs.tolist()
        assert ours == theirs

    @precondition(has_records)
    @rule(who=HANDLES, n=st.integers(1, 7), least=LEAST, lent=st.booleans())
    def sample(self, who, n, least, lent):
        """A draw of a handle, which acknowledges what this thread drew before with it."""
        n, least = min(n, self.model.capacity), min(n, least, self.model.capacity)
        lease = 86000.0 if lent and self.model.consume else None
        self.look_at_sizes()
        if mine := self.own.pop(who, None):
            self.model.ack(who, mine)
        self.model.request(who)
        draw = partial(self.handles[who].sample, n, True, min_items=least, lease=lease)
        ours, theirs = self.both(lambda: self.model.batch(n, least), draw)
        if ours is None:
            return
        batch, info = theirs
        indices = info.index.tolist()
        assert len(indices) == ours
        assert set(indices) <= set(self.model.live)
        assert not self.model.distinct or len(set(indices)) == len(indices)
        assert indices == self.model.choose(ours, self.seeds)
        assert [int(i) for i in batch["i"]] == [self.model.live[index] for index in indices]
        assert (info.lease is not None) == (lease is not None)
        if self.model.weighs:
            assert info.priority.tolist() == [self.model.priorities[index] for index in indices]
        if self.model.sampler.startswith("Prioritized"):
            assert info.probability.tolist() == pytest.approx(self.model.bins.probabilities(indices))
        assert self.model.dates == (info.version is not None)
        if self.model.dates:
            assert info.version.tolist() == [self.model.versions[index] for index in indices]
        told, last = self.model.sample(who, indices, info.lease)
        self.own[who] = info.lease
        assert info.last == last
        assert info.times_sampled is None if self.model.consume is None else info.times_sampled.tolist() == told

    @precondition(has_records)
    @rule(
        lane=LANES, n=st.integers(1, 7), least=LEAST, seeds=SEEDS, lost=st.booleans(), again=st.booleans(), lent=st.booleans()
    )
    def draw_on_a_lane(self, lane, n, least, seeds, lost, again, lent):
        """A draw; the seeds say what it gives. `lost`: the reply of the lane's request before. `again`: it is sent twice."""
        least, raw = min(n, least), self.lanes[lane]
        raw.seeds = list(seeds)
        self.look_at_sizes()
        self.model.request(lane, undo=lost)
        lease = 86000 if lent and self.model.consume else 0
        reply = raw.sample(n, least, open_number=raw.number if lost else 0, lease=lease)
        try:
            given = self.model.batch(n, least)
        except RefusedError as refusal:
            data = () if reply[0] == "SHUT" else (int(reply[2]), int(reply[3]))
            assert (reply[0], *data) == refusal.args
            return
        chosen = self.model.choose(given, seeds)
        assert (reply[1], reply[7]) == ("applied" if lost else "-", " ".join(map(str, chosen)))
        assert reply[6] == (f"{lane}.{raw.number}" if lease else "-")
        told, last = self.model.sample(lane, chosen, reply[6] if lease else None)
        assert reply[8] == ("" if self.model.consume is None else " ".join(map(str, told)))
        assert ("l" in reply[5]) == last
        if again and not (self.model.consume is None and not self.model.fetches):
            assert raw.sample(n, least, number=raw.number)[6:8] == reply[6:8]

    @precondition(lambda self: self.model.weighs)
    @rule(who=HANDLES, priority=st.lists(PRIORITIES, min_size=1, max_size=4), data=st.data())
    def update(self, who, priority, data):
        around = st.integers(max(1, self.model.last - 8), self.model.last + 2)
        n = len(priority)
        indices = data.draw(st.lists(around, min_size=n, max_size=n))
        updated = self.handles[who].update_priority(indices, priority)
        pairs = dict(zip(indices, priority, strict=True))
        assert updated == Updated(*self.model.update(who, pairs))

    @precondition(lambda self: self.model.bins)
    @rule(who=HANDLES, alpha=st.sampled_from((0.0, 0.3, 0.6, 1.0, 2.0)))
    def set_alpha(self, who, alpha):
        self.model.set_alpha(who, alpha)
        self.handles[who].set_alpha(alpha)

    @precondition(lambda self: self.value % 4 == 1)
    @rule(who=HANDLES, limiter=LIMITERS)
    def pace(self, who, limiter):
        """Another rate limiter, or none."""
        if limiter is None or max(limiter.law.min_size, getattr(limiter, "size", 1)) <= self.model.capacity:
            self.model.set_rate_limiter(who, limiter)
            self.handles[who].set_rate_limiter(limiter)

    @precondition(lambda self: self.model.dates)
    @rule(who=HANDLES, by=st.sampled_from((-1, 0, 1, 1, 2, 20)))
    def set_version(self, who, by):
        version = max(0, self.model.version + by)
        raise_it = partial(self.handles[who].set_version, version)
        ours, theirs = self.both(lambda: self.model.set_version(who, version), raise_it)
        assert ours == theirs

    @precondition(lambda self: self.model.leases)
    @rule(who=HANDLES, acks=st.booleans(), late=st.booleans(), data=st.data())
    def end_a_lease(self, who, acks, late, data):
        """Any handle may acknowledge or release any lease; one that has ended is late."""
        lease = "nobody.1" if late else data.draw(st.sampled_from(sorted(self.model.leases)))
        verb = "ack" if acks else "release"
        if self.own.get(who) == lease:
            del self.own[who]
        ended = getattr(self.model, verb)(who, lease)
        assert getattr(self.handles[who], verb)(lease) == LeasesEnded(ended, 1 - ended)

    @precondition(lambda self: self.model.leases and self.value % 2)
    @rule()
    def let_leases_run_out(self):
        """Without the clock going on so far that holds lapse, too."""
        leases = self.lanes["lost_1"].keys.key("leases")
        self.client.zadd(leases, {lease: i for i, lease in enumerate(self.client.zrange(leases, 0, -1))})  # in their order
        self.model.let_leases_run_out()
        self.handles["a"].stats()

    @precondition(lambda self: {"lost_1", "lost_2"} & set(self.model.draws))
    @rule(lane=LANES, lost=st.booleans())
    def settle_a_lane(self, lane, lost):
        """The lane's next request: the reply of the draw before it arrived, or it never did and the draw is undone."""
        raw = self.lanes[lane]
        self.model.settle(lane, undo=lost)
        assert raw.settle(open_number=raw.number if lost else 0)[:2] == ["OK", "applied" if lost else "-"]

    @precondition(lambda self: self.model.live)
    @rule(who=HANDLES, n=st.integers(1, 7), data=st.data())
    def look(self, who, n, data):
        """What gives nothing out: can_sample, which is a request of the handle's lane, and get, which is none."""
        index = data.draw(st.integers(0, self.model.last + 2))
        if index == 0:
            self.model.request(who)
            enough = self.model.there() >= n
            possible = self.model.state == "open" and enough
            possible = possible or (self.model.state == "draining" and (enough or not self.model.leases))
            assert self.handles[who].can_sample(n) is possible
        elif index in self.model.present | self.model.leased:
            assert self.handles[who].get(index)["i"] == (self.model.present | self.model.leased)[index]
        else:
            with pytest.raises(RecordNotFoundError):
                self.handles[who].get(index)

    @precondition(has_records)
    @rule(who=HANDLES, how=OUT, data=st.data())
    def take_out(self, who, how, data):
        if how == "remove":
            around = st.integers(max(1, self.model.last - 8), self.model.last + 2)
            indices = data.draw(st.lists(around, min_size=1, max_size=3))
            assert self.handles[who].remove(indices) == self.model.remove(who, indices)
        else:
            reset = how == "empty and reset"
            self.model.empty(who, reset)
            self.handles[who].empty(empty_write_count=reset)

    @precondition(lambda self: self.model.state != "open" or self.value % 4 == 3)
    @rule(who=HANDLES, drain=st.booleans(), reopen=st.booleans())
    def shut_or_open(self, who, drain, reopen):
        if self.model.state == "open" or (self.model.state == "draining" and not reopen):
            self.model.shutdown(who, drain)
            self.handles[who].shutdown(drain)
        else:
            self.model.reopen(who)
            self.handles[who].reopen()

    @precondition(lambda self: self.model.draws and self.value % 3 == 0)
    @rule(hour=st.booleans())
    def let_time_pass(self, hour):
        """Longer than a hold lasts, or than an unused lane is known."""
        self.lanes["lost_1"].pass_time(3601 if hour else 61)
        for _ in range(4):  # each script reclaims at most two holds and two lanes
            self.handles["a"].stats()
        if not hour:
            self.model.let_holds_lapse()
            return
        self.model.forget_lanes()
        for raw in self.lanes.values():
            raw.register()

    @invariant()
    def contents_are_equal(self):
        with self.started():
            stored = [int(record["i"]) for record in self.handles["a"].records()]
            assert stored == [value for _, value in sorted((self.model.present | self.model.leased).items())]

    @invariant()
    def counters_are_equal(self):
        with self.started():
            ours, theirs = self.model.counters(), self.handles["b"].stats()
            assert {name: theirs[name] for name in ours} == ours
            assert (theirs["lag"], theirs["by_writer"]) == (self.model.lags(), self.model.shares)
            if self.model.pace and self.model.pace.high < float("inf"):  # else only the size counts
                assert theirs["limiter_difference"] == self.model.pace.difference

    @invariant()
    def uses_are_equal(self):
        with self.started():
            stored = self.client.hgetall(self.lanes["lost_1"].keys.key("uses"))
            counted = (self.model.consume or 0) > 1
            there = self.model.present | self.model.leased
            ours = {i: n for i, n in self.model.uses.items() if counted and n and i in there}
            assert {int(i): int(n) for i, n in stored.items() if int(i) in there} == ours

    @invariant()
    def weights_are_equal(self):
        with self.started():
            if self.model.bins:
                keys, bins, priorities = self.lanes["lost_1"].keys, self.model.bins, self.model.priorities
                bins.settle()
                there = sorted({index // SIZE for index in priorities})
                stored = {int(n): np.frombuffer(text, "<f8") for n, text in self.client.hgetall(keys.key("priorities")).items()}
                assert sorted(stored) == there
                for number, text in stored.items():
                    each = [priorities.get(number * SIZE + spot, -1.0) for spot in range(SIZE)]
                    weights = bins.blocks[number].weights
                    assert text[5:].tolist() == weights + each
                    assert text[:3].tolist() == [
                        pytest.approx(sum(weights)),
                        sum(w > 0 for w in weights),
                        sum(p >= 0 for p in each),
                    ]
                rows = {k: np.frombuffer(text, "<f8").tolist() for k, text in self.client.hgetall(keys.key("places")).items()}
                assert rows == {b"%d 0" % k: row for k, row in bins.rows.items()}
                for k, text in self.client.hgetall(keys.key("buckets")).items():
                    n, *more = text.split()
                    if k == b"idle":
                        assert int(n) == len(there) - sum(map(len, rows.values()))
                        continue
                    held = [bins.blocks[number] for number in bins.rows[int(k)]]
                    parts = [sum(block.weights) / finish(int(k)) for block in held]
                    assert (int(n), float(more[0])) == (len(parts), pytest.approx(sum(parts), rel=1e-9))
                    assert int(more[1]) == sum(weight > 0 for block in held for weight in block.weights)

    @invariant()
    def the_doctor_is_content(self):
        with self.started():
            assert self.handles["a"].doctor().findings == ()

    def started(self):
        """Hypothesis asks for the invariants before `create`, too."""
        return contextlib.nullcontext() if hasattr(self, "handles") else contextlib.suppress(AttributeError)


def run(server, examples, steps):
    run_state_machine_as_test(
        type("Machine", (Machine,), {"server": server}),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.timeout(400)  # a failure is made as short as it can be, which takes minutes
@pytest.mark.parametrize(
    ("real_server", "examples"),
    [("valkey", 25), *[pytest.param(*turn, marks=pytest.mark.slow) for turn in in_turn([(60,)] * 2)]],
    indirect=["real_server"],
)
def test_a_history_equals_the_models(real_server, examples):
    """On a real server the buffer and its model agree after every step of random histories."""
    run(real_server, examples, steps=50)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)
def test_a_history_on_the_fake_equals_the_models(server):
    """On fakeredis, too."""
    run(server, examples=12, steps=25)
