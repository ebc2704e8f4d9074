""".npz and HDF5: by D4RL's names or as they are, in bounded chunks; a bad file is told before the first write."""

import zipfile

import h5py
import numpy as np
import pytest

from redis_replay.exceptions import BufferShutDownError
from redis_replay.transfer import Hdf5Source, NpzSource, TransferError, import_hdf5, import_npz
from tests.transfer._same import columns, same

N = 20


def d4rl(**more):
    """Twenty steps: images, an episode that is cut after the sixth and one that ends with the eleventh."""
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(N, bool), np.zeros(N, bool)
    timeouts[5], terminals[10] = True, True
    return {
        "observations": rng.integers(0, 255, (N, 3, 4), np.uint8), "actions": rng.integers(0, 9, N),
        "rewards": rng.random(N), "terminals": terminals, "timeouts": timeouts, **more,
    }  # fmt: skip


def transitions(given):
    """What becomes of them: steps whose next observation is not in the file are left, but for one that terminated."""
    following = np.concatenate([given["observations"][1:], given["observations"][-1:]])
    following[10] = given["observations"][10]
    kept = ~given["timeouts"]
    kept[-1] = False
    made = {
        "observation": given["observations"], "action": given["actions"], "reward": given["rewards"].astype(np.float32),
        "terminated": given["terminals"], "truncated": given["timeouts"], "next_observation": following,
    }  # fmt: skip
    return {name: column[kept] for name, column in made.items()}


def write_npz(path, arrays):
    np.savez(path, **arrays)


def write_npz_compressed(path, arrays):
    np.savez_compressed(path, **arrays)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


