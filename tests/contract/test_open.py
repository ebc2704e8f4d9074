"""Opening: create or attach, one comparison of settings, waiting for a creator, names."""

import threading

import pytest

from redis_replay import ReplayBuffer
from redis_replay import _ops_admin as admin
from redis_replay._address import Address
from redis_replay._clock import monotonic
from redis_replay._core import Core
from redis_replay._keys import Keys
from redis_replay._runtime import Runtime
from redis_replay._steps import Listen, Pause
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferGoneError,
    BufferNotFoundError,
    ConfigMismatchError,
    ReplayTimeoutError,
)
from redis_replay.samplers import Fifo, Lifo, Sampler, Uniform
from tests._contract import contents, nothing_changes, refused
from tests._helpers import SOON, wait_until

DIFFERENT = [
    ("capacity", {"capacity": 50}, 100, 50),
    ("sampler", {"sampler": Fifo()}, Uniform(), Fifo()),
    ("sampler", {"sampler": Uniform(replacement=False)}, Uniform(), Uniform(replacement=False)),
    ("consume_after_n_samples", {"consume_after_n_samples": 2}, None, 2),
]


def test_first_open_creates_an_empty_buffer(server, make_buffer):
    """A buffer that did not exist is there after the first open, with nothing in it."""
    assert make_buffer(capacity=7).stats()["capacity"] == 7
    assert len(make_buffer(attach=True)) == 0


def test_second_open_finds_the_same_records(server, make_buffer, small):
    """A handle with equal settings sees what another one wrote."""
    index = make_buffer(capacity=10).add(small.one(5))
    assert make_buffer(capacity=10).get(index)["i"] == 5


def test_creation_stores_every_setting_as_text(server, make_buffer, client, name):
    """The config hash is readable: a person sees each setting by its name."""
    make_buffer(capacity=12, sampler=Lifo(), consume_after_n_samples=3)
    config = client.hgetall(f"rr:{{{name}}}:config")
    stored = {key.decode(): value.decode() for key, value in config.items()}
    assert (stored["capacity"], stored["sampler"], stored["consume_after_n_samples"]) == ("12", "Lifo()", "3")
    assert (stored["format"], stored["state"]) == (admin.FORMAT, "open")


@pytest.mark.parametrize(("option", "given", "stored", "found"), DIFFERENT)
def test_another_setting_is_refused_with_both_values(server, make_buffer, client, option, given, stored, found):
    """The error names the option, what is stored and what was given, and changes nothing."""
    make_buffer(capacity=100)
    with nothing_changes(client, ()), refused(ConfigMismatchError) as caught:
        make_buffer(**given)
    assert caught.value.differences == {option: (stored, found)}
    assert all(part in str(caught.value) for part in (option, repr(stored), repr(found)))


def test_all_different_settings_are_named_at_once(server, make_buffer):
    """One error lists every option that differs."""
    make_buffer(capacity=100)
    with refused(ConfigMismatchError) as caught:
        make_buffer(capacity=99, sampler=Fifo(), consume_after_n_samples=1)
    assert set(caught.value.differences) == {"capacity", "sampler", "consume_after_n_samples"}


def test_options_left_out_are_not_compared(server, make_buffer):
    """A learner that names nothing attaches to any buffer, and has its settings."""
    make_buffer(capacity=20, sampler=Fifo(), consume_after_n_samples=2)
    learner = make_buffer(attach=True)
    assert (learner.capacity, learner._now.core.sampler, learner._now.core.consume) == (20, Fifo(), 2)


def test_one_named_option_is_compared_alone(server, make_buffer):
    """What is named is compared even when the capacity is left out."""
    make_buffer(capacity=20, sampler=Fifo())
    with refused(ConfigMismatchError) as caught:
        make_buffer(attach=True, sampler=Lifo())
    assert caught.value.differences == {"sampler": (Fifo(), Lifo())}


