"""What is kept for a while: drawn bytes until they arrived, lanes until they are unused, a gate until it is closed."""

import threading

import pytest

from redis_replay._encode import encode_batch
from redis_replay.samplers import Fifo
from tests._contract import LARGE, SMALL, Records, nothing_changes, numbers, stored_numbers
from tests._helpers import wait_until
from tests._mrg import Mrg32k3a
from tests.contract.test_life import USES

CONSUMES = pytest.mark.parametrize("consume", [None, 1, 2])


def rows(low, high, width=SMALL):
    """Encoded records as large as `width` makes them."""
    return encode_batch(Records(width).many(low, high), None)


@pytest.fixture
def consuming(server, make_buffer, records):
    """A buffer of four records that leave by their first use, the oldest first."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(records.many(0, 4))
    return buffer


@pytest.fixture
def stored_ids(client, name):
    """Gives `ids()`: the ids of all entries of the stream."""
    return lambda: [entry.decode() for entry, _ in client.xrange(f"rr:{{{name}}}:records")]


NEXT = {
    "settle": lambda raw: raw.settle(),
    "sample": lambda raw: raw.sample(1),
    "wait": lambda raw: raw.wait(1),
    "add": lambda raw: raw.add(rows(9, 10)),
    "remove": lambda raw: raw("remove", index=[99]),
    "reopen": lambda raw: raw("reopen"),
    "shutdown": lambda raw: raw("shutdown", drain=0),
}


@pytest.mark.parametrize("then", NEXT.values(), ids=NEXT)
def test_the_lanes_next_request_ends_its_hold(server, make_buffer, make_raw, stored_ids, then):
    """Until then the bytes of what was consumed stay; whichever request comes says that they arrived."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(Records(SMALL).many(0, 4))
    raw = make_raw()
    raw.sample(2)
    assert stored_ids()[:2] == ["0-1", "0-2"]
    then(raw)
    assert not {"0-1", "0-2"} & set(stored_ids())
    assert buffer.doctor().ok


def test_nobody_elses_request_ends_a_hold(consuming, make_raw, stored_ids, records):
    """Other lanes write, draw and look; the bytes stay where their reader finds them."""
    raw, other = make_raw(), make_raw("other")
    raw.sample(2)
    other.sample(1)
    other.settle()
    consuming.extend(records.many(4, 7))
    consuming.stats()
    assert stored_ids() == ["0-1", "0-2", "0-4", "0-5", "0-6", "0-7"]
    assert consuming.doctor().ok


def test_held_records_are_nobodys(consuming, make_raw):
    """Consumed records whose bytes are kept are drawn by nobody else and not counted as there."""
    raw = make_raw()
    raw.sample(3)
    assert numbers(consuming.sample(5, min_items=1)) == [3]
    assert stored_numbers(consuming) == []


