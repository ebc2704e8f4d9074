"""Handles in the processes of Ray, of torch.distributed, and of its RPC: writers on some, learners on others."""

import multiprocessing
import os
import socket

import pytest
import torch

from redis_replay.torchrl import RedisReplayBuffer, RemoteRedisReplayBuffer
from tests._torchrl import cartpole, data, numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.filterwarnings("ignore"),  # of ray and torch about themselves
]


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def cluster():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_ray_actors_share_it(server, make, cluster):
    """Two actors write, one learns: each has a handle, each wait ends, each record is delivered once."""
    rb = make(capacity=1000, consume_after_n_samples=1, batch_size=20)

    @cluster.remote(num_cpus=0)
    class Writer:
        def __init__(self, rb):
            self.rb = rb

        def write(self, low):
            return len(self.rb.extend(data(low, low + 50)))

    @cluster.remote(num_cpus=0)
    def learn(rb, batches):
        return [n for _ in range(batches) for n in numbers(rb.sample(wait=True, timeout=60))]

    learner = learn.remote(rb.client(), 5)
    writers = [Writer.remote(client) for client in rb.clients(2)]
    assert cluster.get([writer.write.remote(low) for writer, low in zip(writers, (0, 50), strict=True)]) == [50, 50]
    assert sorted(cluster.get(learner)) == list(range(100))


def test_a_ray_collector_writes(server, make, cluster):
    """C27: RayCollector asks for service_backend and for clients, and its actors write by themselves."""
    from torchrl.collectors.distributed import RayCollector

    rb = make(capacity=1000)
    collector = RayCollector(
        [cartpole], None, frames_per_batch=50, total_frames=150, replay_buffer=rb,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 500 * 1024**2},
    )  # fmt: skip
    try:
        for _ in collector:
            pass
    finally:
        collector.shutdown()
    assert rb.buffer.write_count >= 150
    assert rb.sample(8)["observation"].shape == (8, 4)


def rank_of_gloo(rank, where, rb, results):
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=3)
    if rank == 0:
        for low in (0, 40):
            rb.extend(data(low, low + 40))
        taken = []
    else:
        taken = [n for _ in range(4) for n in numbers(rb.sample(10, wait=True, timeout=60))]
    sizes = torch.tensor([len(taken)])
    torch.distributed.all_reduce(sizes)
    results.put((taken, int(sizes)))
    torch.distributed.destroy_process_group()
    rb.close()


def test_ranks_of_gloo_share_it(server, make):
    """One rank writes, two learn: 80 records, each delivered once."""
    rb = make(consume_after_n_samples=1)
    context = multiprocessing.get_context("spawn")
    results, where = context.SimpleQueue(), f"tcp://127.0.0.1:{port()}"
    ranks = [context.Process(target=rank_of_gloo, args=(rank, where, rb, results)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    found = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join(30)
    assert sorted(n for taken, _ in found for n in taken) == list(range(80))
    assert {size for _, size in found} == {80}


def rank_of_rpc(rank, url, name, at, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(at))
    from torch.distributed import rpc

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        rref = rpc.remote("worker1", RemoteRedisReplayBuffer, args=(url, name), kwargs={"capacity": 100})
        wrote = rpc.rpc_sync(rref.owner(), RemoteRedisReplayBuffer.extend, args=(rref, data(0, 20)))
        batch, info = rpc.rpc_sync(rref.owner(), RemoteRedisReplayBuffer.sample, args=(rref, 5, True, True))
        results.put((len(wrote), numbers(batch), info["index"].tolist()))
        rpc.rpc_sync(rref.owner(), RemoteRedisReplayBuffer.close, args=(rref,))
    rpc.shutdown()


def test_an_rref_of_it(server, name):
    """As RemoteTensorDictReplayBuffer is used: made on another worker, its methods called with the RRef, in their order."""
    context = multiprocessing.get_context("spawn")
    results, at = context.SimpleQueue(), port()
    ranks = [context.Process(target=rank_of_rpc, args=(rank, server.url, name, at, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    wrote, drawn, index = results.get()
    for rank in ranks:
        rank.join(30)
    RedisReplayBuffer(server.url, name).buffer.delete()
    assert (wrote, len(drawn)) == (20, 5)
    assert index == [n + 1 for n in drawn]
