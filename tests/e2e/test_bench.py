"""The benchmark command: the fields of its lines. What it measures is never asserted."""

import json
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from redis_replay._bench.goals import GOALS, Goal, judge
from redis_replay._bench.picture import draw
from redis_replay._bench.report import read, table, targets
from redis_replay._commands import commands

FIELDS = ["peer", "version", "workload", "size", "items_per_s", "mb_per_s", "p50_ms", "p99_ms", "extra"]
QUICK = [
    "--seconds",
    "0.2",
    "--rounds",
    "2",
    "--sizes",
    "100",
    "--capacity",
    "512",
    "--waits",
    "20",
    "--growth",
    "300,600",
    "--writers",
    "1,5",
]
LONG = ("workers", "crowd")  # more than five seconds
RATES = ["insert", "add", "sample", "cached", "both", "prioritized", "crowd", "workers"]
EXTRA = {
    "insert": {"rounds_items_per_s"},
    "sample": {"rounds_items_per_s"},
    "add": {"rounds_items_per_s", "at_once_items_per_s", "raw_round_trips_per_s", "at_once_of_raw"},
    "cached": {"rounds_items_per_s"},
    "train": {"waits_percent_prefetch_0", "waits_percent_prefetch_2"},
    "both": {"rounds_items_per_s", "insert_items_per_s", "sample_items_per_s", "insert_p50_p99_ms"},
    "workers": {f"{what}_{n}{x}" for what in ("insert", "sample") for n in (1, 2, 4) for x in ("", "_p50_p99_ms")},
    "memory": {"bytes_per_item", "payload_bytes", "items"},
    "turnover": {"fresh_bytes_per_item", "bytes_per_item", "of_fresh", "items"},
    "decode": {"decode_ms", "memcpy_ms", "of_memcpy"},
    "start": {"import_ms", "first_name_ms", "redis_and_numpy_ms"},
    "wake": {"p50_p99_ms", "waits"},
    "growth": {"insert_300_p50_p99_ms", "sample_300_p50_p99_ms", "insert_600_p50_p99_ms", "sample_600_p50_p99_ms",
               "insert_ratio", "sample_ratio"},
    "prioritized": {"rounds_items_per_s", "stored_items", "bytes_per_item"},
    "crowd": {
        f"{name}_{what}" for name in ("crowd_0", "crowd_1", "crowd_5", "paced_1", "paced_5")
        for what in ("p50_p99_ms", "learner_items_per_s", "insert_items_per_s", "of_best", "p99_of_alone")
    },
}  # fmt: skip


def bench(*args):
    return CliRunner().invoke(commands, ["bench", *args])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("workload", [pytest.param(w, marks=pytest.mark.slow) if w in LONG else w for w in EXTRA])
def test_a_workload_gives_the_fields_of_the_protocol(workload):
    done = bench("--workload", workload, *QUICK)
    assert done.exit_code == 0, done.output
    (row,) = map(json.loads, done.stdout.splitlines())
    assert list(row) == FIELDS
    assert (row["peer"], row["workload"], row["size"]) == ("redis-replay", workload, 100)
    assert set(row["extra"]) == EXTRA[workload] | {"stored", "transport", "load1"}
    assert (row["items_per_s"] is not None) == (workload in RATES)
    assert (row["p50_ms"] is not None) == (workload in [*RATES, "wake"])


@pytest.mark.timeout(120)
def test_lines_are_added_to_the_file(tmp_path):
    file = tmp_path / "figures.jsonl"
    file.write_text("{}\n")
    done = bench("--workload", "insert", "--reward", "--json", str(file), *QUICK)
    assert file.read_text() == "{}\n" + done.stdout
    assert json.loads(done.stdout)["extra"]["stored"] == "obs uint8[size], reward float32"


@pytest.mark.timeout(120)
def test_another_server_is_left_as_it_was(real_server):
    done = bench("--workload", "sample,wake,add,turnover", "--url", real_server.url, *QUICK)
    assert done.exit_code == 0, done.output
    assert real_server.client().keys() == []


@pytest.mark.timeout(120)
def test_a_failed_workload_is_a_line_with_its_error(monkeypatch):
    def fail(_options, _size):
        raise RuntimeError("no luck")

    monkeypatch.setitem(bench_workloads(), "insert", fail)
    done = bench("--workload", "insert,prioritized", *QUICK)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert [row["extra"].get("error") for row in rows] == ["RuntimeError: no luck", None]


def bench_workloads():
    from redis_replay._bench.workloads import WORKLOADS

    return WORKLOADS


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--workload", "nope"], "there is no workload 'nope'"),
        (["--sizes", "100,x"], "no list of whole numbers"),
        (["--sizes", "0"], "at least 1"),
        (["--seconds", "0"], "0"),
        (["--report"], "FILES, --report and --plot"),
        (["--plot", "a.svg"], "FILES, --report and --plot"),
    ],
)
def test_a_bad_option_is_refused_by_name(args, text):
    done = bench(*args)
    assert done.exit_code != 0
    assert text in done.stderr


