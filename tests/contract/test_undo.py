"""Going back: a draw whose reply never came is undone, exactly, and what has left since stays gone."""

import pytest

from redis_replay.exceptions import RecordNotFoundError
from redis_replay.samplers import Fifo, Lifo, Uniform
from tests._contract import nothing_changes, numbers, refused, stored_numbers
from tests._helpers import wait_until

SAMPLERS = pytest.mark.parametrize("sampler", [Uniform(), Uniform(replacement=False), Fifo(), Lifo()], ids=repr)


def undo(raw):
    """The lane's next request says that the reply of its last one never came."""
    assert raw.settle(open_number=raw.number)[:2] == ["OK", "applied"]


@SAMPLERS
@pytest.mark.parametrize("consume", [None, 1, 2, 3])
def test_an_undone_draw_leaves_no_trace(server, make_buffer, client, make_raw, records, sampler, consume):
    """Records, uses, order, holds and every counter are as before the draw."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=consume)
    buffer.extend(records.many(0, 12))
    buffer.remove([2, 7])
    buffer.sample(3)
    buffer.can_sample(1)  # ends the hold of the draw before
    raw = make_raw()
    with nothing_changes(client):
        raw.sample(5)
        undo(raw)
    assert buffer.doctor().ok


@pytest.mark.parametrize("consume", [1, 2])
def test_an_undone_record_is_drawn_again(server, make_buffer, make_raw, records, consume):
    """It is where it was in the order, with its bytes, and may be handed out as often as before."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 4))
    raw = make_raw()
    raw.sample(2)
    undo(raw)
    told = [buffer.sample(4, True) for _ in range(consume)]
    assert [numbers(batch) for batch, _ in told] == [[0, 1, 2, 3]] * consume
    assert [info.times_sampled.tolist() for _, info in told] == [[n] * 4 for n in range(1, consume + 1)]


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")], ids=["in-order", "reversed"])
def test_two_draws_of_one_record_are_undone(server, make_buffer, client, make_raw, small, order):
    """Each takes back its own use, whichever of them consumed the record."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(small.many(0, 1))
    lanes = {lane: make_raw(lane) for lane in ("first", "second")}
    with nothing_changes(client):
        lanes["first"].sample(1)
        lanes["second"].sample(1)
        assert len(buffer) == 0
        for lane in order:
            undo(lanes[lane])
    assert buffer.doctor().ok


def test_the_use_of_another_draw_stays(server, make_buffer, make_raw, records):
    """Of two uses the second is undone: the record is back, used once."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(records.many(0, 1))
    first, second = make_raw("first"), make_raw("second")
    first.sample(1)
    first.settle()
    second.sample(1)
    undo(second)
    _, info = buffer.sample(1, True)
    assert (info.times_sampled.tolist(), len(buffer), buffer.stats()["consumed"]) == ([2], 0, 1)


def test_the_first_use_undone_keeps_it_consumed(server, make_buffer, make_raw, small):
    """A record that another draw consumed does not come back because an earlier use is undone."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(small.many(0, 1))
    first, second = make_raw("first"), make_raw("second")
    first.sample(1)
    second.sample(1)
    undo(first)
    second.settle()
    assert (len(buffer), buffer.storage_size, buffer.stats()["consumed"], buffer.doctor().ok) == (0, 0, 1, True)


@pytest.mark.parametrize("consume", [1, 2])
def test_a_record_that_eviction_passed_is_evicted(server, make_buffer, make_raw, records, consume):
    """Younger records were evicted meanwhile: it would be gone, so it counts as evicted, not as consumed."""
    buffer = make_buffer(capacity=3, sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    raw, other = make_raw(), make_raw("other")
    if consume == 2:
        other.sample(1)
        other.settle()
    raw.sample(1)
    buffer.extend(records.many(3, 6))
    undo(raw)
    stats = buffer.stats()
    assert (stats["consumed"], stats["evicted"], stored_numbers(buffer)) == (0, 3, [3, 4, 5])
    assert (stats["storage_size"], buffer.doctor().ok) == (3, True)


@pytest.mark.parametrize("consume", [1, 2])
def test_a_full_buffer_evicts_its_oldest_then(server, make_buffer, make_raw, records, consume):
    """Its room was taken meanwhile: the oldest one goes, which here is the one that came back."""
    buffer = make_buffer(capacity=3, sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    raw, other = make_raw(), make_raw("other")
    if consume == 2:
        other.sample(1)
        other.settle()
    raw.sample(1)
    buffer.add(records.one(3))
    undo(raw)
    stats = buffer.stats()
    assert (stats["consumed"], stats["evicted"], stored_numbers(buffer)) == (0, 1, [1, 2, 3])
    assert (stats["storage_size"], buffer.doctor().ok) == (3, True)


def test_a_young_record_comes_back_for_an_old_one(server, make_buffer, make_raw, records):
    """Where the newest was drawn, and its room taken, the oldest is evicted when it comes back."""
    buffer = make_buffer(capacity=3, sampler=Lifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 3))
    raw = make_raw()
    raw.sample(1)
    buffer.add(records.one(3))
    undo(raw)
    assert (stored_numbers(buffer), buffer.stats()["evicted"], buffer.doctor().ok) == ([1, 2, 3], 1, True)


def test_a_removed_record_stays_gone(server, make_buffer, make_raw, records):
    """It was removed after its first use: undoing the use does not bring it back."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=2)
    buffer.extend(records.many(0, 3))
    raw = make_raw()
    raw.sample(2)
    buffer.remove(1)
    undo(raw)
    stats = buffer.stats()
    assert (stored_numbers(buffer), stats["removed"], stats["storage_size"], buffer.doctor().ok) == ([1, 2], 1, 2, True)


