"""Records to bytes and back: what comes out is what went in, and what cannot be stored is refused by name."""

import subprocess
import sys

import msgpack
import numpy as np
import pytest

from redis_replay._decode import decode_batch, decode_record
from redis_replay._encode import encode_batch, encode_record
from redis_replay._schema import Schema
from redis_replay.exceptions import ArgumentError, ArgumentTypeError, RecordDecodeError, SchemaError


def there_and_back(record):
    """The record after a trip through bytes, its schema through its text."""
    rows = encode_record(record, None)
    return decode_record(Schema.from_text(rows.schema.text), rows.payloads()[0], 1)


def batch_and_back(batch):
    rows = encode_batch(batch, None)
    return decode_batch(Schema.from_text(rows.schema.text), rows.payloads(), range(1, len(rows) + 1))


def same_array(one, other):
    """Equal dtype, shape and bytes; the values' order in memory does not count."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def refusal(call, *args):
    with pytest.raises(SchemaError) as caught:
        call(*args, None)
    return caught.value


def undecodable(schema, payload, index=7):
    """The reason for which the payload is refused, alone and as the second of a batch."""
    with pytest.raises(RecordDecodeError) as alone:
        decode_record(schema, payload, index)
    with pytest.raises(RecordDecodeError) as together:
        decode_batch(schema, [payload], np.array([index]))
    assert alone.value.index == together.value.index == index
    assert alone.value.reason == together.value.reason
    return alone.value.reason


NAN32 = np.array([0x7FA0DEAD, 0xFFC00001, 0x80000000], "u4").view("f4")
NAN64 = np.array([0x7FF0DEADBEEF0001, 0x7FF0000000000000, 0x8000000000000000], "u8").view("f8")

ARRAYS = {
    "bool": np.array([True, False]),
    "uint8 frames": np.arange(84 * 84 * 4, dtype="u4").astype("u1").reshape(84, 84, 4),
    "int8": np.array([-128, 127], "i1"),
    "int16": np.array([-(2**15), 5], "i2"),
    "int64 past 2**53": np.array([2**53 + 1, -(2**63)]),
    "uint64": np.array([2**64 - 1], "u8"),
    "float16 subnormal": np.array([1, 0x8001, 0x7E01], "u2").view("f2"),
    "float32 nan payloads": NAN32,
    "float64 nan payloads, inf, -0.0": NAN64,
    "complex64": NAN32[:2].view("c8"),
    "complex128": np.array([complex(float("nan"), -0.0)]),
    "str": np.array(["ß", "日本語", "a\0"]),
    "empty str": np.str_(""),
    "bytes": np.array([b"\0a", b"b\0\0"]),
    "datetime64": np.array(["2024-02-29T12:00:01", "NaT"], "M8[ms]"),
    "timedelta64": np.array([5, -5], "m8[25s]"),
    "scalar": np.float32(1.5),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_dtypes_are_not_widened(array):
    """Every dtype comes back as itself, bit by bit, alone and in a batch."""
    assert same_array(there_and_back({"x": array})["x"], np.asarray(array))
    assert same_array(batch_and_back({"x": np.stack([array, array])})["x"], np.stack([array, array]))


PLAIN = [True, False, 0, -(2**63), 2**63 - 1, 1.5, float("inf"), 1j, "", "日本\0語", "\ud800", b"", b"\0\xff", None, []]
PLAIN += [(), [1, (2, "x", [None, (), {"k": (b"", 2**64 - 1)}])], ([1.5], True), {}]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_python_values_keep_their_type(value):
    """A Python scalar, text, bytes, None, list, tuple or empty dict comes back equal and of its own type."""
    found = there_and_back({"x": value})["x"]
    assert (found, type(found), repr(found)) == (value, type(value), repr(value))


def test_negative_zero_and_nan_survive():
    """The sign of a Python -0.0 and a NaN's bits are kept."""
    found = there_and_back({"z": -0.0, "n": float(NAN64[0])})
    assert np.array([found["z"], found["n"]]).tobytes() == np.array([-0.0, NAN64[0]]).tobytes()


