"""The async handle: many tasks, cancellation in every phase, several event loops, and the same results as the sync one."""

import asyncio
import contextlib
import gc
import inspect
import random

import numpy as np
import pytest

from redis_replay import AsyncReplayBuffer, ReplayBuffer, samplers
from redis_replay.exceptions import BufferClosedError, ReplayError
from redis_replay.limiters import MinSize, Queue
from tests._helpers import wait_until_async
from tests._waiting import record, records, tags

QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}
LARGE = np.zeros(8_000, np.uint8)  # a payload that is fetched in a step of its own


def large(n, first=0):
    """A batch of n large records."""
    return {"i": np.arange(first, first + n), "pixels": np.tile(LARGE, (n, 1))}


async def line(buffer, n):
    """Returns when n calls wait."""

    async def are_there():
        return (await buffer.stats())["waiters"] == n

    await wait_until_async(are_there, description=f"{n} waiters")


# Many tasks on one handle


async def test_fifty_tasks_share_one_handle(server, make_async_buffer):
    """50 tasks that write and 50 that wait, all on one handle, get each record once."""
    buffer = make_async_buffer(**QUEUE)
    readers = [asyncio.create_task(buffer.sample(2, wait=True)) for _ in range(50)]
    await asyncio.gather(*(buffer.extend(records(2, 2 * i)) for i in range(50)))
    batches = await asyncio.gather(*readers)
    assert sorted(tag for batch in batches for tag in tags(batch)) == list(range(100))


async def test_fifty_waits_end_with_their_own_reasons(server, make_async_buffer):
    """Of 50 waits on one handle, those with a timeout end at it, and the others wait on until they are served."""
    buffer = make_async_buffer(**QUEUE)
    waits = [asyncio.create_task(buffer.sample(1, wait=True, timeout=0.3 if i % 2 else None)) for i in range(50)]
    short = await asyncio.gather(*waits[1::2], return_exceptions=True)
    assert ({type(error).__name__ for error in short}, sum(w.done() for w in waits)) == ({"ReplayTimeoutError"}, 25)
    await buffer.extend(records(25))
    batches = await asyncio.gather(*waits[::2])
    assert sorted(tag for batch in batches for tag in tags(batch)) == list(range(25))


async def test_waits_do_not_stop_the_loop(server, make_async_buffer):
    """While a wait is blocked, other tasks of the loop run."""
    buffer = make_async_buffer(**QUEUE)
    wait = asyncio.create_task(buffer.sample(1, wait=True, timeout=0.5))
    turns = 0
    while not wait.done():
        await asyncio.sleep(0)
        turns += 1
    assert (turns > 100, type(wait.exception()).__name__) == (True, "ReplayTimeoutError")


async def test_first_awaits_at_once_open_once(server, make_async_buffer, name):
    """Tasks that use a new handle at the same time open it once."""
    buffer = make_async_buffer()
    await asyncio.gather(*(buffer.add(record(i)) for i in range(20)))
    assert await buffer.write_count == 20


# Cancellation


async def abandoned(call, steps):
    """Cancels a call after so many turns of the loop. Gives its batch if it had ended by then."""
    task = asyncio.create_task(call)
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("make", [records, large])
async def test_cancelled_draws_lose_no_record(server, make_async_buffer, make, wait):
    """Draws cancelled after 0, 1, 2, … turns of the loop, in every phase there is, lose no record and double none."""
    buffer = make_async_buffer(capacity=1000, **QUEUE)
    await buffer.extend(make(240))
    got = []
    for steps in range(60):
        batch = await abandoned(buffer.sample(2, wait=wait, timeout=5), steps)
        got += tags(batch) if batch else []
    while rest := await buffer.sampleable_size:
        got += tags(await buffer.sample(min(rest, 50), wait=True, timeout=2))
    assert sorted(got) == list(range(240))


