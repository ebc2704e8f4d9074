"""Random histories of a buffer, compared with a plain-Python one after each step, the doctor's verdict included.

Two handles of the public interface (`a` and `b`) and two raw lanes, whose draws may be lost on the way and undone.
"""

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from redis_replay import ReplayBuffer
from redis_replay.exceptions import BufferShutDownError, NotReadyError, RecordNotFoundError
from redis_replay.samplers import Fifo, Lifo, Uniform
from tests._contract import RawLane
from tests._model import Model, Refused

import os
from hypothesis import Phase
PHASES=(Phase.generate,) if os.environ.get('NOSHRINK') else list(Phase)
NAMES = itertools.count()
HANDLES = st.sampled_from("ab")
LANES = st.sampled_from(("lost-1", "lost-2"))
SIZES = st.sampled_from((0, 8, 5000))  # of a record's bytes: both ways of writing, in one buffer
SEEDS = st.tuples(*[st.integers(1, 4294944442)] * 6)


class Machine(RuleBasedStateMachine):
    """The rules. `server` is set by the test."""

    server = None

    @initialize(
        capacity=st.integers(1, 7),
        sampler=st.sampled_from([Uniform(), Uniform(replacement=False), Fifo(), Lifo()]),
        consume=st.sampled_from([None, 1, 1, 2, 3]),
    )
    def create(self, capacity, sampler, consume):
        name = f"m{next(NAMES)}"
        options = {"capacity": capacity, "sampler": sampler, "consume_after_n_samples": consume}
        self.handles = {"a": ReplayBuffer(self.server.target(), name, seed=1, **options)}
        self.handles["b"] = ReplayBuffer(self.server.target(), name, seed=2)
        self.client = self.server.client()
        self.lanes = {lane: RawLane(self.client, name, lane).register() for lane in ("lost-1", "lost-2")}
        self.model = Model(capacity, repr(sampler), consume)
        self.value = 0
        self.large = None  # whether a draw's payloads are fetched after it, once the first write has fixed that

    def teardown(self):
        if hasattr(self, "handles"):
            self.handles["a"].delete()
            self.handles["b"].close()
            self.client.close()

    def _both(self, expected, real):
        """Runs both; both give something, or both refuse for the same reason."""
        try:
            ours = expected()
        except Refused as refusal:
            with pytest.raises((BufferShutDownError, NotReadyError)) as caught:
                real()
            theirs = caught.value
            numbers = () if isinstance(theirs, BufferShutDownError) else (theirs.have, theirs.need)
            assert ("NOT_READY" if numbers else "SHUT", *numbers) == refusal.args
            return None, None
        return ours, real()

    def _learn_size(self):
        stored = self.client.hget(self.lanes["lost-1"].keys.key("config"), "record_bytes")
        self.model.fetches = stored is not None and int(stored) > 4096

    @rule(who=HANDLES, sizes=st.lists(SIZES, min_size=1, max_size=10))
    def extend(self, who, sizes):
        values = list(range(self.value, self.value + len(sizes)))
        self.value += len(sizes)
        batch = [{"i": value, "b": bytes([value % 256]) * size} for value, size in zip(values, sizes, strict=True)]
        ours, theirs = self._both(
            lambda: self.model.extend(who, values), lambda: self.handles[who].extend(batch).tolist()
        )
        assert ours == theirs
        self._learn_size()

    @rule(who=HANDLES, size=SIZES)
    def add(self, who, size):
        value, self.value = self.value, self.value + 1
        ours, theirs = self._both(
            lambda: self.model.extend(who, [value]), lambda: [self.handles[who].add({"i": value, "b": b"\1" * size})]
        )
        assert ours == theirs
        self._learn_size()

    @rule(who=HANDLES, n=st.integers(1, 7), least=st.integers(1, 7))
    def sample(self, who, n, least):
        n, least = min(n, self.model.capacity), min(n, least, self.model.capacity)
        self.model.request(who)
        ours, theirs = self._both(
            lambda: self.model.batch(n, least), lambda: self.handles[who].sample(n, True, min_items=least)
        )
        if ours is None:
            return
        batch, info = theirs
        indices = info.index.tolist()
        assert len(indices) == ours
        assert set(indices) <= set(self.model.live)
        assert not self.model.distinct or len(set(indices)) == len(indices)
        if not self.model.sampler.startswith("Uniform"):
            assert indices == self.model.choose(ours, None)
        assert [int(i) for i in batch["i"]] == [self.model.live[index] for index in indices]
        told, last = self.model.sample(who, indices)
        assert info.last == last
        assert info.times_sampled is None if self.model.consume is None else info.times_sampled.tolist() == told

    @rule(lane=LANES, n=st.integers(1, 7), least=st.integers(1, 7), seeds=SEEDS, again=st.booleans())
    def draw_on_a_lane(self, lane, n, least, seeds, again):
        """A draw whose reply the client may never see. The seeds say what it gives."""
        least, raw = min(n, least), self.lanes[lane]
        raw.seeds = list(seeds)
        self.model.request(lane)
        reply = raw.sample(n, least)
        try:
            n = self.model.batch(n, least)
        except Refused as refusal:
            data = () if reply[0] == "SHUT" else (int(reply[2]), int(reply[3]))
            assert (reply[0], *data) == refusal.args
            return
        chosen = self.model.choose(n, seeds)
        assert reply[6] == " ".join(map(str, chosen))
        told, last = self.model.sample(lane, chosen)
        assert reply[7] == ("" if self.model.consume is None else " ".join(map(str, told)))
        assert ("l" in reply[5]) == last
        if again:
            assert raw.sample(n, least, number=raw.number)[6] == reply[6]

    @rule(lane=LANES, undo=st.booleans())
    def settle_a_lane(self, lane, undo):
        """The lane's next request: the reply of the draw before it arrived, or it never did and the draw is undone."""
        raw = self.lanes[lane]
        self.model.settle(lane, undo)
        assert raw("settle", 0, open_number=raw.number if undo else 0)[:2] == ["OK", "applied" if undo else "-"]

    @rule(who=HANDLES, n=st.integers(1, 7))
    def can_sample(self, who, n):
        self.model.request(who)
        try:
            expected = self.model.batch(n, n) > 0
        except Refused:
            expected = False
        assert self.handles[who].can_sample(n) is expected

    @rule(who=HANDLES, data=st.data())
    def remove(self, who, data):
        around = st.integers(1, self.model.last + 2)
        indices = data.draw(st.lists(around, min_size=1, max_size=5))
        assert self.handles[who].remove(indices) == self.model.remove(who, indices)

    @rule(who=HANDLES, reset=st.booleans())
    def empty(self, who, reset):
        self.model.empty(who, reset)
        self.handles[who].empty(empty_write_count=reset)

    @rule(who=HANDLES, drain=st.booleans())
    def shutdown(self, who, drain):
        self.model.shutdown(who, drain)
        self.handles[who].shutdown(drain)

    @precondition(lambda self: self.model.state != "open")
    @rule(who=HANDLES)
    def reopen(self, who):
        self.model.reopen(who)
        self.handles[who].reopen()

    @rule(who=HANDLES, data=st.data())
    def get(self, who, data):
        index = data.draw(st.integers(1, self.model.last + 2))
        if index in self.model.live:
            assert self.handles[who].get(index)["i"] == self.model.live[index]
        else:
            with pytest.raises(RecordNotFoundError):
                self.handles[who].get(index)

    @precondition(lambda self: self.model.draws)
    @rule()
    def let_a_minute_pass(self):
        self._pass_time(61)
        self.model.let_holds_lapse()

    @precondition(lambda self: self.model.draws)
    @rule()
    def let_an_hour_pass(self):
        self._pass_time(3601)
        self.model.forget_lanes()
        for raw in self.lanes.values():
            raw.register()

    def _pass_time(self, seconds):
        self.lanes["lost-1"].pass_time(seconds)
        for _ in range(4):  # a script reclaims two holds and two lanes
            self.handles["a"].stats()

    @invariant()
    def contents_are_equal(self):
        if hasattr(self, "handles"):
            stored = [int(record["i"]) for record in self.handles["a"].records()]
            assert stored == [value for _, value in sorted(self.model.live.items())]

    @invariant()
    def counters_are_equal(self):
        if hasattr(self, "handles"):
            ours, theirs = self.model.counters(), self.handles["b"].stats()
            assert {name: theirs[name] for name in ours} == ours

    @invariant()
    def uses_are_equal(self):
        if hasattr(self, "handles") and (self.model.consume or 0) > 1:
            stored = self.client.hgetall(self.lanes["lost-1"].keys.key("uses"))
            ours = {index: uses for index, uses in self.model.uses.items() if index in self.model.live and uses}
            assert {int(index): int(uses) for index, uses in stored.items() if int(index) in self.model.live} == ours

    @invariant()
    def the_doctor_is_content(self):
        if hasattr(self, "handles"):
            assert self.handles["a"].doctor().findings == ()


def run(server, examples, steps):
    machine = type("Machine", (Machine,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )


def test_a_history_equals_the_models(real_server):
    """On a real server the buffer and its model agree after every step of random histories."""
    run(real_server, examples=60, steps=40)


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)
def test_a_history_on_the_fake_equals_the_models(server):
    """On fakeredis, too."""
    run(server, examples=12, steps=25)