WAYS = pytest.mark.parametrize(
    ("write", "read"), [(write_npz, import_npz), (write_npz_compressed, import_npz), (write_hdf5, import_hdf5)]
)
KINDS = pytest.mark.parametrize(("write", "read"), [(write_npz, import_npz), (write_hdf5, import_hdf5)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.npz"


@WAYS
def test_d4rls_names_become_transitions(server, make_buffer, path, chunks, write, read):
    """As a recorder would have written them; in chunks that end anywhere, and with the progress told after each."""
    given, steps = d4rl(**{"infos/qpos": np.zeros((N, 2))}), []
    write(path, given)
    buffer = make_buffer()
    done = read(buffer, path, progress=lambda *told: steps.append(told))
    same(columns(buffer), transitions(given))
    assert (done, max(chunks) <= 7, len(chunks) > 2) == (18, True, True)
    assert steps == [(sum(chunks[: i + 1]), N) for i in range(len(chunks))]


@KINDS
def test_next_observations_are_taken_where_they_are_there(server, make_buffer, path, write, read):
    """All steps are kept then; rewards of one column, flags that are numbers, observations that are groups."""
    given = d4rl()
    images = given.pop("observations")
    del given["timeouts"]
    given |= {"rewards": given["rewards"][:, None], "terminals": given["terminals"].astype(np.float32)}
    given |= {f"{side}/{part}": images + i for i, side in enumerate(("observations", "next_observations")) for part in "ab"}
    write(path, given)
    buffer = make_buffer()
    assert read(buffer, path) == N
    found = columns(buffer)
    same(found["observation"], {"a": images, "b": images})
    same(found["next_observation"], {"a": images + np.uint8(1), "b": images + np.uint8(1)})
    same(found["truncated"], np.zeros(N, bool))
    same(found["reward"], given["rewards"][:, 0].astype(np.float32))


@WAYS
def test_other_arrays_are_leaves_of_their_names(server, make_buffer, path, chunks, write, read):
    """Each with its dtype and shape; one in Fortran's order too; a "/" nests."""
    given = {
        "image": np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3), "x": np.arange(N, dtype=np.float32), "n": np.arange(N),
        "deep/flag": np.arange(N) % 2 == 0, "deep/er/half": np.ones((N, 2), np.float16), "wide": np.asfortranarray(np.eye(N)),
    }  # fmt: skip
    write(path, given)
    buffer = make_buffer()
    assert read(buffer, path) == N
    deep = {"flag": given.pop("deep/flag"), "er": {"half": given.pop("deep/er/half")}}
    same(columns(buffer), {**given, "deep": deep})
    assert chunks == [7, 7, 6]


def test_texts_of_hdf5_are_texts(server, make_buffer, path):
    write_hdf5(path, {"prompt": ["a", "bc", "å"], "n": np.arange(3)})
    buffer = make_buffer()
    import_hdf5(buffer, path)
    assert [(record["prompt"], int(record["n"])) for record in buffer.records()] == [("a", 0), ("bc", 1), ("å", 2)]


WRONG = {
    "lengths": ({"x": np.zeros(3), "y": np.zeros(4)}, "x 3, y 4"),
    "d4rl lengths": (d4rl(actions=np.zeros(N - 1)), f"actions {N - 1}"),
    "a scalar": ({"x": np.float64(1)}, "x is a single value"),
    "nothing": ({}, "no array"),
    "a type": ({"x": np.zeros(3, [("a", "f4")])}, "x is of type"),
    "no cuts": ({name: array for name, array in d4rl().items() if name != "timeouts"}, "neither timeouts"),
    "wide rewards": (d4rl(rewards=np.zeros((N, 2))), "rewards must be one number"),
}


@KINDS
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_before_the_first_write(server, make_buffer, path, write, read, case):
    arrays, words = WRONG[case]
    write(path, arrays)
    with make_buffer() as buffer:
        with pytest.raises(TransferError, match=words) as caught:
            read(buffer, path)
        assert (buffer.stats()["write_count"], caught.value.where) == (0, str(path))


@KINDS
def test_a_bad_file_is_refused_before_the_first_write(server, make_buffer, path, write, read):
    """Missing, of another kind, empty, or cut anywhere."""
    write(path, d4rl())
    whole = path.read_bytes()
    with make_buffer() as buffer:
        for content in (
            None,
            b"",
            b"hello",
            np.zeros(3).tobytes(),
            *(whole[:cut] for cut in range(0, len(whole), len(whole) // 7)),
        ):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(TransferError):
                read(buffer, path)
        assert buffer.stats()["write_count"] == 0


def test_a_flipped_byte_of_npz_is_refused_before_the_first_write(server, make_buffer, path):
    """Each archived array has a checksum."""
    write_npz(path, d4rl())
    whole = bytearray(path.read_bytes())
    whole[whole.index(d4rl()["observations"].tobytes()) + 5] ^= 1
    path.write_bytes(whole)
    with make_buffer() as buffer:
        with pytest.raises(TransferError, match="checksum of observations"):
            import_npz(buffer, path)
        assert buffer.stats()["write_count"] == 0


def test_python_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([print, None]))
    with pytest.raises(TransferError, match="nothing is unpickled"):
        NpzSource(tmp_path / "x.npz")


def test_an_array_that_lies_about_its_length_is_refused(tmp_path):
    """A header that says more than there is would end in the middle."""
    write_npz(tmp_path / "x.npz", {"x": np.zeros(3)})
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        content = archive.read("x.npy").replace(b"(3,), }", b"(9,), }")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(TransferError, match="header"):
        NpzSource(tmp_path / "x.npz")


def test_hdf5_reads_no_other_file(tmp_path):
    """A data set whose bytes lie elsewhere could be anybody's file."""
    (tmp_path / "secret").write_bytes(b"x" * 24)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", (3,), "f8", external=[(str(tmp_path / "secret"), 0, 24)])
    with pytest.raises(TransferError, match="in another file"):
        Hdf5Source(tmp_path / "x.hdf5")


def test_an_error_says_how_many_records_are_in(server, make_buffer, path, chunks):
    """Whoever raises it: the file, or the buffer. A chunk is in whole or not at all."""
    write_npz(path, {"x": np.arange(N)})
    buffer = make_buffer()
    source = NpzSource(path)
    source._members[0]._file = _Ending(source._members[0]._file, 2)
    from redis_replay.transfer import fill

    with source, pytest.raises(TransferError, match="ends too early") as caught:
        fill(buffer, source)
    assert (caught.value.done, buffer.stats()["write_count"]) == (14, 14)
    with pytest.raises(BufferShutDownError) as caught:
        import_npz(buffer, path, progress=lambda done, _: done == 14 and buffer.shutdown())
    assert (caught.value.done, buffer.stats()["write_count"]) == (14, 28)


class _Ending:
    """A file that ends after some reads."""

    def __init__(self, file, reads):
        self._file, self._left = file, reads

    def read(self, n):
        self._left -= 1
        return self._file.read(n) if self._left >= 0 else b""

    def close(self):
        self._file.close()


def test_chunks_are_bounded_in_bytes_and_in_records():
    """Memory does not grow with the file: what is read at a time does not."""
    from redis_replay.transfer._flow import CHUNK_BYTES, CHUNK_RECORDS, chunk_rows

    assert [chunk_rows(size) for size in (1, 28_224, 2 * CHUNK_BYTES)] == [CHUNK_RECORDS, CHUNK_BYTES // 28_224, 1]
