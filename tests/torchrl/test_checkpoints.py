"""What is saved comes back, here or elsewhere: rows C7, C12, C13, C20, C25, C26, D2 and D17 of docs/torchrl.md."""

import contextlib
import io
import multiprocessing
import threading
from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from redis_replay._blocks import File, Writer, read
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    LoadError,
)
from redis_replay.samplers import Fifo, Prioritized
from redis_replay.torchrl import (
    BlockingReplayBuffer,
    RateLimitedReplayBuffer,
    RedisPrioritizedReplayBuffer,
    RedisReplayBuffer,
)
from tests._helpers import thread_of, wait_until, waiters
from tests._torchrl import data, dqn, numbers

VALKEY = pytest.mark.parametrize("server", ["valkey"], indirect=True)
KEPT = ("size", "storage_size", "write_count", "sample_calls", "samples_returned", "consumed", "evicted")


def kept(rb):
    stats = rb.stats()
    return {name: stats[name] for name in KEPT}


def by_file(rb, folder):
    rb.save(folder / "one.ckpt")
    return lambda other: other.load(folder / "one.ckpt")


def by_directory(rb, folder):
    rb.dumps(folder)
    return lambda other: other.loads(folder)


def by_state(rb, folder):
    """The state that is loaded is not what is stored: it may change, and go."""
    state = rb.state_dict()

    def load(other):
        other.load_state_dict(state)
        state["data"].zero_()

    return load


def by_torch(rb, folder):
    torch.save(rb.state_dict(), folder / "state.pt")
    return lambda other: other.load_state_dict(torch.load(folder / "state.pt", weights_only=True, mmap=True))


WAYS = pytest.mark.parametrize("save", [by_file, by_directory, by_state, by_torch])


@WAYS
def test_all_of_it_comes_back(server, make, name, tmp_path, save):
    """C12, C13, C20: counters, and what was consumed: each record comes as often as was left of it. On another buffer."""
    rb, other = (make(buffer_name=f"{name}-{k}", sampler=Fifo(), consume_after_n_samples=2) for k in range(2))
    rb.extend(data(0, 10))
    first = Counter(numbers(rb.sample(4)))
    load, then = save(rb, tmp_path), kept(rb)
    other.extend(data(50, 70))
    rb.sample(6)
    load(other)
    assert kept(other) == then
    assert other.write_count == 10
    while len(other):
        first.update(numbers(other.sample(5)))
    assert first == dict.fromkeys(range(10), 2)


def by_memmap(rb, folder):
    """As torchrl's Trainer with CKPT_BACKEND=memmap."""
    from torchrl.trainers import trainers

    trainers._state_dict_to_td({"replay_buffer": rb.state_dict()}).dumps(folder / "map")
    load = TensorDict.load_memmap
    return lambda other: other.load_state_dict(trainers._td_to_state_dict(load(folder / "map"))["replay_buffer"])


def by_component(rb, folder):
    """As torchrl's Trainer with checkpoint=Checkpoint()."""
    checkpoints = pytest.importorskip("torchrl.checkpoint")
    checkpoints.Checkpoint(replay_buffer=rb).save(folder / "run")
    return lambda other: checkpoints.Checkpoint(replay_buffer=other).load(folder / "run")


@VALKEY
@pytest.mark.filterwarnings("ignore")  # tensordict warns of what it stores as a pickle itself
@pytest.mark.parametrize("save", [by_memmap, by_component])
def test_the_other_formats_of_trainers_keep_it(server, make, name, tmp_path, save):
    rb, other = (make(buffer_name=f"{name}-{k}") for k in range(2))
    rb.extend(data(0, 10))
    rb.sample(4)
    save(rb, tmp_path)(other)
    assert kept(other) == kept(rb)
    assert numbers(other[list(range(1, 11))]) == list(range(10))


@VALKEY
def test_a_dump_needs_the_directory_above(server, make, tmp_path):
    """As TorchRL's; and a directory without a checkpoint has none."""
    rb = make()
    with pytest.raises(FileNotFoundError):
        rb.dumps(tmp_path / "none" / "one.ckpt")
    with pytest.raises(CheckpointNotFoundError, match=r"buffer\.ckpt"):
        rb.loads(tmp_path)


