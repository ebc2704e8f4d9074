"""The schema: its text, its hash, what `check` says, and what `from_text` refuses."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from redis_replay._encode import encode_batch, encode_record
from redis_replay._schema import MAX_TEXT, Leaf, Schema, check, path_text
from redis_replay.exceptions import RecordDecodeError, SchemaError

OBS = Leaf(("obs",), "numpy", "<f4", (4,))
DONE = Leaf(("next", "done"), "python", "bool")
NOTE = Leaf(("note",), "text")


def schema_of(record):
    return encode_record(record, None).schema


def text_of(*rows, root="dict"):
    return json.dumps({"root": root, "leaves": rows}, separators=(",", ":"))


def refused(expected, found):
    with pytest.raises(SchemaError) as caught:
        check(expected, found)
    return caught.value.path, caught.value.expected, caught.value.found


def test_order_of_leaves_does_not_matter():
    """Two schemas of the same leaves are equal, in whatever order the leaves were given."""
    one, other = Schema("dict", (OBS, DONE, NOTE)), Schema("dict", (NOTE, OBS, DONE))
    assert (one, one.text, one.hash) == (other, other.text, other.hash)


def test_order_of_keys_does_not_matter():
    """Records whose keys were set in another order have one schema."""
    assert schema_of({"a": 1, "b": {"c": 2.0, "d": "x"}}) == schema_of({"b": {"d": "y", "c": 1.0}, "a": 5})


def test_text_is_canonical_ascii_json():
    """The text is compact JSON in ASCII, sorted by path, as written down here."""
    schema = Schema("dict", (OBS, Leaf(("é",), "bytes")))
    assert schema.text == '{"root":"dict","leaves":[[["obs"],"numpy","<f4",[4]],[["\\u00e9"],"bytes","",[]]]}'


def test_hash_is_the_one_stored_yesterday():
    """The hash of a known schema never changes, as servers hold hashes written by earlier processes."""
    assert Schema("dict", (OBS, DONE, NOTE)).hash == "21dbd3d99e3fb841"


def test_different_schemas_have_different_hashes():
    """A change of path, kind, dtype, shape or root changes the hash."""
    others = [replace(OBS, path=("o",)), replace(OBS, dtype="<f8"), replace(OBS, shape=(4, 1)), Leaf(("obs",), "text")]
    schemas = [Schema("dict", (leaf,)) for leaf in (OBS, *others)]
    schemas.append(Schema("tensordict", (NOTE,)))
    schemas.append(Schema("dict", (NOTE,)))
    assert len({schema.hash for schema in schemas}) == len(schemas)


def test_record_size_counts_every_leaf():
    """A schema of fixed leaves knows the bytes of a record: 16 + 1 here."""
    assert Schema("dict", (OBS, DONE)).record_size == 17


@pytest.mark.parametrize("kind", ["text", "bytes", "object"])
def test_variable_leaves_leave_size_open(kind):
    """With a leaf of variable length the schema states no record size."""
    assert Schema("dict", (OBS, Leaf(("x",), kind))).record_size is None


def test_text_gives_the_schema_back():
    """A schema made from another's text, as str or bytes, equals it."""
    schema = schema_of({"a": np.zeros((2, 0), "M8[ns]"), "b": {"é/~": None, "c": {}}, "d": "x", "e": 1j})
    assert Schema.from_text(schema.text) == schema == Schema.from_text(schema.text.encode())


def test_schema_survives_pickling_and_use():
    """A schema that has been used, so that its layout is cached, pickles to an equal one."""
    schema = schema_of({"a": 1, "b": "x"})
    assert schema.layout.head == 12
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_paths_with_slashes_stay_apart():
    """The key "a/b" and the path a, b are written differently, and so is a key with the escape in it."""
    assert [path_text(p) for p in [("a", "b"), ("a/b",), ("a~1b",)]] == ["a/b", "a~1b", "a~01b"]


