"""The benchmark command: the fields of its lines. What it measures is never asserted."""

import json

import pytest
from click.testing import CliRunner

from redis_replay._bench.report import table
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
    "add": {"rounds_items_per_s", "at_once_items_per_s"},
    "cached": {"rounds_items_per_s"},
    "train": {"waits_percent_prefetch_0", "waits_percent_prefetch_2"},
    "both": {"rounds_items_per_s", "insert_items_per_s", "sample_items_per_s", "insert_p50_p99_ms"},
    "workers": {f"{what}_{n}{x}" for what in ("insert", "sample") for n in (1, 2, 4) for x in ("", "_p50_p99_ms")},
    "memory": {"bytes_per_item", "payload_bytes", "items"},
    "wake": {"p50_p99_ms", "waits"},
    "growth": {"insert_300_p50_p99_ms", "sample_300_p50_p99_ms", "insert_600_p50_p99_ms", "sample_600_p50_p99_ms",
               "insert_ratio", "sample_ratio"},
    "prioritized": {"rounds_items_per_s", "stored_items", "bytes_per_item"},
    "crowd": {
        f"{name}_{what}" for name in ("crowd_0", "crowd_1", "crowd_5", "paced_1", "paced_5")
        for what in ("p50_p99_ms", "learner_items_per_s", "insert_items_per_s")
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
    done = bench("--workload", "sample,wake", "--url", real_server.url, *QUICK)
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
        (["--report"], "FILES and --report"),
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
    assert table([ours, theirs]).splitlines() == [
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
    assert table([file]).splitlines()[2:] == [
        "| wake | 100 | p50_ms |  | 1.5 |  |",
        "| wake | 100 | p99_ms |  | 1.5 |  |",
        "| wake | 100 | ping p50_ms |  | 0.25 |  |",
    ]


def test_the_report_command_reads_its_files(tmp_path):
    file = tmp_path / "a"
    file.write_text(line("redis-replay", "insert", 100, 3000, 0.5))
    assert "| insert | 100 | items_per_s | 3,000 |" in bench("--report", str(file)).stdout