@VALKEY
@WAYS
def test_a_load_ends_waits_at_once(server, make, tmp_path, save):
    """C7, D2: nobody has to look again by himself."""
    rb, waiter = make(poll_interval=30), make(attach=True, poll_interval=30)
    rb.extend(data(0, 6))
    load = save(rb, tmp_path)
    rb.empty()
    with (
        thread_of(lambda: waiter.wait_until_sampleable(6, timeout=60)) as found,
        thread_of(lambda: len(waiter.sample(6, wait=True, timeout=60))) as drawn,
    ):
        waiters(rb, 2)
        load(rb)
        wait_until(lambda: found and drawn, timeout=5, description="the waits to end")
    assert (found, drawn) == ([True], [6])


@VALKEY
def test_the_count_is_right_at_once(server, make, tmp_path):
    """No answer of before the load is given after it, also where the load fails."""
    rb = make()
    rb.extend(data(0, 5))
    rb.dumps(tmp_path)
    rb.extend(data(5, 9))
    for call in (lambda: rb.loads(tmp_path), lambda: rb.load_state_dict(rb.state_dict())):
        assert rb.write_count in (9, 5)
        call()
        assert rb.write_count == 5
    with pytest.raises(CheckpointNotFoundError):
        rb.loads(tmp_path / "other")
    assert rb.write_count == 5


def older(checkpoint, *lost):
    """The bytes of a checkpoint without these counters."""
    made = io.BytesIO()
    writer = Writer(made)
    for kind, body in read(File(checkpoint)):
        if kind == "head":
            body["counters"] = {name: n for name, n in body["counters"].items() if name not in lost}
        writer.write(kind, body)
    return made.getvalue()


@VALKEY
def test_what_an_older_state_has_not_is_0(server, make):
    """C12, C13: whatever the buffer has counted; and the writes are those that are known of."""
    rb = make()
    rb.extend(data(0, 6))
    state = rb.state_dict()
    del state["counters"], state["position"], state["transforms"]
    lost = ("sample_calls", "samples_returned", "evicted", "write_count")
    state["data"] = torch.frombuffer(bytearray(older(bytes(state["data"].numpy()), *lost)), dtype=torch.uint8)
    rb.extend(data(6, 9))
    rb.sample(5)
    rb.load_state_dict(state)
    stats = rb.stats()
    assert (stats["sample_calls"], stats["samples_returned"], stats["size"], rb.write_count) == (0, 0, 6, 6)
    assert rb.buffer.doctor().ok


@VALKEY
def test_a_small_state_is_of_a_buffer_that_outlives_it(server, make, name):
    rb, other = make(), make(buffer_name=f"{name}-other")
    rb.extend(data(0, 50))
    state = rb.state_dict(include_data=False)
    assert "data" not in state
    rb.extend(data(50, 60))
    rb.load_state_dict(state)
    assert rb.write_count == 60
    with pytest.raises(LoadError):
        other.load_state_dict(state)
    for wrong in (None, 3, {"data": "text"}, {"data": torch.zeros(3)}):
        with pytest.raises(ArgumentTypeError):
            rb.load_state_dict(wrong)


@VALKEY
@pytest.mark.parametrize("save", [by_file, by_state])
def test_priorities_come_back(server, make, name, tmp_path, save):
    options = {"alpha": 0.5, "beta": 0.4}
    rb, other = (make(RedisPrioritizedReplayBuffer, f"{name}-{k}", **options) for k in range(2))
    rb.extend(data(0, 20))
    rb.update_priority(list(range(1, 21)), [float(n) for n in range(20)])
    rb.buffer.beta = 0.9
    save(rb, tmp_path)(other)
    assert [list(column) for column in other.buffer.priorities()] == [list(column) for column in rb.buffer.priorities()]
    assert other.buffer.beta == (0.9 if save is by_state else 0.4)


# Limits


