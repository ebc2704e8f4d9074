"""Hypothesis: round trips over dtypes, shapes and memory layouts, and a decoder that no bytes can surprise."""

import json

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from redis_replay import _plain
from redis_replay._decode import decode_batch, decode_record
from redis_replay._encode import encode_batch, encode_record
from redis_replay._schema import Schema
from redis_replay.exceptions import RecordDecodeError, SchemaError

DTYPES = st.one_of(
    nps.boolean_dtypes(), nps.integer_dtypes(endianness="?"), nps.unsigned_integer_dtypes(endianness="?"),
    nps.floating_dtypes(endianness="?", sizes=(16, 32, 64)), nps.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    nps.datetime64_dtypes(endianness="?"), nps.timedelta64_dtypes(endianness="?"),
    nps.byte_string_dtypes(min_len=1), nps.unicode_string_dtypes(endianness="?", min_len=1),
)  # fmt: skip
SHAPES = nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
KEYS = st.text(alphabet="ab/~é", max_size=2)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False),
    st.text(alphabet=st.characters(codec=None)), st.binary(), st.none(), st.lists(PLAIN, max_size=3),
)  # fmt: skip


@st.composite
def arrays(draw):
    """An array of any storable dtype and shape, in some memory layout, with any bits."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    count = int(np.prod(shape))
    if dtype.kind in "bU":
        array = draw(nps.arrays(dtype, shape))
    else:
        bits = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        array = np.frombuffer(bits, dtype, count).reshape(shape)
    return draw(st.sampled_from([np.asarray, np.asfortranarray, np.transpose, reverse, spread, halve]))(array)


def reverse(array):
    return array[(slice(None, None, -1),) * array.ndim]


def spread(array):
    return np.broadcast_to(array, (2, *array.shape))


def halve(array):
    return array[..., ::2] if array.ndim else array


TREES = st.recursive(arrays() | SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)
RECORDS = st.dictionaries(KEYS, TREES, max_size=4)


def as_plain(value):
    """The value with each array replaced by what must be kept of it: native dtype, shape, bytes in C order."""
    if isinstance(value, dict):
        return {key: as_plain(value[key]) for key in sorted(value)}
    if isinstance(value, np.ndarray | np.generic):
        native = np.asarray(value).astype(value.dtype.newbyteorder("="))
        return native.dtype.str, native.shape, native.tobytes()
    return repr(value)


@settings(max_examples=300)
@given(RECORDS)
def test_any_record_comes_back_equal(record):
    """What comes out is what went in: keys, types, dtypes, shapes and bits."""
    rows = encode_record(record, None)
    found = decode_record(Schema.from_text(rows.schema.text), rows.payloads()[0], 1)
    assert as_plain(found) == as_plain(record)


@settings(max_examples=200)
@given(arrays(), st.integers(1, 4))
def test_any_array_batch_comes_back_equal(array, n):
    """A batch of arrays has the shape (n, *shape), and each row is the record's own array."""
    rows = encode_batch([{"x": array, "t": "é"}] * n, None)
    found = decode_batch(rows.schema, rows.payloads(), range(n))["x"]
    assert found.shape == (n, *array.shape)
    assert [as_plain(found[k, ...]) for k in range(n)] == [as_plain(array)] * n


@settings(max_examples=100)
@given(st.lists(st.tuples(st.text(), st.binary(), PLAIN, st.floats()), min_size=1, max_size=5))
def test_variable_leaves_keep_their_rows(values):
    """Leaves of variable length come back in order, each with its own record."""
    rows = encode_batch([{"t": t, "b": b, "o": [o], "f": f} for t, b, o, f in values], None)
    found = decode_batch(rows.schema, rows.payloads(), range(len(values)))
    assert found["t"] == [v[0] for v in values]
    assert found["b"] == [v[1] for v in values]
    assert found["o"] == [[v[2]] for v in values]
    assert found["f"].tobytes() == np.array([v[3] for v in values]).tobytes()


