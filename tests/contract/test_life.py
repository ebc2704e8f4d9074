"""Ends and beginnings: shutdown and draining, reopen, delete, close, pickling, copies, iteration."""

import copy
import multiprocessing
import pickle
import threading

import pytest

from redis_replay import ReplayBuffer
from redis_replay.exceptions import (
    BufferClosedError,
    BufferGoneError,
    BufferNotFoundError,
    BufferShutDownError,
    NotReadyError,
    ReplayCancelledError,
    ReplayTimeoutError,
)
from redis_replay.samplers import Fifo
from tests._contract import contents, nothing_changes, numbers, refused, stored_numbers
from tests._helpers import SOON, wait_until

CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])
DRAINS = pytest.mark.parametrize("drain", [True, False], ids=["drain", "at-once"])

# shutdown


@CONSUMES
@DRAINS
def test_a_shut_buffer_takes_no_records(server, make_buffer, client, records, consume, drain):
    """add and extend are refused, in every handle, and change nothing; the error names both ways back."""
    buffer, other = make_buffer(consume_after_n_samples=consume), make_buffer(attach=True)
    buffer.extend(records.many(0, 5))
    buffer.shutdown(drain)
    with nothing_changes(client), refused(BufferShutDownError) as caught:
        other.extend(records.many(5, 7))
    assert "reopen()" in str(caught.value)
    assert "fresh=True" in str(caught.value)


@pytest.mark.parametrize(("consume", "drain"), [(None, True), (None, False), (1, False), (2, False)])
def test_a_shut_buffer_gives_no_records(server, make_buffer, records, consume, drain):
    """sample and the waits are refused at once, though records are there: a shutdown goes before ready."""
    buffer, other = make_buffer(consume_after_n_samples=consume), make_buffer(attach=True)
    buffer.extend(records.many(0, 5))
    buffer.shutdown(drain)
    with refused(BufferShutDownError):
        other.sample(2)
    with refused(BufferShutDownError):
        other.sample(2, wait=True)
    with refused(BufferShutDownError):
        other.wait_until_sampleable(2)
    assert other.can_sample(2) is False


def test_a_shut_buffer_can_be_looked_at(server, make_buffer, records):
    """get, records, stats and the doctor work on."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 5))
    buffer.shutdown()
    assert (buffer.get(2)["i"], stored_numbers(buffer), buffer.stats()["state"]) == (1, [0, 1, 2, 3, 4], "shut")
    assert buffer.doctor().ok


@CONSUMES
@DRAINS
def test_a_second_shutdown_is_no_error(server, make_buffer, client, records, consume, drain):
    """shutdown is idempotent, by any handle: nothing changes, and no wait that began later is ended."""
    buffer, other = make_buffer(consume_after_n_samples=consume), make_buffer(attach=True)
    buffer.extend(records.many(0, 3))
    buffer.shutdown(drain)
    with nothing_changes(client):
        other.shutdown(drain)


@pytest.mark.parametrize("consume", [1, 2])
def test_draining_gives_out_what_is_left(server, make_buffer, records, consume):
    """Full batches first, then one short one, marked as the last; then the buffer is shut."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 8))
    buffer.shutdown()
    assert buffer.stats()["state"] == "draining"
    drawn, lasts = [], []
    while buffer.stats()["state"] == "draining":
        batch, info = buffer.sample(3, return_info=True)
        drawn.append(numbers(batch))
        lasts.append(info.last)
    with refused(BufferShutDownError):
        buffer.sample(3)
    assert sorted(n for batch in drawn for n in batch) == sorted(list(range(8)) * consume)
    assert lasts == [False] * (len(lasts) - 1) + [True]
    assert (buffer.stats()["state"], len(buffer)) == ("shut", 0)


def test_draining_to_the_record_marks_the_last(server, make_buffer, small):
    """A full batch that takes the last records is the last one, too."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 6))
    buffer.shutdown()
    assert [buffer.sample(3, True)[1].last for _ in range(2)] == [False, True]


def test_draining_passes_over_the_floor(server, make_buffer, small):
    """min_items no longer holds when nothing more will come."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 2))
    buffer.shutdown()
    assert sorted(numbers(buffer.sample(50, min_items=10))) == [0, 1]


