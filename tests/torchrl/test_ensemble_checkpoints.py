"""What an ensemble saves comes back: all of its members, or none."""

import pytest
import torch

from redis_replay import checkpoint
from redis_replay.exceptions import (
    BufferShutDownError,
    CheckpointError,
    CheckpointNotFoundError,
    ConnectionLostError,
    MemberDownError,
    PartlyLoadedError,
)
from tests._torchrl import data

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def saved_by_dump(ensemble, folder):
    ensemble.dumps(folder / "all")
    return lambda other: other.loads(folder / "all")


def saved_by_state(ensemble, folder):
    torch.save(ensemble.state_dict(), folder / "all.pt")
    return lambda other: other.load_state_dict(torch.load(folder / "all.pt", weights_only=True))


@pytest.mark.parametrize("save", [saved_by_dump, saved_by_state])
def test_an_ensemble_comes_back(pair, tmp_path, save):
    """C12, C13: each member has its own again."""
    ensemble = pair(6, 8)
    ensemble.sample()
    load, then = save(ensemble, tmp_path), ensemble.stats()
    for member in ensemble.members:
        member.empty()
    load(ensemble)
    told = ("size", "write_count", "sample_calls", "samples_returned")
    assert [ensemble.stats()[key] for key in told] == [then[key] for key in told]
    assert [len(member) for member in ensemble.members] == [6, 8]
    assert ensemble.write_count == 14


def test_an_ensemble_is_loaded_as_a_whole_or_not_at_all(pair, tmp_path):
    """One member's file is bad, or missing, or it is shut down: no member is changed, and the error names it."""
    ensemble = pair(6, 8)
    ensemble.dumps(tmp_path)
    state = ensemble.state_dict()
    state["members"][1]["data"] = state["members"][1]["data"][:-1]
    for member in ensemble.members:
        member.empty()
    with pytest.raises(CheckpointError, match="state 1 of the ensemble") as caught:
        ensemble.load_state_dict(state)
    assert caught.value.member == 1
    bad = next(tmp_path.glob("member-1-*"))
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="member-1-"):
        ensemble.loads(tmp_path)
    bad.unlink()
    with pytest.raises(CheckpointNotFoundError, match="member-1-"):
        ensemble.loads(tmp_path)
    bad.write_bytes(whole)
    ensemble.members[1].shutdown()
    with pytest.raises(BufferShutDownError) as shut:
        ensemble.loads(tmp_path)
    assert (shut.value.member, len(ensemble.members[0])) == (1, 0)


def test_an_ensembles_dump_replaces_all_files_or_none(pair, tmp_path, monkeypatch):
    """A dump of which one member fails leaves the one before, and no file of its own once the next one is done."""
    ensemble = pair(6, 8)
    ensemble.dumps(tmp_path)
    before = sorted(file.name for file in tmp_path.iterdir())
    ensemble.members[0].extend(data(6, 9))
    with monkeypatch.context() as patched:
        patched.setattr(ensemble.members[1], "dumps", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full") as caught:
            ensemble.dumps(tmp_path)
    assert caught.value.member == 1
    assert set(before) <= {file.name for file in tmp_path.iterdir()}
    ensemble.loads(tmp_path)
    assert [len(member) for member in ensemble.members] == [6, 8]
    ensemble.dumps(tmp_path)
    after = sorted(file.name for file in tmp_path.iterdir())
    assert len(after) == len(before) == 3
    assert [len(checkpoint.open(tmp_path / name)) for name in after if name.startswith("member")] == [6, 8]


def test_what_was_drawn_and_not_given_out_outlives_a_load_that_fails(pair, tmp_path):
    """A load that changes nothing loses nothing; one that succeeds ends what was drawn before."""
    ensemble = pair(4, 4, {"consume_after_n_samples": 1}, transform=lambda _: 1 / 0)
    ensemble.dumps(tmp_path)
    with pytest.raises(ZeroDivisionError):
        ensemble.sample()
    with pytest.raises(CheckpointNotFoundError):
        ensemble.loads(tmp_path / "none")
    assert len(ensemble._kept.get()) == 2
    ensemble.loads(tmp_path)
    assert (ensemble._kept.get(), len(ensemble)) == ([], 8)


def test_an_ensembles_checkpoint_is_of_so_many(pair, tmp_path):
    ensemble = pair(2, 2)
    with pytest.raises(CheckpointNotFoundError):
        ensemble.loads(tmp_path)
    (tmp_path / "ensemble.json").write_text('{"format": "another"}')
    with pytest.raises(CheckpointError, match="ensemble checkpoint"):
        ensemble.loads(tmp_path)
    with pytest.raises(CheckpointError, match="1 buffers"):
        ensemble.load_state_dict(ensemble.state_dict()["members"][:1])


def test_an_ensemble_is_saved_with_all_its_members(pair, tmp_path, monkeypatch):
    """One is down: it is named, also where draws would leave it out; there is no checkpoint without it."""

    def gone(*_, **__):
        raise ConnectionLostError(address="here", reason="gone")

    ensemble = pair(2, 2, skip_down=True)
    for name in ("dumps", "state_dict"):
        monkeypatch.setattr(ensemble.members[1], name, gone)
    for call in (lambda: ensemble.dumps(tmp_path), ensemble.state_dict):
        with pytest.raises(MemberDownError) as caught:
            call()
        assert caught.value.member == 1
    with pytest.raises(CheckpointNotFoundError):
        ensemble.loads(tmp_path)


def test_a_load_that_fails_halfway_says_how_far_it_came(pair, tmp_path, monkeypatch):
    """What was proven may fail still, by its server: which members are loaded is told."""

    def gone(*_, **__):
        raise ConnectionLostError(address="here", reason="gone")

    ensemble = pair(2, 3)
    ensemble.dumps(tmp_path)
    for member in ensemble.members:
        member.empty()
    monkeypatch.setattr(ensemble.members[1], "loads", gone)
    with pytest.raises(PartlyLoadedError, match=r"0 is loaded, and member 1") as caught:
        ensemble.loads(tmp_path)
    assert (caught.value.member, caught.value.loaded) == (1, (0,))
    assert [len(member) for member in ensemble.members] == [2, 0]
