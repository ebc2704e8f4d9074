"""The demo: it learns, and it ends well whatever happens on the way."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from redis_replay import ReplayBuffer
from redis_replay._commands import commands
from redis_replay._crew import Crew
from redis_replay._demo.actor import Player, columns
from redis_replay._demo.board import Board, Episode, Published
from redis_replay._demo.dqn import Policy, Settings, shapes
from redis_replay._demo.run import Options, run
from redis_replay._demo.view import PlainView, Snapshot, closing_rows
from redis_replay.exceptions import BufferGoneError
from tests._helpers import is_alive, wait_until

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

ROOT = Path(__file__).parents[2]
_GIVEN_S = 60.0


@contextlib.contextmanager
def demo(*args):
    """`redis-replay demo --headless` as a process of its own, and what it prints, line by line."""
    command = [sys.executable, "-m", "redis_replay.cli", "demo", "--headless", *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_learns(process):
    """Reads lines until the learner has made updates: by then every process is at work."""
    for line in process.stdout:
        if "updates" in line and " updates 0 " not in line:
            return
    raise AssertionError("the demo ended before it had begun to learn")


def children(pid):
    """Processes below one, by pid, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append((int(path.name), (path / "cmdline").read_text().replace("\0", " ")))
    below, ahead = {}, [pid]
    while ahead:
        for child, line in found.get(ahead.pop(), []):
            below[child] = line
            ahead.append(child)
    return below


def workers(pid):
    """The demo's own processes in order of their start: learner, actor 0, actor 1."""
    return sorted(child for child, line in children(pid).items() if "spawn_main" in line)


def assert_all_gone(pids):
    wait_until(lambda: not any(map(is_alive, pids)), 5.0, "every process of the demo having ended")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_reaches_its_goal():
    with demo("--seed", "0") as process:
        lines = process.stdout.read().splitlines()
        assert process.wait(10) == 0, "\n".join(lines)
    closing = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert float(closing["mean return before (first 20 episodes)"]) < 60
    assert float(closing["mean return after (last 20 episodes)"]) >= 150
    assert closing["doctor"].startswith("I1 to I5 hold")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_parts_run_apart_over_one_server(real_server):
    url = ("--url", real_server.url)
    with (
        demo("--role", "actor", "--actor-id", "0", *url) as one,
        demo("--role", "actor", "--actor-id", "1", *url) as two,
    ):
        with demo("--role", "learner", *url) as learner:
            said = learner.stdout.read()
            assert learner.wait(10) == 0, said
        assert (one.wait(30), two.wait(30)) == (0, 0)
    client = real_server.client()
    assert set(client.scan_iter()) <= {b"rr-demo:demo:policy"}
    assert 0 < client.ttl("rr-demo:demo:policy") <= 60
    client.delete("rr-demo:demo:policy")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_too_few_steps_end_it_with_the_reason(real_server):
    said = []
    assert run(Options(url=real_server.url, steps=600, actors=1, headless=True), said.append) == 1
    assert said[-1].startswith("goal not reached: the mean return is ")
    assert said[-1].endswith("after 600 steps")


@pytest.mark.timeout(120)
def test_the_time_limit_ends_it_with_the_reason(real_server):
    said = []
    assert run(Options(url=real_server.url, headless=True, time_limit_s=0.1), said.append) == 1
    assert said[-1].endswith("after 0 s")


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("which", "who"), [(0, "the learner"), (2, "actor 1")])
def test_a_killed_process_is_named_and_ends_the_rest(which, who):
    with demo() as process:
        until_it_learns(process)
        below = children(process.pid)
        os.kill(workers(process.pid)[which], signal.SIGKILL)
        said = process.stdout.read()
        assert process.wait(_GIVEN_S) == 1
    assert f"goal not reached: {who} failed: it ended too early, with exit code -9" in said
    assert_all_gone(below)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_process(kind):
    with demo() as process:
        until_it_learns(process)
        below = children(process.pid)
        process.send_signal(kind)
        said = process.stdout.read()
        assert process.wait(_GIVEN_S) == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert_all_gone(below)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(120)
def test_no_process_outlives_a_killed_parent():
    with demo() as process:
        until_it_learns(process)
        below = children(process.pid)
        process.kill()
        assert_all_gone(below)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_killed_server_ends_it_with_one_line():
    with demo() as process:
        until_it_learns(process)
        below = children(process.pid)
        (server,) = [pid for pid, line in below.items() if line.split()[0].endswith(("valkey-server", "redis-server"))]
        os.kill(server, signal.SIGKILL)
        said = process.stdout.read()
        assert process.wait(_GIVEN_S) == 1
    assert "no answer from the server" in said
    assert "Traceback" not in said.splitlines()[-1]
    assert_all_gone(below)


def explode(text):
    raise ValueError(text)


@pytest.mark.timeout(60)
def test_a_process_that_raises_hands_its_error_over():
    with Crew() as crew:
        crew.start("the one", explode, "boom")
        failure = wait_until(lambda: crew.watch(0.1), 30.0, "the process having failed")
    assert (failure.who, failure.what) == ("the one", "ValueError: boom")
    assert "in explode" in failure.trace


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_a_part_needs_to_know_its_server(role):
    done = CliRunner().invoke(commands, ["demo", "--role", role])
    assert done.exit_code == 2
    assert "--url" in done.stderr


