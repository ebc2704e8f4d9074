"""Removers: who goes when the buffer is full. The model tests compare every rule with plain Python after each step."""

import pickle

import numpy as np
import pytest

from redis_replay import Updated
from redis_replay.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    BufferDamagedError,
    BufferFullError,
    ConfigMismatchError,
    ReplayError,
)
from redis_replay.samplers import MAX_CHOSEN, Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform
from tests._bins import Bins
from tests._contract import LARGE, Records, nothing_changes, numbers, refused, stored_numbers
from tests._mrg import Mrg32k3a
from tests._server import in_turn
from tests.contract.test_priorities import follows

PER = Prioritized(alpha=1.0, beta=0.4, eps=0.0)
REMOVERS = pytest.mark.parametrize(
    "remover", [Fifo(), Lifo(), MaxHeap(), MinHeap(), Uniform(), PER], ids=lambda r: type(r).__name__
)
FORMS = {"ring": {}, "counting": {"consume_after_n_samples": 2}}
KEEPS = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
PRIORITY = [3.0, 1.0, 2.0, 0.0, 5.0, 1.0]
LEFT = {  # of six numbers with these priorities, when two more come; and one more after that, of priority 1
    Fifo(): [[2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 8]],
    Lifo(): [[0, 1, 2, 3, 6, 7], [0, 1, 2, 3, 6, 8]],
    MaxHeap(): [[1, 2, 3, 5, 6, 7], [1, 2, 3, 5, 6, 8]],
    MinHeap(): [[0, 2, 4, 5, 6, 7], [0, 2, 4, 6, 7, 8]],
}


def make_full(make_buffer, records, remover, priority=PRIORITY, **options):
    """A buffer of six, whose numbers are one less than their indices."""
    buffer = make_buffer(capacity=6, remover=remover, seed=1, **options)
    buffer.extend(records.many(0, 6), priority=priority if buffer._now.core.weighs else None)
    return buffer


@KEEPS
@pytest.mark.parametrize("remover", LEFT, ids=lambda r: type(r).__name__)
def test_each_rule_has_its_victims(server, make_buffer, records, remover, options):
    """By age, or by priority and then by age; the same both ways of writing, and whether the buffer consumes or not."""
    buffer = make_full(make_buffer, records, remover, **options)
    for i, (low, high) in enumerate([(6, 8), (8, 9)]):
        buffer.extend(records.many(low, high), priority=[6.0, 7.0][: high - low] if buffer._now.core.weighs else None)
        assert stored_numbers(buffer) == LEFT[remover][i]
    assert (buffer.stats()["evicted"], len(buffer), buffer.doctor().findings) == (3, 6, ())


@KEEPS
def test_a_random_remover_goes_by_the_handles_seed(server, make_buffer, records, options):
    """The victims are those of the seeds that were sent, all different, the same both ways of writing."""
    buffer = make_full(make_buffer, records, Uniform(replacement=True), **options)
    seeds, sent = buffer._now.core.seeds, []
    buffer._now.core.seeds = lambda: sent.append(seeds()) or sent[-1]
    buffer.extend(records.many(6, 10))
    gone = Mrg32k3a(sent[0]).different(4, 6)
    assert stored_numbers(buffer) == [*sorted({*range(6)} - {*gone}), 6, 7, 8, 9]
    assert (len(sent), buffer.doctor().findings) == (1, ())


@pytest.mark.parametrize(("remover", "seeded"), [(Uniform(), 1), (PER, 1), (Lifo(), 0), (None, 0)], ids=repr)
def test_a_write_takes_one_seed_where_it_needs_one(server, make_buffer, small, remover, seeded):
    """Sent again, with the schema's text, it has the same; and what a seeded handle draws does not depend on other removers."""
    buffer, taken = make_buffer(remover=remover, seed=1), []
    seeds = buffer._now.core.seeds
    buffer._now.core.seeds = lambda: taken.append(0) or seeds()
    buffer.extend(small.many(0, 3))
    assert len(taken) == seeded


