"""Keys and channels are spelled in one module."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted(path for path in (ROOT / "redis_replay").rglob("*.py") if path.name not in ("_keys.py", "testing.py"))
SCRIPTS = sorted((ROOT / "lua").rglob("*.lua"))


def strings(path):
    """Every string of a Python file that is no docstring, parts of f-strings included, with its line."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            yield node.lineno, value


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_spells_a_key(path):
    assert [found for found in strings(path) if re.search(r"\brr:", found[1])] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_script_makes_a_key(path):
    code = [line.partition("--")[0] for line in path.read_text("utf-8").splitlines()]
    assert [line for line in code if "rr:" in line] == []
