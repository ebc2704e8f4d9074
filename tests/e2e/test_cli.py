"""The command line: what each command prints, its exit code, and one line for each error."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import redis
from click.testing import CliRunner

from redis_replay import checkpoint
from redis_replay._commands import commands
from redis_replay.samplers import Prioritized
from tests._helpers import wait_until
from tests._ports import held_port

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def run(real_server):
    """`run("stats", "x")`: the result of a command on the test's server."""

    def run_it(*args, **options):
        return CliRunner().invoke(commands, [*args, "--url", real_server.url], **options)

    return run_it


@pytest.fixture
def buffer(make_buffer):
    """A buffer with three records."""
    made = make_buffer()
    made.extend({"obs": np.zeros((3, 2), np.float32)})
    return made


def start(*args):
    """`redis-replay` as a process of its own."""
    command = [sys.executable, "-m", "redis_replay.cli", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes)


def test_stats_prints_a_line_for_each_counter(run, buffer):
    lines = run("stats", buffer.name).stdout.splitlines()
    figures = dict(line.split(maxsplit=1) for line in lines)
    assert (figures["write_count"], figures["sampleable_size"], figures["state"]) == ("3", "3", "open")


def test_stats_as_json_is_one_object(run, buffer):
    figures = json.loads(run("stats", buffer.name, "--json").stdout)
    assert (figures["size"], figures["storage_size"]) == (3, 3)


def test_the_url_may_come_from_the_environment(real_server, buffer):
    done = CliRunner().invoke(commands, ["stats", buffer.name], env={"REDIS_URL": real_server.url})
    assert done.exit_code == 0


@pytest.mark.parametrize("command", ["stats", "doctor", "delete"])
def test_a_missing_buffer_is_named_in_one_line(run, command):
    done = run(command, "no-such-buffer")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == ["Error: there is no buffer 'no-such-buffer' on that server"]


def test_a_bad_name_is_one_line(run):
    done = run("stats", "two words")
    assert done.exit_code == 1
    assert "two words" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_away_is_one_line():
    done = CliRunner().invoke(commands, ["stats", "x", "--url", "redis://127.0.0.1:1/0"])
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_names_each_invariant_of_a_sound_buffer(run, buffer):
    done = run("doctor", buffer.name)
    assert done.exit_code == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:5]] == [f"I{n} holds" for n in range(1, 6)]
    assert "3 records" in done.stdout.splitlines()[5]


def test_doctor_finds_a_record_taken_behind_its_back(run, buffer, real_server):
    client = real_server.client()
    (key,) = [key for key in client.scan_iter() if key.endswith(b":records")]
    client.xtrim(key, maxlen=2, approximate=False)
    done = run("doctor", buffer.name)
    assert done.exit_code == 1
    assert "I1 is broken" in done.stdout
    assert key.decode() in done.stdout


def test_doctor_repairs_what_it_finds(run, buffer, real_server, tmp_path):
    client, dump = real_server.client(), tmp_path / "before.ckpt"
    (key,) = [key for key in client.scan_iter() if key.endswith(b":records")]
    client.xtrim(key, maxlen=2, approximate=False)
    for answer in ("n\n", None):  # or nobody to ask
        done = run("doctor", buffer.name, "--repair", "--dump", str(dump), input=answer)
        assert (done.exit_code, dump.exists()) == (1, False)
        assert "The bytes of 1 records are lost" in done.stdout
    done = run("doctor", buffer.name, "--repair", "--dump", str(dump), "--yes")
    assert done.exit_code == 0
    assert "1 records whose bytes are lost count as removed" in done.stdout
    assert done.stdout.splitlines()[-1] == f"what was left before is in {dump}"
    assert [record["obs"].shape for record in checkpoint.open(dump)] == [(2,)] * 2
    assert run("doctor", buffer.name).exit_code == 0


def test_a_second_repair_keeps_the_first_ones_dump(run, buffer, real_server, tmp_path, monkeypatch):
    """Where no name is given, each has one of its own."""
    monkeypatch.chdir(tmp_path)
    for left in (2, 1):
        real_server.client().xdel(f"rr:{{{buffer.name}}}:records", f"0-{left + 1}")
        assert run("doctor", buffer.name, "--repair", "--yes").exit_code == 0
    names = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [len(checkpoint.open(path)) for path in names] == [2, 1]


def test_doctor_shows_some_of_many_breaches(run, make_buffer, real_server):
    """Ten of a key, and how many more; bytes as their number."""
    made, client = make_buffer(sampler=Prioritized(alpha=1.0, beta=1.0)), real_server.client()
    made.extend({"obs": np.zeros((30, 2), np.float32)})
    key = f"rr:{{{made.name}}}:places"
    (row,) = client.hkeys(key)
    client.hset(key, row, bytes(24))
    client.xtrim(f"rr:{{{made.name}}}:records", maxlen=5, approximate=False)
    lines = run("doctor", made.name).stdout.splitlines()
    of_priorities = [line for line in lines if ":priorities:" in line]
    assert (len(of_priorities), of_priorities[-1].split()[-3:]) == (11, ["and", "15", "more"])
    assert any(f"found 24 bytes of {row.decode()}" in line for line in lines)