def test_a_remover_by_priority_goes_by_the_handles_seed(server, make_buffer, small):
    """The same seeds give the same victims everywhere, so that the law of many need be seen on one server alone."""
    buffer, priority = make_buffer(capacity=8, remover=PER), np.arange(1.0, 9.0)
    seeds, model = [[n, 2, 3, 4, 5, 6] for n in range(1, 4)], Bins(PER.alpha, PER.eps)
    buffer._now.core.seeds = iter(seeds).__next__
    live = buffer.extend(small.many(0, 8), priority=priority).tolist()
    for index, of_one in zip(live, priority.tolist(), strict=True):
        model.enter(index, of_one)
    for given in seeds[1:]:
        [victim] = model.draw(1, Mrg32k3a(given), distinct=True)
        model.leave(victim)
        live = [index for index in live if index != victim] + [buffer.add(small.one(live[-1]), priority=2.0)]
        model.enter(live[-1], 2.0)
        assert stored_numbers(buffer) == [index - 1 for index in live]


@pytest.mark.parametrize(
    ("real_server", "remover"), in_turn([(Uniform(),), (PER,)]), ids=["uniform", "prioritized"], indirect=["real_server"]
)
def test_random_victims_follow_the_law(real_server, make_buffer, client, small, remover):
    """One of eight goes, two thousand times: evenly, or in proportion to the weights."""
    buffer = make_buffer(capacity=8, remover=remover, seed=4)
    priority = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) if remover.bins else None
    batch, one, counts = small.many(0, 8), small.one(8), np.zeros(8)
    for _ in range(2000):
        first = buffer.extend(batch, priority=priority)[0]
        buffer.add(one, priority=None if priority is None else 1.0)
        left = {int(i) - first for i in client.zrange(f"rr:{{{buffer.name}}}:order", 0, -1)}
        counts[next(i for i in range(8) if i not in left)] += 1
    assert follows(counts, np.full(8, 1 / 8) if priority is None else priority / priority.sum())


@REMOVERS
def test_what_is_written_is_never_its_own_victim(server, make_buffer, records, remover):
    """Room is made first, as Reverb does: the newest stays, whatever its priority; of a larger batch the tail stays."""
    buffer = make_full(make_buffer, records, remover)
    for i, priority in enumerate((0.0, 1e9, 1.0)):
        newest = buffer.add(records.one(6 + i), priority=priority if buffer._now.core.weighs else None)
        assert buffer.get(newest)["i"] == 6 + i
    assert len(buffer) == 6
    priority = np.arange(20.0)[::-1] if buffer._now.core.weighs else None
    assert len(buffer.extend(records.many(20, 40), priority=priority)) == 20
    assert stored_numbers(buffer) == list(range(34, 40))
    assert buffer.stats()["evicted"] == 3 + 6 + 14
    assert buffer.doctor().ok


HIDDEN = {  # who is left of six, of which 1 and 3 are hidden, when three more come
    Fifo(): [3, 4, 5],
    Lifo(): [0, 1, 2],
    MinHeap(): [0, 4, 5],
    MaxHeap(): [1, 2, 3],
    Uniform(): None,
}


@pytest.mark.parametrize("remover", HIDDEN, ids=lambda r: type(r).__name__)
def test_hidden_ones_go_in_their_turn(server, make_buffer, small, remover):
    """By age, or at random, as all others; least first: they are the least."""
    buffer = make_full(make_buffer, small, remover, [3.0, 0.0, 2.0, 0.0, 5.0, 4.0], sampler=PER)
    seeds = buffer._now.core.seeds()
    buffer._now.core.seeds = lambda: seeds
    buffer.extend(small.many(6, 9), priority=1.0)
    left = HIDDEN[remover] or sorted({*range(6)} - {*Mrg32k3a(seeds).different(3, 6)})
    assert stored_numbers(buffer) == [*left, 6, 7, 8]
    assert buffer.stats()["hidden"] == len({1, 3} & {*left})
    assert buffer.doctor().ok


def test_a_remover_by_weight_takes_hidden_ones_last(server, make_buffer, small):
    """They have no weight: only when nothing else is left, the oldest first."""
    buffer = make_full(make_buffer, small, PER, [3.0, 0.0, 2.0, 0.0, 0.0, 4.0], sampler=PER)
    buffer.extend(small.many(6, 9), priority=1.0)
    assert stored_numbers(buffer) == [1, 3, 4, 6, 7, 8]
    buffer.extend(small.many(9, 14), priority=1.0)
    assert stored_numbers(buffer) == [4, 9, 10, 11, 12, 13]
    assert (buffer.stats()["hidden"], len(buffer), buffer.doctor().findings) == (1, 5, ())


