"""Another alpha on a live buffer: which weights change, what handles are told, what becomes of a pass that is cut off."""

import numpy as np
import pytest

from redis_replay import _ops_write
from redis_replay import _stored as stored
from redis_replay._keys import Keys
from redis_replay.exceptions import ArgumentError, BufferDamagedError, ConfigMismatchError, ConnectionLostError, ReplayError
from redis_replay.samplers import Fifo, MinHeap, Prioritized, Uniform
from tests._contract import nothing_changes, refused
from tests._server import in_turn
from tests.contract.test_priorities import draw_counts, follows

PER = Prioritized(alpha=0.6, beta=0.4)
MANY = 9_000  # records of three steps
MIXED = [1e-6, 0.3, 0.7, 0.0, 1.0, 1.5, 40.0, 1e9, 2.0, 1.0, 3.0, 5.0]  # one of them hidden


def weights(client, buffer):
    """What each stored record weighs, by index: float64 (n,)."""
    blocks = client.hgetall(Keys(buffer.name).key("priorities"))
    rows = [np.frombuffer(blocks[number], "<f8")[5:] for number in sorted(blocks, key=int)]
    each = np.concatenate([np.stack((row[:8], row[8:])) for row in rows], axis=1)
    return each[0][each[1] >= 0]


def law(priority, alpha, eps=1e-8):
    """The formula, in units of 64."""
    return (np.asarray(priority) + eps) ** alpha / 64


@pytest.mark.parametrize("alpha", [0, 0.37, 1.0, 2.5])
def test_each_weight_is_that_of_the_formula(server, make_buffer, client, small, alpha):
    """Number by number; what is hidden or lent weighs nothing, and what comes back or is new goes by the new alpha."""
    buffer = make_buffer(sampler=PER, consume_after_n_samples=9)
    index = buffer.extend(small.many(0, 12), priority=MIXED)
    _, info = buffer.sample(3, True, lease=1000.0)
    buffer.set_alpha(alpha)
    expected = law(MIXED, alpha)
    away = np.isin(index, info.index)
    assert weights(client, buffer).tolist() == pytest.approx(np.where(away | (index == 4), 0, expected).tolist(), rel=1e-14)
    buffer.release(info.lease)
    buffer.add(small.one(12), priority=7.0)
    buffer.update_priority(4, 11.0)
    expected = np.append(expected, law(7.0, alpha))
    expected[3] = law(11.0, alpha)
    assert weights(client, buffer).tolist() == pytest.approx(expected.tolist(), rel=1e-14)
    assert buffer.stats()["total_weight"] == pytest.approx(64 * expected.sum(), rel=1e-12)
    assert buffer.doctor().ok


@pytest.mark.parametrize(("real_server", "alpha"), in_turn([(0.0,), (1.3,)]), indirect=["real_server"])
def test_draws_follow_the_new_law(real_server, make_buffer, small, alpha):
    """200,000 draws of 500 records whose priorities span four orders of magnitude; 0 draws evenly."""
    buffer = make_buffer(sampler=PER, capacity=500, seed=1)
    priority = 10 ** np.random.default_rng(0).uniform(-2, 2, 500)
    buffer.extend(small.many(0, 500), priority=priority)
    buffer.set_alpha(alpha)
    expected = law(priority, alpha)
    assert follows(draw_counts(buffer, 500, 200_000), expected / expected.sum())