@settings(max_examples=100)
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_unlike_records_never_pass_together(records):
    """A list of records is encoded exactly if the records have one schema, and is refused by path otherwise."""
    schemas = {encode_record(record, None).schema for record in records}
    try:
        rows = encode_batch(records, None)
    except SchemaError as error:
        assert len(schemas) > 1
        assert error.expected != error.found
    else:
        assert {rows.schema} == schemas


SOME = [
    encode_record({"a": np.zeros((2, 3), "f4"), "b": True, "c": np.array(["ab"])}, None),
    encode_record({"a": np.zeros(2, "i2"), "s": "héllo", "t": b"x", "o": [1, (2, None), {"k": 1.5}]}, None),
    encode_record({"o": None}, None),
    encode_record({"x": np.zeros(5000, "u1"), "y": 1, "s": "text"}, None),
]


def decodes_or_refuses(schema, payload):
    """Whether the payload decodes. All but a record and the decoder's own error fails, and so do two verdicts."""
    verdicts = []
    for decode in (lambda: decode_record(schema, payload, 5), lambda: decode_batch(schema, [payload, payload], [5, 6])):
        try:
            decode()
        except RecordDecodeError as error:
            assert error.index == 5
            verdicts.append(False)
        else:
            verdicts.append(True)
    assert len(set(verdicts)) == 1
    return verdicts[0]


@settings(max_examples=300)
@given(st.sampled_from(SOME), st.binary(max_size=64))
@example(SOME[2], b"\x01\x00\x00\x00\xc1")
def test_random_bytes_never_surprise_decoder(rows, payload):
    """Random bytes raise nothing but RecordDecodeError, and only bytes of a possible length decode."""
    fine = decodes_or_refuses(rows.schema, payload)
    assert not fine or len(payload) >= rows.schema.layout.head


@settings(max_examples=200)
@given(st.sampled_from(SOME), st.data())
def test_changed_bytes_never_surprise_decoder(rows, data):
    """A good record with one byte changed decodes or is refused by the typed error."""
    payload = bytearray(rows.payloads()[0])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    fine = decodes_or_refuses(rows.schema, bytes(payload))
    assert fine or rows.schema.record_size is None or b"a" in payload  # among fixed leaves only text can be wrong


@settings(max_examples=100)
@given(st.sampled_from(SOME), st.data())
def test_truncated_records_are_always_refused(rows, data):
    """A record that lacks its end, or has more after it, is refused."""
    payload = rows.payloads()[0]
    cut = data.draw(st.integers(0, len(payload) - 1))
    assert not decodes_or_refuses(rows.schema, payload[:cut])
    assert not decodes_or_refuses(rows.schema, payload + bytes(cut + 1))


@settings(max_examples=200)
@given(st.binary(max_size=3000))
def test_random_msgpack_is_plain_or_refused(data):
    """Whatever the msgpack reader accepts is a plain value that can be packed again to an equal one."""
    try:
        value = _plain.unpack(data)
    except ValueError:
        return
    assert repr(_plain.unpack(_plain.pack([value])[0])) == repr(value)


ATOMS = st.sampled_from([None, True, 0, 1, 2, -1, 2**70, "", "a", "dict", "numpy", "<f4", "|O", "torch", "int8", "text"])
PARTS = ATOMS | st.lists(ATOMS, max_size=3)
LEAVES = st.tuples(
    st.lists(st.sampled_from("ab"), max_size=3) | PARTS,
    st.sampled_from(["numpy", "torch", "python", "text", "bytes", "object", "empty", "batch"]) | PARTS,
    st.sampled_from(["", "<f4", "<U2", "int8", "int", "|O"]) | PARTS,
    st.lists(st.integers(0, 3), max_size=2) | PARTS,
)


@settings(max_examples=500)
@given(st.sampled_from(["dict", "tensordict"]), st.lists(LEAVES, max_size=3) | PARTS)
def test_random_schema_text_never_surprises(root, leaves):
    """Text that is nearly a schema is refused by the typed error, or is that schema's own text and can be laid out."""
    text = json.dumps({"root": root, "leaves": leaves}, separators=(",", ":"))
    try:
        found = Schema.from_text(text)
    except RecordDecodeError as error:
        assert error.reason.startswith("malformed schema")
    else:
        assert found.text == text
        assert found.layout.head >= 0