def test_slash_key_beside_nested_key():
    """A schema may hold "a/b" and a→b at once, as two leaves."""
    assert [leaf.path for leaf in schema_of({"a/b": 1, "a": {"b": 2}}).leaves] == [("a", "b"), ("a/b",)]


def test_check_lets_equal_schemas_pass():
    """No error for schemas that are equal without being the same object."""
    assert check(Schema("dict", (OBS, DONE)), Schema("dict", (DONE, OBS))) is None


def test_check_names_both_dtypes():
    """A leaf of another dtype is named with both sides in words."""
    found = refused(schema_of({"x": {"obs": np.zeros(4, "f4")}}), schema_of({"x": {"obs": np.zeros((4, 1), "f8")}}))
    assert found == ("x/obs", "numpy float32 (4,)", "numpy float64 (4, 1)")


def test_check_names_the_first_difference():
    """Of several differing leaves the first by path is named."""
    assert refused(schema_of({"b": 1, "a": 1, "c": 1}), schema_of({"b": 1.0, "a": 1, "c": 1.0}))[0] == "b"


def test_check_names_a_missing_leaf():
    """A leaf that the write lacks is an error."""
    assert refused(schema_of({"a": 1, "b": "x"}), schema_of({"a": 1})) == ("b", "text", "nothing")


def test_check_names_an_extra_leaf():
    """A leaf that the buffer does not know is an error."""
    assert refused(schema_of({"a": 1}), schema_of({"a": 1, "b": None})) == ("b", "nothing", "plain object")


def test_check_tells_dict_from_leaf():
    """Where one side has a nested dict the message says so."""
    assert refused(schema_of({"a": b""}), schema_of({"a": {"b": 1}})) == ("a", "bytes", "a dict")


def test_check_tells_roots_apart():
    """A dict and a TensorDict of the same leaves are not the same schema."""
    both = [Schema(root, (NOTE,)) for root in ("dict", "tensordict")]
    assert refused(*both) == ("(record)", "a dict", "a TensorDict")


def test_strings_describe_their_width():
    """Numpy strings are described by their width, which is part of the dtype."""
    assert [Leaf((), "numpy", name, ()).describe() for name in ("<U5", "|S3")] == ["numpy U5 ()", "numpy S3 ()"]


def test_batch_and_record_agree_on_leaves():
    """A batch of int64 numbers, an int64 scalar and an array of shape () are one leaf."""
    schemas = [
        encode_batch({"i": np.arange(3)}, None).schema,
        schema_of({"i": np.int64(1)}),
        schema_of({"i": np.array(1)}),
    ]
    assert schemas == [Schema("dict", (Leaf(("i",), "numpy", "<i8"),))] * 3


def test_oversized_records_are_refused_early():
    """A record beyond the size of a Redis string is refused when its schema is made, without encoding it."""
    with pytest.raises(SchemaError) as caught:
        encode_record({"a": np.broadcast_to(np.uint8(0), (513, 1024, 1024))}, None)
    assert "513, 1024, 1024" in caught.value.found


def test_oversized_sums_are_refused_early():
    """Leaves that fit each for itself, but not together, are refused too."""
    half = np.broadcast_to(np.uint8(0), (300, 1024, 1024))
    with pytest.raises(SchemaError) as caught:
        encode_record({"a": half, "b": half}, None)
    assert caught.value.found == f"{600 * 1024 * 1024} bytes"


GOOD = [["a"], "numpy", "<f4", [2]]