def test_zeros_stay_hidden(server, make_buffer, small):
    """Also under alpha 0, where 0 ** 0 is 1."""
    buffer = make_buffer(sampler=Prioritized(alpha=1.0, beta=0.0, eps=0.0), seed=1)
    buffer.extend(small.many(0, 3), priority=[0.0, 5.0, 1.0])
    buffer.set_alpha(0.0)
    assert (len(buffer), buffer.stats()["hidden"], buffer.stats()["total_weight"]) == (2, 1, 2.0)
    assert set(buffer.sample(100, True, min_items=1)[1].index) == {2, 3}


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_other_handles_are_told(server, make_buffer, small, normalize):
    """What was opened before computes by the alpha that each draw goes by; so does its copy in another process."""
    sampler = Prioritized(alpha=0.6, beta=0.5, normalize=normalize)
    mine, other = make_buffer(sampler=sampler, seed=1), make_buffer(sampler=sampler, seed=2)
    priority = np.random.default_rng(1).uniform(0.1, 9, 60)
    mine.extend(small.many(0, 60), priority=priority)
    for setter, reader, alpha in ((mine, other, 1.7), (other, mine, 0.2)):
        reader.sample(20)
        setter.set_alpha(alpha)
        _, info = reader.sample(20, True)
        each, drawn = law(priority, alpha), law(info.priority, alpha)
        np.testing.assert_allclose(info.probability, drawn / each.sum(), rtol=1e-9)
        least = (drawn if normalize == "batch" else each).min()
        np.testing.assert_allclose(info.priority_weight, (drawn / least) ** -0.5, rtol=1e-6)
    assert mine._now.core.renew().sampler == Prioritized(alpha=0.2, beta=0.5, normalize=normalize)


def test_an_answer_that_comes_again_tells_its_own_alpha(server, make_buffer, make_raw, records):
    """The reply was lost, alpha changed, the number comes again: the whole is that of which the batch was drawn."""
    buffer, raw = make_buffer(sampler=PER, consume_after_n_samples=1), make_raw()
    buffer.extend(records.many(0, 4), priority=[1.0, 2.0, 3.0, 4.0])
    first = raw.sample(2)
    buffer.set_alpha(3.0)
    again = raw.sample(2, number=raw.number)
    assert (again[10], again[10].split()[3]) == (first[10], "0.6")
    assert raw.sample(2)[10].split()[3] == "3.0"


@pytest.mark.parametrize(
    ("sampler", "remover"), [(PER, PER), (PER, Fifo()), (Uniform(), PER), (MinHeap(), PER)], ids=lambda one: type(one).__name__
)
def test_the_setting_is_another(server, make_buffer, client, small, sampler, remover):
    """Of the sampler, the remover, or both; who opens later names the one in force, as after `set_rate_limiter`."""
    options = {"sampler": sampler, "remover": remover}
    buffer = make_buffer(**options)
    buffer.extend(small.many(0, 3), priority=[1.0, 2.0, 3.0])
    buffer.set_alpha(1e-05)
    now = {name: one.weighing_by(1e-05) for name, one in options.items()}
    assert client.hmget(Keys(buffer.name).key("config"), *now) == [repr(one).encode() for one in now.values()]
    assert weights(client, buffer).tolist() == pytest.approx(law([1.0, 2.0, 3.0], 1e-05).tolist(), rel=1e-14)
    with pytest.raises(ConfigMismatchError) as caught:
        make_buffer(**options)
    differ = {name: (now[name], one) for name, one in options.items() if one == PER}
    assert caught.value.differences == differ
    assert make_buffer(**now)._now.core.weighs
    buffer.set_alpha(0.6)
    make_buffer(**options)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf"), "0.5", None, True])
def test_a_bad_alpha_is_refused(server, make_buffer, client, alpha):
    buffer = make_buffer(sampler=PER)
    with nothing_changes(client, ()), refused(ArgumentError) as caught:
        buffer.set_alpha(alpha)
    assert caught.value.name == "alpha"


def test_alpha_needs_who_goes_by_it(server, make_buffer):
    """Heaps have priorities, and no exponent."""
    with refused(ArgumentError) as caught:
        make_buffer(sampler=MinHeap()).set_alpha(0.5)
    assert "is Prioritized, not MinHeap() and Fifo()" in str(caught.value)


def fill(buffer, small):
    """Three steps' worth of records; gives their priorities."""
    priority = np.random.default_rng(2).uniform(0.1, 9, MANY)
    for low in range(0, MANY, 3000):
        buffer.extend(small.many(low, low + 3000), priority=priority[low : low + 3000])
    return priority