async def test_cancelled_draws_lose_no_record_by_time(real_server, make_async_buffer, seed):
    """The same, cancelled after a time instead of turns: while the reply is under way, too."""
    buffer, generator = make_async_buffer(capacity=1000, **QUEUE), random.Random(seed)
    await buffer.extend(large(400))
    got = []
    for _ in range(100):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(generator.uniform(0, 0.004)):
                got += tags(await buffer.sample(2, wait=True))
    while rest := await buffer.sampleable_size:
        got += tags(await buffer.sample(min(rest, 50), wait=True, timeout=2))
    assert sorted(got) == list(range(400))


async def test_cancelled_waits_leave_the_line(server, make_async_buffer):
    """Waits cancelled after 0, 1, 2, … turns of the loop have all left the line, and gave their lanes back."""
    buffer, other = make_async_buffer(**QUEUE), make_async_buffer(**QUEUE)
    for steps in range(60):
        await abandoned(buffer.sample(2, wait=True), steps)
    await line(other, 0)
    await buffer.extend(records(2))
    assert tags(await other.sample(2)) == [0, 1]


async def test_cancelled_wait_leaves_within_a_second(server, make_async_buffer):
    """A cancelled wait is not waited for: the task ends at once, and its place in the line soon after."""
    buffer, other = make_async_buffer(poll_interval=30, **QUEUE), make_async_buffer(**QUEUE)
    task = asyncio.create_task(buffer.sample(2, wait=True))
    await line(other, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(line(other, 0), 1)


@pytest.mark.parametrize("make", [records, large])
async def test_cancelled_writes_are_whole(server, make_async_buffer, make):
    """A write cancelled in any phase is there whole or not at all, and the handle goes on."""
    buffer = make_async_buffer(capacity=1000)
    for steps in range(60):
        await abandoned(buffer.extend(make(5, 5 * steps)), steps)
    await buffer.extend(make(5, 300))
    stored = [int(r["i"]) for r in [r async for r in buffer.records()]]
    assert stored == sorted(set(stored))
    assert {tag // 5 for tag in stored} == {tag // 5 for tag in stored if tag % 5 == 4}
    assert (await buffer.write_count, stored[-5:]) == (len(stored), list(range(300, 305)))


async def test_cancelled_call_leaves_replies_right(server, make_async_buffer):
    """After a cancelled call, no call is given the reply of another."""
    buffer = make_async_buffer(capacity=1000)
    wrong = []
    for tag in range(60):
        await abandoned(buffer.add(record(1000 + tag)), tag % 12)
        index = await buffer.add(record(tag))
        wrong += [tag] if int((await buffer.get(index))["i"]) != tag else []
    assert wrong == []


# Loops, `async with`, iteration


@pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_loops_in_sequence(server, name):
    """A handle that is used in one event loop and then in another opens anew there."""
    buffer = AsyncReplayBuffer(server.async_target(), name, capacity=10)

    async def use(tag):
        index = await buffer.add(record(tag))
        assert await buffer.wait_until_sampleable(tag + 1, timeout=5)
        return int((await buffer.get(index))["i"])

    async def end():
        await buffer.delete()

    assert [asyncio.run(use(tag)) for tag in range(3)] == [0, 1, 2]
    asyncio.run(end())
    gc.collect()  # what was open in a loop that has ended is closed here


async def test_async_with_opens_and_closes(server, make_async_buffer):
    """`async with` opens the buffer before its body, and closes the handle after it."""
    async with make_async_buffer(capacity=7) as buffer:
        assert buffer.capacity == 7
    with pytest.raises(BufferClosedError):
        await buffer.add(record(1))


async def test_closing_again_does_nothing(server, make_async_buffer):
    """A second `close()` is a no-op, and so is one of a handle that never opened."""
    unused, buffer = make_async_buffer("unused"), make_async_buffer()
    await unused.close()
    await buffer.add(record(1))
    await buffer.close()
    await buffer.close()
    assert buffer.name


async def test_close_ends_waits_of_all_tasks(server, make_async_buffer):
    """`close()` ends every wait of the handle with BufferClosedError."""
    buffer, other = make_async_buffer(**QUEUE), make_async_buffer(**QUEUE)
    waits = [asyncio.create_task(buffer.sample(2, wait=True)) for _ in range(8)]
    await line(other, 8)
    await buffer.close()
    ends = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 2)
    assert {type(end) for end in ends} == {BufferClosedError}


async def test_iteration_drains_and_stops(server, make_async_buffer):
    """A loop over the buffer gets all of it, the short rest included, and ends at the shutdown."""
    buffer, writer = make_async_buffer(batch_size=2, **QUEUE), make_async_buffer(**QUEUE)

    async def loop():
        return [tags(batch) async for batch in buffer]

    task = asyncio.create_task(loop())
    await line(writer, 1)
    await writer.extend(records(5))
    await writer.shutdown()
    assert await asyncio.wait_for(task, 3) == [[0, 1], [2, 3], [4]]


async def test_cancelled_notices_task_starts_again(server, make_async_buffer):
    """If somebody cancels all tasks of the loop, the handle's own among them, later waits are woken all the same."""
    buffer, writer = make_async_buffer(poll_interval=30, **QUEUE), make_async_buffer(**QUEUE)
    first = asyncio.create_task(buffer.sample(2, wait=True))
    await line(writer, 1)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(buffer.sample(2, wait=True))
    await line(writer, 1)
    await writer.extend(records(2))
    assert tags(await asyncio.wait_for(second, 2)) == [0, 1]


# The same as the sync handle

ONLY_SYNC = {"__len__", "__iter__", "__enter__", "__exit__"}
ONLY_ASYNC = {"__aiter__", "__aenter__", "__aexit__"}


def public(kind):
    """The names that a handle offers, those of its protocols included."""
    protocol = ONLY_SYNC | ONLY_ASYNC
    names = {name for part in kind.__mro__[:-1] for name in vars(part)}
    return {name for name in names if not name.startswith("_") or name in protocol}


def test_both_handles_have_the_same_names():
    """What one handle offers, the other does; what only one can have is listed here."""
    assert public(ReplayBuffer) - ONLY_SYNC == public(AsyncReplayBuffer) - ONLY_ASYNC


NAMES = sorted(public(ReplayBuffer) - ONLY_SYNC)


def function(kind, name):
    """The function behind a method, a classmethod or a property."""
    member = inspect.getattr_static(kind, name)
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


@pytest.mark.parametrize("name", ["__init__", *NAMES])
def test_both_handles_have_the_same_arguments(name):
    """Each name takes the same arguments with the same defaults."""
    here, there = (inspect.signature(function(kind, name)) for kind in (ReplayBuffer, AsyncReplayBuffer))
    assert here.parameters == there.parameters


@pytest.mark.parametrize("name", NAMES)
def test_both_handles_have_the_same_docstrings(name):
    """Each name is described in the same words, on both handles."""
    here, there = (inspect.getdoc(getattr(kind, name)) for kind in (ReplayBuffer, AsyncReplayBuffer))
    assert (here, bool(here)) == (there, True)


@pytest.mark.parametrize("name", NAMES)
def test_async_names_are_awaited(name):
    """On the async handle each method is a coroutine, save those that ask nobody."""
    asks_nobody = name in {"cache_info", "name", "capacity", "batch_size", "local_stats"}
    member = inspect.getattr_static(AsyncReplayBuffer, name)
    awaited = inspect.iscoroutinefunction(function(AsyncReplayBuffer, name)) or inspect.isasyncgenfunction(member)
    assert awaited or asks_nobody or isinstance(member, property)


def scenario():
    """Calls of every kind, with what is good and what is refused; each is (name, arguments, options)."""
    yield from [
        ("add", (record(0),), {}),
        ("add", ({"j": 1},), {}),
        ("extend", (records(7, 1),), {}),
        ("extend", ([],), {}),
        ("flush", (), {"timeout": 1.0}),
        ("stats", (), {}),
        ("write_count", None, None),
        ("sampleable_size", None, None),
        ("storage_size", None, None),
        ("get", (3,), {}),
        ("get", ([1, 2],), {}),
        ("get", (99,), {}),
        ("remove", ([2, 99],), {}),
        ("update_priority", ([2, 99], 1.0), {}),
        ("priorities", (), {}),
        ("ack", ("nobody.1",), {}),
        ("release", (["nobody.1"],), {}),
        ("ack", (1,), {}),
        ("can_sample", (7,), {}),
        ("can_sample", (8,), {}),
        ("sample", (2,), {"return_info": True}),
        ("sample", (50,), {}),
        ("sample", (500,), {}),
        ("sample", (2,), {"timeout": -1}),
        ("sample", (50,), {"wait": True, "timeout": 0.05}),
        ("sample", (50,), {"min_items": 2}),
        ("wait_until_sampleable", (1,), {"timeout": 0}),
        ("wait_until_sampleable", (), {"timeout": 0.05}),
        ("doctor", (), {}),
        ("set_rate_limiter", (Queue(9),), {}),
        ("can_insert", (3,), {}),
        ("can_insert", (10,), {}),
        ("wait_until_writable", (2,), {"timeout": 0}),
        ("wait_until_writable", (10,), {"timeout": 0}),
        ("set_rate_limiter", (MinSize(3),), {}),
        ("set_rate_limiter", (3,), {}),
        ("extend", (records(3, 20),), {}),
        ("extend", (records(3, 30),), {"version": [1, 3, 5]}),
        ("add", (record(33),), {"version": -1}),
        ("set_alpha", (2.5,), {}),
        ("set_alpha", (-1,), {}),
        ("set_version", (5,), {}),
        ("set_version", (4,), {}),
        ("shutdown", (), {}),
        ("add", (record(9),), {}),
        ("sample", (2,), {}),
        ("sample", (2,), {"return_info": True}),
        ("sample", (2,), {}),
        ("reopen", (), {}),
        ("empty", (), {"empty_write_count": False}),
        ("stats", (), {}),
        ("close", (), {}),
        ("stats", (), {}),
    ]


def told(result):
    """A result or an error in plain words, the same for both handles."""
    if isinstance(result, ReplayError):
        return type(result).__name__, str(result)
    if isinstance(result, tuple):
        return [told(part) for part in result]
    if hasattr(result, "index") and hasattr(result, "times_sampled"):
        return result.index.tolist(), result.probability.tolist(), result.last, result.version.tolist()
    if isinstance(result, dict):
        return {key: told(value) for key, value in result.items() if key != "lanes"}
    return result.tolist() if isinstance(result, np.ndarray) else repr(result)


async def test_both_handles_do_the_same(server, name):
    """One scenario of every call gives the same results and the same errors through both handles."""
    options = {"capacity": 50, **QUEUE, "batch_size": 40, "seed": 5, "max_staleness": 2}
    options["remover"] = samplers.Prioritized(alpha=0.6, beta=0.0)
    sync = ReplayBuffer(server.target(), name, **options)
    here = []
    for call, args, named in scenario():
        try:
            member = getattr(sync, call) if args is None else getattr(sync, call)(*args, **named)
        except ReplayError as error:
            member = error
        here.append(told(member))
    there = []
    buffer = AsyncReplayBuffer(server.async_target(), name, **options, fresh=True)
    for call, args, named in scenario():
        try:
            member = await (getattr(buffer, call) if args is None else getattr(buffer, call)(*args, **named))
        except ReplayError as error:
            member = error
        there.append(told(member))
    ReplayBuffer(server.target(), name).delete()
    assert there == here


def test_scenario_calls_every_name():
    """The scenario leaves out only what cannot be compared call by call."""
    called = {call for call, _, _ in scenario()}
    assert set(NAMES) - called == {
        "attach",
        "batch_size",
        "beta",
        "cache_info",
        "capacity",
        "consume_after_n_samples",
        "delete",
        "draws_again",
        "dumps",  # these four in tests/contract/test_checkpoint.py
        "load_state_dict",
        "loads",
        "local_stats",
        "name",
        "records",
        "sampler",
        "state_dict",
        "writer",
    }
