"""Drawing: full batches, what is refused, order, distinctness, uses. For each sampler, with and without consumption."""

import numpy as np
import pytest

from redis_replay.exceptions import ArgumentError, ArgumentTypeError, NotReadyError
from redis_replay.samplers import Fifo, Lifo, Uniform
from tests._contract import AGE, ANY_SIZE, LARGE, SMALL, Records, nothing_changes, numbers, refused

SAMPLERS = pytest.mark.parametrize("sampler", [Uniform(), Uniform(replacement=False), Fifo(), Lifo()], ids=repr)
ENDS = pytest.mark.parametrize("sampler", [Fifo(), Lifo()], ids=repr)
CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2, 3])
USES = pytest.mark.parametrize("consume", [1, 2, 3])
KINDS = [(s, c) for s in (Uniform(), Uniform(replacement=False), Fifo(), Lifo()) for c in (None, 1, 2, 3)]
REPEATS = (Uniform(), None)  # the only kind whose batches may hold a record twice
DISTINCT = pytest.mark.parametrize(("sampler", "consume"), [kind for kind in KINDS if kind != REPEATS], ids=str)


@SAMPLERS
@CONSUMES
def test_a_batch_is_full_by_default(server, make_buffer, records, sampler, consume):
    """A draw gives exactly as many records as it was asked for, each with its own bytes."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(records.many(0, 30))
    assert len(numbers(buffer.sample(30))) == 30


@SAMPLERS
@CONSUMES
def test_too_few_records_refuse_the_draw(server, make_buffer, client, small, sampler, consume):
    """NotReadyError carries what is there and what is needed; nothing is drawn or counted."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, 3))
    with nothing_changes(client), refused(NotReadyError) as caught:
        buffer.sample(4)
    assert (caught.value.have, caught.value.need) == (3, 4)
    assert all(part in str(caught.value) for part in ("3", "4", "wait=True", "fewer"))


@SAMPLERS
@pytest.mark.parametrize("consume", [None, 1])
def test_an_empty_buffer_refuses_the_draw(server, make_buffer, client, sampler, consume):
    """Before the first write, too, the error says have 0."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    with nothing_changes(client), refused(NotReadyError) as caught:
        buffer.sample(1)
    assert (caught.value.have, caught.value.need) == (0, 1)


@SAMPLERS
@pytest.mark.parametrize("consume", [None, 1])
def test_a_draw_below_its_floor_is_refused(server, make_buffer, client, small, sampler, consume):
    """With min_items the error's need is the floor."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, 2))
    with nothing_changes(client), refused(NotReadyError) as caught:
        buffer.sample(10, min_items=3)
    assert (caught.value.have, caught.value.need) == (2, 3)


@DISTINCT
def test_a_smaller_floor_gives_a_short_batch(server, make_buffer, small, sampler, consume):
    """A batch that never holds a record twice comes back with what is there, once each."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, 3))
    assert sorted(numbers(buffer.sample(10, min_items=2))) == [0, 1, 2]


def test_a_smaller_floor_repeats_records(server, make_buffer, records):
    """A draw with replacement gives a full batch from fewer records."""
    buffer = make_buffer()
    buffer.extend(records.many(5, 7))
    drawn = numbers(buffer.sample(50, min_items=1))
    assert (len(drawn), set(drawn)) == (50, {5, 6})


@DISTINCT
def test_a_batch_holds_no_record_twice(server, make_buffer, small, sampler, consume):
    """A batch as large as the buffer is all of it."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, 60))
    assert sorted(numbers(buffer.sample(60))) == list(range(60))