MALFORMED = {
    "nothing": "",
    "not json": "{",
    "not ascii": b"\xff\xfe",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "null": "null",
    "a list": "[]",
    "too deep": "[" * 100_000,
    "too long": " " * (MAX_TEXT + 1),
    "long digits": "1" * 5000,
    "no leaves": text_of(),
    "leaves are a number": '{"root":"dict","leaves":5}',
    "a leaf is a number": text_of(5),
    "a leaf too short": text_of(GOOD[:3]),
    "a key too many": text_of(GOOD)[:-1] + ',"x":1}',
    "a doubled key": '{"root":"dict",' + text_of(GOOD)[1:],
    "blanks": text_of(GOOD).replace(",", ", "),
    "another order": text_of(GOOD, [["A"], "text", "", []]),
    "unknown root": text_of(GOOD, root="list"),
    "root of another type": text_of(GOOD, root=["dict"]),
    "unknown kind": text_of([["a"], "pickle", "", []]),
    "kind of another type": text_of([["a"], ["numpy"], "<f4", []]),
    "path of numbers": text_of([[1], "numpy", "<f4", []]),
    "path is text": text_of(["a", "numpy", "<f4", []]),
    "path too deep": text_of([["a"] * 65, "numpy", "<f4", []]),
    "object dtype": text_of([["a"], "numpy", "|O", []]),
    "structured dtype": text_of([["a"], "numpy", "<f4,<f4", []]),
    "big-endian dtype": text_of([["a"], "numpy", ">f4", []]),
    "void dtype": text_of([["a"], "numpy", "|V4", []]),
    "long double": text_of([["a"], "numpy", "<f16", []]),
    "unknown width": text_of([["a"], "numpy", "<f3", []]),
    "huge string": text_of([["a"], "numpy", "<U999999999", []]),
    "time unit of zero": text_of([["a"], "numpy", "<M8[0s]", []]),
    "unknown time unit": text_of([["a"], "numpy", "<M8[q]", []]),
    "unknown tensor dtype": text_of([["a"], "torch", "qint8", []]),
    "unknown scalar": text_of([["a"], "python", "Decimal", []]),
    "scalar with shape": text_of([["a"], "python", "int", [2]]),
    "text with shape": text_of([["a"], "text", "", [2]]),
    "text with dtype": text_of([["a"], "text", "<f4", []]),
    "negative dimension": text_of([["a"], "numpy", "<f4", [-1]]),
    "dimension is a bool": text_of([["a"], "numpy", "<f4", [True]]),
    "dimension is a float": text_of([["a"], "numpy", "<f4", [2.0]]),
    "many dimensions": text_of([["a"], "numpy", "<f4", [1] * 40]),
    "huge shape": text_of([["a"], "numpy", "<f4", [2**40]]),
    "huge empty shape": text_of([["a"], "numpy", "<f4", [0, 2**62]]),
    "huge sum": text_of([["a"], "numpy", "|u1", [2**29]], [["b"], "numpy", "|u1", [2**29]]),
    "one path twice": text_of([["a"], "bytes", "", []], [["a"], "text", "", []]),
    "leaf below a leaf": text_of([["a"], "text", "", []], [["a", "b"], "text", "", []]),
    "leaf below the root leaf": text_of([[], "empty", "", []], [["a"], "text", "", []]),
    "batch size in a dict": text_of([[], "batch", "", [2]], GOOD),
    "numpy in a tensordict": text_of(GOOD, root="tensordict"),
    "batch size of a leaf": text_of([["a"], "batch", "", [2]], [["a"], "torch", "int8", [2]], root="tensordict"),
    "batch size that does not fit": text_of([[], "batch", "", [3]], [["a"], "torch", "int8", [2]], root="tensordict"),
    "batch sizes that do not fit": text_of(
        [[], "batch", "", [3]], [["a"], "batch", "", [2]], [["a", "b"], "text", "", []], root="tensordict"
    ),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_text_is_a_decode_error(text):
    """Text that is not the canonical text of a schema is refused by a typed error that says why."""
    with pytest.raises(RecordDecodeError, match="malformed schema") as caught:
        Schema.from_text(text)
    assert caught.value.index == 0


def test_good_text_is_not_refused():
    """The text that the malformed ones above are made from is accepted."""
    assert Schema.from_text(text_of(GOOD)).leaves == (Leaf(("a",), "numpy", "<f4", (2,)),)
