"""What comes out of the buffer is what went in, through every server and both ways of writing."""

import sys

import numpy as np
import pytest

NAN = np.frombuffer(np.uint32(0x7FC12345).tobytes(), np.float32)
NAN64 = np.frombuffer(np.uint64(0xFFF8000000012345).tobytes(), np.float64)
BASE = np.arange(24, dtype=np.float32).reshape(4, 6)

LEAVES = {
    "bool": np.array([True, False]),
    "uint8 image": np.arange(84 * 84 * 4, dtype=np.uint8).reshape(84, 84, 4),
    "int8": np.array([-128, 127], np.int8),
    "int16": np.array([-(2**15)], np.int16),
    "int64": np.array([2**53 + 1, -(2**63)]),
    "float16": np.array([6e-8, 65504], np.float16),
    "float32": NAN,
    "float64": np.concatenate([NAN64, [np.inf, -np.inf, -0.0]]),
    "complex64": np.array([1 + 2j], np.complex64),
    "str_": np.array(["ß", "zwölf", ""]),
    "bytes_": np.array([b"ab", b"\0c"]),
    "zero-d": np.array(7.5),
    "empty": np.zeros((0,)),
    "empty rows": np.zeros((0, 3)),
    "empty middle": np.zeros((2, 0, 3)),
    "fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "sliced": BASE[::2],
    "reversed": BASE[:, ::-1],
    "broadcast": np.broadcast_to(BASE[0], (4, 6)),
    "big-endian": BASE.astype(">f4"),
}
SCALARS = {"int": 2**53 + 1, "float": -0.0, "true": True, "str": "wörd", "bytes": b"\0\xff", "none": None}


def same(got, put):
    """Equal in native dtype, shape and every bit."""
    put = np.ascontiguousarray(put).reshape(np.shape(put))
    assert got.dtype == put.dtype.newbyteorder("=")
    assert got.shape == put.shape
    assert got.tobytes() == put.astype(got.dtype).tobytes()


@pytest.mark.parametrize("what", LEAVES)
def test_single_record_keeps_dtype_shape_and_bits(server, make_buffer, what):
    """An array that is added comes back by get, whatever its memory layout."""
    buffer = make_buffer()
    same(buffer.get(buffer.add({"x": LEAVES[what]}))["x"], LEAVES[what])


@pytest.mark.parametrize("what", LEAVES)
def test_sampled_batch_keeps_dtype_shape_and_bits(server, make_buffer, what):
    """A batch of three equal arrays is sampled with one more dimension, and is the caller's own."""
    buffer = make_buffer()
    buffer.extend([{"x": LEAVES[what]}] * 3)
    batch = buffer.sample(3)["x"]
    same(batch, np.stack([LEAVES[what]] * 3))
    assert (batch.flags.writeable, batch.flags.owndata) == (True, True)


@pytest.mark.parametrize("what", SCALARS)
def test_python_scalars_come_back_as_themselves(server, make_buffer, what):
    """A scalar of a record has its own type again: a bool is no int."""
    buffer = make_buffer()
    got = buffer.get(buffer.add({"x": SCALARS[what]}))["x"]
    assert (type(got), repr(got)) == (type(SCALARS[what]), repr(SCALARS[what]))


def test_record_of_everything_is_not_widened(server, make_buffer):
    """One record with every kind of leaf, nested and with a slash in a key, comes back leaf by leaf."""
    buffer = make_buffer()
    record = {"arrays": dict(LEAVES), "a/b": np.int8(1), "a": {"b": np.int8(2), "none": {}}, **SCALARS}
    got = buffer.get(buffer.add(record))
    assert (int(got["a/b"]), int(got["a"]["b"]), got["a"]["none"], got["str"]) == (1, 2, {}, "wörd")
    assert sorted(got["arrays"]) == sorted(LEAVES)


def test_torch_tensors_come_back_as_tensors(server, make_buffer):
    """Dtypes that numpy lacks, and views, survive."""
    import torch

    buffer = make_buffer()
    put = {"h": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).permute(1, 0), "g": torch.ones(2).expand(3, 2)}
    got = buffer.get(buffer.add(put))
    assert all(torch.equal(got[k], put[k]) and got[k].dtype == put[k].dtype for k in put)
    assert buffer.sample(1)["h"].shape == (1, 3, 2)


def test_tensordict_comes_back_with_its_index(server, make_buffer):
    """A TensorDict goes in and comes out, with the identity of each record beside it."""
    import torch
    from tensordict import TensorDict

    buffer = make_buffer()
    indices = buffer.extend(TensorDict({"obs": torch.arange(8.0).reshape(4, 2), "next": {"r": torch.ones(4)}}, [4]))
    batch = buffer.sample(4, min_items=1)
    assert batch.batch_size == (4,)
    assert torch.equal(batch["obs"][:, 0], (batch["index"].float() - int(indices[0])) * 2)
    assert batch["next", "r"].tolist() == [1.0] * 4


def test_tensordict_records_keep_their_batch_dimensions(server, make_buffer):
    """Records that are TensorDicts of [time]: the batch is [n, time], and so is its index."""
    import torch
    from tensordict import TensorDict

    buffer = make_buffer()
    buffer.extend(TensorDict({"x": torch.arange(12).reshape(3, 4)}, [3, 4]))
    assert buffer.get(2).batch_size == (4,)
    batch = buffer.sample(3)
    assert (batch.batch_size, batch["index"].shape) == ((3, 4), (3, 4))
    assert (batch["x"][:, 0] == (batch["index"][:, 0] - 1) * 4).all()


def test_tensors_with_a_graph_lose_it(server, make_buffer):
    """Values are stored, and no graph is kept alive."""
    import torch

    buffer = make_buffer()
    w = torch.ones(3, requires_grad=True)
    buffer.add({"h": w * 2})
    got = buffer.sample(1)["h"]
    assert (got.requires_grad, got.tolist()) == (False, [[2.0, 2.0, 2.0]])


def test_the_import_itself_loads_nothing_heavy():
    """A command line or a plugin that imports the package pays for numpy and redis with the first name that it asks for."""
    import subprocess

    heavy = {"numpy", "redis", "msgpack", "asyncio", "torch", "tensordict"}
    code = (
        f"import sys, redis_replay as r; print({heavy} & set(sys.modules)); print(set(r.__all__) - set(dir(r)))\n"
        "print([name for name in r.__all__ if getattr(r, name).__name__ != name]); r.ReplyBuffer"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["set()", "set()", "[]"], ran
    assert "AttributeError: module 'redis_replay' has no attribute 'ReplyBuffer'" in ran.stderr


def test_numpy_users_never_load_torch(server, make_buffer):
    """Writing and drawing numpy needs no torch: nothing of ours imports it."""
    import subprocess

    code = (
        "import sys, fakeredis, numpy as np; from redis_replay import ReplayBuffer\n"
        "b = ReplayBuffer(fakeredis.FakeRedis(), 'b', capacity=4); b.add({'x': np.ones(2)}); b.sample(1)\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
