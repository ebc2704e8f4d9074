"""Files and functions stay small. There is no list of exceptions."""

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "redis_replay").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted((ROOT / "lua").rglob("*.lua"))


def relative(path):
    return str(path.relative_to(ROOT))


def length(path):
    return len(path.read_text("utf-8").splitlines())


def functions(path):
    """Name and length, from `def` to the last line, of each function of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{relative(path)}:{node.name}", node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", PACKAGE, ids=relative)
def test_a_python_file_has_at_most_400_lines(path):
    assert length(path) <= 400


@pytest.mark.parametrize("path", SCRIPTS, ids=relative)
def test_a_lua_file_has_at_most_120_lines(path):
    assert length(path) <= 120


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_a_test_file_has_at_most_500_lines(path):
    assert length(path) <= 500


def test_conftest_has_at_most_300_lines():
    assert length(ROOT / "tests" / "conftest.py") <= 300


def test_no_function_has_more_than_60_lines():
    assert [found for path in PACKAGE for found in functions(path) if found[1] > 60] == []


def test_a_function_has_at_most_10_lines_in_the_median():
    assert statistics.median(lines for path in PACKAGE for _, lines in functions(path)) <= 10


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="NO README.md")
def test_the_readme_has_200_to_600_words():
    assert 200 <= len((ROOT / "README.md").read_text("utf-8").split()) <= 600