def test_an_empty_buffer_does_not_drain(server, make_buffer):
    """With nothing to give out it is shut at once."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.shutdown()
    assert buffer.stats()["state"] == "shut"


@pytest.mark.parametrize("how", ["remove", "empty"])
def test_taking_out_the_rest_ends_draining(server, make_buffer, small, how):
    """Whatever takes the last record away, the buffer is shut then."""
    buffer = make_buffer(consume_after_n_samples=1)
    indices = buffer.extend(small.many(0, 4))
    buffer.shutdown()
    buffer.remove(indices) if how == "remove" else buffer.empty()
    assert buffer.stats()["state"] == "shut"


def test_shutting_at_once_ends_draining(server, make_buffer, small):
    """shutdown(drain=False) keeps what was not given out yet."""
    buffer = make_buffer(consume_after_n_samples=1)
    buffer.extend(small.many(0, 4))
    buffer.shutdown()
    buffer.shutdown(drain=False)
    with refused(BufferShutDownError):
        buffer.sample(1)
    assert len(buffer) == 4


# reopen


@CONSUMES
@DRAINS
def test_a_reopened_buffer_works_on(server, make_buffer, records, consume, drain):
    """With what it held, for reads and writes."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(records.many(0, 3))
    buffer.shutdown(drain)
    buffer.reopen()
    buffer.extend(records.many(3, 5))
    assert (numbers(buffer.sample(5)), buffer.stats()["state"]) == ([0, 1, 2, 3, 4], "open")


def test_reopening_an_open_buffer_is_no_error(server, make_buffer, client, small):
    """And changes nothing."""
    buffer = make_buffer()
    buffer.add(small.one(0))
    with nothing_changes(client):
        buffer.reopen()


def test_a_shut_buffer_can_be_attached_to(server, make_buffer, small):
    """A handle that comes later can look, and open it again."""
    make_buffer().shutdown()
    later = make_buffer(attach=True)
    with refused(BufferShutDownError):
        later.add(small.one(0))
    later.reopen()
    assert later.add(small.one(0)) == 1


# delete


@CONSUMES
def test_delete_leaves_no_key(server, make_buffer, client, records, consume):
    """Whatever the buffer went through, nothing of it is left, held bytes and lanes included."""
    buffer, other = make_buffer(capacity=6, consume_after_n_samples=consume), make_buffer(attach=True)
    buffer.extend(records.many(0, 9))
    other.sample(3)
    buffer.remove(9)
    buffer.shutdown()
    buffer.delete()
    assert contents(client) == {}


USES = {
    "add": lambda b, r: b.add(r.one(0)),
    "extend": lambda b, r: b.extend(r.many(0, 2)),
    "sample": lambda b, r: b.sample(1),
    "wait": lambda b, r: b.sample(1, wait=True),
    "wait_until": lambda b, r: b.wait_until_sampleable(1),
    "can_sample": lambda b, r: b.can_sample(1),
    "get": lambda b, r: b.get(1),
    "remove": lambda b, r: b.remove(1),
    "empty": lambda b, r: b.empty(),
    "records": lambda b, r: list(b.records()),
    "stats": lambda b, r: b.stats(),
    "len": lambda b, r: len(b),
    "doctor": lambda b, r: b.doctor(),
    "shutdown": lambda b, r: b.shutdown(),
    "reopen": lambda b, r: b.reopen(),
    "delete": lambda b, r: b.delete(),
}


@pytest.mark.parametrize("use", [use for what, use in USES.items() if what != "delete"], ids=[u for u in USES if u != "delete"])
@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "created-anew"])
def test_a_deleted_buffer_is_gone_for_all(server, make_buffer, client, small, use, anew):
    """Every call of another handle says so, and touches nothing of a buffer that has its name now."""
    buffer, other = make_buffer(), make_buffer(attach=True)
    buffer.extend(small.many(0, 3))
    buffer.delete()
    if anew:
        make_buffer().extend(small.many(10, 13))
    with nothing_changes(client, ()), refused(BufferGoneError):
        use(other, small)


