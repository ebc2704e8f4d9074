"""Rate limiters: their arithmetic is Reverb's, exact, and nothing that goes back or goes away leaves a debt."""

import math
import pickle
import random
from fractions import Fraction

import numpy as np
import pytest

from redis_replay import ReplayBuffer
from redis_replay._encode import encode_batch
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferDamagedError,
    ConfigMismatchError,
    NotReadyError,
    ReplayTimeoutError,
)
from redis_replay.limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack, parse
from redis_replay.samplers import Fifo, Lifo
from tests._contract import LARGE, Records, numbers
from tests._pace import rule_of

RATIO = SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=4, error_buffer=6.0)  # difference 2 to 14
QUEUE = {"sampler": Fifo(), "consume_after_n_samples": 1}


LIMITERS = [
    RATIO,
    SampleToInsertRatio(0.1, 1, 3.0),
    SampleToInsertRatio(1.5, 7, (4.0, 21.5)),
    SampleToInsertRatio(4, 3, (-2.5, 30.0)),
    SampleToInsertRatio(0.25, 5, (0.0, 1e9)),
    MinSize(5),
    Queue(6),
    Stack(9),
]


@pytest.mark.parametrize("limiter", LIMITERS, ids=repr)
@pytest.mark.parametrize("consume", [None, 1])
def test_the_arithmetic_is_reverbs(server, make_buffer, small, seed, limiter, consume):
    """Whatever was written, drawn and removed: what may come next is what Reverb's rule says."""
    buffer = make_buffer(capacity=20, rate_limiter=limiter, sampler=Fifo(), consume_after_n_samples=consume)
    rule, rng, live = rule_of(limiter), random.Random(seed), []
    for step in range(60):
        for n in (1, 3):
            assert buffer.can_sample(n) == (rule.can_sample(n) and rule.size >= n), (step, n, rule)
            assert buffer.can_insert(n) == rule.can_insert(n), (step, n, rule)
        n = rng.choice([1, 1, 2, 3, 5])
        if rng.random() < 0.55 and rule.can_insert(n):
            live += buffer.extend(small.many(step, step + n), timeout=0).tolist()
            live = live[-20:]
            rule.inserted(n)
            rule.size = len(live)
        elif rule.can_sample(n) and rule.size >= n:
            _, info = buffer.sample(n, return_info=True)
            rule.sampled(n)
            live = live if consume is None else live[n:]
            assert consume is None or info.index[-1] < (live or [math.inf])[0]
            rule.size = len(live)
        elif live and not isinstance(limiter, Queue) and rng.random() < 0.2:
            rule.size -= buffer.remove(live.pop(rng.randrange(len(live))))
    if not isinstance(limiter, MinSize):
        assert buffer.stats()["limiter_difference"] == float(rule.difference)
    assert buffer.doctor().ok


@pytest.mark.parametrize("ratio", [0.1, 1 / 3, 0.7, 1e-6, 2.2])
def test_a_ratio_is_exact(server, make_buffer, small, ratio):
    """Many writes of one record add up to what the ratio says, to the last sample."""
    fraction = Fraction(ratio).limit_denominator(10**6)
    buffer = make_buffer(capacity=10, rate_limiter=SampleToInsertRatio(ratio, 1, (0.0, 1000.0)))
    for _ in range(3):
        buffer.extend(small.many(0, fraction.denominator % 977))
    n = 3 * (fraction.denominator % 977)
    may = math.floor(n * fraction)
    assert buffer.stats()["limiter_difference"] == float(n * fraction)
    drawn = 0
    while buffer.can_sample(1) and drawn < 40:
        buffer.sample(1)
        drawn += 1
    assert drawn == min(may, 40)


def test_the_error_names_the_side_and_the_counters(server, make_buffer, small):
    buffer = make_buffer(rate_limiter=RATIO)
    buffer.extend(small.many(0, 7))
    with pytest.raises(
        ReplayTimeoutError, match=r"blocks insert calls until more sample calls.* is 14, .* 2 to 14 .*: 2\)"
    ) as full:
        buffer.add(small.one(8), timeout=0)
    assert (full.value.side, full.value.have, full.value.need) == ("insert", 0, 1)
    buffer.sample(12, min_items=1)
    with pytest.raises(NotReadyError, match=r"blocks sample calls until more insert calls.* is 2, .* 2 to 14 ") as dry:
        buffer.sample(1)
    assert (dry.value.side, dry.value.have, dry.value.need) == ("sample", 0, 1)
    buffer.remove([1, 2, 3, 4])
    with pytest.raises(NotReadyError, match=r"until 4 records are live \(3 are\)"):
        buffer.sample(1)