@pytest.mark.parametrize(
    ("option", "stored"),
    [({"sampler": None}, {"sampler": Fifo()}), ({"consume_after_n_samples": None}, {"consume_after_n_samples": 1})],
    ids=["sampler", "consume_after_n_samples"],
)
def test_an_explicit_none_is_compared(server, make_buffer, option, stored):
    """None is a value: it does not mean that the option was left out."""
    make_buffer(**stored)
    with refused(ConfigMismatchError) as caught:
        make_buffer(**option)
    assert set(caught.value.differences) == set(option)


def test_an_explicit_default_equals_none(server, make_buffer):
    """None is the default, so naming either attaches to the other."""
    make_buffer(sampler=None)
    assert make_buffer(sampler=Uniform()).capacity == 100


def test_fresh_deletes_what_was_there(server, make_buffer, small):
    """fresh=True gives an empty buffer with the new settings."""
    make_buffer(capacity=10).extend(small.many(0, 5))
    new = make_buffer(capacity=20, sampler=Fifo(), fresh=True)
    assert (len(new), new.capacity, new.write_count) == (0, 20, 0)


def test_fresh_ends_the_handles_on_the_old_one(server, make_buffer, small):
    """A handle that was opened before touches nothing of the new buffer."""
    old = make_buffer(capacity=10)
    new = make_buffer(capacity=10, fresh=True)
    with refused(BufferGoneError):
        old.add(small.one(1))
    assert new.write_count == 0


def test_fresh_needs_a_capacity(server, make_buffer):
    """fresh=True creates, so it must say how large, and deletes nothing before."""
    make_buffer()
    with refused(ArgumentError) as caught:
        make_buffer(attach=True, fresh=True)
    assert "capacity" in str(caught.value)
    assert len(make_buffer(attach=True)) == 0


def test_open_without_capacity_needs_the_buffer(server, make_buffer, client, name):
    """The error names the buffer and both ways out, and no key appears."""
    with refused(BufferNotFoundError) as caught:
        make_buffer(attach=True)
    assert all(part in str(caught.value) for part in (name, "capacity", "attach"))
    assert contents(client) == {}


def test_attach_waits_for_a_later_creator(server, make_buffer, client, name):
    """attach() returns soon after another thread has created the buffer, by notice, not by poll."""
    found = []

    def attach():
        with ReplayBuffer.attach(server.target(), name, timeout=20, poll_interval=30) as handle:
            found.append(handle.capacity)

    thread = threading.Thread(target=attach)
    thread.start()
    wait_until(lambda: client.pubsub_numsub(f"rr:{{{name}}}:events")[0][1], description="attach to listen")
    make_buffer(capacity=33)
    thread.join(SOON)
    assert found == [33]


def test_attach_looks_again_once_it_listens(server, make_buffer, name):
    """A buffer that is created before the subscription stands is found without a notice and without a poll."""
    core = Core(Keys(name), 30.0, None, monotonic)
    runtime = Runtime(Address(server.target()), core)
    perform = runtime._perform

    def create_at_listen(step):
        if isinstance(step, Listen):
            make_buffer(capacity=44)
        assert not isinstance(step, Pause)
        return perform(step)

    runtime._perform = create_at_listen
    try:
        runtime.drive(admin.attach(core, {}, 20.0))
    finally:
        runtime.listener.close()
        runtime.connection.close()
    assert core.capacity == 44


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_attach_gives_up_at_its_timeout(server, client, name, timeout):
    """A ReplayTimeoutError, which is a TimeoutError, says for whom it waited; no key is left."""
    with refused(ReplayTimeoutError, timeout + 1) as caught:
        ReplayBuffer.attach(server.target(), name, timeout=timeout)
    assert isinstance(caught.value, TimeoutError)
    assert name in str(caught.value)
    assert "creator" in str(caught.value)
    assert contents(client) == {}


def test_attach_to_an_existing_buffer_is_immediate(server, make_buffer, name):
    """Nothing is waited for where the buffer is there, even with a timeout of 0."""
    make_buffer(capacity=9)
    with ReplayBuffer.attach(server.target(), name, timeout=0) as handle:
        assert handle.capacity == 9


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)  # judged before a server is asked
@pytest.mark.parametrize(
    ("timeout", "kind"),
    [(-1, ArgumentError), (float("nan"), ArgumentError), ("1", ArgumentTypeError), (True, ArgumentTypeError)],
)
def test_attach_refuses_a_bad_timeout(server, name, timeout, kind):
    """Negative and NaN are values, bool and text types that are not allowed."""
    with refused(kind) as caught:
        ReplayBuffer.attach(server.target(), name, timeout=timeout)
    assert "timeout" in str(caught.value)