def test_deleting_a_gone_buffer_touches_nothing(server, make_buffer, client, small):
    """It is gone already; one that has its name now stays."""
    buffer, other = make_buffer(), make_buffer(attach=True)
    buffer.delete()
    make_buffer().extend(small.many(0, 3))
    with nothing_changes(client, ()):
        other.delete()


def test_a_large_batch_of_a_gone_buffer_is_not_another_ones(server, make_buffer, records):
    """A handle of the old buffer never gives out records of the new one, though they have the same indices."""
    buffer, other = make_buffer(sampler=Fifo()), make_buffer(attach=True)
    buffer.extend(records.many(0, 3))
    other.sample(1)
    make_buffer(fresh=True, sampler=Fifo()).extend(records.many(10, 13))
    with refused(BufferGoneError):
        other.sample(3)


def test_a_deleted_buffer_can_be_created_anew(server, make_buffer, client, small):
    """It starts from nothing, with other settings if one likes."""
    buffer = make_buffer(capacity=5)
    buffer.extend(small.many(0, 9))
    buffer.delete()
    new = make_buffer(capacity=7, sampler=Fifo())
    assert (len(new), new.add(small.one(0)), new.capacity) == (0, 1, 7)


# close


def test_close_twice_is_no_error(server, make_buffer):
    """The handle is closed, and the buffer goes on."""
    buffer = make_buffer()
    buffer.close()
    buffer.close()
    assert make_buffer(attach=True).capacity == 100


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_closed_handle_refuses_use(server, make_buffer, client, small, use):
    """Every call says that the handle was closed."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    buffer.close()
    with nothing_changes(client, ()), refused(BufferClosedError):
        use(buffer, small)


def test_delete_closes_the_handle(server, make_buffer):
    """After it nothing works but close()."""
    buffer = make_buffer()
    buffer.delete()
    with refused(BufferClosedError):
        buffer.stats()
    buffer.close()


def test_close_forgets_the_handles_lanes(server, make_buffer, small):
    """What a handle left on the server goes with it, what it drew included."""
    buffer, other = make_buffer(consume_after_n_samples=1), make_buffer(attach=True)
    buffer.extend(small.many(0, 9))
    buffer.sample(4)
    assert (other.stats()["lanes"], other.storage_size) == (1, 9)
    buffer.close()
    assert (other.stats()["lanes"], other.storage_size, other.doctor().ok) == (0, 5, True)


def test_with_closes_the_handle(server, make_buffer):
    """At the end of the block, by an error, too."""
    with pytest.raises(ZeroDivisionError), make_buffer() as buffer:
        1 / 0  # noqa: B018 - any error of the user's
    with refused(BufferClosedError):
        buffer.stats()


def test_close_ends_a_wait_of_the_handle(server, make_buffer):
    """A thread that waits on it gets BufferClosedError."""
    buffer, errors = make_buffer(), []

    def wait():
        try:
            buffer.sample(1, wait=True)
        except Exception as error:
            errors.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: buffer.stats()["waiters"] == 1, description="the waiter")
    buffer.close()
    thread.join(SOON)
    assert errors == [BufferClosedError]


# pickling and copies


def sample_in_child(text, pipe):
    """In another process: what an unpickled handle draws, and what it then writes."""
    with pickle.loads(text) as buffer:
        pipe.send((numbers(buffer.sample(3)), buffer.add({"i": 99, "x": buffer.get(1)["x"] * 0 + 99})))


def test_a_pickled_handle_works_in_another_process(real_server, make_buffer, records):
    """It is the same buffer, with sockets of its own."""
    buffer = make_buffer(sampler=Fifo())
    buffer.extend([{"i": n, "x": record["x"]} for n, record in enumerate(map(records.one, range(3)))])
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=sample_in_child, args=(pickle.dumps(buffer), theirs))
    child.start()
    assert ours.recv() == ([0, 1, 2], 4)
    child.join(10)
    assert (child.exitcode, buffer.get(4)["i"]) == (0, 99)


def test_a_pickle_holds_no_data(real_server, make_buffer, records):
    """Address, options and identity: it stays small whatever the buffer holds."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 50))
    assert len(pickle.dumps(buffer)) < 2000