def test_a_consumed_record_cannot_be_removed(server, make_buffer, make_raw, records):
    """remove() passes it over, so undoing the draw brings it back."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 3))
    raw = make_raw()
    raw.sample(2)
    assert buffer.remove([1, 2]) == 0
    undo(raw)
    assert (stored_numbers(buffer), buffer.stats()["removed"]) == ([0, 1, 2], 0)


@pytest.mark.parametrize("consume", [None, 1, 2])
@pytest.mark.parametrize("reset", [True, False])
def test_an_emptied_buffer_stays_empty(server, make_buffer, make_raw, records, consume, reset):
    """Nothing comes back into a buffer that was emptied, and its counters stay right."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 4))
    raw = make_raw()
    raw.sample(3)
    buffer.empty(empty_write_count=reset)
    buffer.extend(records.many(4, 6))
    undo(raw)
    assert (stored_numbers(buffer), buffer.stats()["storage_size"], buffer.doctor().ok) == ([4, 5], 2, True)
    with refused(RecordNotFoundError):
        buffer.get(1)


def test_a_drained_buffer_drains_again(server, make_buffer, make_raw, records):
    """What goes back into a buffer that was shut by draining is given out to the next reader."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 2))
    buffer.shutdown()
    raw = make_raw()
    assert raw.sample(2)[5].endswith("l")
    assert buffer.stats()["state"] == "shut"
    undo(raw)
    assert buffer.stats()["state"] == "draining"
    batch, info = buffer.sample(5, True)
    assert (numbers(batch), info.last, buffer.stats()["state"]) == ([0, 1], True, "shut")


def test_a_buffer_shut_at_once_stays_shut(server, make_buffer, make_raw, records):
    """What goes back is there, and nobody gets it until the buffer is opened again."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 3))
    raw = make_raw()
    raw.sample(2)
    buffer.shutdown(drain=False)
    undo(raw)
    assert (buffer.stats()["state"], len(buffer)) == ("shut", 3)
    buffer.reopen()
    assert numbers(buffer.sample(3)) == [0, 1, 2]


def test_a_reopened_buffer_stays_open(server, make_buffer, make_raw, small):
    """It was drained, shut and opened again: an undo does not make it drain."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 2))
    buffer.shutdown()
    raw = make_raw()
    raw.sample(2)
    buffer.reopen()
    undo(raw)
    assert (buffer.stats()["state"], len(buffer)) == ("open", 2)


def test_what_goes_back_wakes_a_waiter(server, make_buffer, client, make_raw, small):
    """The step that puts records back notifies who waits for them."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 3))
    raw, waiter = make_raw(), make_raw("waiter")
    raw.sample(3)
    with client.pubsub() as pubsub:
        pubsub.subscribe(waiter.channel)
        assert wait_until(lambda: pubsub.get_message(timeout=0.1), description="the subscription")["type"] == "subscribe"
        assert waiter.sample(2, wait=1)[0] == "NOT_READY"
        undo(raw)
        assert wait_until(lambda: pubsub.get_message(timeout=0.1), description="a notice")["data"] == b"wake waiter"
    assert buffer.stats()["notices"] == 1


def test_the_next_draw_undoes_and_draws(server, make_buffer, make_raw, records):
    """One request does both: what the lost draw took is there for it."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 3))
    raw = make_raw()
    raw.sample(3)
    reply = raw.sample(3, open_number=raw.number)
    assert (reply[0], reply[1], reply[7]) == ("OK", "applied", "1 2 3")
    assert (buffer.stats()["sample_calls"], buffer.stats()["consumed"], buffer.doctor().ok) == (1, 3, True)
