"""Records, compared value by value, dtypes included."""

import numpy as np


def columns(buffer):
    """What a buffer holds, in order of index: nested dicts of arrays, or of lists of texts."""
    return _stacked([_plain(record) for record in buffer.records()])


def _plain(record):
    return record if isinstance(record, dict) else record.to_dict()


def _stacked(records):
    first = records[0]
    if isinstance(first, dict):
        return {key: _stacked([record[key] for record in records]) for key in first}
    return records if isinstance(first, str) else np.array([np.asarray(record) for record in records])


def same(found, expected):
    """Fails with the path of the first leaf that differs."""
    for path, one, other in _pairs(found, expected):
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None), path
        np.testing.assert_array_equal(one, other, path)


def _pairs(found, expected, path=""):
    if isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key in expected:
            yield from _pairs(found[key], expected[key], f"{path}/{key}")
    else:
        yield path, found, expected