BASE = np.arange(24, dtype="f4").reshape(4, 6)
LAYOUTS = {
    "plain": BASE,
    "fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "every second row": BASE[::2],
    "reversed columns": BASE[:, ::-1],
    "broadcast": np.broadcast_to(BASE[0], (4, 6)),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), "u1")[1:].view("f4").reshape(4, 6),
    "read-only": np.frombuffer(BASE.tobytes(), "f4").reshape(4, 6),
    "no dimension": np.array(7.5),
    "empty": np.zeros((0,)),
    "empty rows": np.zeros((0, 3)),
    "empty in the middle": np.zeros((2, 0, 3)),
    "large fortran": np.asfortranarray(np.arange(4096.0).reshape(64, 64)),
}


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_memory_layouts_keep_values(array):
    """Values and shape do not depend on how the array lies in memory, alone and in a batch."""
    assert same_array(there_and_back({"x": array})["x"], array)
    found = batch_and_back([{"x": array}] * 3)["x"]
    assert same_array(found, np.stack([array] * 3))


@pytest.mark.parametrize("array", [a for a in LAYOUTS.values() if a.size and a.ndim], ids=str)
def test_batches_of_any_layout_split(array):
    """A batch array of any memory layout is cut along its first dimension, with no copy asked of the user."""
    rows = encode_batch({"x": array}, None)
    assert rows.payloads() == [np.ascontiguousarray(row).tobytes() for row in array]


def test_big_endian_becomes_native():
    """Big-endian arrays keep their values and come back in the machine's byte order."""
    assert same_array(there_and_back({"x": BASE.astype(">f4")})["x"], BASE)
    assert same_array(batch_and_back({"x": BASE.astype(">f4")})["x"], BASE)


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("extra", [{}, {"t": "x"}, {"y": np.zeros(2000)}], ids=["alone", "with text", "beside large"])
def test_decoded_arrays_are_the_callers_own(size, extra):
    """Decoded arrays are writable, contiguous, and share memory with nothing."""
    record = {"x": np.ones(size, "i2"), "b": np.ones(size, bool), **extra}
    one, other = batch_and_back([record, record]), there_and_back(record)
    for array in (one["x"], one["b"], other["x"], other["b"]):
        assert array.flags.writeable
        assert array.flags.c_contiguous
    one["x"][0] = 7
    assert one["x"][1].tolist() == [1] * size


def test_encoding_takes_a_copy():
    """What the user does to an array after the call does not reach the encoded rows."""
    array = np.zeros((2, 3))
    rows = encode_batch({"x": array}, None)
    array[:] = 1
    assert rows.payloads() == [bytes(24)] * 2


def test_bool_bytes_become_proper_bools():
    """A bool array over stray bytes (a 0/255 mask viewed as bool) comes back as plain True and False."""
    found = batch_and_back({"x": np.array([0, 255, 1], "u1").view(bool)})["x"]
    assert found.view("u1").tolist() == [0, 1, 1]


def test_scalars_of_batch_become_arrays():
    """In a batch Python scalars are arrays of bool, int64, float64 and complex128."""
    found = batch_and_back([{"b": True, "i": 1, "f": 2.0, "c": 3j}] * 2)
    assert [(k, v.dtype.name, v.tolist()) for k, v in found.items()] == [
        ("b", "bool", [True, True]),
        ("c", "complex128", [3j, 3j]),
        ("f", "float64", [2.0, 2.0]),
        ("i", "int64", [1, 1]),
    ]


def test_nested_keys_are_not_mixed_up():
    """The key "a/b" and a→b are different leaves, and an empty dict deep down stays."""
    record = {"a/b": 1, "a": {"b": 2, "c": {"d": {"e": {}}}}, "": {"": 3}}
    assert there_and_back(record) == record


def test_record_without_leaves_is_stored():
    """An empty dict is a record like any other, of no bytes."""
    assert (encode_record({}, None).payloads(), there_and_back({}), batch_and_back([{}, {}])) == ([b""], {}, {})


def test_all_batch_forms_are_equal():
    """A dict of columns, a list of records and single records give the same bytes under the same schema."""
    records = [{"i": np.int64(k), "t": "x" * k, "n": {"p": k / 2}, "o": [k, None]} for k in range(3)]
    columns = {"i": np.arange(3), "t": ["", "x", "xx"], "n": {"p": [0.0, 0.5, 1.0]}, "o": [[k, None] for k in range(3)]}
    one, other = encode_batch(records, None), encode_batch(columns, None)
    assert one.payloads() == other.payloads() == [encode_record(r, one.schema).payloads()[0] for r in records]
    assert one.schema == other.schema == encode_record(records[0], None).schema