def test_one_thread_in_turn_never_hangs(server, make_buffer, small):
    """One writes and draws in turn: it is told at once which side it waits for, and what would help."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(4, 100, 32), batch_size=32)
    told = set()
    for i in range(160):
        for name, call in (("insert", lambda i=i: buffer.add(small.one(i), timeout=0)), ("sample", buffer.sample)):
            could = buffer.can_insert() if name == "insert" else buffer.can_sample()
            try:
                call()
            except (ReplayTimeoutError, NotReadyError) as error:
                assert (error.side, could) == (name, False)
                assert f"blocks {name} calls" in str(error)
                told.add(name)
            else:
                assert could
    assert told == {"sample"}
    assert (buffer.write_count, buffer.stats()["samples_returned"]) == (160, 32 * 8)


@pytest.mark.parametrize("ending", ["release", "undo", "lease"])
def test_what_goes_back_was_not_drawn(server, make_buffer, make_raw, records, ending):
    """The difference is as before the draw."""
    buffer = make_buffer(rate_limiter=Queue(5), **QUEUE)
    buffer.extend(records.many(0, 5))
    raw = make_raw()
    answer = raw.sample(3, lease=0 if ending == "undo" else 10)
    assert buffer.stats()["limiter_difference"] == 2
    assert buffer.can_insert(3)
    if ending == "release":
        raw("release", lease=[answer[6]])
    elif ending == "undo":
        raw.settle(number=raw.number + 1, open_number=raw.number)
    else:
        raw.pass_time(11)
    assert buffer.stats()["limiter_difference"] == 5
    assert not buffer.can_insert(1)
    assert len(buffer) == 5


@pytest.mark.parametrize("reset", [True, False])
def test_empty_leaves_no_debt(server, make_buffer, make_raw, small, reset):
    """Also not by a draw that is undone afterwards."""
    buffer = make_buffer(rate_limiter=RATIO)
    buffer.extend(small.many(0, 7))
    buffer.sample(12, min_items=1)
    buffer.add(small.one(8))
    raw = make_raw()
    raw.sample(2)
    buffer.empty(empty_write_count=reset)
    raw.settle(number=raw.number + 1, open_number=raw.number)
    assert buffer.stats()["limiter_difference"] == 0
    buffer.extend(small.many(10, 14))
    assert len(buffer.sample(9, min_items=1)["i"]) == 6


def test_what_leaves_a_queue_makes_room(server, make_buffer, small):
    """What nobody can draw any more does not block writers for ever."""
    buffer = make_buffer(capacity=5, rate_limiter=Queue(5), **QUEUE)
    buffer.extend(small.many(0, 5))
    buffer.remove([2, 4, 5])
    assert (len(buffer), buffer.stats()["limiter_difference"]) == (2, 2)
    assert (buffer.can_insert(3), buffer.can_insert(4)) == (True, False)


def test_what_is_lent_keeps_its_place_in_a_queue(server, make_buffer, small):
    """Nothing that nobody has drawn is evicted, when a lease ends either."""
    buffer = make_buffer(capacity=5, rate_limiter=Queue(4), **QUEUE)
    buffer.extend(small.many(0, 4))
    _, info = buffer.sample(3, True, lease=1000.0)
    assert (buffer.can_insert(1), buffer.can_insert(2)) == (True, False)
    buffer.add(small.one(4))
    buffer.release(info.lease)
    assert (len(buffer), buffer.stats()["evicted"], buffer.stats()["limiter_difference"]) == (5, 0, 5)
    assert numbers(buffer.sample(5)) == [0, 1, 2, 3, 4]


def test_a_queue_that_is_set_too_small_hands_out_all(server, make_buffer, small):
    """What was there before can be drawn, and writers wait until it was."""
    buffer = make_buffer(**QUEUE)
    index = buffer.extend(small.many(0, 10))
    buffer.set_rate_limiter(Queue(4))
    assert buffer.stats()["limiter_difference"] == 10
    buffer.remove(index[4:6])
    assert not buffer.can_insert(1)
    assert numbers(buffer.sample(8)) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert (buffer.stats()["limiter_difference"], buffer.can_insert(4)) == (0, True)


def test_a_lease_of_before_owes_nothing(server, make_buffer, small):
    """It ends under another limiter than it began under."""
    buffer = make_buffer(**QUEUE)
    buffer.extend(small.many(0, 20))
    _, info = buffer.sample(10, True, lease=1000.0)
    buffer.set_rate_limiter(SampleToInsertRatio(1, 1, (0.0, 8.0)))
    before = buffer.stats()["limiter_difference"]
    buffer.release(info.lease)
    assert buffer.stats()["limiter_difference"] == before == 1


def test_a_drained_buffer_opens_without_debt(server, make_buffer, small):
    """Draws were free while it was draining."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(1, 1, (-8.0, 8.0)), sampler=Fifo(), consume_after_n_samples=5)
    buffer.extend(small.many(0, 8))
    buffer.shutdown()
    for _ in range(5):
        buffer.sample(8)
    buffer.reopen()
    assert buffer.stats()["limiter_difference"] == 0
    buffer.add(small.one(8))
    buffer.sample(1)