def test_a_remover_by_priority_changes_no_draw(server, make_buffer, small):
    """Records have priorities for it; the sampler draws evenly, and 0 hides nothing."""
    buffer = make_full(make_buffer, small, MinHeap(), None)
    assert buffer.update_priority([1, 2, 3], [0.0, 5.0, 0.0]) == Updated(3, 0)
    assert (len(buffer), buffer.stats()["hidden"]) == (6, 0)
    data, info = buffer.sample(500, True, min_items=1)
    assert set(numbers(data)) == set(range(6))
    assert info.probability.tolist() == [1 / 6] * 500
    assert {int(i): p for i, p in zip(info.index, info.priority, strict=True)} == {1: 0, 2: 5, 3: 0, 4: 1, 5: 1, 6: 1}
    assert info.priority_weight is None
    buffer.extend(small.many(6, 8))  # of the largest ever set
    assert stored_numbers(buffer) == [1, 3, 4, 5, 6, 7]
    assert buffer.sample(1, True)[1].probability[0] == 1 / 6
    assert buffer.doctor().ok


def test_the_high_priorities_stay(server, make_buffer, small):
    """Drawn by priority, least first out: after many more writes the buffer holds the records of the largest ones."""
    rng = np.random.default_rng(3)
    buffer, all_of_them = make_buffer(capacity=20, sampler=PER, remover=MinHeap(), seed=2), rng.uniform(1, 2, 200)
    for low in range(0, 200, 5):
        index = buffer.extend(small.many(low, low + 5))  # as new ones: of the largest ever set, so that they are drawn once
        buffer.update_priority(index, all_of_them[low : low + 5])
    kept, newest = set(stored_numbers(buffer)), set(range(195, 200))
    assert kept - newest >= set(np.argsort(-all_of_them[:195])[:15].tolist())
    assert set(numbers(buffer.sample(400, min_items=1))) <= kept


@REMOVERS
def test_what_is_lent_is_not_evicted(server, make_buffer, small, remover):
    """While others are there they go; where all are lent a write is refused."""
    buffer = make_full(make_buffer, small, remover, consume_after_n_samples=2, sampler=Fifo())
    _, info = buffer.sample(4, True, lease=60.0)
    buffer.extend(small.many(6, 13))
    assert stored_numbers(buffer) == [0, 1, 2, 3, 11, 12]
    other = make_buffer(attach=True)
    _, more = other.sample(2, True, lease=60.0)
    with refused(BufferFullError):
        buffer.add(small.one(13))
    other.release(more.lease)
    buffer.ack(info.lease)
    assert (stored_numbers(buffer), len(buffer)) == (([11, 12], 2) if remover == Fifo() else ([0, 1, 2, 3, 11, 12], 6))
    assert buffer.doctor().ok


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        (MinHeap(), [1, 3, 4, 5]),
        (MaxHeap(), [0, 1, 2, 3]),
        (Lifo(), [0, 1, 2, 3]),
        (Uniform(), [2, 3, 4, 5]),
        (PER, [2, 3, 4, 5]),
    ],
    ids=repr,
)
def test_an_undone_draw_finds_room_by_the_remover(server, make_buffer, make_raw, records, remover, left):
    """Its places were taken meanwhile: the remover chooses among all; a random one, to which nobody sends a seed, takes the
    first of those that came back."""
    buffer = make_buffer(capacity=4, sampler=Fifo(), remover=remover, consume_after_n_samples=1)
    weighs = buffer._now.core.weighs
    buffer.extend(records.many(0, 4), priority=[1.0, 3.0, 2.0, 4.0] if weighs else None)
    raw = make_raw()
    assert raw.sample(2)[7] == "1 2"
    buffer.extend(records.many(4, 6), priority=[5.0, 6.0] if weighs else None)
    assert raw.settle(open_number=raw.number)[:2] == ["OK", "applied"]
    assert stored_numbers(buffer) == left
    stats = buffer.stats()
    assert (stats["size"], stats["storage_size"], stats["consumed"], stats["evicted"]) == (4, 4, 0, 2)
    assert buffer.doctor().ok