def test_columns_of_dicts_are_transposed():
    """A list of dicts as a leaf of a batch is one nested dict for each record."""
    found = batch_and_back({"a": [{"b": 1, "c": "x"}, {"b": 2, "c": "y"}]})
    assert (found["a"]["b"].tolist(), found["a"]["c"]) == ([1, 2], ["x", "y"])


def test_given_schema_is_checked():
    """A record of another schema is refused, and the path and both sides are named."""
    schema = encode_record({"a": {"b": np.zeros(4, "f4")}}, None).schema
    with pytest.raises(SchemaError) as caught:
        encode_batch({"a": {"b": np.zeros((3, 4))}}, schema)
    assert caught.value.path == "a/b"
    assert (caught.value.expected, caught.value.found) == ("numpy float32 (4,)", "numpy float64 (4,)")


def test_given_schema_is_kept():
    """Rows that fit a given schema carry that very object, whose layout is worked out already."""
    schema = encode_record({"a": 1, "b": "x"}, None).schema
    assert encode_record({"b": "y", "a": 2}, schema).schema is schema


# Refusals at the write


def test_ragged_leaf_is_refused_by_name():
    """Records of a list with different shapes are refused by path, both shapes, and the record's place."""
    error = refusal(encode_batch, [{"a": {"tokens": np.zeros(n)}} for n in (0, 3, 5)])
    assert (error.path, error.expected) == ("a/tokens", "numpy float64 (0,)")
    assert error.found == "numpy float64 (3,) (record 1 of the batch)"


def test_extra_key_is_refused_by_name():
    """A key that the first record of a list lacks is named."""
    error = refusal(encode_batch, [{"a": 1}, {"a": 1, "b": "x"}])
    assert (error.path, error.expected, error.found) == ("b", "nothing", "text (record 1 of the batch)")


def test_missing_key_is_refused_by_name():
    """A key that a later record of a list lacks is named, nothing is filled in."""
    error = refusal(encode_batch, [{"a": 1, "b": {"c": 1}}, {"a": 1, "b": {}}])
    assert (error.path, error.expected, error.found) == ("b/c", "Python int", "nothing (record 1 of the batch)")


MIXED = [
    (1, 1.0),
    (True, 1),
    ("a", b"a"),
    (np.float32(1), 1.0),
    (1, {"x": 1}),
    ({"x": 1}, 1),
    ({}, {"x": 1}),
    (None, 1),
]


@pytest.mark.parametrize("pair", MIXED, ids=str)
def test_mixed_column_is_refused(pair):
    """Values of two kinds in one leaf are refused, not converted."""
    error = refusal(encode_batch, {"q": list(pair)})
    assert error.path.split("/")[0] == "q"
    assert error.found.endswith("(record 1 of the batch)")


def test_unequal_columns_are_refused_by_name():
    """Columns of unequal length are refused with both lengths; nothing is cut."""
    error = refusal(encode_batch, {"a": np.zeros(3), "b": {"c": ["x", "y"]}})
    assert (error.path, error.expected, error.found) == ("b/c", "3 records, as in 'a'", "2 records")


class Odd:
    """A type that nobody can store."""

    def __repr__(self):
        return "Odd()"  # one name in every worker of a parallel run