def line(peer, workload, size, items_per_s=None, p50_ms=None, **extra):
    row = {"peer": peer, "version": "1", "workload": workload, "size": size, "items_per_s": items_per_s}
    return json.dumps(row | {"mb_per_s": None, "p50_ms": p50_ms, "p99_ms": p50_ms, "extra": {"load1": 0.5} | extra}) + "\n"


def test_the_report_puts_peers_side_by_side(tmp_path):
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.write_text(line("redis-replay", "insert", 100, 3000, 0.5) + line("redis-replay", "memory", 100, bytes_per_item=200))
    theirs.write_text(line("other", "insert", 100, 1500, 1.0) + "\n" + line("other", "memory", 100, bytes_per_item=400))
    assert table(read([ours, theirs])).splitlines() == [
        "| workload | size | figure | redis-replay | other | redis-replay / other |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| insert | 100 | items_per_s | 3,000 | 1,500 | 2.00 |",
        "| insert | 100 | p50_ms | 0.5 | 1 | 0.50 |",
        "| insert | 100 | p99_ms | 0.5 | 1 | 0.50 |",
        "| memory | 100 | bytes_per_item | 200 | 400 | 0.50 |",
    ]


def test_the_report_leaves_unknown_figures_empty(tmp_path):
    file = tmp_path / "a"
    file.write_text(line("other", "wake", 100, None, 1.5, p50_p99_ms={"pubsub": [1.5, 2.0], "ping": [0.25, 1.0]}))
    assert table(read([file])).splitlines()[2:] == [
        "| wake | 100 | p50_ms |  | 1.5 |  |",
        "| wake | 100 | p99_ms |  | 1.5 |  |",
        "| wake | 100 | ping p50_ms |  | 0.25 |  |",
    ]


def test_a_goal_is_judged_by_its_ratio_to_a_peer():
    verdicts = judge({("insert", 100, "items_per_s"): {"redis-replay": 500.0, "reverb": 40.0, "raw redis": 1000.0}})
    told = [(v.goal.peer, v.reached, v.met) for v in verdicts if v.ours is not None]
    assert told == [("reverb", 12.5, True), ("raw redis", 0.5, False)]


def test_a_goal_without_a_figure_is_neither_met_nor_missed():
    assert {v.met for v in judge({})} == {None}
    (first, *_) = judge({("insert", 100, "items_per_s"): {"redis-replay": 500.0}})
    assert (first.ours, first.peers, first.reached, first.met) == (500.0, None, None, None)


def test_a_goal_may_be_an_upper_bound_and_beside_another_workload_of_the_peer():
    verdicts = judge({
        ("decode", 28224, "of_memcpy"): {"redis-replay": 1.6},
        ("wake", 100, "p99_ms"): {"redis-replay": 4.0},
        ("cached", 28224, "items_per_s"): {"redis-replay": 90.0},
        ("sample", 28224, "items_per_s"): {"reverb": 40.0},
    })  # fmt: skip
    assert {(v.goal.workload, v.reached, v.met) for v in verdicts if v.reached is not None} == {
        ("decode", 1.6, False), ("wake", 4.0, True), ("cached", 2.25, True)
    }  # fmt: skip


def test_every_goal_names_a_figure_that_its_workload_gives():
    """By the names of the fields: else a goal would silently never be judged."""
    plain = {"items_per_s", "p50_ms", "p99_ms"}
    crowd = {"crowd_64_of_best", "paced_64_p99_of_alone"}
    assert [goal for goal in GOALS if goal.figure not in plain | EXTRA[goal.workload] | crowd] == []
    assert len(set(GOALS)) == len(GOALS)
    assert all(isinstance(goal, Goal) and goal.bound > 0 for goal in GOALS)


def test_the_report_command_prints_targets_and_figures_and_draws_them(tmp_path):
    ours, theirs, picture = tmp_path / "a", tmp_path / "b", tmp_path / "c.svg"
    ours.write_text(line("redis-replay", "insert", 100, 3000, 0.5))
    theirs.write_text(line("reverb", "insert", 100, 100, 0.5))
    done = bench("--report", "--plot", str(picture), str(ours), str(theirs))
    assert "| insert | 100 | items_per_s | 3,000 | reverb 100 | 30.00 | ≥ 10 × reverb | yes |" in done.stdout
    assert "| insert | 100 | items_per_s | 3,000 |  |  | ≥ 0.7 × raw redis | ? |" in done.stdout
    assert "| insert | 100 | items_per_s | 3,000 | 100 | 30.00 |" in done.stdout
    names = [element.text for element in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"insert, 100 B", "redis-replay 3,000", "reverb 100", "3.00"} <= set(names)


def test_a_picture_without_figures_is_one():
    ET.fromstring(draw({}))
    assert targets({}).count("\n") == 1