def test_an_unpickled_handle_keeps_its_options(real_server, make_buffer, small):
    """batch_size, poll_interval and what it knew of the buffer."""
    buffer = make_buffer(capacity=7, batch_size=2, poll_interval=0.5)
    buffer.extend(small.many(0, 4))
    with pickle.loads(pickle.dumps(buffer)) as other:
        assert (other.name, other.capacity, other.batch_size) == (buffer.name, 7, 2)
        assert len(other.sample()["i"]) == 2


def test_a_closed_handle_pickles_as_closed(real_server, make_buffer):
    """Its copy refuses use like itself."""
    buffer = make_buffer()
    buffer.close()
    with refused(BufferClosedError):
        pickle.loads(pickle.dumps(buffer)).stats()


def test_an_unpickled_handle_of_a_gone_buffer_says_so(real_server, make_buffer):
    """It belongs to the buffer that was, not to one that has its name now."""
    buffer = make_buffer()
    text = pickle.dumps(buffer)
    make_buffer(fresh=True)
    with pickle.loads(text) as other, refused(BufferGoneError):
        other.stats()


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)
def test_a_handle_on_fakeredis_does_not_pickle(server, make_buffer):
    """It lives in one process; the TypeError says so."""
    with pytest.raises(TypeError, match="fakeredis lives in this process"):
        pickle.dumps(make_buffer())


def test_a_deep_copy_is_a_second_handle(server, make_buffer, records):
    """It sees the same buffer, and closing it leaves the first one alone."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 5))
    with copy.deepcopy(buffer) as other:
        other.add(records.one(5))
    assert len(buffer) == 6


# iteration


def test_iteration_ends_at_shutdown(server, make_buffer, records):
    """A loop over a draining buffer gets every record once, and ends."""
    buffer = make_buffer(batch_size=4, sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 10))
    buffer.shutdown()
    assert [numbers(batch) for batch in buffer] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_iteration_waits_for_each_batch(server, make_buffer, small):
    """It goes on with what another thread writes, until that shuts the buffer down."""
    buffer, writer, batches = make_buffer(batch_size=4, consume_after_n_samples=1), make_buffer(attach=True), []
    thread = threading.Thread(target=lambda: batches.extend(numbers(batch) for batch in buffer))
    thread.start()
    for low in range(0, 12, 2):
        writer.extend(small.many(low, low + 2))
    writer.shutdown()
    thread.join(5)
    assert sorted(n for batch in batches for n in batch) == list(range(12))


def test_iteration_without_consumption_repeats(server, make_buffer, small):
    """It gives batches as long as the loop goes on."""
    buffer = make_buffer(batch_size=3, sampler=Fifo())
    buffer.extend(small.many(0, 5))
    batches = iter(buffer)
    assert [numbers(next(batches)) for _ in range(3)] == [[0, 1, 2]] * 3


# kinds of errors


def test_errors_of_waits_are_what_python_expects():
    """A timeout is a TimeoutError, a cancelled wait a RuntimeError, a missing buffer a LookupError."""
    assert issubclass(ReplayTimeoutError, TimeoutError)
    assert issubclass(ReplayCancelledError, RuntimeError)
    assert issubclass(BufferNotFoundError, LookupError)
    assert not issubclass(NotReadyError, TimeoutError)


def test_a_deleted_buffer_is_not_found(server, make_buffer, name):
    """Opening it without a capacity says that it does not exist."""
    make_buffer().delete()
    with refused(BufferNotFoundError):
        ReplayBuffer(server.target(), name)