def test_what_is_being_fetched_keeps_its_bytes(server, make_buffer, make_raw, client):
    """A record that the remover takes while a draw still has to fetch it parts when the fetch is over."""
    records = Records(LARGE)
    buffer = make_full(make_buffer, records, Lifo(), sampler=Lifo())
    raw = make_raw()
    assert raw.sample(1)[7] == "6"
    buffer.add(records.one(6))
    assert (buffer.stats()["parting"], buffer.storage_size, stored_numbers(buffer)) == (1, 7, [0, 1, 2, 3, 4, 6])
    raw.settle()
    assert (buffer.stats()["parting"], buffer.storage_size, buffer.doctor().findings) == (0, 6, ())


@REMOVERS
def test_removed_and_emptied(server, make_buffer, small, remover):
    """What was taken out by name leaves room; an emptied buffer starts anew."""
    buffer = make_full(make_buffer, small, remover)
    assert buffer.remove([2, 3, 99]) == 2
    buffer.extend(small.many(6, 8))
    assert (stored_numbers(buffer), buffer.stats()["evicted"]) == ([0, 3, 4, 5, 6, 7], 0)
    buffer.empty()
    assert (len(buffer), buffer.doctor().findings) == (0, ())
    buffer.extend(small.many(0, 7))
    assert (stored_numbers(buffer), buffer.doctor().findings) == ([1, 2, 3, 4, 5, 6], ())


@REMOVERS
def test_entries_that_others_wrote_are_passed_over(server, make_buffer, client, small, remover):
    """An entry added by hand takes an index, and no record's place."""
    buffer = make_full(make_buffer, small, remover)
    client.xadd(f"rr:{{{buffer.name}}}:records", {"x": "mine"}, id="0-*")
    assert buffer.add(small.one(6)) == 8
    assert (len(buffer), buffer.stats()["foreign"], buffer.doctor().findings) == (6, 1, ())


@pytest.mark.parametrize(("remover", "what"), [(Lifo(), "order"), (MinHeap(), "ranked"), (PER, "places")], ids=repr)
def test_a_lost_key_is_named(server, make_buffer, client, small, remover, what):
    """In a buffer that does not consume, too."""
    buffer = make_full(make_buffer, small, remover)
    client.delete(f"rr:{{{buffer.name}}}:{what}")
    for call in (lambda: buffer.add(small.one(6)), lambda: buffer.sample(2), lambda: buffer.remove(1), buffer.stats):
        with refused(BufferDamagedError) as caught:
            call()
        assert caught.value.key == f"rr:{{{buffer.name}}}:{what}"
    assert not buffer.doctor().ok


@pytest.mark.parametrize("name", ["abc", "0000000000000099", "2"])
def test_a_name_written_by_hand_is_not_chosen(server, make_buffer, client, small, name):
    """Among the priorities: the write is done all the same, and the oldest of the others goes."""
    buffer = make_full(make_buffer, small, MinHeap())
    key = f"rr:{{{buffer.name}}}:ranked"
    client.zrem(key, "0000000000000004")
    client.zadd(key, {name: 0})
    buffer.extend(small.many(6, 8), priority=9.0)
    assert (len(stored_numbers(buffer)), len(buffer)) == (6, 6)


TEXTS = ["", "abc", "Nonsense()", "Prioritized(alpha=0.5, beta=0.4, eps=0.0)", "Prioritized()"]


@pytest.mark.parametrize("text", [None, *TEXTS])
def test_a_remover_that_is_none_is_named(server, make_buffer, client, small, text):
    """Somebody wrote there by hand: every call is refused whole, by the handle that is open and by one that opens."""
    buffer = make_full(make_buffer, small, PER, sampler=PER)
    config = f"rr:{{{buffer.name}}}:config"
    client.hset(config, "remover", text) if text is not None else client.hdel(config, "remover")
    for call in (lambda: buffer.add(small.one(6)), lambda: buffer.sample(2), buffer.stats):
        with nothing_changes(client), refused(BufferDamagedError) as caught:
            call()
        assert (caught.value.key, "remover" in str(caught.value)) == (config, True)
    if text != TEXTS[3]:  # which is one by itself
        with refused(ReplayError):
            make_buffer(attach=True)
    client.hset(config, "remover", repr(PER))
    buffer.add(small.one(6))


