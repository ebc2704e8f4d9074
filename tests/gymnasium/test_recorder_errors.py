"""A write of a recorder that fails: no record is lost or doubled, no step's result is, and the caller is told."""

import contextlib
import os
import threading

import numpy as np
import pytest

from redis_replay import _ops_write, _requests, _resolve
from redis_replay.exceptions import (
    BufferShutDownError,
    ConnectionLostError,
    OutcomeLostError,
    OutcomeUnknownError,
    ReplayCancelledError,
    ReplayTimeoutError,
    SchemaError,
)
from redis_replay.gymnasium import GymRecorder
from redis_replay.limiters import Queue
from tests._proxy import Proxy
from tests.gymnasium._envs import Counting, Shelf, recorded, transitions


def refused(done=0):
    error = ConnectionLostError(address="x", reason="y")
    error.done = done
    return error


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def env(shelf):
    """Recorded in writes of 3, in an episode without end."""
    made = GymRecorder(Counting(length=100), shelf, batch_size=3)
    made.reset()
    return made


def steps(env, n):
    for i in range(n):
        env.step(i)


def expected(n):
    return transitions(0, n, 100)


def test_the_step_has_its_result_and_the_next_call_tells(env, shelf):
    """The environment goes on only when the write is done: the call that raised can be made again."""
    shelf.errors = [refused(), refused(), refused()]
    steps(env, 3)
    for call in (lambda: env.step(3), env.reset):
        with pytest.raises(ConnectionLostError):
            call()
    assert (env.unwrapped.time, env.unwrapped.episode, env.pending) == (3, 0, 3)
    env.step(3)
    assert (recorded(shelf.records), env.pending) == (expected(3), 1)
    env.step(4)
    assert env.pending == 2  # writes are of batch_size again
    env.flush()
    assert recorded(shelf.records) == expected(5)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_what_earlier_steps_of_a_write_stored_is_not_written_again(env, shelf, done):
    shelf.errors = [refused(done)]
    steps(env, 3)
    assert env.pending == 3 - done
    env.close()
    assert (recorded(shelf.records), shelf.calls) == (expected(3), [3, 3 - done])


def unknown(answer, done=0):
    """The error of a write without a reply; `answer` is what asking gives, or raises."""
    error = OutcomeUnknownError(name="b", verb="extend", lane="l", number=1)
    error.done = done

    def ask():
        if isinstance(answer, Exception):
            raise answer
        return answer

    error.ask = ask
    return error


class Outcome:
    def __init__(self, n):
        self.applied, self.index = n > 0, np.arange(n)


@pytest.mark.parametrize(("done", "applied"), [(0, 0), (0, 3), (1, 2), (1, 0), (1, 1)])
def test_a_write_without_a_reply_is_asked_after(env, shelf, done, applied):
    """What was applied is not written again, and what was not is."""
    shelf.errors = [unknown(Outcome(applied), done)]
    steps(env, 3)
    shelf.records += [{k: v[i] for k, v in env._outbox._gathered().items()} for i in range(applied)]  # without a reply
    env.flush()
    assert (recorded(shelf.records), env.pending) == (expected(3), 0)


def test_an_outcome_that_cannot_be_learnt_is_told_until_it_is_discarded(env, shelf):
    """The records are the caller's to decide on: nothing is written twice, and nothing thrown away, without being asked."""
    shelf.errors = [unknown(OutcomeLostError(name="b", verb="extend", reason="r"))]
    steps(env, 3)
    for call in (env.flush, env.flush, lambda: env.step(3)):
        with pytest.raises(OutcomeLostError):
            call()
    left = env.discard()
    assert (left["observation"].tolist(), env.pending, env.discard()) == ([t[0] for t in expected(3)], 0, None)
    env.step(3), env.step(4)
    assert env.pending == 2  # writes are of batch_size again
    env.close()
    assert recorded(shelf.records) == expected(5)[3:]


def test_an_interrupted_write_is_not_repeated(env, shelf):
    """Nobody can tell whether it was applied: at most once."""
    shelf.errors = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        steps(env, 3)
    env.flush()
    assert (shelf.records, env.pending) == ([], 0)


def test_close_closes_the_environment_whatever_the_buffer_says(shelf):
    """And the write can be made after it."""

    class Closing(Counting):
        closed = False

        def close(self):
            self.closed = True

    env = GymRecorder(Closing(), shelf, batch_size=10)
    env.reset()
    env.step(0)
    shelf.errors = [refused()]
    with pytest.raises(ConnectionLostError):
        env.close()
    assert env.unwrapped.closed
    env.flush()
    assert recorded(shelf.records) == transitions(0, 1)