BAD_NAMES = {
    "spaces": "two words",
    "braces": "a{b}c",
    "umlaut": "Wörter",
    "cyrillic": "буфер",
    "long": "n" * 300,
    "one-too-long": "n" * 201,
    "empty": "",
    "newline": "a\n",
    "star": "a*",
}


@pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_bad_name_is_refused(server, client, bad):
    """The error names the argument and what is allowed; no key appears."""
    with refused(ArgumentError) as caught:
        ReplayBuffer(server.target(), bad, capacity=1)
    assert str(caught.value).startswith("name must be 1 to 200 characters of A-Z a-z 0-9")
    assert contents(client) == {}


@pytest.mark.parametrize("bad", [None, 5, b"bytes"], ids=repr)
def test_a_name_that_is_no_text_is_refused(server, bad):
    """A TypeError, whose text names the argument."""
    with refused(ArgumentTypeError) as caught:
        ReplayBuffer(server.target(), bad, capacity=1)
    assert str(caught.value).startswith("name must be")


@pytest.mark.parametrize("good", ["n" * 200, "A-Za-z0-9_.-/:@+=", "runs/7:critic"], ids=["long", "all", "path"])
def test_every_allowed_name_works(server, make_buffer, small, good):
    """A name of any allowed form holds records."""
    buffer = make_buffer(good)
    assert buffer.get(buffer.add(small.one(3)))["i"] == 3


def test_two_names_are_two_buffers(server, make_buffer, small):
    """A name that starts with another one's is another buffer."""
    make_buffer("run").extend(small.many(0, 4))
    assert len(make_buffer("run:1")) == 0


BAD_OPTIONS = [
    ({"capacity": 0}, ArgumentError),
    ({"capacity": -1}, ArgumentError),
    ({"capacity": 2.5}, ArgumentTypeError),
    ({"capacity": True}, ArgumentTypeError),
    ({"capacity": "10"}, ArgumentTypeError),
    ({"capacity": None}, ArgumentTypeError),
    ({"capacity": 4_000_000_001}, ArgumentError),
    ({"batch_size": 0}, ArgumentError),
    ({"batch_size": 20_001}, ArgumentError),
    ({"batch_size": True}, ArgumentTypeError),
    ({"sampler": "uniform"}, ArgumentTypeError),
    ({"sampler": Uniform}, ArgumentTypeError),
    ({"sampler": Sampler()}, ArgumentTypeError),
    ({"consume_after_n_samples": 0}, ArgumentError),
    ({"consume_after_n_samples": True}, ArgumentTypeError),
    ({"consume_after_n_samples": 1.0}, ArgumentTypeError),
    ({"poll_interval": 0}, ArgumentError),
    ({"poll_interval": float("nan")}, ArgumentError),
    ({"seed": -1}, ArgumentError),
    ({"seed": 1.5}, ArgumentTypeError),
]


@pytest.mark.parametrize("server", ["fakeredis"], indirect=True)  # judged before a server is asked
@pytest.mark.parametrize(("options", "kind"), BAD_OPTIONS, ids=[f"{k}={v!r:.12}" for o, _ in BAD_OPTIONS for k, v in o.items()])
def test_a_bad_option_is_refused_by_name(server, client, name, options, kind):
    """The error names the option, what is allowed and what was given; no key appears."""
    with refused(kind) as caught:
        ReplayBuffer(server.target(), name, **{"capacity": 10} | options)
    assert str(caught.value).startswith(f"{next(iter(options))} must be")
    assert contents(client) == {}


def test_the_smallest_buffer_has_capacity_one(server, make_buffer, small):
    """Capacity 1 holds the newest record."""
    buffer = make_buffer(capacity=1)
    buffer.add(small.one(1))
    buffer.add(small.one(2))
    assert [int(record["i"]) for record in buffer.records()] == [2]