@VALKEY
@pytest.mark.parametrize("save", [by_file, by_state])
def test_a_ratio_goes_on(server, make, name, tmp_path, save):
    """C25, D17: the ratio and what is left of it; a state has the number of waits, too."""
    rb, other = (
        make(RateLimitedReplayBuffer, f"{name}-{k}", samples_per_insert=ratio, batch_size=2)
        for k, ratio in enumerate((0.5, 3.0))
    )
    rb.extend(data(0, 12))
    rb.sample()
    assert rb.wait_until_sampleable(2, timeout=0) is True
    load, then = save(rb, tmp_path), rb.stats()
    load(other)
    stats = other.stats()
    told = ("target_samples_per_insert", "samples_per_insert", "sample_budget", "samples_returned")
    assert [stats[key] for key in told] == [then[key] for key in told] == [0.5, 2 / 12, 4, 2]
    assert stats["sample_wait_count"] == (then["sample_wait_count"] if save is by_state else 0)
    assert [len(other.sample()) for _ in range(2)] == [2, 2]
    assert other.can_sample() is False


@VALKEY
def test_a_queue_goes_on(server, make, name, tmp_path):
    """D17: what was full is full, and a writer waits."""
    rb, other = (make(BlockingReplayBuffer, f"{name}-{k}", capacity=4, batch_size=2) for k in range(2))
    rb.extend(data(0, 4))
    rb.dumps(tmp_path)
    other.loads(tmp_path)
    with thread_of(lambda: other.add(data(4, 5)[0])) as wrote:
        waiters(other)
        other.sample()
    assert (len(wrote), len(other), other.stats()["evicted"]) == (1, 3, 0)


@VALKEY
@pytest.mark.parametrize("kind", [RateLimitedReplayBuffer, BlockingReplayBuffer])
def test_a_class_keeps_its_limiter(server, make, name, tmp_path, kind):
    """A checkpoint without one would make of it what it is not: refused, nothing is changed."""
    consume = 1 if kind is BlockingReplayBuffer else None
    plain = make(buffer_name=f"{name}-plain", consume_after_n_samples=consume)
    plain.extend(data(0, 9))
    rb = make(kind, **({"capacity": 100} if consume else {"samples_per_insert": 1.0}))
    rb.extend(data(0, 3))
    for call in (lambda: rb.load_state_dict(plain.state_dict()), lambda: rb.loads(by_dump(plain, tmp_path))):
        with pytest.raises(CheckpointMismatchError, match="rate_limiter"):
            call()
    assert len(rb) == 3


def by_dump(rb, folder):
    rb.dumps(folder / "plain.ckpt")
    return folder / "plain.ckpt"


# Drawn ahead, transforms


@VALKEY
def test_nothing_of_before_a_load_is_drawn_ahead(server, make, tmp_path):
    """C26: whoever loads, what was drawn ahead is dropped."""
    rb, other = make(batch_size=4, prefetch=3), make(attach=True)
    rb.extend(data(10, 20))
    rb.dumps(tmp_path)
    rb.empty()
    rb.extend(data(0, 10))
    for loader in (other, rb):
        for _ in range(3):
            rb.sample()
        wait_until(lambda: rb.stats()["prefetch_queue_size"] == 3, description="batches drawn ahead")
        loader.loads(tmp_path)
        assert all(min(numbers(rb.sample())) >= 10 for _ in range(6))


@VALKEY
@pytest.mark.parametrize("save", [by_torch, by_memmap])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.filterwarnings("ignore")  # tensordict warns of what it stores as a pickle itself
def test_a_state_brings_back_what_was_drawn_ahead(server, make, name, tmp_path, save, used):
    """C26: in order, with what was told of it; under new indices in another buffer, as far as there is room."""
    kinds = {"sampler": Prioritized(alpha=1.0, beta=1.0), "batch_size": 4}
    rb, other, one, plain = (make(buffer_name=f"{name}-{k}", prefetch=k, **kinds) for k in (3, 4, 1, 0))
    rb.extend(data(0, 30))
    rb.update_priority(torch.arange(1, 31), torch.arange(30.0))
    rb.sample()
    load = save(rb, tmp_path)
    expected = [rb.sample() for _ in range(3)]
    for late in (other, one, plain):
        if used:
            late.extend(data(50, 60))
        load(late)
    for batch in expected:
        again = other.sample()
        assert numbers(again) == numbers(batch)
        assert torch.equal(again["priority_weight"], batch["priority_weight"])
        assert numbers(other[again["index"].tolist()]) == numbers(again)
        assert bool((again["index"] == batch["index"]).all()) is not used
    assert numbers(one.sample()) == numbers(expected[0])
    assert plain.sample().shape == (4,)