def test_what_is_pending_is_the_parents_after_a_fork(env, shelf):
    """A child neither writes it nor counts it."""
    steps(env, 2)
    pid = os.fork()
    if not pid:
        left = env.pending
        env.flush()
        os._exit(left + len(shelf.records))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert env.pending == 2


def test_a_record_that_does_not_fit_is_told(server, make_buffer):
    """The buffer's schema is another one: the error names the leaf, and nothing is written."""
    buffer = make_buffer()
    buffer.add({"observation": np.zeros(7)})
    env = GymRecorder(Counting(), buffer)
    env.reset()
    env.step(0)
    with pytest.raises(SchemaError, match="action"):
        env.step(0)
    assert (buffer.write_count, env.pending) == (1, 1)


def test_a_buffer_that_was_shut_down_is_told(server, make_buffer):
    """The actor's loop ends with it, at the step after."""
    buffer = make_buffer()
    env = GymRecorder(Counting(), buffer)
    env.reset()
    buffer.shutdown()
    env.step(0)
    with pytest.raises(BufferShutDownError):
        env.step(0)
    buffer.reopen()
    env.step(0)
    assert recorded(buffer.records()) == transitions(0, 2)


def test_a_rate_limiter_holds_the_actor_back(server, make_buffer):
    """For `timeout` seconds of each write, or until it is cancelled; what it held back is written when there is room."""
    buffer, cancel = make_buffer(rate_limiter=Queue(2), consume_after_n_samples=1), threading.Event()
    env = GymRecorder(Counting(length=9), buffer, timeout=0.05, cancel_event=cancel)
    env.reset()
    steps(env, 3)
    with pytest.raises(ReplayTimeoutError):
        env.step(3)
    cancel.set()
    with pytest.raises(ReplayCancelledError):
        env.step(3)
    cancel.clear()
    drawn = buffer.sample(2)["observation"][:, 2].tolist()
    env.step(3)
    drawn += buffer.sample(2)["observation"][:, 2].tolist()
    assert sorted(drawn) == [0, 1, 2, 3]


def test_each_record_has_the_version_it_was_made_with(server, make_buffer):
    """However late it is written, and also where steps before had none; one that is too old when it arrives is dropped."""
    buffer = make_buffer(max_staleness=2)
    env = GymRecorder(Counting(length=100), buffer, batch_size=8)
    env.reset()
    env.step(0)
    for env.version in (1, 4, 5):
        env.step(env.version)
    buffer.set_version(5)
    env.close()
    data, info = buffer.sample(64, return_info=True, min_items=1)
    assert set(zip(data["action"].tolist(), info.version.tolist(), strict=True)) == {(0, 5), (4, 4), (5, 5)}
    assert (buffer.write_count, buffer.stats()["stale"]) == (4, 1)


def test_one_write_goes_on_where_another_has_failed(env, shelf):
    """Records with versions and without are two writes: what the first stored is not written again for the second's error."""
    steps(env, 2)
    env.version, versions = 1, []
    extend = shelf.extend
    shelf.extend = lambda columns, version=None: (versions.append(version), extend(columns))[1]
    shelf.errors = [refused(2), refused(0), refused(1)]
    steps(env, 1)
    for _ in range(2):
        with contextlib.suppress(ConnectionLostError):
            env.flush()
    env.version = None
    steps(env, 1)
    env.close()
    assert recorded(shelf.records) == expected(4)
    assert versions == [None, [1], [1], None]


@pytest.mark.fault
def test_lost_replies_of_a_real_server(real_server, make_buffer, name, monkeypatch):
    """Every reply is lost for a while: in the end each record is there once, in order."""
    for module in (_requests, _ops_write, _resolve):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.2)
    direct = make_buffer(capacity=1000)
    with contextlib.closing(Proxy(real_server.url)) as proxy:
        env = GymRecorder(Counting(length=100), make_buffer(target=proxy.url, attach=True), batch_size=2)
        env.reset()
        steps(env, 2)
        proxy.replies = lambda data: 0
        steps(env, 2)
        with pytest.raises((OutcomeUnknownError, ConnectionLostError)):
            env.step(4)
        proxy.replies = lambda data: None
        env.step(4)
        env.step(5)
        env.close()
        assert recorded(direct.records()) == expected(6)