@ENDS
@CONSUMES
def test_an_end_is_drawn_in_order(server, make_buffer, records, sampler, consume):
    """Fifo gives the oldest first, Lifo the newest first, around what was removed."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    indices = buffer.extend(records.many(0, 10))
    buffer.remove(indices[[0, 3, 9]])
    left = [1, 2, 4, 5, 6, 7, 8]
    assert numbers(buffer.sample(5)) == (left if sampler == Fifo() else left[::-1])[:5]


@ENDS
def test_an_end_that_consumes_goes_on(server, make_buffer, records, sampler):
    """With consume_after_n_samples=1 the buffer is a queue, or a stack."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=1)
    buffer.extend(records.many(0, 6))
    order = list(range(6)) if sampler == Fifo() else list(range(5, -1, -1))
    assert [numbers(buffer.sample(2)) for _ in range(3)] == [order[:2], order[2:4], order[4:]]


@ENDS
def test_an_end_without_consumption_stays(server, make_buffer, records, sampler):
    """The same draw gives the same records until something is written."""
    buffer = make_buffer(sampler=sampler)
    buffer.extend(records.many(0, 6))
    assert numbers(buffer.sample(3)) == numbers(buffer.sample(3))


@SAMPLERS
@USES
def test_the_last_use_consumes_a_record(server, make_buffer, records, sampler, consume):
    """A record is handed out exactly as often as allowed, then it has left the buffer."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(records.many(0, 7))
    drawn, sizes = [], []
    while len(buffer):
        sizes.append(len(buffer))
        drawn += numbers(buffer.sample(3, min_items=1))
    assert sorted(drawn) == sorted(list(range(7)) * consume)
    assert (buffer.stats()["consumed"], sizes[0]) == (7, 7)
    assert buffer.doctor().ok


@USES
def test_uses_are_told_with_the_batch(server, make_buffer, records, consume):
    """info.times_sampled counts the hand-outs of each record, this one included."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 4))
    told = [buffer.sample(4, return_info=True)[1].times_sampled.tolist() for _ in range(consume)]
    assert told == [[use] * 4 for use in range(1, consume + 1)]


def test_consumed_records_leave_no_size(server, make_buffer, records):
    """What was consumed is not counted as there; its bytes stay until the next request says that they arrived."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(records.many(0, 10))
    buffer.sample(4)
    assert (len(buffer), buffer.storage_size, buffer.stats()["parting"]) == (6, 10, 4)
    buffer.sample(1)
    assert (len(buffer), buffer.storage_size, buffer.stats()["parting"]) == (5, 6, 1)


def test_two_learners_share_no_record(server, make_buffer, records):
    """In a buffer that consumes, what one handle was given no other one gets."""
    first, second = make_buffer(consume_after_n_samples=1), make_buffer(attach=True)
    first.extend(records.many(0, 40))
    drawn = [number for handle in (first, second, first, second) for number in numbers(handle.sample(10))]
    assert sorted(drawn) == list(range(40))


@SAMPLERS
def test_drawing_without_consumption_takes_nothing(server, make_buffer, client, records, sampler):
    """Two counters go up; records and everything else are as before."""
    buffer = make_buffer(sampler=sampler)
    buffer.extend(records.many(0, 9))
    before = buffer.stats()
    buffer.sample(5)
    assert buffer.stats() | AGE | {"holds": 0} == before | AGE | {
        "sample_calls": before["sample_calls"] + 1,
        "samples_returned": before["samples_returned"] + 5,
    }
    assert sorted(int(record["i"]) for record in buffer.records()) == list(range(9))


def test_counts_are_of_completed_calls(server, make_buffer, small):
    """sample_calls and samples_returned count what was given out: short batches by their length, refusals not at all."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(small.many(0, 5))
    buffer.sample(3)
    buffer.sample(3, min_items=1)
    with refused(NotReadyError):
        buffer.sample(3)
    stats = buffer.stats()
    assert (stats["sample_calls"], stats["samples_returned"]) == (2, 5)


