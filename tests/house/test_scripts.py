"""The typed wrappers, the scripts' headers and the table of words say the same."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from redis_replay import _codes, _lua, _scripts, samplers

PACKAGE = Path(_scripts.__file__).parent
WRAPPERS = {
    n: f
    for n, f in vars(_scripts).items()
    if inspect.isfunction(f) and not n.startswith("_") and f.__module__ == _scripts.__name__
}
NUMBERED = ["epoch", "lane", "number", "open_number"]
EXAMPLES = {"str": "x", "int": 1, "bool": True, "Sequence[int]": [1, 2, 3, 4, 5, 6], "bytes": b"$1\r\nx\r\n"}
EXAMPLES["Sequence[str]"] = ["a.1", "b.2"]
EXAMPLES["Mapping[str, tuple[str, bool]]"] = {"capacity": ("1", True)}
EXAMPLES["Mapping[str, str]"] = {"capacity": "1"}


def own_arguments(verb):
    """A script's arguments behind those that every request starts with."""
    names = [slot.name for slot in _lua.header(verb).argv]
    return names[4:] if names[:4] == NUMBERED else names[1:]


def test_every_script_has_a_wrapper():
    """There is one function for each file in lua/, and none besides."""
    assert sorted(WRAPPERS) == list(_lua.verbs())


@pytest.mark.parametrize("verb", _lua.verbs())
def test_wrapper_takes_what_the_header_lists(verb):
    """Keyword-only, by the names of the header, in its order."""
    parameters = inspect.signature(WRAPPERS[verb]).parameters.values()
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert [p.name for p in parameters if (p.name, verb) not in (("n", "add"), ("n", "restore"))] == own_arguments(verb)


@pytest.mark.parametrize("verb", _lua.verbs())
def test_wrapper_fills_every_slot(verb):
    """As many arguments are sent as the header lists, up to its tail."""
    parameters = inspect.signature(WRAPPERS[verb]).parameters.values()
    given = {p.name: EXAMPLES[inspect.formatannotation(p.annotation).strip("'").split(".")[-1]] for p in parameters}
    script = WRAPPERS[verb](**given)
    slots = _lua.header(verb).argv[4 if _lua.header(verb).argv[:2][-1].name == "lane" else 1 :]
    least = sum((slot.last or slot.first) - slot.first + 1 for slot in slots)
    sent = len(script.args) + script.count
    assert sent >= least if any(slot.last == 0 for slot in slots) else sent == least


@pytest.mark.parametrize("verb", _lua.verbs())
def test_every_word_of_a_header_is_known(verb):
    """No script can answer with a word that becomes a ProtocolError."""
    assert set(_lua.header(verb).returns) - _codes.words() == set()


def test_scripts_know_each_sampler():
    """Those of samplers.py, in the list that stored texts are judged by and among the functions that draw."""
    ours = {name for name in samplers.__all__ if name != "Sampler"}
    listed = re.search(r"SAMPLERS = \{(.*?)\}", _lua.load("sample").text, re.DOTALL)[1]
    assert set(re.findall(r"(\w+) = true", listed)) == ours
    assert set(re.findall(r"function samplers\.(\w+)", _lua.load("sample").text)) == ours
    needs_seeds = re.search(r"RANDOM = \{(.*?)\}", _lua.load("sample").text)[1]
    assert set(re.findall(r"(\w+) = true", needs_seeds)) == {name for name in ours if getattr(samplers, name).random}


def test_no_word_is_known_in_vain():
    """The table has no row that no script answers with."""
    assert _codes.words() - {word for verb in _lua.verbs() for word in _lua.header(verb).returns} == set()


def test_unknown_word_is_a_protocol_error():
    """An answer of another version carries the verb and the reply."""
    error = _codes.error("sample", "SURPRISE", "b", ["1"])
    assert (type(error).__name__, error.verb, error.reply) == ("ProtocolError", "sample", ["SURPRISE", "1"])


LAYERS = [
    {"_briefly"},
    {"_error"},
    {"_server_errors", "_checkpoint_errors"},
    {"exceptions", "samplers", "limiters", "_cache", "_clock", "_lua", "_leases", "_foresight", "_draw_thread"},
    {"_ahead", "_keys", "_options", "_types", "_codes", "_plain", "_schema", "_tensors", "_columns", "_limited", "embedded"},
    {"_blocks", "_contents"},
    {"_encode", "_decode", "_reading", "_scripts", "_address", "_rights", "_stored"},
    {"_core", "_steps", "checkpoint"},
    {"_requests", "_burst", "_faults", "_arguments", "_span"},
    {"_ops_read", "_ops_lease", "_ops_wait", "_server_facts"},
    {"_ops_write", "_ops_sample", "_ops_admin", "_ops_doctor", "_wire", "_greet"},
    {"_connection", "_resolve", "_versions"},
    {"_ops_behind"},
    {"_wakeup", "_handle", "_renewal", "_behind"},
    {"_ops_dump", "_ops_load", "_prefetch"},
    {"_mending"},
    {"_ops_repair"},
    {"_runtime"},
    {"_shell", "_saving", "doctor"},
    {"_drawing"},
    {"_sync"},
    {"_async"},
    {"_outbox", "_spaces", "_extras"},
    {"gymnasium", "torch", "stable_baselines3"},  # what other libraries plug in, beside torchrl/ and transfer/
]
TOP = "_async"  # the last of the package itself
PROGRAM = {"_commands", "_crew"}  # of the command line, above the shells
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def imported(module):
    """The modules of the package that a module imports."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "redis_replay":
            for alias in node.names:  # a name of the package itself comes with all that its shells import
                yield alias.name if (PACKAGE / f"{alias.name}.py").exists() else TOP
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("redis_replay."):
            yield node.module.removeprefix("redis_replay.").split(".")[0]


@pytest.mark.parametrize("module", sorted(LEVEL))
def test_imports_point_downwards_only(module):
    """No module imports one of a layer above its own."""
    assert {other for other in imported(module) if LEVEL.get(other, 99) > LEVEL[module]} == set()


@pytest.mark.parametrize("module", [m for m in sorted(LEVEL) if m.startswith("_ops") or m in ("_requests", "_core")])
def test_operations_do_no_io(module):
    """Operations import neither redis nor sockets, threads, event loops or clocks."""
    names = {n.split(".")[0] for n in _plain_imports(module)}
    assert names & {"redis", "socket", "threading", "asyncio", "time", "select", "subprocess"} == set()


def _plain_imports(module):
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_every_module_has_a_layer():
    """A new module is put into the layers on purpose."""
    modules = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__", "cli", "testing"} - PROGRAM
    assert modules == set(LEVEL)


@pytest.mark.parametrize("package", ["redis_replay", "redis_replay.transfer"])
def test_import_is_light(package):
    """To import it brings nothing that is optional."""
    import subprocess
    import sys

    optional = {
        "torch",
        "tensordict",
        "pytest",
        "gymnasium",
        "rich",
        "stable_baselines3",
        "torchrl",
        "h5py",
        "minari",
        "pyarrow",
    }
    code = f"import sys, {package}; print({optional} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
