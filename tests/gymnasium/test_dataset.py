"""ReplayDataset in the real DataLoader: in the process itself, in forked and in spawned workers."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from redis_replay import ReplayBuffer
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, ReplayTimeoutError
from redis_replay.samplers import Fifo, Prioritized, Uniform
from redis_replay.torch import ReplayDataset

pytestmark = pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning")
WHERE = pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)


def load(dataset, workers=0, method=None, **options):
    return DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, **options)


@pytest.fixture
def numbers(real_server, make_buffer):
    """A buffer of the numbers 0 to 99."""
    made = make_buffer(capacity=200)
    made.extend({"x": np.arange(100), "name": [str(i) for i in range(100)], "deep": {"f": np.zeros((100, 2), np.float32)}})
    return made


@WHERE
def test_batches_are_tensors(real_server, numbers, name, workers, method):
    """All of num_batches, shared between the workers; texts stay texts."""
    dataset = ReplayDataset(real_server.url, name, batch_size=8, num_batches=5)
    batches = list(load(dataset, workers, method))
    assert (len(dataset), len(batches)) == (5, 5)
    for batch in batches:
        assert (batch["x"].dtype, batch["x"].shape, batch["deep"]["f"].shape) == (torch.int64, (8,), (8, 2))
        assert batch["name"] == [str(i) for i in batch["x"].tolist()]


def draws(url, name, workers=2, method="fork", passes=1, **options):
    """What each iteration gave: the numbers of each batch, in order."""
    loader = load(ReplayDataset(url, name, batch_size=8, num_batches=4, **options), workers, method)
    return [[batch["x"].tolist() for batch in loader] for _ in range(passes)]


@pytest.mark.slow
@pytest.mark.parametrize("real_server", ["valkey"], indirect=True)
def test_spawned_workers_draw_as_forked_ones(real_server, numbers, name):
    assert draws(real_server.url, name, method="spawn", seed=7) == draws(real_server.url, name, seed=7)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork")])
def test_streams_differ_and_can_be_repeated(real_server, numbers, name, workers, method):
    """With a seed: between workers, between iterations, and not between two runs."""
    first, again = (draws(real_server.url, name, workers, method, passes=2, seed=7) for _ in range(2))
    assert first == again
    assert len({tuple(batch) for one in first for batch in one}) == 8


def test_streams_without_a_seed_are_fresh(real_server, numbers, name):
    """Also in workers that were forked of one process, whose random numbers are the same."""
    found = [tuple(batch) for _ in range(2) for one in draws(real_server.url, name) for batch in one]
    assert len(set(found)) == 8


def test_each_worker_may_keep_what_it_drew(real_server, numbers, name, monkeypatch):
    """cache_bytes: the batches are the same, here and in workers, and what was drawn before is not fetched again."""
    handles, attach = [], ReplayBuffer.attach
    monkeypatch.setattr(ReplayBuffer, "attach", lambda *where, **how: handles.append(attach(*where, **how)) or handles[-1])
    for workers, method in ((0, None), (2, "fork")):
        cached = draws(real_server.url, name, workers, method, seed=7, cache_bytes=2**20)
        assert cached == draws(real_server.url, name, workers, method, seed=7)
    assert [handle.cache_info().hits > 0 for handle in handles] == [True, False]


def test_persistent_workers_go_on(real_server, numbers, name):
    """Their next iteration has another stream."""
    loader = load(ReplayDataset(real_server.url, name, batch_size=8, num_batches=2, seed=7), 2, "fork", persistent_workers=True)
    found = [tuple(batch["x"].tolist()) for _ in range(2) for batch in loader]
    loader._iterator._shutdown_workers()
    assert len(set(found)) == 4
    assert found == [tuple(batch) for one in draws_of_two(real_server.url, name) for batch in one]


def draws_of_two(url, name):
    """As new workers draw."""
    loader = load(ReplayDataset(url, name, batch_size=8, num_batches=2, seed=7), 2, "fork")
    return [[batch["x"].tolist() for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_ends_when_the_buffer_does(real_server, make_buffer, name, workers):
    """Without num_batches: a queue that drains is handed out whole, once, the last batch short."""
    queue = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    queue.extend({"x": np.arange(10)})
    queue.shutdown()
    batches = list(load(ReplayDataset(real_server.url, name, batch_size=4), workers, "fork" if workers else None))
    assert sorted(len(batch["x"]) for batch in batches) == [2, 4, 4]
    assert sorted(x for batch in batches for x in batch["x"].tolist()) == list(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_does_not_come_is_a_timeout(real_server, make_buffer, name, workers):
    """A TimeoutError here and there: DataLoader makes it anew from its text."""
    make_buffer().add({"x": 1})
    loader = load(ReplayDataset(real_server.url, name, batch_size=4, timeout=0.1, min_items=2), workers)
    batches = iter(loader)
    with pytest.raises(TimeoutError, match="have 1, need 2") as caught:
        next(batches)
    if workers:
        batches._shutdown_workers()  # else whenever the traceback goes
    assert (type(caught.value) is ReplayTimeoutError) == (workers == 0)


def test_the_creator_may_come_later(real_server, name):
    """And is waited for as a batch is."""
    with pytest.raises(ReplayTimeoutError):
        next(iter(ReplayDataset(real_server.url, name, batch_size=4, timeout=0.05)))


def test_what_the_draw_tells(real_server, make_buffer, name):
    """With return_info: what a learner needs to set priorities."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0))
    index = buffer.extend({"x": np.arange(4)}, priority=[1, 1, 1, 5])
    batch, info = next(iter(load(ReplayDataset(real_server.url, name, batch_size=4, num_batches=1, return_info=True))))
    assert (info["index"] - index[0]).tolist() == batch["x"].tolist()
    assert (info["priority_weight"].dtype, info["probability"].shape, info["lease"]) == (torch.float32, (4,), None)


def test_a_tensordict_is_a_dict(real_server, make_buffer, name):
    tensordict = pytest.importorskip("tensordict")
    make_buffer(sampler=Uniform(replacement=False)).extend(tensordict.TensorDict({"x": torch.arange(4)}, [4]))
    batch = next(iter(load(ReplayDataset(real_server.url, name, batch_size=4))))
    assert (type(batch), sorted(batch["x"].tolist()), sorted(batch)) == (dict, [0, 1, 2, 3], ["index", "x"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ArgumentError),
        ({"batch_size": 1.5}, ArgumentTypeError),
        ({"batch_size": 1, "num_batches": -1}, ArgumentError),
        ({"batch_size": 1, "seed": -1}, ArgumentError),
    ],
)
def test_arguments_are_checked(options, error):
    with pytest.raises(error) as caught:
        ReplayDataset("redis://localhost", "x", **options)
    assert caught.value.name == list(options)[-1]


def test_without_end_there_is_no_length():
    with pytest.raises(TypeError, match="num_batches"):
        len(ReplayDataset("redis://localhost", "x", batch_size=1))