@SAMPLERS
@CONSUMES
def test_can_sample_says_what_sample_does(server, make_buffer, small, sampler, consume):
    """True for the sizes that a draw would give, False for one more."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, 8))
    assert [buffer.can_sample(n) for n in (1, 8, 9)] == [True, True, False]


def test_info_tells_index_and_probability(server, make_buffer, records):
    """Of n live records, each draw gives each with probability 1/n; the index is the record's identity."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 4))
    buffer.remove(2)
    data, info = buffer.sample(6, True, min_items=1)
    assert (info.index.dtype, info.probability.dtype) == (np.int64, np.float64)
    assert info.index.tolist() == [number + 1 for number in numbers(data)]
    assert info.probability.tolist() == [1 / 3] * 6
    assert (info.times_sampled, info.last) == (None, False)


@ENDS
def test_an_end_has_probability_one(server, make_buffer, small, sampler):
    """What comes from an end comes for sure."""
    buffer = make_buffer(sampler=sampler)
    buffer.extend(small.many(0, 4))
    assert buffer.sample(3, True)[1].probability.tolist() == [1.0] * 3


def test_the_handles_batch_size_is_the_default(server, make_buffer, small):
    """A handle with a batch_size needs none in the call, and the call's wins."""
    buffer = make_buffer(batch_size=4)
    buffer.extend(small.many(0, 9))
    assert (len(buffer.sample()["i"]), len(buffer.sample(2)["i"])) == (4, 2)


def test_a_batch_is_the_callers_own(server, make_buffer, records):
    """Its arrays can be written to, and nobody else sees that."""
    buffer = make_buffer(sampler=Fifo())
    buffer.extend(records.many(0, 3))
    batch = buffer.sample(3)
    batch["i"][:], batch["x"][:] = -1, -1
    assert numbers(buffer.sample(3)) == [0, 1, 2]


BAD_CALLS = [
    ({}, ArgumentError, "batch_size"),
    ({"batch_size": 0}, ArgumentError, "batch_size"),
    ({"batch_size": -1}, ArgumentError, "batch_size"),
    ({"batch_size": True}, ArgumentTypeError, "batch_size"),
    ({"batch_size": 2.0}, ArgumentTypeError, "batch_size"),
    ({"batch_size": 4, "min_items": 0}, ArgumentError, "min_items"),
    ({"batch_size": 4, "min_items": 5}, ArgumentError, "min_items"),
    ({"batch_size": 4, "min_items": False}, ArgumentTypeError, "min_items"),
    ({"batch_size": 1, "timeout": -1}, ArgumentError, "timeout"),
    ({"batch_size": 1, "timeout": float("nan")}, ArgumentError, "timeout"),
    ({"batch_size": 1, "timeout": "1"}, ArgumentTypeError, "timeout"),
    ({"batch_size": 1, "timeout": True}, ArgumentTypeError, "timeout"),
    ({"batch_size": 1, "cancel_event": 1}, ArgumentTypeError, "cancel_event"),
]


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)  # judged before a server is asked
@pytest.mark.parametrize("wait", [False, True], ids=["at-once", "waiting"])
@pytest.mark.parametrize(("arguments", "kind", "named"), BAD_CALLS, ids=[str(call[0]) for call in BAD_CALLS])
def test_a_bad_argument_is_refused_by_name(server, make_buffer, client, small, arguments, kind, named, wait):
    """Whether the call would wait or not; nothing is drawn or counted."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 5))
    with nothing_changes(client, ()), refused(kind) as caught:
        buffer.sample(**arguments, wait=wait)
    assert str(caught.value).startswith(f"{named} must be")


@pytest.mark.parametrize(
    ("sampler", "limit"), [(Uniform(), 8192), (Uniform(replacement=False), 8192), (Fifo(), 20_000), (Lifo(), 20_000)], ids=str
)
def test_a_batch_above_the_limit_is_refused(server, make_buffer, client, small, sampler, limit):
    """A ValueError at once, with the limit and the size asked for, also if the call would wait."""
    buffer = make_buffer(capacity=30_000, sampler=sampler)
    buffer.add(small.one(0))
    with nothing_changes(client, ()), refused(ArgumentError) as caught:
        buffer.sample(limit + 1, wait=True)
    assert f"{limit:,}" in str(caught.value)
    assert caught.value.found == limit + 1


@CONSUMES
@pytest.mark.parametrize(
    ("sampler", "limit"), [(Uniform(), 8192), (Uniform(replacement=False), 8192), (Fifo(), 20_000), (Lifo(), 20_000)], ids=str
)
def test_a_batch_of_the_limit_is_given(real_server, make_buffer, small, sampler, limit, consume):
    """The largest batch is one step, and it is exact."""
    buffer = make_buffer(capacity=limit, sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(small.many(0, limit))
    drawn = numbers(buffer.sample(limit))
    assert len(drawn) == limit
    assert len(buffer) == (0 if consume == 1 else limit)
    assert consume is None or sorted(drawn) == list(range(limit))


@ANY_SIZE
def test_a_batch_of_any_size_is_given(server, make_buffer, small, n):
    """Neither Lua's stack nor the number of arguments limits what is drawn and consumed at once."""
    buffer = make_buffer(capacity=20_000, sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(small.many(0, n))
    assert numbers(buffer.sample(n)) == list(range(n))
    assert buffer.doctor().ok


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)  # judged before a server is asked
@SAMPLERS
def test_a_need_above_capacity_is_refused(server, make_buffer, client, small, sampler):
    """What can never be met is a ValueError at once, with both numbers, also if the call would wait."""
    buffer = make_buffer(capacity=10, sampler=sampler)
    buffer.extend(small.many(0, 10))
    with nothing_changes(client, ()), refused(ArgumentError) as caught:
        buffer.sample(11, wait=True)
    assert "the capacity, 10" in str(caught.value)
    assert caught.value.found == 11