def test_a_limiter_holds_from_when_it_is_set(server, make_buffer, small):
    """Data that was loaded before counts as if it had come under the limiter, and nobody owes anything."""
    buffer = make_buffer(capacity=5000)
    buffer.extend(small.many(0, 3000))
    buffer.set_rate_limiter(RATIO)
    assert buffer.stats()["limiter_difference"] == 8  # the middle: 2 samples for each of the first 4
    assert (buffer.can_sample(6), buffer.can_sample(7), buffer.can_insert(3), buffer.can_insert(4)) == (
        True,
        False,
        True,
        False,
    )
    buffer.set_rate_limiter(None)
    buffer.sample(500)
    buffer.extend(small.many(0, 500))
    assert buffer.stats()["rate_limiter"] == "None"


def test_a_queue_that_is_set_counts_what_is_there(server, make_buffer, small):
    buffer = make_buffer(**QUEUE)
    buffer.extend(small.many(0, 3))
    buffer.set_rate_limiter(Queue(4))
    assert (buffer.can_insert(1), buffer.can_insert(2), buffer.can_sample(3)) == (True, False, True)


def test_settings_are_compared(server, make_buffer, small):
    """As others are: left out not, and as it is now."""
    buffer = make_buffer(rate_limiter=RATIO)
    assert make_buffer(attach=True).stats()["rate_limiter"] == repr(RATIO)
    with pytest.raises(ConfigMismatchError) as caught:
        make_buffer(rate_limiter=Queue(3))
    assert caught.value.differences == {"rate_limiter": (RATIO, Queue(3))}
    with pytest.raises(ConfigMismatchError):
        make_buffer(rate_limiter=None)
    buffer.set_rate_limiter(Queue(3))
    make_buffer(rate_limiter=Queue(3))


@pytest.mark.parametrize("limiter", LIMITERS, ids=repr)
def test_a_limiter_is_stored_as_it_is_written(limiter):
    assert parse(repr(limiter)) == limiter
    assert parse("None") is None


def test_a_limiter_of_another_version_is_none():
    with pytest.raises(ValueError, match="no rate limiter of this version"):
        parse("Hourly(3)")