def test_without_torch_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setattr("redis_replay._commands.find_spec", lambda name: None)
    done = CliRunner().invoke(commands, ["demo", "--headless"])
    assert done.exit_code == 1
    assert "pip install 'redis-replay[demo]'" in done.stderr


def test_the_same_seed_plays_the_same_game():
    first, second = ([Player(3, 1).step(1.0) for _ in range(5)] for _ in range(2))
    assert [step.action for step in first] == [step.action for step in second]


def test_another_actor_plays_another_game():
    one, other = ([Player(3, number).step(1.0) for _ in range(1)] for number in (0, 1))
    assert (one[0].obs != other[0].obs).any()


def test_transitions_become_columns_of_fixed_types():
    batch = columns([Player(0, 0).step(1.0)] * 4)
    assert {name: (str(values.dtype), values.shape) for name, values in batch.items()} == {
        "obs": ("float32", (4, 4)),
        "action": ("int64", (4,)),
        "reward": ("float32", (4,)),
        "next_obs": ("float32", (4, 4)),
        "terminated": ("bool", (4,)),
    }


def test_actors_and_the_learner_mean_the_same_network(seed):
    import numpy as np
    import torch

    from redis_replay._demo.trainer import Trainer

    trainer, rng = Trainer(Settings(), seed % 2**31), np.random.default_rng(seed)
    policy = Policy(trainer.weights(), Settings().hidden)
    seen = rng.normal(size=(50, 4)).astype(np.float32)
    with torch.no_grad():
        expected = trainer._net(torch.from_numpy(seen) * trainer._scale).argmax(1).tolist()
    assert [policy(obs) for obs in seen] == expected


def test_a_policy_is_as_long_as_its_shapes_say():
    import numpy as np

    from redis_replay._demo.trainer import Trainer

    assert len(Trainer(Settings(), 0).weights()) == 4 * sum(int(np.prod(shape)) for shape in shapes(Settings().hidden))


def test_exploration_falls_from_all_to_little():
    settings = Settings()
    at = [settings.epsilon(steps) for steps in (0, settings.warmup, settings.warmup + settings.epsilon_steps)]
    assert at == [1.0, 1.0, settings.epsilon_end]


@pytest.fixture
def board(real_server):
    made = Board(real_server.url, "t")
    yield made
    made.clear()
    made.close()


def test_weights_are_fetched_once_for_each_version(board):
    board.publish(Published(3, 40, b"weights"))
    assert board.policy(2) == Published(3, 40, b"weights")
    assert board.policy(3) is None


def test_a_halted_board_lets_every_actor_go_on(board):
    board.halt()
    assert board.policy(10**9).allowance > 10**9


def test_episodes_keep_their_order_of_ending(board):
    for total in (1.0, 2.0, 3.0):
        board.report(Episode(0, total))
    assert [episode.total for episode in board.episodes(1)] == [2.0, 3.0]


def test_all_that_the_board_writes_has_a_time_to_live(board, real_server):
    board.publish(Published(0, 0, b""))
    board.report(Episode(0, 1.0))
    board.tell(board.progress())
    client = real_server.client()
    assert [client.ttl(key) > 0 for key in client.scan_iter()] == [True] * 3


def test_the_goal_needs_twenty_episodes():
    assert not Snapshot(returns=[500.0] * 19).reached
    assert Snapshot(returns=[0.0] + [150.0] * 20).reached


def test_plain_lines_come_at_most_once_a_second():
    lines = []
    view = PlainView("title", lines.append)
    for _ in range(5):
        view.show(Snapshot())
    assert len(lines) == 2


def test_a_run_without_an_episode_still_has_a_closing_table():
    rows = dict(closing_rows(Snapshot(), "why", "fine"))
    assert (rows["outcome"], rows["wait p50"], rows["transitions/s"]) == ("why", "no waits", "0")


def test_an_unreachable_server_is_one_line():
    done = CliRunner().invoke(commands, ["demo", "--headless", "--url", "redis://127.0.0.1:1/0"])
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_the_buffer_is_deleted_at_the_end(real_server):
    run(Options(url=real_server.url, headless=True, time_limit_s=0.1), lambda _line: None)
    with redis.Redis.from_url(real_server.url) as client:
        assert client.keys() == []


@pytest.mark.parametrize("role", ["all", "learner"])
def test_somebodys_buffer_is_not_replaced(real_server, name, role):
    """Nor deleted at the end, unless that is asked for."""
    said, options = [], {"url": real_server.url, "name": name, "role": role, "headless": True, "time_limit_s": 0.1}
    with ReplayBuffer(real_server.url, name, capacity=10) as mine:
        mine.add({"x": 1.0})
        assert run(Options(**options), said.append) == 1
        assert said == [
            f"buffer {name!r} exists: a demo replaces it, and deletes it at its end; take another --name, or --fresh"
        ]
        assert len(mine) == 1
        run(Options(**options | {"role": "all"}, fresh=True), said.append)
        with pytest.raises(BufferGoneError):
            len(mine)
