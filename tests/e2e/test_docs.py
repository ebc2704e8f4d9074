"""What the documents tell people to do works: every Python block runs, every redis-cli and redis-replay line is tried."""

import contextlib
import logging
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests._helpers import wait_until
from tests._server import missing

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))])
URL = "redis://localhost:6379/0"  # what the documents say; a private server stands for it
FIXTURES = "fake_replay_buffer"  # a block that is a test of pytest's, run as one


def blocks(document):
    """The Python blocks of a document, each with its line."""
    text = (ROOT / document).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[: match.start()].count("\n") + 2, match[1]


def commands(document, program):
    """Indented command lines of a document, without what stands behind a #."""
    text = (ROOT / document).read_text()
    return [line.split(" #")[0].strip() for line in re.findall(rf"^    ({program} .*)$", text, re.MULTILINE)]


def run(document, url):
    """Runs a document's blocks one after another, as a reader would."""
    names = {"np": np, "__name__": "document"}
    for line, code in blocks(document):
        if FIXTURES not in code:
            exec(compile("\n" * (line - 1) + code.replace(URL, url), document, "exec"), names)
    for handle in {id(value): value for value in names.values()}.values():
        if type(handle).__name__ == "ReplayBuffer":
            with contextlib.suppress(Exception):
                handle.delete()


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(True for _ in blocks(d))])
@pytest.mark.leaves("the documents' handles are the reader's to close", connections="redis-replay", keys="rr:*")
def test_python_blocks_of_documents_run(document, real_server, capsys, monkeypatch):
    """Every Python block of every document runs on both servers, in the order of the page."""
    # its handler keeps the stderr of the test that imported it first
    monkeypatch.setattr(logging.getLogger("torchrl"), "disabled", True)
    run(document, real_server.url)
    assert "Traceback" not in capsys.readouterr().err


def test_readme_block_for_pytest_passes(pytester):
    """The README's unit test passes with the shipped plugin, without a server."""
    (code,) = [code for _, code in blocks("README.md") if FIXTURES in code]
    pytester.makepyfile(code)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_readme_example_has_fifteen_lines():
    """The first example is as long as promised."""
    _, code = next(blocks("README.md"))
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


@pytest.fixture
def busy_buffer(make_buffer):
    """The buffer of the documents, with a record in it, one that is lent, and a call that is blocked on it."""
    buffer, cancel = make_buffer("cartpole", consume_after_n_samples=1), threading.Event()
    buffer.extend([{"x": 1}] * 2)
    buffer.sample(1, lease=1000.0)
    waiter = threading.Thread(target=buffer.wait_until_sampleable, args=(2, 30, cancel))
    waiter.start()
    wait_until(lambda: buffer.stats()["waiters"] == 1, description="the waiter stands in line")
    yield buffer
    cancel.set()
    waiter.join()


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if commands(d, "redis-cli")])
def test_redis_cli_lines_work(document, real_server, busy_buffer):
    """Each redis-cli line is answered, and not by an error."""
    path = real_server.client().connection_pool.connection_kwargs["path"]
    for command in commands(document, "redis-cli"):
        if "PSUBSCRIBE" in command:
            continue  # it never ends; test_notices_can_be_watched runs it
        words = shlex.split(command)
        try:
            done = subprocess.run([words[0], "-s", path, *words[1:]], capture_output=True, text=True, timeout=10)
        except FileNotFoundError:
            missing("redis")
        assert (done.returncode, bool(done.stdout.strip()), "ERR" in done.stdout) == (0, True, False), (command, done)


def test_notices_can_be_watched(real_server, make_buffer):
    """The pattern that the documents name sees what happens to the buffer."""
    (line,) = [c for c in commands("docs/redis-cli.md", "redis-cli") if "PSUBSCRIBE" in c]
    buffer = make_buffer("cartpole")
    with real_server.client().pubsub() as watcher:
        watcher.psubscribe(shlex.split(line)[-1])
        assert watcher.get_message(timeout=2)["type"] == "psubscribe"
        buffer.shutdown()
        assert watcher.get_message(timeout=2)["data"] == b"shut"


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if commands(d, "redis-replay (?:stats|doctor)")])
def test_command_lines_work(document, real_server, make_buffer):
    """Each redis-replay line for people ends well."""
    make_buffer("cartpole").add({"x": 1})
    for command in commands(document, "redis-replay (?:stats|doctor)"):
        words = [sys.executable, "-m", "redis_replay.cli", *shlex.split(command)[1:], "--url", real_server.url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=ROOT)
        assert done.returncode == 0, (command, done)


def test_key_table_is_the_code():
    """The table of keys in architecture.md, the one in keys.lua and the list in the code are one."""
    from redis_replay._keys import NAMES

    page = (ROOT / "docs/architecture.md").read_text()
    script = (ROOT / "lua/include/keys.lua").read_text()
    assert re.findall(r"^\| `rr:\{NAME\}:(\w+)` \|", page, re.MULTILINE) == list(NAMES)
    assert re.findall(r"rr:\{NAME\}:(\w+)", script) == list(NAMES)


def test_extras_that_are_named_exist():
    """What documents and errors tell people to install is an extra of the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [ROOT / document for document in DOCUMENTS] + [*(ROOT / "redis_replay").rglob("*.py")]
    named = {
        e
        for text in texts
        for found in re.findall(r"(?:redis-replay|'\.)\[([a-z,]+)\]", text.read_text())
        for e in found.split(",")
    }
    assert {"testing", "embedded", "cli", "demo"} <= named <= set(extras)


def test_documents_link_to_what_is_there():
    """No relative link of a document leads nowhere."""
    for document in [*DOCUMENTS, "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text()):
            assert ((ROOT / document).parent / target).exists(), (document, target)
