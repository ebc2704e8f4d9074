"""Every exception carries its data, makes its text of it, and survives a trip to another process."""

import copy
import inspect
import pickle
import re
import threading

import pytest

from redis_replay import embedded, exceptions
from redis_replay.exceptions import ReplayError

CLASSES = sorted(
    (kind for kind in vars(exceptions).values() if inspect.isclass(kind) and issubclass(kind, ReplayError)),
    key=lambda kind: kind.__name__,
)
TREE = exceptions.__doc__
EXAMPLE = {"str": "a text", "int": 7, "float": 0.25, "object": [1, "b"], "dict": {"capacity": (1, 2)}, "tuple": ("+a", "~b")}


def attributes(kind):
    """The data that a class declares, with an example of each."""
    declared = {} if kind is not ReplayError else {"reason": str}
    for base in kind.__mro__[: kind.__mro__.index(ReplayError)]:
        declared |= inspect.get_annotations(base, eval_str=True)
    assert declared, f"{kind.__name__} declares no data"
    return {name: EXAMPLE[getattr(hint, "__origin__", hint).__name__] for name, hint in declared.items()}


def made(kind):
    return kind(**attributes(kind))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_it_carries_its_data_as_attributes(kind):
    assert {name: getattr(made(kind), name) for name in attributes(kind)} == attributes(kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_its_text_is_made_from_its_data(kind):
    fields = set(re.findall(r"\{(\w+)", kind.text))
    shown = {name: repr(value) if f"{{{name}!r}}" in kind.text else str(value) for name, value in attributes(kind).items()}
    shown |= {name: " ".join(value) for name, value in attributes(kind).items() if isinstance(value, tuple)}
    assert fields
    for name in fields & set(shown):
        assert shown[name] in str(made(kind))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("trip", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_it_pickles_and_copies_whole(kind, trip):
    error = made(kind)
    twin = trip(error)
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


@pytest.mark.parametrize("trip", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_what_was_set_on_it_later_goes_along(trip):
    """How many records a long write had done, and notes; what belongs to the call alone does not."""
    error = made(exceptions.OutcomeUnknownError)
    error.done, error.question, error.ask = 20_000, threading.Lock(), threading.Lock()
    error.add_note("of the night run")
    twin = trip(error)
    assert (twin.done, twin.__notes__, twin.ask, twin.question) == (20_000, ["of the night run"], None, None)


def test_an_argument_that_does_not_pickle_goes_as_text():
    """An error about a lock or a lambda comes out of a process pool like any other."""
    lock = threading.Lock()
    error = exceptions.ArgumentTypeError(name="cancel_event", allowed="None or anything with is_set()", found=lock)
    twin = pickle.loads(pickle.dumps(error))
    assert (twin.name, str(twin), copy.copy(error).found, copy.deepcopy(error).found) == (error.name, str(error), lock, lock)


@pytest.mark.parametrize("found", ["x" * 10**6, list(range(10**6)), 10**5000], ids=["text", "list", "number"])
def test_a_long_argument_is_cut_in_the_text(found):
    """The attribute has it whole."""
    error = exceptions.ArgumentError(name="capacity", allowed="a whole number", found=found)
    assert (len(str(error)) < 400, error.found) == (True, found)


@pytest.mark.parametrize("kind", [exceptions.NotReadyError, exceptions.ReplayTimeoutError, exceptions.StalledError])
def test_what_is_lent_is_told_where_something_is(kind):
    """Why nothing can be drawn from a buffer that has records."""
    data = attributes(kind)
    assert ("7 more are lent" in str(kind(**data)), "lent" in str(kind(**data | {"leased": 0}))) == (True, False)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_tree_names_it_with_its_other_bases(kind):
    line = next((line for line in TREE.splitlines() if re.search(rf"\b{kind.__name__}\b", line)), None)
    assert line is not None
    for base in kind.__bases__:
        if base is not Exception and not issubclass(base, ReplayError):  # the tree itself shows those
            assert re.search(rf"\b{kind.__name__} \({base.__name__}\)", line)


def test_the_tree_names_nothing_else():
    named = set(re.findall(r"\b\w+Error\b", TREE)) - {
        "ValueError",
        "TypeError",
        "TimeoutError",
        "RuntimeError",
        "FileNotFoundError",
    }
    assert named - {"LookupError", "ConnectionError"} == {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_it_says_what_it_means(kind):
    assert inspect.getdoc(kind)


def test_the_embedded_servers_error_is_a_replay_error():
    assert issubclass(embedded.EmbeddedServerError, ReplayError)
