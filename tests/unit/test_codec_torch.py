"""Tensors and TensorDicts in the codec. Skipped where torch is not installed."""

import gc
import weakref

import numpy as np
import pytest

from redis_replay._decode import decode_batch, decode_record
from redis_replay._encode import encode_batch, encode_record
from redis_replay._schema import Schema
from redis_replay.exceptions import ArgumentError, RecordDecodeError, SchemaError

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")
TensorDict, NonTensorStack = tensordict.TensorDict, tensordict.NonTensorStack

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"]
DTYPES += ["float32", "float64", "complex32", "complex64", "complex128"]
DTYPES += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def there_and_back(record):
    rows = encode_record(record, None)
    return decode_record(Schema.from_text(rows.schema.text), rows.payloads()[0], 1)


def batch_and_back(batch):
    rows = encode_batch(batch, None)
    return decode_batch(Schema.from_text(rows.schema.text), rows.payloads(), range(1, len(rows) + 1))


def same_tensor(one, other):
    """Equal dtype, shape and bits."""
    bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def refusal(call, *args):
    with pytest.raises(SchemaError) as caught:
        call(*args, None)
    return caught.value


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 3), (2000,)], ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_tensor_dtypes_keep_every_bit(name, shape):
    """A tensor of any dense dtype comes back with its dtype, shape and bits, alone and in both forms of a batch."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    count = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    raw = torch.arange(count, dtype=torch.int64).to(torch.uint8) * 151
    raw = raw % 2 if name == "bool" else raw
    tensor = raw.view(dtype).reshape(shape)
    both = torch.cat([raw, raw]).view(dtype).reshape(2, *shape)
    assert same_tensor(there_and_back({"x": tensor})["x"], tensor)
    assert same_tensor(batch_and_back({"x": both})["x"], both)
    assert same_tensor(batch_and_back([{"x": tensor}, {"x": tensor}])["x"], both)


BASE = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
VIEWS = {
    "permuted": BASE.permute(2, 0, 1),
    "expanded": BASE[:1].expand(5, 3, 4),
    "sliced": BASE[:, ::2, 1:],
    "bfloat16 permuted": BASE.bfloat16().permute(2, 0, 1),
    "conjugate": torch.complex(BASE, BASE).conj(),
    "negated": torch.complex(BASE, BASE).conj().imag,
}


@pytest.mark.parametrize("tensor", VIEWS.values(), ids=VIEWS.keys())
def test_tensor_views_keep_their_values(tensor):
    """Views come back as what they show, alone, as a batch and in a list."""
    assert torch.equal(there_and_back({"x": tensor})["x"], tensor)
    assert torch.equal(batch_and_back({"x": tensor})["x"], tensor)
    assert torch.equal(batch_and_back([{"x": row} for row in tensor])["x"], tensor)


def test_tensors_lose_their_graph():
    """A tensor that carries a graph is stored by value; rows and result hold no graph, which is freed."""
    hidden = torch.ones(3, requires_grad=True) * 2
    loss = hidden * hidden
    kept_by_graph = weakref.ref(hidden)
    forms = [encode_record({"x": loss}, None), encode_batch({"x": loss}, None), encode_batch([{"x": loss}] * 2, None)]
    found = decode_record(forms[0].schema, forms[0].payloads()[0], 1)["x"]
    del hidden
    gc.collect()
    assert kept_by_graph() is not None
    del loss
    gc.collect()
    assert kept_by_graph() is None
    assert (found.requires_grad, found.tolist(), len(forms)) == (False, [4.0, 4.0, 4.0], 3)


def test_parameters_come_back_as_tensors():
    """A Parameter is stored as the tensor it is, under the same schema."""
    parameter = torch.nn.Parameter(torch.ones(2))
    assert encode_record({"x": parameter}, None).schema == encode_record({"x": torch.ones(2)}, None).schema


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(3, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_tensors_without_dense_values_are_refused(make):
    """Sparse, quantised and meta tensors are refused by path, alone and behind a dense one in a list."""
    assert refusal(encode_record, {"a": {"x": make()}}).path == "a/x"
    assert refusal(encode_batch, [{"x": torch.zeros(3)}, {"x": make()}]).path == "x"


def test_torch_and_numpy_are_not_mixed():
    """An array does not pass as a tensor of the same dtype and shape."""
    schema = encode_record({"x": torch.zeros(2)}, None).schema
    with pytest.raises(SchemaError) as caught:
        encode_record({"x": np.zeros(2, "f4")}, schema)
    assert (caught.value.expected, caught.value.found) == ("torch float32 (2,)", "numpy float32 (2,)")


def test_ragged_tensors_are_refused_by_name():
    """Tensors of unequal shape in a list, and in a lazy stack, are refused with both shapes."""
    records = [TensorDict({"o": {"x": torch.zeros(n)}}) for n in (2, 3)]
    for batch in (records, TensorDict.lazy_stack(records)):
        error = refusal(encode_batch, batch)
        assert (error.path, error.expected) == ("o/x", "torch float32 (2,)")
        assert error.found == "torch float32 (3,) (record 1 of the batch)"


def test_decoded_tensors_are_the_callers_own():
    """Decoded tensors are contiguous and can be changed without touching their neighbours."""
    found = batch_and_back({"x": torch.zeros(2, 3), "y": torch.zeros(2, 5000)})
    found["x"][0] = 1
    assert found["x"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert found["y"].is_contiguous()


def make_tensordict():
    data = {"obs": torch.arange(12).reshape(3, 4), "next": {"obs": torch.ones(3, 4, dtype=torch.bfloat16)}, "none": {}}
    made = TensorDict(data, batch_size=[3])
    made["text"] = NonTensorStack("a", "bb", "ccc")
    made["same"] = "hi"
    made.set_non_tensor("number", 5)
    return made


def test_tensordict_comes_back_as_one():
    """A TensorDict batch comes back as a TensorDict of batch size [n] with nested ones, tensors and text."""
    given = make_tensordict()
    found = batch_and_back(given)
    assert isinstance(found, TensorDict)
    assert (found.batch_size, found["next"].batch_size, found["none"].batch_size) == ((3,), (3,), (3,))
    assert (found.get("text").tolist(), found.get("same").tolist(), found.get("number").tolist()) == (
        ["a", "bb", "ccc"], ["hi"] * 3, [5] * 3,
    )  # fmt: skip
    assert same_tensor(found["obs"], given["obs"])
    assert same_tensor(found["next", "obs"], given["next", "obs"])


def test_tensordict_forms_are_equal():
    """A TensorDict, the list of its rows and each row alone give the same bytes under one schema."""
    given = make_tensordict()
    rows = encode_batch(given, None)
    assert encode_batch([given[k] for k in range(3)], rows.schema).payloads() == rows.payloads()
    assert encode_batch(TensorDict.lazy_stack([given[k] for k in range(3)]), rows.schema).payloads() == rows.payloads()
    assert [encode_record(given[k], rows.schema).payloads()[0] for k in range(3)] == rows.payloads()


def test_single_tensordict_keeps_its_rows_values():
    """A record that is a TensorDict comes back with an empty batch size and plain values."""
    found = there_and_back(make_tensordict()[1])
    assert (found.batch_size, found["text"], found["same"], found["number"]) == ((), "bb", "hi", 5)
    assert found["obs"].tolist() == [4, 5, 6, 7]


def test_wider_batch_sizes_are_kept():
    """Batch dimensions after the first, of the root and of a nested TensorDict, come back."""
    inner = TensorDict({"x": torch.zeros(3, 2, 5)}, batch_size=[3, 2, 5])
    given = TensorDict({"inner": inner, "y": torch.zeros(3, 2)}, batch_size=[3, 2])
    found = batch_and_back(given)
    assert (found.batch_size, found["inner"].batch_size) == ((3, 2), (3, 2, 5))
    assert there_and_back(given[0]).batch_size == (2,)


def test_tensordicts_of_unlike_batch_size_are_refused():
    """Records whose batch sizes differ do not pass as one batch, even where their tensors agree."""
    error = refusal(encode_batch, [TensorDict({"x": torch.zeros(2)}, size) for size in ([2], [])])
    assert error.expected == "a TensorDict of batch size [2]"


def test_tensordict_and_dict_are_not_mixed():
    """A dict among TensorDicts, a TensorDict among dicts, and one inside a dict are refused."""
    one, other = TensorDict({"x": torch.zeros(2)}), {"x": torch.zeros(2)}
    assert refusal(encode_batch, [one, other]).found == "a dict (record 1 of the batch)"
    assert refusal(encode_batch, [other, one]).expected == "a dict"
    assert refusal(encode_record, {"a": {"b": one}}).path == "a/b"


def test_missing_key_in_tensordict_is_named():
    """A key that one TensorDict of a list lacks is named."""
    records = [TensorDict({"x": torch.zeros(2), "y": torch.zeros(1)}), TensorDict({"x": torch.zeros(2)})]
    error = refusal(encode_batch, records)
    assert (error.path, error.expected, error.found) == ("y", "torch float32 (1,)", "nothing (record 1 of the batch)")


@pytest.mark.parametrize("size", [[], [0], [0, 2]], ids=str)
def test_tensordict_without_records_is_refused(size):
    """A TensorDict without a batch dimension, or of length 0, is no batch."""
    with pytest.raises(ArgumentError, match="batch must be"):
        encode_batch(TensorDict({"x": torch.zeros(size)}, batch_size=size), None)


def test_short_tensor_payload_is_a_decode_error():
    """A payload of the wrong length is refused before torch sees it."""
    rows = encode_batch(make_tensordict(), None)
    with pytest.raises(RecordDecodeError) as caught:
        decode_batch(rows.schema, [*rows.payloads()[:2], b"x"], [4, 5, 6])
    assert caught.value.index == 6


def test_unknown_dtype_is_a_decode_error(monkeypatch):
    """A dtype that this torch lacks is a typed error that names it."""
    rows = encode_record({"x": torch.zeros(2, dtype=torch.bfloat16)}, None)
    monkeypatch.delattr(torch, "bfloat16")
    with pytest.raises(RecordDecodeError, match="bfloat16"):
        decode_record(rows.schema, rows.payloads()[0], 3)