UNSTORABLE = {
    "object array": (np.array(["ab", {}], dtype=object), "numpy object (2,)"),
    "structured array": (np.zeros(2, "i4,f4"), "(2,)"),
    "masked array": (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
    "long double": (np.longdouble(1), "numpy"),
    "list of arrays": ([np.zeros(2)], "ndarray"),
    "set": ({1}, "set"),
    "instance": (Odd(), "Odd"),
    "int past int64": (2**63, "larger int"),
    "int past uint64 in a list": ([2**64], "64 bits"),
    "number as key": ({1: 2}, "the key 1"),
    "number as key in a list": ([{1: 2}], "not str"),
    "bytearray in a list": ([bytearray(b"x")], "bytearray"),
    "msgpack extension": ([msgpack.ExtType(1, b"")], "ExtType"),
    "subclass of int": (type("Action", (int,), {})(3), "Action"),
}


@pytest.mark.parametrize(("value", "found"), UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_unstorable_values_are_refused_by_name(value, found):
    """What cannot come back as it went in is refused at the write, with its path and what it is."""
    error = refusal(encode_record, {"a/b": {"x": value}})
    assert error.path == "a~1b/x"
    assert found in error.found


def test_endless_nesting_is_refused():
    """Dicts and lists that contain themselves are refused, without a RecursionError."""
    loop, ring = {}, []
    loop["x"] = loop
    ring.append(ring)
    assert refusal(encode_record, loop).expected == "at most 64 nested dicts"
    assert refusal(encode_record, {"r": ring}).found == "nested deeper than 64"


@pytest.mark.parametrize("value", [3, None, "text", b"x", np.zeros(3), [1], [[]], [{"a": 1}, 5], Odd()], ids=str)
def test_other_types_are_argument_errors(value):
    """A batch that is no dict, TensorDict or list of them is an argument of the wrong type."""
    with pytest.raises(ArgumentTypeError, match="batch must be"):
        encode_batch(value, None)


@pytest.mark.parametrize("value", [3, None, "text", [{"a": 1}], np.zeros(3)], ids=str)
def test_record_must_be_a_dict(value):
    """A record that is neither dict nor TensorDict is an argument of the wrong type, a list of one too."""
    with pytest.raises(ArgumentTypeError, match="record must be"):
        encode_record(value, None)


@pytest.mark.parametrize("batch", [[], (), {}, {"a": {}}, {"a": []}, {"a": np.zeros((0, 3)), "b": []}], ids=str)
def test_empty_batch_is_an_argument_error(batch):
    """A batch without a record is refused in every form."""
    with pytest.raises(ArgumentError, match="at least one record"):
        encode_batch(batch, None)


@pytest.mark.parametrize("value", [1, "text", None, np.float32(1), np.array(1)], ids=repr)
def test_leaf_without_batch_dimension_is_refused(value):
    """A value that has no leading dimension is not spread over the batch."""
    assert refusal(encode_batch, {"a": value}).expected == "a leading batch dimension, or a list"


# Rows


RECORDS = {
    "small": {"x": np.arange(3, dtype="i2")},
    "large": {"x": np.arange(5000, dtype="i2")},
    "text": {"x": np.arange(3, dtype="i2"), "t": "naïve"},
    "nothing": {},
}


@pytest.mark.parametrize("size", [10, 5_000, 300_000])
def test_pieces_are_what_is_packed(size):
    """Whatever the size of a record: of several to a piece, or one."""
    rows = encode_batch({"x": np.arange(40 * size, dtype=np.uint32).astype(np.uint8).reshape(40, size)}, None)
    pieces = list(rows.pieces(b"p", 3, 38))
    assert b"".join(pieces) == rows.packed(b"p", 3, 38)
    assert len(pieces) == {10: 1, 5_000: 1, 300_000: 35}[size]


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
@pytest.mark.parametrize("cut", [(0, None), (1, 3), (2, 2), (3, 99)], ids=str)
def test_packed_is_payloads_in_resp(record, cut):
    """`packed` holds every payload of the slice as a bulk string behind the constant part."""
    rows = encode_batch([record] * 5, None)
    chosen = rows.payloads(*cut)
    assert chosen == rows.payloads()[slice(*cut)]
    expected = b"".join(b"*1\r\n$%d\r\n%b\r\n" % (len(p), p) for p in chosen)
    assert rows.packed(b"*1\r\n", *cut) == expected


def test_sizes_are_those_of_payloads():
    """`len`, `sizes`, `nbytes` and `largest` say what the payloads say."""
    for rows in (encode_batch({"t": ["a", "bbb", ""], "i": [1, 2, 3]}, None), encode_batch({"i": [1, 2, 3]}, None)):
        sizes = [len(p) for p in rows.payloads()]
        assert (len(rows), rows.sizes, rows.nbytes, rows.largest) == (3, sizes, sum(sizes), max(sizes))


# Malformed payloads


FIXED = encode_record({"x": np.zeros(4, "f4"), "d": True}, None).schema
TEXTS = encode_record({"x": np.zeros(2, "i2"), "s": "a", "t": "b"}, None).schema
OBJECT = encode_record({"o": None}, None).schema


@pytest.mark.parametrize("payload", [b"", b"x" * 16, b"x" * 18], ids=len)
def test_wrong_length_is_a_decode_error(payload):
    """A fixed record of another length is refused with both lengths."""
    assert undecodable(FIXED, payload) == f"{len(payload)} bytes, expected 17"


def u32(*numbers):
    return np.array(numbers, "<u4").tobytes()


FALSE = {
    "nothing": b"",
    "short head": u32(0, 0),
    "too little": u32(1, 0) + bytes(4),
    "too much": u32(0, 0) + bytes(5),
    "huge": u32(2**32 - 1, 2**32 - 1) + bytes(4),
    "a sum that wraps": u32(2**32 - 1, 1) + bytes(4),
}


@pytest.mark.parametrize("payload", FALSE.values(), ids=FALSE.keys())
def test_false_lengths_are_decode_errors(payload):
    """Lengths that do not add up to the payload's are refused."""
    assert "bytes, " in undecodable(TEXTS, payload)


def test_bad_utf8_names_its_leaf():
    """Text that is not UTF-8 is refused by record and leaf."""
    assert undecodable(TEXTS, u32(1, 1) + bytes(4) + b"a\xff").startswith("leaf 't': 'utf-8' codec")


def test_bad_unicode_in_arrays_is_refused():
    """A numpy str with a code point that is none is refused, instead of failing when somebody looks at it."""
    schema = encode_record({"x": np.array(["ab"])}, None).schema
    assert undecodable(schema, u32(65, 0x110000)) == "leaf 'x': not Unicode"


NESTED = b"\xdd\x00\x10\x00\x00"  # an array that claims 2**20 elements
CELLS = {
    "nothing": b"",
    "never used byte": b"\xc1",
    "bytes after the value": b"\xc0\xc0",
    "cut": b"\x92\xc0",
    "10,000 levels": b"\x91" * 10_000 + b"\xc0",
    "100 levels": b"\x91" * 100 + b"\xc0",
    "array of 2**32": b"\xdd\xff\xff\xff\xff" + b"\xc0" * 5000,
    "map of 2**32": b"\xdf\xff\xff\xff\xff" + b"\xc0" * 5000,
    "bytes of 2**32": b"\xc6\xff\xff\xff\xff" + b"\xc0" * 5000,
    "1,000 levels of 2**20": NESTED * 1000 + b"\xc0" * 2**20,
    "200,000 levels of 2**20": NESTED * 200_000,
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "unknown extension": b"\xc7\x00\x05",
    "mark of a tuple alone": b"\xc7\x00\x01",
    "mark of a tuple as key": b"\x81\xc7\x00\x01\xc0",
    "mark of a tuple inside": b"\x92\xc0\xc7\x00\x01",
    "number as key": b"\x81\x01\x01",
    "list as key": b"\x81\x90\x01",
    "bytes as key": b"\x81\xc4\x01a\x01",
    "bad utf-8": b"\xa1\xff",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_malformed_msgpack_is_a_decode_error(cell):
    """Bytes that are not msgpack of a plain value are refused by record and leaf, whatever lengths they claim."""
    assert undecodable(OBJECT, u32(len(cell)) + cell).startswith("leaf 'o': ")


def test_bad_record_is_named_in_batch():
    """In a batch the index of the bad record is given, and without it the rest decodes."""
    good = encode_record({"x": np.zeros(2, "i2"), "s": "a", "t": "b"}, TEXTS).payloads()[0]
    with pytest.raises(RecordDecodeError) as caught:
        decode_batch(TEXTS, [good, good[:-1] + b"\xff", b""][:2], [11, 12])
    assert caught.value.index == 12
    assert decode_batch(TEXTS, [good, good], [11, 13])["s"] == ["a", "a"]


def test_empty_list_of_payloads_decodes():
    """No payloads give columns of length 0 with dtype and shape."""
    found = decode_batch(TEXTS, [], [])
    assert (found["x"].dtype, found["x"].shape, found["t"]) == (np.int16, (0, 2), [])


def test_codec_imports_no_torch_itself():
    """Encoding and decoding numpy data imports neither torch nor tensordict."""
    code = (
        "import sys, numpy as np\n"
        "from redis_replay import _decode as d, _encode as e\n"
        "rows = e.encode_batch([{'a': np.zeros(3), 'b': 'x', 'c': [1]}] * 2, None)\n"
        "d.decode_batch(rows.schema, rows.payloads(), [1, 2])\n"
        "assert not {'torch', 'tensordict'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr == b""