def test_a_floor_within_capacity_is_enough(server, make_buffer, small):
    """A batch above the capacity is allowed where min_items asks for no more than fits."""
    buffer = make_buffer(capacity=10)
    buffer.extend(small.many(0, 10))
    assert len(buffer.sample(25, min_items=10)["i"]) == 25


MIB = 2**20


@CONSUMES
def test_a_batch_above_64_mib_is_refused(server, make_buffer, client, consume):
    """The error names the limit in bytes and the record's size; nothing is drawn, consumed or counted."""
    buffer = make_buffer(consume_after_n_samples=consume)
    for _ in range(13):
        buffer.extend({"x": np.zeros((5, MIB), np.uint8)})
    with nothing_changes(client), refused(ArgumentError) as caught:
        buffer.sample(65)
    assert f"{64 * MIB:,}" in str(caught.value)
    assert f"{MIB:,}" in str(caught.value)
    assert caught.value.found == 65


def test_a_batch_of_64_mib_is_given(real_server, make_buffer):
    """The limit itself is allowed."""
    buffer = make_buffer()
    buffer.extend({"x": np.ones((2, MIB), np.uint8)})
    batch = buffer.sample(64, min_items=2)["x"]
    assert (batch.shape, batch.min()) == ((64, MIB), 1)


@pytest.mark.parametrize("sampler", [Uniform(), Fifo()], ids=repr)
@CONSUMES
def test_removed_records_are_never_drawn(server, make_buffer, small, sampler, consume):
    """A draw passes over what was removed."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    indices = buffer.extend(small.many(0, 40))
    buffer.remove(indices[1::2])
    drawn = numbers(buffer.sample(20))
    assert all(number % 2 == 0 for number in drawn)


@pytest.mark.parametrize("width", [SMALL, LARGE], ids=["small", "large"])
def test_an_attached_learner_decodes_batches(server, make_buffer, width):
    """A handle that never saw a record learns the schema from the server."""
    learner = make_buffer(sampler=Fifo())
    make_buffer(attach=True).extend(Records(width).many(0, 5))
    assert numbers(learner.sample(5)) == [0, 1, 2, 3, 4]
