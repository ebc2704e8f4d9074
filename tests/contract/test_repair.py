"""The doctor's repair: each key is damaged in turn, and the buffer is whole again, or a typed error says what is lost."""

import re
import threading

import pytest

from redis_replay import ReplayBuffer, _mending, _ops_doctor, _ops_load, _ops_repair, doctor
from redis_replay._keys import KINDS
from redis_replay._lua import load
from redis_replay.exceptions import BufferNotFoundError, RepairError, UnderWayError
from redis_replay.limiters import SampleToInsertRatio
from tests._contract import Records, contents, nothing_changes, stored_numbers
from tests._damage import BUFFERS, ROWS, WAYS, Scene


def _scenes(server, name):
    scenes = []

    def make(kind):
        scenes.append(Scene(server, name, kind))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()


@pytest.fixture
def make_scene(server, name):
    yield from _scenes(server, name)


@pytest.fixture
def make_real_scene(real_server, name):
    yield from _scenes(real_server, name)


REFUSED = {
    (what, way): what for what in ("config", "counters") for way in ("deleted", "string")
}  # nothing else tells what it did
TOLD_BY_NOTHING = {  # calls that are under way, and who wrote what: they come again, or nothing tells that they were there
    ("writers", "deleted"), ("writers", "taken"), ("shares", "deleted"),
}  # fmt: skip
LOST = {  # what belongs to records, and is kept in one place alone
    "thrice": {("uses", way): "uses" for way in WAYS},
    "dated": {("versions", way): "versions" for way in WAYS},
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_every_key_damaged_in_turn(make_scene, tmp_path, kind):
    """It is repaired; or it is refused, and nothing has changed; or there is nothing to see, and the buffer goes on."""
    scene, seen = make_scene(kind), set()
    for what in KINDS:
        for way in WAYS if scene.server.is_real else WAYS[2:3]:  # the fake is slow
            if scene.damage(what, way):
                seen.add(what)
                expected = (REFUSED | LOST.get(kind, {})).get((what, way), "repaired")
                expected = "unseen" if (what, way) in TOLD_BY_NOTHING else expected
                assert ((what, way), scene.repair(tmp_path)) == ((what, way), expected)
                if expected in ("repaired", "unseen"):
                    gone = {"deleted": range(99), "string": range(99), "taken": [max(scene.records)]}
                    scene.check(gone.get(way, ()) if what == "records" else ())
                (tmp_path / "before.ckpt").unlink(missing_ok=True)
            scene.restore()
    assert seen == set(KINDS) or not scene.server.is_real


NEEDED = ("write_count", "records_total", "bytes_total", "consumed", "evicted", "removed", "sample_calls", "samples_returned")


@pytest.mark.parametrize("kind", ["ring", "queue", "dated"])
def test_every_counter_and_setting_damaged_in_turn(make_real_scene, tmp_path, kind):
    """A total that nothing else tells, and a setting that no script can go by, are refused; all others are made sound."""
    scene = make_real_scene(kind)
    needed = {*NEEDED, *(("stale", "version") if kind == "dated" else ())}
    for what in ("counters", "config"):
        for field in sorted(field.decode() for field in scene.client.hkeys(scene.key(what))):
            if (
                field in ("server", "mended", "epoch", "format", "rate_limiter", "drained", "cut", "cut_end")
                or "rewound_" in field
            ):
                continue
            scene.client.hset(scene.key(what), field, "mine!")
            refused = field in needed if what == "counters" else field != "skipped"
            found = scene.repair(tmp_path)
            assert (field, found) == (field, what if refused else "repaired")
            if not refused:
                scene.check()
            (tmp_path / "before.ckpt").unlink(missing_ok=True)
            scene.restore()


def test_what_is_sound_is_left_alone(make_scene, tmp_path):
    """No fence, no file, no change."""
    scene = make_scene("queue")
    with nothing_changes(scene.client, ()):
        assert doctor.examine(scene.server.target(), scene.name).ok
        assert scene.repair(tmp_path) == "unseen"


def test_a_record_that_only_the_stream_knows_is_foreign(make_scene, tmp_path):
    """It is left out, and no index up to it is given again."""
    scene = make_scene("ring")
    for entry in ("0-50", "7-3"):
        scene.client.xadd(scene.key("records"), {"d": "mine"}, id=entry)
    done = doctor.repair(scene.server.target(), scene.name, tmp_path / "before.ckpt")
    assert any(line.endswith("left out: 0-50, 7-3") for line in done.did)
    assert scene.dumped() == scene.records
    assert scene.buffer.add(ROWS.one(1)) > 14
    assert scene.buffer.doctor().ok


def test_a_page_that_ends_with_a_foreign_entry_is_not_the_last(make_real_scene, monkeypatch):
    """The doctor looks at each entry once, whatever its id."""
    monkeypatch.setattr(_ops_doctor, "SURVEY_RECORDS", 1)
    scene = make_real_scene("ring")
    scene.client.xadd(scene.key("records"), {"d": "mine"}, id="7-3")
    scene.client.xadd(scene.key("records"), {"d": "mine"}, id="7-4")
    findings = scene.buffer.doctor().findings
    assert [finding.found for finding in findings if finding.invariant == "I4"][-2:] == ["7-3", "7-4"]


def test_others_wait_while_it_is_fenced(make_scene):
    """A call that comes meanwhile succeeds as soon as the fence is gone."""
    scene = make_scene("thrice")
    assert scene.raw("fence", id="ab", hold_us=60_000_000, renew=0)[0] == "OK"
    done = []
    thread = threading.Thread(target=lambda: done.append(scene.buffer.stats()["write_count"]))
    thread.start()
    thread.join(0.1)
    assert done == []
    assert scene.raw("fence", id="ab", hold_us=0, renew=0)[0] == "OK"
    thread.join(5)
    assert done == [9]


def test_the_fence_of_a_killed_repair_runs_out(make_scene, tmp_path):
    """Until then another repair is told; after that it goes on, and the first one cannot come back."""
    scene = make_scene("ring")
    scene.client.delete(scene.key("holes"))
    assert scene.raw("fence", id="ab", hold_us=60_000_000, renew=0)[0] == "OK"
    with pytest.raises(UnderWayError) as caught:
        doctor.repair(scene.server.target(), scene.name, tmp_path / "before.ckpt")
    assert (caught.value.what, 0 < caught.value.seconds <= 60) == ("repair", True)
    scene.client.hset(scene.key("config"), "fenced", "ab 1")  # as if a minute had passed
    assert scene.raw("fence", id="ab", hold_us=60_000_000, renew=1)[0] == "CLOSED"
    assert scene.repair(tmp_path) == "repaired"
    scene.check()


def test_a_repair_whose_fence_ran_out_changes_nothing(make_scene, tmp_path, monkeypatch):
    """Others may have written meanwhile."""
    scene = make_scene("ring")
    scene.client.delete(scene.key("holes"))
    before = contents(scene.client)
    fill = _ops_load.fill

    def late(*args):
        yield from fill(*args)
        scene.client.hset(scene.key("config"), "fenced", "ab 1")

    monkeypatch.setattr(_ops_load, "fill", late)
    with pytest.raises(RepairError, match="took a break"):
        doctor.repair(scene.server.target(), scene.name, tmp_path / "before.ckpt")
    assert contents(scene.client) == before


def test_a_dump_that_cannot_be_written_changes_nothing(make_scene, tmp_path):
    """The fence is taken away."""
    scene = make_scene("ring")
    scene.client.delete(scene.key("holes"))
    with nothing_changes(scene.client, ()), pytest.raises(IsADirectoryError):
        doctor.repair(scene.server.target(), scene.name, tmp_path)


def test_the_dump_is_a_checkpoint(make_scene, tmp_path):
    """It has what was left, and `loads` takes it."""
    scene = make_scene("weighed")
    scene.client.delete(scene.key("ranked"))
    assert scene.repair(tmp_path) == "repaired"
    scene.buffer.empty()
    assert scene.buffer.loads(tmp_path / "before.ckpt") == len(scene.records)
    assert scene.dumped() == scene.records


def test_an_empty_checkpoint_leaves_indices_where_they_were(make_real_scene):
    """A stream that holds nothing still knows the last id."""
    scene = make_real_scene("ring")
    scene.buffer.empty()
    data = scene.buffer.state_dict(include_data=True)["data"]
    scene.buffer.loads(data)
    assert scene.buffer.doctor().ok
    large = Records(1500)
    with ReplayBuffer(scene.server.target(), scene.name + "x", capacity=9) as other:
        other.extend(large.many(0, 3))
        other.empty()
        other.loads(other.state_dict(include_data=True)["data"])
        assert other.extend(large.many(3, 5)).tolist() == [4, 5]
        other.delete()


def test_what_it_lacks_is_named(server, name, tmp_path):
    """A buffer that nobody created; one without its settings."""
    with pytest.raises(BufferNotFoundError):
        doctor.repair(server.target(), name, tmp_path / "x.ckpt")


def test_kinds_are_those_of_open():
    """The doctor and `open` judge keys alike."""
    listed = re.search(r"local TYPES = \{(.*?)\}", load("open").text, re.DOTALL)[1]
    assert re.findall(r"'(\w+)'", listed) == list(KINDS.values())
    named = re.search(r"^COUNTERS = \{(.*?)\}", load("sample").text, re.DOTALL | re.MULTILINE)[1]
    assert set(re.findall(r"'(\w+)'", named)) <= _ops_doctor.COUNTERS
    own = re.search(r"exchange.OWN = \{(.*?)\}", load("mend").text, re.DOTALL)[1]
    assert set(re.findall(r"(\w+) = true", own)) == _mending.OWN


@pytest.mark.parametrize("way", ["taken", "spoiled"])
def test_indices_that_nobody_was_given_stay_so(make_real_scene, tmp_path, way):
    """Where the list of them is lost, a gap of more than a million counts as such."""
    scene = make_real_scene("ring")
    assert scene.raw("greet", given=10**9, numbers="")[0] == "REWOUND"
    newest = scene.buffer.add(ROWS.one(7))
    assert newest > 10**9
    scene.records = scene.dumped()
    assert scene.damage("config", way)
    assert scene.repair(tmp_path) == "repaired"
    assert str(newest - 1) in scene.client.hget(scene.key("config"), "skipped").decode()
    scene.check()


def test_what_neither_key_tells_is_refused(make_real_scene, tmp_path):
    """Who is in the buffer is told by `parting`, or by `order`; not if both are gone."""
    scene = make_real_scene("queue")
    scene.client.delete(scene.key("order"))
    scene.client.hset(scene.key("counters"), "parting", "mine")
    assert scene.repair(tmp_path) == "parting"


def test_priorities_that_are_in_neither_key_are_refused(make_real_scene, tmp_path):
    """Each of `priorities` and `ranked` alone makes the other good: see above."""
    scene = make_real_scene("weighed")
    scene.client.delete(scene.key("priorities"), scene.key("ranked"))
    assert scene.repair(tmp_path) == "priorities"


@pytest.mark.parametrize("what", ["lanes", "waiters"])
def test_what_a_key_of_another_type_hides_is_repaired_too(make_real_scene, tmp_path, what):
    """The doctor looks no further than at such a key; the repair does."""
    scene = make_real_scene("thrice")
    assert scene.damage(what, "spoiled")
    assert scene.damage("holds", "string")
    assert scene.repair(tmp_path) == "repaired"
    scene.check()


@pytest.mark.parametrize(("total", "by"), [("write_count", -3), ("write_count", 3), ("removed", 3), ("evicted", -1)])
def test_totals_that_do_not_add_up_are_refused(make_real_scene, tmp_path, total, by):
    """Nobody knows which of them is wrong."""
    scene = make_real_scene("ring")
    scene.client.hincrby(scene.key("counters"), total, by)
    assert scene.repair(tmp_path) == "counters"


def test_records_whose_bytes_are_lost_are_told(make_real_scene, tmp_path):
    """By the doctor before, and by the repair."""
    scene = make_real_scene("ring")
    gone = min(scene.records)
    before = scene.buffer.stats()["removed"]
    scene.client.xdel(scene.key("records"), f"0-{gone}")
    assert doctor.examine(scene.server.target(), scene.name).lost == 1
    done = doctor.repair(scene.server.target(), scene.name, tmp_path / "before.ckpt")
    assert (done.before.lost, done.after.lost) == (1, 0)
    assert "1 records whose bytes are lost count as removed" in done.did
    assert scene.buffer.stats()["removed"] == before + 1
    scene.check([gone])


def test_the_rate_limiter_goes_on_where_it_was(real_server, name, tmp_path):
    """A batch that was lent counts as not drawn; what was written and drawn counts on."""
    limiter = SampleToInsertRatio(2.0, min_size_to_sample=1, error_buffer=100.0)
    with ReplayBuffer(real_server.target(), name, capacity=20, consume_after_n_samples=4, rate_limiter=limiter) as buffer:
        buffer.extend(ROWS.many(0, 9))
        buffer.sample(2)
        difference = buffer.stats()["limiter_difference"]
        with ReplayBuffer(real_server.target(), name) as reader:
            lease = reader.sample(3, lease=600.0, return_info=True)[1].lease
            real_server.client().delete(f"rr:{{{name}}}:order")
            assert doctor.repair(real_server.target(), name, tmp_path / "x.ckpt").after.ok
            assert reader.ack(lease).late == 1
        assert buffer.stats()["limiter_difference"] == difference
        assert (buffer.stats()["sample_calls"], buffer.stats()["samples_returned"]) == (1, 2)
        buffer.delete()


def test_many_pages(real_server, name, tmp_path, monkeypatch):
    """Small pages, and a fence that is renewed before each step."""
    monkeypatch.setattr(_ops_doctor, "PAGE_RECORDS", 7)
    monkeypatch.setattr(_ops_doctor, "SURVEY_RECORDS", 5)
    monkeypatch.setattr(_ops_repair, "RENEW_SECONDS", -1.0)
    rows, client = Records(1500), real_server.client()
    with ReplayBuffer(real_server.target(), name, capacity=60) as buffer:
        buffer.extend(rows.many(0, 100))
        buffer.remove(list(range(50, 90, 3)))
        expected = stored_numbers(buffer)
        client.delete(f"rr:{{{name}}}:holes")
        assert doctor.repair(real_server.target(), name, tmp_path / "x.ckpt").after.ok
        assert stored_numbers(buffer) == expected
        assert buffer.extend(rows.many(0, 3)).tolist() == [101, 102, 103]
        buffer.delete()


def test_records_under_inbox_are_not_lost(make_real_scene, tmp_path):
    """A crash between the gates: the stream is under its other name."""
    scene = make_real_scene("ring")
    scene.client.rename(scene.key("records"), scene.key("inbox"))
    assert scene.repair(tmp_path) == "repaired"
    scene.check()


def test_settings_of_another_type_are_a_finding(make_scene):
    """As those of any other key are."""
    scene = make_scene("ring")
    scene.damage("config", "string")
    report = doctor.examine(scene.server.target(), scene.name)
    assert [(f.invariant, f.key, f.found) for f in report.findings] == [("I3", scene.key("config"), "is no hash")]
    assert set(report.unchecked) == {"I1", "I2", "I4", "I5"}