@VALKEY
def test_a_batch_that_has_lost_a_record_is_not_brought_back(server, make, name):
    """It had left the buffer when the state was taken."""
    rb, other = (make(buffer_name=f"{name}-{k}", batch_size=2, prefetch=2, sampler=Fifo()) for k in range(2))
    rb.extend(data(0, 6))
    rb.sample()
    wait_until(lambda: all(entry.batch.done() for entry in rb._ahead.get()._queue), description="batches drawn ahead")
    rb.buffer.remove([1])
    other.load_state_dict(rb.state_dict())
    assert other.stats()["prefetch_queue_size"] == 0
    assert numbers(other.sample()) == [1, 2]


@VALKEY
def test_a_load_waits_for_draws_on_their_way(server, make, tmp_path):
    """C26"""
    first, begun, go = threading.Event(), threading.Event(), threading.Event()

    def slow(batch):
        if first.is_set():
            begun.set()
            assert go.wait(20)
        first.set()
        return batch

    rb = make(batch_size=2, prefetch=1, collate_fn=slow)
    rb.extend(data(0, 4))
    rb.dumps(tmp_path)
    rb.sample()
    assert begun.wait(20)
    with thread_of(lambda: rb.loads(tmp_path)) as loaded:
        assert not threading.Event().wait(0.2)
        assert loaded == []
        go.set()
    assert loaded == [4]


@VALKEY
def test_transforms_are_in_the_state(server, make, name):
    """And in no file: they are of a handle. A state of other transforms is refused before anything is changed."""
    from torchrl.envs.transforms import ObservationNorm

    def norm(loc):
        return ObservationNorm(loc=loc, scale=2.0, in_keys=["obs"])

    rb, other = (make(buffer_name=f"{name}-{k}", transform=norm(float(k))) for k in (1, 2))
    rb.extend(data(0, 4))
    other.load_state_dict(rb.state_dict())
    assert other.transform.state_dict() == rb.transform.state_dict()
    plain = make(buffer_name=f"{name}-plain")
    with pytest.raises(ArgumentError, match="transforms"):
        plain.load_state_dict(rb.state_dict())
    assert len(plain) == 0


# Trainers


def learn(rb, file):
    """A training run that saves itself now and then, and never ends."""
    dqn(rb, frames=1_000_000, save_trainer_file=file, save_trainer_interval=200).train()


@VALKEY
@pytest.mark.filterwarnings("ignore")  # torchrl's trainers warn of themselves
def test_a_killed_run_goes_on_at_a_new_server(server, make, name, tmp_path):
    """Saved by a Trainer, killed by SIGKILL, restored by `load_from_file`: counters, records and sampling go on."""
    file = tmp_path / "trainer.pt"
    context = multiprocessing.get_context("spawn")
    run = context.Process(target=learn, args=(make(capacity=1000), str(file)))
    run.start()
    try:
        wait_until(file.exists, timeout=60, description="the run to save itself")
    finally:
        run.kill()
        run.join(20)
    assert run.exitcode == -9
    state = torch.load(file, weights_only=True)
    counted, frames = state["replay_buffer"]["replay_buffer"]["counters"], state["state"]["collected_frames"]
    with EmbeddedServer() as new, contextlib.closing(RedisReplayBuffer(new.url, name, capacity=1000)) as rb:
        trainer = dqn(rb, frames=frames + 200)
        trainer.load_from_file(file)
        stats = rb.stats()
        assert {key: stats[key] for key in counted} == counted
        assert stats["write_count"] == trainer.collected_frames == frames
        trainer.train()
        after = rb.stats()
        assert after["write_count"] == frames + 200
        assert after["sample_calls"] == counted["sample_calls"] + 4
        assert len(rb.sample(32)) == 32
