"""What is drawn ahead: each batch is given once. The leases of a handle: what is news of them."""

import itertools
import threading
from collections import deque

import pytest

from redis_replay._ahead import Ahead, Owner, Place
from redis_replay._draw_thread import Draw, DrawThread
from redis_replay._leases import Leases


def test_a_batch_that_comes_just_when_a_call_gives_up_is_given_once():
    """The next call has it."""
    go, drawn = threading.Event(), itertools.count(1)
    ahead = Ahead(lambda _: go.wait(5) and next(drawn), lambda _: 0, 1)

    class Queue(deque):
        def appendleft(self, entry):
            super().appendleft(entry)
            go.set()
            entry.batch.wait(5)

    ahead._queue = Queue()
    try:
        assert [ahead.take(lambda: True), ahead.take(), ahead.take()] == [None, 1, 2]
    finally:
        ahead.close()


def test_a_batch_that_may_be_lent_to_others_is_not_given():
    good = {1: False, 2: True}
    drawn = itertools.count(1)
    ahead = Ahead(lambda _: next(drawn), lambda _: 0, 2, held=lambda batch: good.get(batch, True))
    try:
        assert ahead.take() == 2
    finally:
        ahead.close()


def test_a_place_that_nobody_has_is_nobodys():
    place = Place()
    owner = place.owner
    assert owner.is_alive()
    del place
    assert not owner.is_alive()


def test_only_what_nobody_has_ended_is_news():
    """Not a lease whose acknowledgement is under way, was answered, or was never answered."""
    leases = Leases()
    for name in "abc":
        leases.add(name, threading.current_thread(), 3.0, 100.0)
    leases.end(["a"])
    with leases.ending(["b"]):
        assert leases.ran_out(["a", "b", "c"]) == ["c"]
    assert leases.ran_out(["a", "b", "c"]) == ["b", "c"]


def test_a_lease_is_held_for_its_length_from_the_request_on():
    leases = Leases()
    leases.add("a", threading.current_thread(), 3.0, 100.0)
    assert [leases.holds("a", now) for now in (100.0, 102.9, 103.0)] == [True, True, False]
    leases.prolong(["a", "gone"], 102.0)
    assert [leases.holds(name, 104.9) for name in ("a", "gone")] == [True, False]


def test_those_of_places_are_told_apart():
    leases, place = Leases(), Place()
    leases.add("seen", threading.Thread(), 3.0, 0.0)  # one that has not begun is as one that has ended
    leases.add("unseen", place.owner, 3.0, 0.0)
    assert (leases.forsaken(), leases.forsaken(Owner)) == (["seen"], [])
    place.given_up = True
    assert (leases.forsaken(), leases.forsaken(Owner)) == (["seen", "unseen"], ["unseen"])


def test_a_draw_is_made_once_or_cancelled():
    """Who asks to be told is told once, whether before or after."""
    told, calls = [], itertools.count(1)
    made, cancelled, failed = (Draw(call) for call in (lambda: next(calls), lambda: next(calls), lambda: 1 / 0))
    for draw in (made, cancelled, failed):
        draw.add_done_callback(told.append)
    assert cancelled.cancel()
    for draw in (made, made, cancelled, failed):
        draw.run()
    assert not made.cancel()
    made.add_done_callback(told.append)
    assert told == [cancelled, made, failed, made]
    assert [draw.done() for draw in (made, cancelled, failed)] == [True] * 3
    assert (made.result(), cancelled.cancelled(), type(failed.exception())) == (1, True, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_a_thread_draws_in_order_and_ends_with_its_last_user():
    thread, made = DrawThread(), []
    draws = [thread.submit(lambda i=i: made.append(i)) for i in range(50)]
    draws[-1].wait(5)
    assert made == list(range(50))
    own = thread._thread
    del thread
    own.join(5)
    assert not own.is_alive()


def test_a_stopped_thread_takes_nothing():
    thread = DrawThread()
    thread.submit(lambda: None).wait(5)
    thread.stop()
    thread.join()
    assert thread.submit(lambda: None).cancelled()