def test_doctor_says_what_it_could_not_check(run, buffer, real_server):
    """Without counters no total is judged."""
    real_server.client().hdel(f"rr:{{{buffer.name}}}:counters", "last")
    done = run("doctor", buffer.name)
    verdicts = [line.split(":")[0] for line in done.stdout.splitlines() if line[0] == "I"]
    assert verdicts == [f"I{n} {'is broken' if n == 2 else 'holds' if n == 3 else 'could not be checked'}" for n in range(1, 6)]


def test_doctor_names_what_cannot_be_repaired(run, buffer, real_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = real_server.client()
    (key,) = [key for key in client.scan_iter() if key.endswith(b":counters")]
    client.hdel(key, "write_count")
    done = run("doctor", buffer.name, "--repair")
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "has no number as write_count" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert run("doctor", buffer.name, "--dump", "x").exit_code == 2


def test_doctor_leaves_a_sound_buffer_alone(run, buffer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("doctor", buffer.name, "--repair")
    assert (done.exit_code, done.stdout.splitlines()[-1], list(tmp_path.iterdir())) == (0, "nothing to repair", [])


def test_delete_asks_before_it_deletes(run, buffer):
    done = run("delete", buffer.name, input="n\n")
    assert done.exit_code == 1
    assert "3 records" in done.stdout
    assert len(buffer) == 3


def test_delete_with_yes_leaves_no_key(run, buffer, real_server):
    done = run("delete", buffer.name, "--yes")
    assert done.exit_code == 0
    assert real_server.client().keys() == []


@pytest.mark.parametrize("key", ["config", "counters", "records"])
def test_a_damaged_buffer_can_be_deleted_and_loaded_again(run, buffer, real_server, tmp_path, key):
    """Whichever key is lost; until it is deleted a load is refused, and says why."""
    buffer.dumps(tmp_path / "b.ckpt")
    real_server.client().delete(f"rr:{{{buffer.name}}}:{key}")
    done = run("load", buffer.name, str(tmp_path / "b.ckpt"))
    assert (done.exit_code, "is damaged" in done.stderr) == (1, True)
    assert run("delete", buffer.name, input="n\n").exit_code == 1
    assert real_server.client().keys()
    assert run("delete", buffer.name, input="y\n").exit_code == 0
    assert real_server.client().keys() == []
    assert run("load", buffer.name, str(tmp_path / "b.ckpt")).exit_code == 0
    assert run("doctor", buffer.name).exit_code == 0


def test_a_reader_that_has_had_enough_is_no_error(real_server, buffer):
    """As in `redis-replay stats NAME | head -1`: no line about a pipe."""
    with start("stats", buffer.name, "--url", real_server.url) as process:
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == ""


def test_serve_says_where_and_ends_when_interrupted(unused_port):
    with start("serve", "--port", str(unused_port)) as process:
        url = process.stdout.readline().split()[1]
        with redis.Redis.from_url(url) as client:
            assert client.ping()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_serve_with_a_directory_keeps_what_was_written(unused_port, tmp_path):
    for expected in (None, b"kept"):
        with start("serve", "--port", str(unused_port), "--dir", str(tmp_path / "data")) as process:
            with redis.Redis.from_url(process.stdout.readline().split()[1]) as client:
                assert client.get("key") == expected
                client.set("key", "kept")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0


def test_a_port_in_use_is_one_line(real_server, unused_port):
    with start("serve", "--port", str(unused_port)) as first:
        first.stdout.readline()
        with start("serve", "--port", str(unused_port)) as second:
            assert second.wait(15) == 1
            assert second.stderr.read() == (
                f"Error: the server cannot listen on port {unused_port} of 127.0.0.1: another program uses it\n"
            )
        first.send_signal(signal.SIGINT)


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from redis_replay.cli import main; main(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1
    assert done.stderr == f"redis-replay: its command line needs {missing}: pip install 'redis-replay[cli]'\n"


def test_dump_and_load_bring_a_buffer_to_another_name(run, buffer, tmp_path):
    """Where there is none of that name it is made with the settings of the one that was dumped."""
    path = str(tmp_path / "c")
    assert run("dump", buffer.name, path).stdout == f"3 records written to {path}\n"
    other = f"{buffer.name}-2"
    assert run("load", other, path).stdout == f"3 records loaded into buffer {other!r}, which has 3\n"
    assert run("load", other, path, "--merge").stdout == f"3 records loaded into buffer {other!r}, which has 6\n"
    assert run("delete", other, "--yes").exit_code == 0


def test_a_load_of_what_is_no_checkpoint_is_one_line(run, buffer, tmp_path):
    """And makes no buffer."""
    (tmp_path / "c").write_bytes(b"something else")
    for path in ("c", "nothing", "."):
        done = run("load", f"{buffer.name}-2", str(tmp_path / path))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert str(tmp_path / path) in done.stderr
    assert run("stats", f"{buffer.name}-2").exit_code == 1


def test_every_command_has_a_help_text():
    assert {name: bool(command.help) for name, command in commands.commands.items()} == dict.fromkeys(
        ("stats", "doctor", "delete", "serve", "demo", "bench", "export", "import", "dump", "load"), True
    )


def test_the_module_runs_as_a_program():
    with start("--help") as process:
        assert "delete" in process.stdout.read()
        assert process.wait(10) == 0


@pytest.fixture
def unused_port():
    with held_port() as port:
        yield port


def test_a_cut_buffer_name_is_not_deleted_by_prefix(run, buffer):
    done = run("delete", buffer.name[:-1], "--yes")
    assert done.exit_code == 1
    assert wait_until(lambda: len(buffer) == 3, description="the buffer being whole")