def test_a_remover_that_lost_its_seeds_harms_nobody(server, make_buffer, client, small):
    """Somebody wrote a random one by hand, of which the open handle does not know: the oldest go."""
    buffer = make_full(make_buffer, small, Lifo())
    client.hset(f"rr:{{{buffer.name}}}:config", "remover", "Uniform(replacement=True)")
    buffer.extend(small.many(6, 8))
    assert (stored_numbers(buffer), buffer.doctor().findings) == ([2, 3, 4, 5, 6, 7], ())


@pytest.mark.parametrize("wrong", [3, "Fifo()", Fifo, True])
def test_a_remover_is_a_selector(server, client, make_buffer, wrong):
    """Nothing is created of anything else."""
    with refused(ArgumentTypeError) as caught:
        make_buffer(remover=wrong)
    assert caught.value.name == "remover"
    assert client.dbsize() == 0


@pytest.mark.parametrize("other", [{"alpha": 0.5}, {"eps": 0.1}])
def test_there_is_one_set_of_weights(server, client, make_buffer, other):
    """Sampler and remover agree on alpha and eps; the error names both. Whatever else they say is their own."""
    remover = Prioritized(**{"alpha": 1.0, "beta": 0.0, "eps": 0.0} | other)
    with refused(ArgumentError) as caught:
        make_buffer(sampler=PER, remover=remover)
    assert all(part in str(caught.value) for part in ("remover", repr(PER), repr(remover)))
    assert client.dbsize() == 0
    assert make_buffer(sampler=PER, remover=Prioritized(alpha=1, beta=0, eps=0, replacement=False)).capacity == 100


def test_it_is_compared_when_attaching(server, make_buffer, client, name):
    """As the sampler is: left out it is not, None is the default."""
    make_buffer(remover=MinHeap())
    assert client.hget(f"rr:{{{name}}}:config", "remover") == b"MinHeap()"
    assert make_buffer(attach=True)._now.core.remover == MinHeap()
    assert make_buffer(remover=MinHeap()).capacity == 100
    for given, found in ((None, Fifo()), (Fifo(), Fifo()), (MaxHeap(), MaxHeap())):
        with nothing_changes(client, ()), refused(ConfigMismatchError) as caught:
            make_buffer(remover=given)
        assert caught.value.differences == {"remover": (MinHeap(), found)}
    plain = make_buffer(name + "-plain")
    assert make_buffer(name + "-plain", remover=None)._now.core.remover == plain._now.core.remover == Fifo()


def test_a_copy_of_a_handle_knows_it(server, make_buffer, small):
    """Pickled, it still sends seeds, and takes priorities."""
    buffer = make_full(make_buffer, small, PER) if server.is_real else pytest.skip("a fake server does not pickle")
    with pickle.loads(pickle.dumps(buffer)) as copy:
        assert copy._now.core.remover == PER
        copy.extend(small.many(6, 8), priority=[1.0, 2.0])
        assert (len(copy), 3 in stored_numbers(copy), copy.doctor().findings) == (6, True, ())


async def test_the_async_handle_takes_one(server, make_async_buffer, records):
    """The same setting, the same victims."""
    buffer = make_async_buffer(capacity=6, remover=MinHeap())
    await buffer.extend(records.many(0, 6), priority=PRIORITY)
    await buffer.extend(records.many(6, 8), priority=[6.0, 7.0])
    assert [int(record["i"]) async for record in buffer.records()] == LEFT[MinHeap()][0]


@pytest.mark.parametrize(("remover", "steps"), [(Fifo(), 1), (Lifo(), 2)], ids=repr)
def test_a_long_write_goes_in_steps(real_server, make_buffer, small, remover, steps):
    """Shorter ones where a remover chooses, since that takes longer."""
    buffer = make_buffer(capacity=MAX_CHOSEN + 1, remover=remover)
    buffer.add(small.one(0))
    before = buffer._now.core.lanes[0].number
    assert len(buffer.extend(small.many(0, MAX_CHOSEN + 1))) == MAX_CHOSEN + 1
    assert buffer._now.core.lanes[0].number == before + steps
    assert (len(buffer), buffer.stats()["evicted"]) == (MAX_CHOSEN + 1, 1)
