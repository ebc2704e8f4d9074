"""Scripts whose time grows with the queue would make a server busy under load: none does more for more records."""

import numpy as np
import pytest

from redis_replay.samplers import Fifo, Lifo
from tests._contract import SMALL, Records

RECORDS = Records(SMALL)
FEW, MANY = 200, 20_000
KINDS = {
    "ring": {},
    "lifo ring": {"sampler": Lifo()},
    "queue": {"sampler": Fifo(), "consume_after_n_samples": 1},
    "queue, 3 uses": {"sampler": Fifo(), "consume_after_n_samples": 3},
    "uniform, 1 use": {"consume_after_n_samples": 1},
}
CALLS = {
    "add": lambda buffer: buffer.add(RECORDS.one(1)),
    "extend": lambda buffer: buffer.extend(RECORDS.many(0, 10)),
    "sample": lambda buffer: buffer.sample(5),
    "can_sample": lambda buffer: buffer.can_sample(5),
    "wait": lambda buffer: buffer.wait_until_sampleable(5, timeout=1),
    "get": lambda buffer: buffer.get(150),
    "remove": lambda buffer: buffer.remove([180, 181]),
    "stats": lambda buffer: buffer.stats(),
}


def work(client, call, buffer):
    """How many commands a call makes the server run, those inside its script included."""
    call(buffer)  # scripts are loaded, what an earlier call left is settled
    client.config_resetstat()
    call(buffer)
    ours = ("cmdstat_info", "cmdstat_config|resetstat")
    return sum(of["calls"] for name, of in client.info("commandstats").items() if name not in ours)


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_does_more_for_a_longer_queue(real_server, make_buffer, kind):
    """Each call runs as many commands on 20,000 records as on 200; also where the buffer is full, and each write evicts."""
    client, counts = real_server.client(), []
    for n in (FEW, MANY):
        buffer = make_buffer(f"{n}", capacity=n, seed=1, **KINDS[kind])  # draws that leave record 150, which is got
        buffer.extend(RECORDS.many(0, n))
        counts.append({name: work(client, call, buffer) for name, call in CALLS.items()})
    few, many = counts
    assert {name: (few[name], many[name]) for name in CALLS if many[name] > few[name] + 2} == {}
    assert np.all(np.array(list(many.values())) > 1)
