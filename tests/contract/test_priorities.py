"""Priorities: the law of the draws, the weights, whose priority changes, and what is refused."""

import itertools
import threading

import numpy as np
import pytest

from redis_replay import Updated
from redis_replay.exceptions import ArgumentError, BufferDamagedError, ConfigMismatchError, NotReadyError
from redis_replay.samplers import Fifo, Prioritized
from tests._bins import Bins
from tests._contract import nothing_changes, numbers, refused
from tests._mrg import Mrg32k3a
from tests._server import in_turn

PER = Prioritized(alpha=0.6, beta=0.4)
REMEMBERING = {"none": {}, "counting": {"consume_after_n_samples": 1000}}
KEEPS = pytest.mark.parametrize("options", REMEMBERING.values(), ids=REMEMBERING)


def follows(counts, probability):
    """Whether counts follow a law: chi-square over the cells that expect more than 5, within 6 deviations."""
    expected = probability * counts.sum()
    cells = expected > 5
    statistic = (((counts - expected) ** 2) / np.where(cells, expected, 1))[cells].sum()
    return cells.sum() > 1 and abs(statistic - cells.sum()) < 6 * (2 * cells.sum()) ** 0.5


def draw_counts(buffer, n, draws, batch=8000):
    """How often each of the numbers below n came in so many draws."""
    counts = np.zeros(n)
    for _ in range(draws // batch):
        np.add.at(counts, numbers(buffer.sample(batch, min_items=1)), 1)
    return counts


LAWS = [(1.0, 0.0), (0.6, 1e-8), (2.0, 0.1), (0.0, 0.0)]


@pytest.mark.parametrize(("alpha", "eps"), LAWS)
def test_every_server_draws_what_the_model_does(server, make_buffer, make_raw, small, alpha, eps):
    """The same seeds give the same draws everywhere, so that the law of many draws need be seen on one server alone."""
    priority = 10 ** np.random.default_rng(0).uniform(-2, 2, 500)
    make_buffer(sampler=Prioritized(alpha=alpha, beta=0.0, eps=eps), capacity=500).extend(small.many(0, 500), priority=priority)
    model, raw = Bins(alpha, eps), make_raw()
    for index, of_one in enumerate(priority.tolist(), 1):
        model.enter(index, of_one)
    assert raw.sample(2000, 1)[7] == " ".join(map(str, model.draw(2000, Mrg32k3a(raw.seeds), distinct=False)))


@pytest.mark.parametrize(("real_server", "alpha", "eps"), in_turn(LAWS), indirect=["real_server"])
def test_draws_follow_the_law(real_server, make_buffer, small, alpha, eps):
    """200,000 draws of 500 records whose priorities span four orders of magnitude."""
    buffer = make_buffer(sampler=Prioritized(alpha=alpha, beta=0.0, eps=eps), capacity=500, seed=1)
    priority = 10 ** np.random.default_rng(0).uniform(-2, 2, 500)
    buffer.extend(small.many(0, 500), priority=priority)
    weight = (priority + eps) ** alpha
    assert follows(draw_counts(buffer, 500, 200_000), weight / weight.sum())


def test_the_judge_of_laws_can_fail():
    """Counts of another law are found out."""
    even = np.full(100, 0.01)
    assert follows(np.random.default_rng(0).multinomial(100_000, even).astype(float), even)
    assert not follows(np.random.default_rng(0).multinomial(100_000, np.linspace(0.5, 1.5, 100) / 100).astype(float), even)


@pytest.mark.parametrize(
    ("real_server", "size"), in_turn([(1,), (2,), (3,), (4095,), (4096,), (4097,)]), indirect=["real_server"]
)
def test_equal_priorities_are_drawn_evenly(real_server, make_buffer, small, size):
    """The first and the last, too, whatever the size; and those of priority 0 never.

    Of two and three records 24,000 draws tell a law that is off by 2 %; of 4,096 it takes 200,000 to tell one by 5 %.
    """
    buffer = make_buffer(sampler=Prioritized(alpha=0.4, beta=1.0), capacity=size, seed=1)
    indices = buffer.extend(small.many(0, size), priority=0.5)
    counts = draw_counts(buffer, size, 200_000 if size > 3 else 24_000)
    assert counts.min() > 0
    assert size == 1 or follows(counts, np.full(size, 1 / size))
    _, info = buffer.sample(8000, True, min_items=1)
    assert info.probability[0] * size == pytest.approx(1, rel=1e-9)
    if size > 1:
        buffer.update_priority(indices[::2], 0)
        assert not draw_counts(buffer, size, 40_000)[::2].any()
    buffer.update_priority(indices, 0)
    with refused(NotReadyError) as caught:
        buffer.sample(1)
    assert (caught.value.have, buffer.stats()["hidden"]) == (0, size)


@KEEPS
def test_a_batch_without_replacement_follows_the_law(real_server, make_buffer, small, options):
    """Two of four: each pair as often as drawing one after another, from what is left, gives it."""
    sampler = Prioritized(alpha=1.0, beta=0.0, eps=0.0, replacement=False)
    buffer = make_buffer(sampler=sampler, capacity=4, seed=3, **options)
    p = np.array([8.0, 4.0, 3.0, 1.0])
    buffer.extend(small.many(0, 4), priority=p)
    pairs = list(itertools.permutations(range(4), 2))
    law = np.array([p[a] / p.sum() * p[b] / (p.sum() - p[a]) for a, b in pairs])
    counts = np.zeros(len(pairs))
    for _ in range(900):
        counts[pairs.index(tuple(numbers(buffer.sample(2))))] += 1
    assert follows(counts, law)


@pytest.mark.parametrize("within", [False, True], ids=["ever", "within"])
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_weights_follow_the_formula(server, make_buffer, small, normalize, within):
    """(N P)^-beta over the largest: of the batch; or of the buffer, as TorchRL has it: (w / least w)^-beta."""
    sampler = Prioritized(alpha=0.7, beta=0.5, normalize=normalize, max_priority_within_buffer=within)
    buffer = make_buffer(sampler=sampler, seed=2)
    priority = np.random.default_rng(1).uniform(0.1, 9, 60)
    index = buffer.extend(small.many(0, 60), priority=priority)
    data, info = buffer.sample(20, True)
    weight = (priority + 1e-8) ** 0.7
    drawn = weight[numbers(data)]
    largest = (60 * (drawn if normalize == "batch" else weight).min() / weight.sum()) ** -0.5
    np.testing.assert_allclose(info.priority_weight, (60 * drawn / weight.sum()) ** -0.5 / largest, rtol=1e-6)
    np.testing.assert_allclose(info.probability, drawn / weight.sum(), rtol=1e-9)
    assert info.priority.tolist() == [priority[index.tolist().index(i)] for i in info.index]
    buffer.beta = 0.0
    assert buffer.sample(20, True)[1].priority_weight.tolist() == [1.0] * 20
    with refused(ArgumentError):
        buffer.beta = float("nan")


BAD = {
    "nan": [1.0, float("nan"), 2.0],
    "hidden": np.ma.masked_array([1.0, 7.0, 2.0], [False, True, False]),
    "inf": [1.0, float("inf"), 2.0],
    "negative": [1.0, -1.0, 2.0],
    "text": [1.0, "x", 2.0],
    "bool": [1.0, True, 2.0],
    "float16": np.array([1, np.inf, 2], np.float16),
    "none": [1.0, None, 2.0],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_priority_is_refused_by_its_position(server, make_buffer, client, small, bad):
    """Nothing of the call is applied, at an update or a write."""
    buffer = make_buffer(sampler=PER)
    index = buffer.extend(small.many(0, 100))
    for call in (lambda: buffer.update_priority(index[:3], bad), lambda: buffer.extend(small.many(0, 3), priority=bad)):
        with nothing_changes(client), refused(ValueError) as caught:
            call()
        assert caught.value.name == "priority[1]"
    assert np.isfinite(buffer.sample(32, True)[1].priority_weight).all()


def test_extreme_priorities_stay_numbers(server, make_buffer, small):
    """1e308 twice, and the smallest number there is: totals, weights and probabilities are finite."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=0.5, eps=0.0), seed=1)
    buffer.extend(small.many(0, 4), priority=[1e308, 1e308, 5e-324, 1.0])
    _, info = buffer.sample(64, True, min_items=1)
    assert set(info.priority) == {1e308}
    assert info.probability.tolist() == pytest.approx([0.5] * 64)
    assert np.isfinite(buffer.stats()["total_weight"])
    assert buffer.update_priority([1, 2], 0.0) == Updated(2, 0)
    assert set(buffer.sample(64, True, min_items=1)[1].priority) == {1.0}


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_weights_of_priorities_far_apart(server, make_buffer, small, normalize):
    """Two whose ratio is above what a float holds: each weight is right, without a warning."""
    sampler = Prioritized(alpha=1.0, beta=2**-7, eps=0.0, replacement=False, normalize=normalize)
    buffer = make_buffer(sampler=sampler, seed=1)
    buffer.extend(small.many(0, 2), priority=[2.0**1023, 2.0**-1022])
    _, info = buffer.sample(2, True)
    assert info.priority_weight.tolist() == pytest.approx([2 ** (-2045 / 128), 1.0])


def test_the_rest_follows_the_law_whatever_was_there(server, make_buffer, small):
    """Without replacement: beside the first record the others are nothing; which of them comes next is theirs alone."""
    sampler = Prioritized(alpha=1.0, beta=0.0, eps=0.0, replacement=False)
    buffer = make_buffer(sampler=sampler, seed=1)
    buffer.extend(small.many(0, 3), priority=[1e308, 1e-30, 1e-20])
    assert [numbers(buffer.sample(2)) for _ in range(20)] == [[0, 2]] * 20


@pytest.mark.parametrize("how", [{}, {"lease": 60.0}], ids=["consumed", "lent"])
@pytest.mark.parametrize("sampler", [PER, Prioritized(alpha=1.0, beta=1.0, normalize="buffer")], ids=repr)
def test_a_repeated_draw_tells_the_same(server, make_buffer, make_raw, records, sampler, how):
    """The reply was lost, the number comes again: the whole is that of which the batch was drawn, not what it left."""
    buffer = make_buffer(sampler=sampler, consume_after_n_samples=1)
    buffer.extend(records.many(0, 4), priority=[1.0, 2.0, 3.0, 4.0])
    raw = make_raw()
    first = raw.sample(4, **how)
    again = raw.sample(4, number=raw.number, **how)
    assert (first[1], again[1]) == ("-", "-")
    assert again == first


def test_bytes_deleted_by_hand_stop_no_write(server, make_buffer, client, small):
    """A record without its entry is evicted like any other, and the buffer goes on."""
    buffer = make_buffer(sampler=PER, capacity=10)
    buffer.extend(small.many(0, 10))
    client.xdel(f"rr:{{{buffer.name}}}:records", "0-3")
    buffer.extend(small.many(10, 20))
    assert len(buffer.sample(4)["i"]) == 4
    assert len(buffer.extend(small.many(20, 22))) == 2
    assert not buffer.doctor().ok


def test_an_update_needs_a_priority(server, make_buffer, client, small):
    """None, truth values and complex numbers are none, whoever holds them."""
    torch = pytest.importorskip("torch")
    buffer = make_buffer(sampler=PER)
    index = buffer.extend(small.many(0, 2))
    for wrong in (None, torch.tensor([True, False]), torch.tensor([1 + 2j, 2.0])):
        with nothing_changes(client), refused(ArgumentError) as caught:
            buffer.update_priority(index, wrong)
        assert caught.value.name == "priority[0]"


def test_torch_numbers_are_taken(server, make_buffer, small):
    """Scalars, arrays with a gradient, bfloat16."""
    torch = pytest.importorskip("torch")
    buffer = make_buffer(sampler=PER)
    index = buffer.extend(small.many(0, 3), priority=torch.tensor([1.0, 2.0, 4.0], requires_grad=True))
    assert buffer.update_priority(torch.from_numpy(index[:1]), torch.tensor(8.0, dtype=torch.bfloat16)) == Updated(1, 0)
    assert buffer.update_priority(index[1:], [torch.tensor(0.5), np.float32(0.25)]) == Updated(2, 0)
    assert sorted(set(buffer.sample(200, True, min_items=1)[1].priority)) == [0.25, 0.5, 8.0]
    with refused(ValueError):
        buffer.update_priority(index, torch.tensor([True, False, True]))


@KEEPS
def test_a_late_update_changes_nobody(server, make_buffer, small, options):
    """Indices of evicted records, and one that never was, are ignored and counted; those still there are set."""
    buffer = make_buffer(sampler=PER, capacity=100, **options)
    old = buffer.extend(small.many(0, 100))
    buffer.extend(small.many(100, 190))
    assert buffer.update_priority([*old[:32], *old[95:], 10**9], 1000.0) == Updated(5, 33)
    assert buffer.update_priority([old[99], old[99]], [3.0, 7.0]) == Updated(1, 0)
    records = {int(i): p for i, p in zip(*np.unique(old[95:], return_counts=True), strict=True)}
    _, info = buffer.sample(100, True, min_items=1)
    seen = dict(zip(info.index.tolist(), info.priority.tolist(), strict=True))
    assert {p for i, p in seen.items() if i not in records} <= {1.0}
    assert seen.get(int(old[99]), 7.0) == 7.0
    assert buffer.doctor().ok


def test_new_records_have_the_largest_ever_set(server, make_buffer, small):
    """1.0 before any; not lowered as priorities fall; 1.0 again in an emptied buffer."""
    buffer = make_buffer(sampler=PER, capacity=10)
    index = buffer.extend(small.many(0, 4))
    buffer.update_priority(index, 5.0)
    buffer.update_priority(index, 0.5)
    newest = buffer.add(small.one(4))
    assert dict(zip(*buffer_priorities(buffer), strict=True))[newest] == 5.0
    assert buffer.stats()["max_priority"] == 5.0
    buffer.empty()
    buffer.add(small.one(0))
    assert buffer_priorities(buffer)[1] == [1.0]


def test_new_records_have_the_largest_in_the_buffer(server, make_buffer, small):
    """With max_priority_within_buffer: what has left does not count."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0, max_priority_within_buffer=True), capacity=3)
    buffer.extend(small.many(0, 3), priority=[9.0, 2.0, 1.0])
    assert buffer.stats()["min_priority"] == 1.0
    added = [buffer.add(small.one(3)), buffer.add(small.one(4))]
    assert dict(zip(*buffer_priorities(buffer), strict=True)) == {3: 1.0, added[0]: 9.0, added[1]: 9.0}
    buffer.remove(added)
    assert dict(zip(*buffer_priorities(buffer), strict=True)) == {3: 1.0}
    assert (buffer.add(small.one(5)), buffer_priorities(buffer)[1]) == (6, [1.0, 1.0])


def buffer_priorities(buffer):
    """Indices and priorities of all live records, by a draw of them all."""
    _, info = buffer.sample(8000, True, min_items=1)
    each = dict(zip(info.index.tolist(), info.priority.tolist(), strict=True))
    return sorted(each), [each[i] for i in sorted(each)]


def test_zeros_hide_no_new_records(server, make_buffer, small):
    """The default is the largest ever set above 0: a batch of zero errors starves no learner. Errors tell of the rest."""
    buffer = make_buffer(sampler=Prioritized(alpha=0.6, beta=0.4))
    buffer.update_priority(buffer.extend(small.many(0, 5)), 0.0)
    buffer.extend(small.many(5, 7), priority=0.0)
    with pytest.raises(NotReadyError, match="7 more have priority 0, and are hidden") as caught:
        buffer.sample(1)
    assert caught.value.hidden == 7
    buffer.extend(small.many(7, 9))
    assert (len(buffer), buffer.stats()["max_priority"]) == (2, 1.0)


def test_all_priorities_are_listed(server, make_buffer, small):
    """Of each stored record, by index, also of the hidden ones and of those that are lent; those that left have none."""
    buffer = make_buffer(sampler=Prioritized(alpha=0.6, beta=0.4), consume_after_n_samples=2, capacity=500)
    given = np.random.default_rng(0).uniform(0.1, 9, 300)
    given[7] = 0
    index = buffer.extend(small.many(0, 300), priority=given)
    buffer.remove(index[40:75])
    buffer.sample(5, lease=1000.0)
    found, priority = buffer.priorities()
    kept = np.r_[0:40, 75:300]
    assert found.tolist() == index[kept].tolist()
    assert priority.tolist() == given[kept].tolist()
    top = found[np.argsort(-priority)[:3]]
    assert len(buffer.get(top)["i"]) == 3
    buffer.empty()
    assert [len(part) for part in buffer.priorities()] == [0, 0]
    with pytest.raises(ArgumentError, match=r"goes by priority, not Uniform"):
        make_buffer("uniform").priorities()


@pytest.mark.parametrize("ends", ["release", "ack"])
def test_a_lent_record_keeps_its_priority(server, make_buffer, small, ends):
    """And takes an update meanwhile; 0 hides it when it comes back."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0), consume_after_n_samples=2)
    index = buffer.extend(small.many(0, 4), priority=[1.0, 2.0, 3.0, 4.0])
    _, info = buffer.sample(4, True, lease=60.0)
    assert (len(buffer), buffer.update_priority(index[:2], [0.0, 7.0])) == (0, Updated(2, 0))
    getattr(buffer, ends)(info.lease)
    assert (len(buffer), buffer.stats()["hidden"]) == (3, 1)
    _, info = buffer.sample(3, True)
    assert dict(zip(info.index.tolist(), info.priority.tolist(), strict=True)) == {2: 7.0, 3: 3.0, 4: 4.0}
    assert buffer.doctor().ok


def test_an_update_wakes_who_waits(server, make_buffer, small):
    """Records that become drawable are there for a blocked draw, at once."""
    buffer = make_buffer(sampler=PER, poll_interval=30.0)
    index = buffer.extend(small.many(0, 4), priority=0.0)
    got = []
    reader = threading.Thread(target=lambda: got.append(buffer.sample(2, wait=True, timeout=10)), daemon=True)
    reader.start()
    while buffer.stats()["waiters"] == 0:
        pass
    assert buffer.update_priority(index[:2], 1.0) == Updated(2, 0)
    reader.join(5)
    assert len(got[0]["i"]) == 2


def test_priorities_need_their_sampler(server, make_buffer, small):
    """Elsewhere they are refused, and so is another sampler's setting at attach."""
    buffer = make_buffer(sampler=Fifo())
    for call in (lambda: buffer.update_priority(1, 1.0), lambda: buffer.add(small.one(0), priority=1.0)):
        with refused(ArgumentError) as caught:
            call()
        assert "Fifo()" in str(caught.value)
    with refused(ConfigMismatchError):
        make_buffer(sampler=PER)


@pytest.mark.parametrize(
    "option", [{"alpha": -1}, {"beta": float("nan")}, {"eps": "x"}, {"normalize": "mean"}, {"replacement": 1}]
)
def test_options_are_checked(option):
    """Where the sampler is made."""
    with pytest.raises(ArgumentError) as caught:
        Prioritized(**{"alpha": 0.6, "beta": 0.4} | option)
    assert caught.value.name == next(iter(option))


@pytest.mark.parametrize("updates", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_sums_do_not_drift(real_server, make_buffer, client, small, updates):
    """After many updates over twelve orders of magnitude the total is right to 1e-9."""
    buffer, random = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0, eps=0.0), capacity=1000), np.random.default_rng(5)
    index = buffer.extend(small.many(0, 1000))
    for _ in range(updates // 10_000):
        for _ in range(10):
            last = 10 ** random.uniform(-6, 6, 1000)
            buffer.update_priority(index, last)
    assert buffer.stats()["total_weight"] == pytest.approx(last.sum(), rel=1e-9)
    assert buffer.doctor().ok


SAMPLERS = (
    "",
    "abc",
    "Nonsense()",
    "Prioritized(",
    "Prioritized()",
    "Prioritized(alpha=x, eps=1)",
    "Prioritized(alpha=-1, eps=nan)",
)


@pytest.mark.parametrize("sampler", [PER, Fifo()], ids=["prioritized", "fifo"])
@pytest.mark.parametrize("text", [None, *SAMPLERS])
def test_a_sampler_that_is_none_is_named_and_nothing_is_half_done(server, make_buffer, client, small, sampler, text):
    """Somebody wrote there while a handle is open: each call is refused whole, and goes on once the text is back."""
    buffer, reader = make_buffer(sampler=sampler, capacity=8), make_buffer(sampler=sampler, capacity=8)
    buffer.extend(small.many(0, 8))
    config = f"rr:{{{buffer.name}}}:config"
    if text is None:
        client.hdel(config, "sampler")
    else:
        client.hset(config, "sampler", text)
    calls = lambda: buffer.extend(small.many(8, 10)), lambda: reader.sample(2), lambda: buffer.remove([1]), buffer.stats
    for call in calls:
        with nothing_changes(client), refused(BufferDamagedError) as caught:
            call()
        assert caught.value.key == config
    client.hset(config, "sampler", repr(sampler))
    for call in calls:
        call()
    assert buffer.doctor().ok


GARBAGE = ("", "x", "-1 x", "= nan", "= inf", "99999 99999", "nan nan", "1 1e999", "0 -5", "= -1", "5")


@pytest.mark.parametrize("what", ["priorities", "places", "buckets"])
@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_is_found_and_breaks_no_call(server, make_buffer, client, small, what, text):
    """Whatever somebody writes there by hand, each call is done, or refused whole by an error that names a key."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0), capacity=8)
    index = buffer.extend(small.many(0, 8), priority=[1, 2, 3, 4, 5, 6, 7, 8])
    key = f"rr:{{{buffer.name}}}:{what}"
    field = client.hkeys(key)[0]
    client.hset(key, field, text)
    for call in (
        lambda: buffer.sample(4, min_items=1), lambda: buffer.update_priority(index, 3.0), lambda: buffer.remove(index[:1]),
        lambda: buffer.extend(small.many(8, 12)), lambda: buffer.sample(4, min_items=1), buffer.stats,
    ):  # fmt: skip
        try:
            call()
        except (BufferDamagedError, NotReadyError):
            continue
