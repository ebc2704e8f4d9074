"""`redis-replay import` and `export`, and what is said where a library is missing."""

import pickle
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from redis_replay import ReplayBuffer
from redis_replay._commands import commands
from redis_replay.exceptions import BufferNotFoundError
from redis_replay.samplers import Prioritized
from redis_replay.transfer import MissingExtraError, TransferError, export_minari, export_parquet, import_hdf5, import_minari


@pytest.fixture
def run(monkeypatch, server):
    """`run("import", …)`: the result of a command on the test's server."""
    from redis_replay import _commands

    monkeypatch.setattr(_commands, "ReplayBuffer", lambda _, *args, **options: ReplayBuffer(server.target(), *args, **options))
    return lambda *args: CliRunner().invoke(commands, [str(arg) for arg in args])


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.arange(5), y=np.zeros((5, 2)))
    return tmp_path / "data.npz"


def test_import_creates_with_a_capacity_and_needs_it_else(server, make_buffer, name, run, path, tmp_path):
    """In, in again, and out; each says what it did."""
    missing = run("import", name, "--from", "npz", path)
    assert missing.exit_code == 1
    assert missing.stderr.startswith(f"Error: there is no buffer {name!r} on that server; --capacity creates one")
    assert "5 records at most" in missing.stderr
    done = run("import", name, "--from", "npz", path, "--capacity", 100)
    assert (done.exit_code, done.stdout.strip()) == (0, f"5 records written to buffer {name!r}, which has 5")
    assert run("import", name, "--from", "npz", path).stdout.strip() == f"5 records written to buffer {name!r}, which has 10"
    out = run("export", name, "--to", "parquet", tmp_path / "out.parquet")
    assert (out.exit_code, out.stdout.strip()) == (0, f"10 records written to {tmp_path / 'out.parquet'}")
    assert len(make_buffer(attach=True)) == 10


def test_what_will_not_stay_is_told(server, make_buffer, name, run, path):
    done = run("import", name, "--from", "npz", path, "--capacity", 3)
    assert (done.exit_code, done.stderr.strip()) == (0, "of 5 records the buffer will keep 3")
    assert len(make_buffer(attach=True)) == 3


def test_a_bad_file_creates_no_buffer(server, name, run, path):
    path.write_bytes(path.read_bytes()[:-9])
    done = run("import", name, "--from", "npz", path, "--capacity", 100)
    assert (done.exit_code, str(path) in done.stderr, len(done.stderr.splitlines())) == (1, True, 1)
    with pytest.raises(BufferNotFoundError):
        ReplayBuffer(server.target(), name)


def test_an_import_that_fails_says_how_far_it_came(server, make_buffer, run, path):
    buffer = make_buffer()
    buffer.add({"z": 1})
    done = run("import", buffer.name, "--from", "npz", path)
    assert (done.exit_code, done.stderr.strip().endswith("; 0 records were written")) == (1, True)


def test_a_prioritized_dump_brings_its_sampler(server, make_buffer, name, run, tmp_path, monkeypatch):
    from tests.transfer.test_torchrl import prioritized_dump

    prioritized_dump(tmp_path / "dump", monkeypatch, 0.7)
    assert run("import", name, "--from", "torchrl", tmp_path / "dump", "--capacity", 100).exit_code == 0
    assert make_buffer(attach=True).sampler == Prioritized(alpha=0.7, beta=0.4, eps=1e-8)


def test_export_to_minari_with_an_environment(server, make_buffer, run, tmp_path):
    import gymnasium
    import minari

    from tests.transfer.test_minari import record

    buffer = make_buffer()
    record(buffer, gymnasium.make("CartPole-v1"), 20)
    done = run("export", buffer.name, "--to", "minari", tmp_path / "cart-v0", "--env", "CartPole-v1")
    assert (done.exit_code, minari.MinariDataset(tmp_path / "cart-v0" / "data").env_spec.id) == (0, "CartPole-v1")
    assert run("export", buffer.name, "--to", "parquet", tmp_path / "x", "--env", "CartPole-v1").exit_code == 2


MISSING = {
    "h5py": ("hdf5", lambda buffer: import_hdf5(buffer, "x.hdf5")),
    "minari": ("minari", lambda buffer: import_minari(buffer, "x-v0")),
    "PIL": ("minari", lambda buffer: export_minari(buffer, "x-v0")),
    "pyarrow": ("parquet", lambda buffer: export_parquet(buffer, "x.parquet")),
}  # fmt: skip


@pytest.mark.parametrize("module", MISSING)
def test_a_missing_library_is_named_with_its_extra(server, make_buffer, monkeypatch, module):
    extra, call = MISSING[module]
    for known in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, known, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'redis-replay\[{extra}\]'") as caught:
        call(make_buffer())
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("error", [TransferError(where="x", reason="y"), MissingExtraError(where="x", module="y", extra="z")])
def test_errors_pickle_whole(error):
    error.done = 3
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.done, twin.where) == (type(error), str(error), 3, "x")