@pytest.mark.parametrize("n", [5, 4_000_000_000])
def test_what_never_comes_is_refused_at_once(server, make_buffer, small, n):
    """A batch that is wider than the limiter's range, on either side, with both numbers; nothing is written."""
    buffer = make_buffer(rate_limiter=Queue(4), **QUEUE)
    with pytest.raises(ArgumentError, match=r"at most 4, .* not 5"):
        buffer.extend(small.many(0, 5))
    buffer.extend(small.many(0, 4))
    for call in (buffer.wait_until_writable, lambda n: buffer.sample(min(n, 20), wait=True)):
        with pytest.raises(ArgumentError, match="at most 4, "):
            call(n)
    assert (buffer.can_insert(n), buffer.can_sample(5), buffer.write_count) == (False, False, 4)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: MinSize(0), "min_size_to_sample"),
        (lambda: MinSize(True), "min_size_to_sample"),
        (lambda: MinSize(2.0), "min_size_to_sample"),
        (lambda: Queue(0), "size"),
        (lambda: Stack("3"), "size"),
        (lambda: SampleToInsertRatio(0, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(-1.0, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(math.nan, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(True, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio("1", 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(1e300, 1, 1e305), "samples_per_insert"),
        (lambda: SampleToInsertRatio(1e-300, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(1.0, 0, 5), "min_size_to_sample"),
        (lambda: SampleToInsertRatio(4.0, 1, 3.9), "error_buffer"),
        (lambda: SampleToInsertRatio(0.5, 1, 0.9), "error_buffer"),
        (lambda: SampleToInsertRatio(1.0, 10, (11.0, 20.0)), "error_buffer"),
        (lambda: SampleToInsertRatio(1.0, 10, (20.0, 1.0)), "error_buffer"),
        (lambda: SampleToInsertRatio(1.0, 10, (1.0, 2.0, 3.0)), "error_buffer"),
        (lambda: SampleToInsertRatio(1.0, 10, math.inf), "error_buffer"),
        (lambda: SampleToInsertRatio(1.0, 10, None), "error_buffer"),
    ],
)
def test_bad_numbers_are_refused(make, word):
    with pytest.raises(ArgumentError) as caught:
        make()
    assert caught.value.name == word


@pytest.mark.parametrize("limiter", [MinSize(21), SampleToInsertRatio(1, 21, 5), Queue(21)], ids=repr)
def test_what_the_buffer_never_holds_is_refused(server, make_buffer, limiter):
    with pytest.raises(ArgumentError, match="at most the capacity, 20, not 21"):
        make_buffer(capacity=20, rate_limiter=limiter)
    buffer = make_buffer(capacity=20)
    with pytest.raises(ArgumentError, match="at most the capacity, 20, not 21"):
        buffer.set_rate_limiter(limiter)
    assert buffer.stats()["rate_limiter"] == "None"


class Own(MinSize):
    """One that no other process could know."""


@pytest.mark.parametrize("bad", [3, "Queue(3)", Queue, Fifo(), RateLimiter, Own(3)])
def test_what_is_no_limiter_is_refused(server, make_buffer, bad):
    with pytest.raises(ArgumentTypeError, match=r"rate_limiter must be one of redis_replay\.limiters, or None"):
        make_buffer(rate_limiter=bad)
    buffer = make_buffer()
    with pytest.raises(ArgumentTypeError):
        buffer.set_rate_limiter(bad)
    for n in (0, -1, 2.5, True, "3"):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            buffer.can_insert(n)
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            buffer.wait_until_writable(n)


@pytest.mark.parametrize(
    "law", ["x", "1 1 1 0 5", "1 1 1 0 5 5 2", "-1 1 1 0 5 5 0", "1 1 1 0 99999999999999999999 5 0", "1.5 1 1 0 5 5 0"]
)
def test_a_damaged_law_is_named(server, make_buffer, client, small, law):
    buffer = make_buffer(rate_limiter=Queue(5))
    client.hset(f"rr:{{{buffer.name}}}:config", "law", law)
    for call in (lambda: buffer.add(small.one(1)), lambda: buffer.sample(1), buffer.stats):
        with pytest.raises(BufferDamagedError, match="as law"):
            call()


def test_a_short_batch_is_what_the_limiter_lets_through(server, make_buffer, small):
    """With min_items: of draws with replacement, too."""
    buffer = make_buffer(rate_limiter=RATIO)
    buffer.extend(small.many(0, 4))
    assert len(buffer.sample(50, min_items=4)["i"]) == 6
    with pytest.raises(NotReadyError):
        buffer.sample(50, min_items=1)


def test_draining_ends_the_limiter(server, make_buffer, small):
    """Who is left to read gets all that is left."""
    buffer = make_buffer(rate_limiter=SampleToInsertRatio(1, 4, (3.0, 10.0)), **QUEUE)
    buffer.extend(small.many(0, 5))
    buffer.shutdown()
    assert buffer.can_insert(1) is False
    assert len(buffer.sample(5)["i"]) == 5


@pytest.mark.parametrize("kind", [Fifo, Lifo])
def test_presets_are_reverbs_queue_and_stack(server, make_buffer, small, kind):
    limiter = Queue(4) if kind is Fifo else Stack(4)
    buffer = make_buffer(sampler=kind(), consume_after_n_samples=1, rate_limiter=limiter)
    buffer.extend(small.many(0, 4))
    with pytest.raises(ReplayTimeoutError):
        buffer.extend(small.many(4, 5), timeout=0)
    assert numbers(buffer.sample(2)) == ([0, 1] if kind is Fifo else [3, 2])
    buffer.extend(small.many(4, 6), timeout=0)
    assert numbers(buffer.sample(4)) == ([2, 3, 4, 5] if kind is Fifo else [5, 4, 1, 0])


def test_a_write_in_steps_says_how_far_it_came(server, make_buffer, small):
    buffer = make_buffer(capacity=50_000, rate_limiter=Queue(30_000), **QUEUE)
    with pytest.raises(ReplayTimeoutError) as caught:
        buffer.extend(small.many(0, 40_000), timeout=1.0)
    assert (caught.value.done, buffer.write_count) == (20_000, 20_000)


def test_a_mended_write_counts(server, make_buffer, make_raw):
    """One whose closing script was lost: the limiter knows of it once it is counted."""
    buffer = make_buffer(rate_limiter=Queue(5), **QUEUE)
    raw = make_raw()
    raw.gate(encode_batch(Records(LARGE).many(0, 3), None), steps=("open", "adds"))
    assert buffer.stats()["limiter_difference"] == 3


def test_a_handle_of_another_process_knows_the_limiter(real_server, make_buffer, name, small):
    """Nothing of it is kept in a handle."""
    buffer = make_buffer(rate_limiter=Queue(2), **QUEUE)
    other: ReplayBuffer = pickle.loads(pickle.dumps(buffer))
    other.extend(small.many(0, 2))
    assert (buffer.can_insert(1), np.ndim(other.write_count)) == (False, 0)
    other.close()
