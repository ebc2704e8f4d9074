"""Every exception carries its data, makes its text of it, and survives a trip to another process."""

import copy
import inspect
import pickle
import re

import pytest

from redis_replay import embedded, exceptions
from redis_replay.exceptions import ReplayError

CLASSES = sorted(
    (kind for kind in vars(exceptions).values() if inspect.isclass(kind) and issubclass(kind, ReplayError)),
    key=lambda kind: kind.__name__,
)
TREE = exceptions.__doc__
EXAMPLE = {"str": "a text", "int": 7, "float": 0.25, "object": [1, "b"], "dict": {"capacity": (1, 2)}}


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


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_tree_names_it_with_its_other_bases(kind):
    line = next((line for line in TREE.splitlines() if re.search(rf"\b{kind.__name__}\b", line)), None)
    assert line is not None
    for base in kind.__bases__:
        if base is not Exception and not issubclass(base, ReplayError):  # the tree itself shows those
            assert re.search(rf"\b{kind.__name__} \({base.__name__}\)", line)


def test_the_tree_names_nothing_else():
    named = set(re.findall(r"\b\w+Error\b", TREE)) - {"ValueError", "TypeError", "TimeoutError", "RuntimeError"}
    assert named - {"LookupError", "ConnectionError"} == {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_it_says_what_it_means(kind):
    assert inspect.getdoc(kind)


def test_the_embedded_servers_error_is_a_replay_error():
    assert issubclass(embedded.EmbeddedServerError, ReplayError)