def test_a_pass_that_is_cut_off_is_made_good_by_another(real_server, make_buffer, client, small, monkeypatch):
    """Meanwhile some weigh as before, what is new goes by the new alpha, and all are drawn; weighing twice is harmless."""
    buffer, sent = make_buffer(sampler=PER, capacity=MANY + 1, seed=1), []
    priority = fill(buffer, small)
    change = _ops_write.change

    def cut(core, lane, script, answers=("OK",)):
        sent.append(script)
        if len(sent) == 2:
            raise ConnectionLostError(address="nowhere", verb="alpha", reason="cut")
        return (yield from change(core, lane, script, answers))

    monkeypatch.setattr(_ops_write, "change", cut)
    with pytest.raises(ConnectionLostError):
        buffer.set_alpha(2.0)
    buffer.add(small.one(MANY), priority=5.0)
    found, old, new = weights(client, buffer), law(priority, 0.6), law(np.append(priority, 5.0), 2.0)
    is_new = np.isclose(found, new, rtol=1e-12)
    assert is_new[-1]
    assert 1000 < is_new.sum() < MANY - 1000
    np.testing.assert_allclose(found[~is_new], old[~is_new[:-1]], rtol=1e-12)
    assert len(buffer.sample(100)["i"]) == 100
    assert buffer.doctor().ok
    buffer.set_alpha(2.0)
    np.testing.assert_allclose(weights(client, buffer), new, rtol=1e-12)
    assert buffer.stats()["total_weight"] == pytest.approx(64 * new.sum(), rel=1e-9)
    assert buffer.doctor().ok


def test_of_two_who_set_it_the_last_to_begin_is_right(real_server, make_buffer, make_raw, client, small):
    """The steps of the other go on by what is in force."""
    buffer, raw = make_buffer(sampler=PER, capacity=MANY), make_raw()
    priority = fill(buffer, small)
    answer = raw("alpha", alpha="0.1", cursor="0", process="")
    buffer.set_alpha(2.0)
    while answer[0] == "MORE":
        answer = raw("alpha", alpha="0.1", cursor=answer[2], process=answer[3])
    np.testing.assert_allclose(weights(client, buffer), law(priority, 2.0), rtol=1e-12)


def test_a_cursor_of_another_process_begins_anew(server, make_buffer, make_raw, client, small):
    """After a restart or a failover it would pass over some; the alpha in force is not touched."""
    buffer, raw = make_buffer(sampler=PER), make_raw()
    buffer.extend(small.many(0, 12), priority=2.0)
    config = Keys(buffer.name).key("config")
    client.hset(config, "sampler", repr(PER.weighing_by(2.0)))
    assert raw("alpha", alpha="0.1", cursor="3", process="another")[0] == "OK"
    assert client.hget(config, "sampler").decode() == repr(PER.weighing_by(2.0))
    assert weights(client, buffer).tolist() == pytest.approx([law(2.0, 2.0)] * 12)


@pytest.mark.parametrize("words", ["MORE", "MORE x -", "MORE -1 -", "OKAY"])
def test_an_answer_that_nobody_gave_is_found(server, make_buffer, client, words):
    """Somebody wrote it under the number that the handle uses next."""
    buffer = make_buffer(sampler=PER)
    buffer.set_alpha(0.5)
    requests, lane = Keys(buffer.name).key("requests"), buffer._now.core.lanes[-1]
    client.hset(requests, lane.name, f"{lane.number + 1} alpha {words}")
    with refused(BufferDamagedError) as caught:
        buffer.set_alpha(0.7)
    assert caught.value.key == requests


@pytest.mark.parametrize("alpha", ["x", "nan", "-1", "inf"])
def test_an_alpha_that_is_none_is_damage(alpha):
    """In a draw's answer that somebody wrote by hand."""
    with pytest.raises(ReplayError) as caught:
        stored.odds(Keys("b"), b"", f"1 2 3 {alpha}")
    assert isinstance(caught.value, BufferDamagedError)


def test_places_do_not_depend_on_the_server(server, make_buffer, client, small):
    """Blocks come to a bin in the order of their numbers, so that the same seeds go on drawing the same records."""
    buffer = make_buffer(sampler=PER, capacity=400)
    buffer.extend(small.many(0, 399), priority=2.0)
    buffer.set_alpha(2.0)
    rows = client.hvals(Keys(buffer.name).key("places"))
    assert np.frombuffer(max(rows, key=len), "<f8").tolist() == list(range(50))