@CONSUMES
def test_an_evicted_record_is_kept_for_its_reader(server, make_buffer, make_raw, stored_ids, consume):
    """Large records whose payloads are still to be fetched stay, though others took their room; then they go."""
    buffer = make_buffer(capacity=3, sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(Records(LARGE).many(0, 3))
    raw = make_raw()
    raw.sample(2)
    buffer.extend(Records(LARGE).many(3, 6))
    assert stored_ids() == ["0-1", "0-2", "0-4", "0-5", "0-6"]
    assert (len(buffer), buffer.storage_size, buffer.doctor().ok) == (3, 5, True)
    raw.settle()
    assert (stored_ids(), buffer.doctor().ok) == (["0-4", "0-5", "0-6"], True)


@CONSUMES
def test_a_removed_record_is_kept_for_its_reader(server, make_buffer, make_raw, stored_ids, consume):
    """The same for remove(): out of the live ones at once, out of the stream when the reader has it."""
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(Records(LARGE).many(0, 3))
    raw = make_raw()
    raw.sample(3)
    buffer.remove([1, 2, 3])
    assert (len(stored_ids()), len(buffer)) == (3, 0)
    raw.settle()
    assert (stored_ids(), buffer.storage_size, buffer.doctor().ok) == ([], 0, True)


def test_two_readers_hold_a_record_together(server, make_buffer, make_raw, stored_ids):
    """Its bytes go when both have them."""
    buffer = make_buffer(sampler=Fifo())
    buffer.extend(Records(LARGE).many(0, 1))
    first, second = make_raw("first"), make_raw("second")
    first.sample(1)
    second.sample(1)
    buffer.remove(1)
    first.settle()
    assert stored_ids() == ["0-1"]
    second.settle()
    assert (stored_ids(), buffer.doctor().ok) == ([], True)


def seeds_of(ranks, live):
    """Seeds by which a draw with replacement of `live` records has these ranks."""
    for seed in range(1, 10_000):
        random = Mrg32k3a([seed] * 6)
        if [random.below(live) for _ in ranks] == ranks:
            return [seed] * 6
    raise AssertionError(ranks)


def test_a_record_drawn_twice_ends_no_other_hold(server, make_buffer, make_raw, stored_ids):
    """A batch that holds one record twice lets go of that one, and not of what another reader still fetches."""
    buffer = make_buffer(capacity=2)
    buffer.extend(Records(LARGE).many(0, 2))
    first, twice = make_raw("first"), make_raw("twice")
    first.seeds, twice.seeds = seeds_of([0], 2), seeds_of([1, 1], 2)
    assert (first.sample(1)[7], twice.sample(2)[7]) == ("1", "2 2")
    buffer.extend(Records(LARGE).many(2, 4))
    assert stored_ids() == ["0-1", "0-2", "0-3", "0-4"]
    twice.settle()
    assert (stored_ids(), buffer.doctor().findings) == (["0-1", "0-3", "0-4"], ())


def test_a_record_drawn_twice_takes_no_live_one_along(server, make_buffer, make_raw):
    """Where it was removed meanwhile, the records before it stay."""
    buffer = make_buffer()
    buffer.extend(Records(LARGE).many(0, 2))
    raw = make_raw()
    raw.seeds = seeds_of([1, 1], 2)
    raw.sample(2)
    buffer.remove(2)
    raw.settle()
    assert (numbers(buffer.sample(2, min_items=1)), buffer.doctor().findings) == ([0, 0], ())


def test_a_batch_with_its_bytes_holds_nothing(server, make_buffer, make_raw, client):
    """Small records that stay in the buffer come with the answer: nothing is kept for them."""
    buffer = make_buffer()
    buffer.extend(Records(SMALL).many(0, 5))
    make_raw().sample(5)
    assert buffer.stats()["holds"] == 0


# Time. It passes by the buffer's own clock.


def test_a_hold_ends_after_a_minute(consuming, make_raw, stored_ids):
    """What was not confirmed is gone then: the records stay consumed, the answer becomes LAPSED, and it is counted."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(61)
    assert (consuming.stats()["lapsed"], consuming.stats()["consumed"]) == (1, 2)
    assert stored_ids() == ["0-3", "0-4"]
    assert raw.sample(2, number=raw.number) == ["LAPSED", "-"]
    assert consuming.doctor().ok


def test_a_hold_lasts_for_a_minute(consuming, make_raw):
    """A slow reader has that long."""
    raw = make_raw()
    first = raw.sample(2)
    raw.pass_time(58)
    assert raw.sample(2, number=raw.number) == first
    assert consuming.stats()["lapsed"] == 0


def test_renewing_keeps_a_hold(consuming, make_raw, stored_ids):
    """A long fetch says that it goes on: another minute from then."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(40)
    assert raw("renew", name=[raw.name]) == ["OK", "-"]
    raw.pass_time(40)
    assert (consuming.stats()["lapsed"], len(stored_ids())) == (0, 4)


def test_renewing_a_lapsed_hold_names_it(consuming, client, make_raw):
    """The reader learns that its batch is gone."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(61)
    consuming.stats()
    with nothing_changes(client):
        assert raw("renew", name=[raw.name]) == ["OK", "-", raw.name]


def test_a_lapsed_draw_is_not_undone(consuming, make_raw):
    """Its records went a minute ago; naming it as open brings nothing back."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(61)
    raw.settle(open_number=raw.number)
    assert (len(consuming), consuming.stats()["consumed"], consuming.doctor().ok) == (2, 2, True)


def test_a_lapsed_draw_draws_anew(consuming, make_raw):
    """The lane goes on with what is there."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(61)
    assert raw.sample(2)[7] == "3 4"


def test_time_never_goes_back(consuming, client, name, make_raw):
    """Where the server's clock was set back by an hour, the buffer's goes on: no hold lasts longer for it."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(-3600)
    consuming.stats()
    raw.pass_time(61)
    assert consuming.stats()["lapsed"] == 1


def test_an_unused_lane_goes_after_an_hour(consuming, make_raw):
    """When a new lane comes, those that nobody has used for an hour are forgotten, their holds with them."""
    raw = make_raw()
    raw.sample(2)
    raw.pass_time(3601)
    make_raw("new")
    assert raw.sample(1) == ["FORGOTTEN", "-"]
    assert (consuming.stats()["holds"], consuming.doctor().ok) == (0, True)


def test_a_used_lane_stays_known(consuming, make_raw):
    """One request an hour is enough."""
    raw = make_raw()
    for turn in range(3):
        raw.pass_time(3000)
        make_raw(f"new-{turn}")
        assert raw.wait(1)[0] == "READY"


def test_a_forgotten_lane_leaves_the_line(consuming, make_raw):
    """A waiter that has gone for good holds up nobody."""
    raw = make_raw()
    raw.sample(90, wait=1)
    raw.pass_time(3601)
    make_raw("new")
    assert (consuming.stats()["waiters"], consuming.doctor().ok) == (0, True)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_handle_outlives_its_lane(server, make_buffer, make_raw, client, records, use):
    """After an hour of silence a handle registers anew, and no call notices."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 5))
    buffer.can_sample(1)
    raw = make_raw()
    raw.pass_time(3601)
    make_raw("new")
    assert client.zscore(raw.keys.key("lanes"), buffer._now.core.lanes[-1].name) is None
    use(buffer, records)


# The gate


@pytest.mark.parametrize("consume", [None, 1])
@pytest.mark.parametrize("use", ["stats", "get", "records", "sample", "add", "wait_until", "remove", "shutdown"])
def test_an_open_gate_is_mended_by_the_next_script(server, make_buffer, make_raw, use, consume):
    """A large write whose closing script was lost is put back, its records counted, by whichever script comes next."""
    large = Records(LARGE)
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=consume)
    buffer.extend(large.many(0, 3))
    raw = make_raw()
    assert raw.gate(rows(3, 6, LARGE), steps=("open", "adds"))[0][0] == "OPEN"
    USES[use](buffer, large)
    assert buffer.stats()["records_total"] == (7 if use == "add" else 6)
    assert buffer.get(6)["i"] == 5
    assert buffer.doctor().ok


def test_a_mended_write_answers_as_applied(server, make_buffer, make_raw):
    """Sent again, the number gets the indices that its records have."""
    buffer = make_buffer()
    buffer.extend(Records(LARGE).many(0, 3))
    raw = make_raw()
    raw.gate(rows(3, 6, LARGE), steps=("open", "adds"))
    opened, closed = raw.gate(rows(3, 6, LARGE), number=raw.number)
    assert (opened, closed[0]) == (["OK", "-", "4", "6"], "CLOSED")
    assert stored_numbers(buffer) == [0, 1, 2, 3, 4, 5]


def test_a_mended_first_write_has_its_schema(server, make_buffer, make_raw):
    """The very first write may be the one."""
    buffer = make_buffer(sampler=Fifo())
    raw = make_raw()
    raw.gate(rows(0, 2, LARGE), steps=("open", "adds"))
    assert numbers(buffer.sample(2)) == [0, 1]
    assert buffer.doctor().ok


def test_adds_without_an_open_gate_do_nothing(server, make_buffer, client, make_raw):
    """Neither alone nor before a closing script: there is no inbox for them."""
    buffer = make_buffer()
    buffer.extend(Records(LARGE).many(0, 3))
    raw = make_raw()
    with nothing_changes(client, ()):
        raw.gate(rows(3, 6, LARGE), steps=("adds",))
        assert raw.gate(rows(3, 6, LARGE), steps=("adds", "close")) == [["CLOSED", "-"]]


def test_a_refused_gate_lets_nothing_in(server, make_buffer, client, make_raw):
    """The adds of a write into a shut buffer go nowhere."""
    buffer = make_buffer()
    buffer.extend(Records(LARGE).many(0, 3))
    buffer.shutdown()
    raw = make_raw()
    with nothing_changes(client):
        opened, closed = raw.gate(rows(3, 6, LARGE))
    assert (opened[0], closed[0]) == ("SHUT", "CLOSED")


# Scripts that the server does not know, or cannot run now


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_flushed_scripts_are_loaded_again(server, make_buffer, client, records, use):
    """SCRIPT FLUSH at any time costs a round trip, and no call notices."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 5))
    client.script_flush()
    use(buffer, records)


def test_a_write_after_a_flush_goes_in_once(server, make_buffer, client, records):
    """A flush before each write: every record is there, once, in order."""
    buffer = make_buffer()
    for low in range(0, 12, 3):
        client.script_flush()
        assert buffer.extend(records.many(low, low + 3)).tolist() == [low + 1, low + 2, low + 3]
    assert (stored_numbers(buffer), buffer.write_count, buffer.doctor().ok) == (list(range(12)), 12, True)


def test_open_works_on_a_server_without_scripts(server, make_buffer, client):
    """Nothing has to be loaded beforehand."""
    client.script_flush()
    make_buffer()
    client.script_flush()
    assert make_buffer(attach=True).capacity == 100


@pytest.fixture
def busy(real_server, client):
    """Gives `busy()`: the server runs a script of somebody else's for 0.15 s, and answers BUSY meanwhile."""
    client.config_set("busy-reply-threshold", 20)
    threads = []

    def occupied():
        if not threads or not threads[-1].is_alive():  # none yet, or over before this process had its turn to look
            other = real_server.client()
            now = "redis.call('TIME') t = t[1] * 1000 + t[2] / 1000"
            script = f"local t = {now} local e = t + 150 repeat t = {now} until t > e"
            threads.append(threading.Thread(target=lambda: other.eval(script, 0)))
            threads[-1].start()
        return is_busy(client)

    def run():
        wait_until(occupied, description="the server to be busy")

    yield run
    for thread in threads:
        thread.join()
    client.config_set("busy-reply-threshold", 5000)


def is_busy(client):
    try:
        return not client.ping()
    except Exception as error:
        return "BUSY" in str(error) or "busy" in str(error)


@pytest.mark.parametrize("use", ["add", "extend", "sample", "get", "records", "stats", "remove"])
def test_a_busy_server_is_waited_for(real_server, make_buffer, busy, records, use):
    """Within a call's time, BUSY is no error: the request goes again, and is applied once."""
    buffer = make_buffer()
    buffer.extend(records.many(0, 3))
    busy()
    USES[use](buffer, records)
    assert buffer.write_count == {"add": 4, "extend": 5}.get(use, 3)
    assert buffer.doctor().ok


def test_opening_waits_for_a_busy_server(real_server, make_buffer, busy):
    """Opening, too."""
    make_buffer(capacity=8)
    busy()
    assert make_buffer(attach=True).capacity == 8
