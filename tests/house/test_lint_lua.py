"""The Lua lint sees joined scripts, and tells where a finding stands."""

import shutil

import pytest

from tests import _server
from tests.house import lint_lua


@pytest.fixture
def lint(tmp_path):
    """Lints `verb…` files and `include` files given by name."""
    if shutil.which("luacheck") is None:
        _server.missing("luacheck")

    def run(**texts):
        (tmp_path / "include").mkdir()
        for file, text in texts.items():
            folder = tmp_path if file.startswith("verb") else tmp_path / "include"
            (folder / f"{file}.lua").write_text(text)
        return lint_lua.lint(tmp_path, tuple(sorted(file for file in texts if file.startswith("verb"))))

    return run


PIECE = "local function used(x)\n  return x\nend\nlocal function other(x)\n  return x\nend\n"


def test_clean_scripts_give_nothing(lint):
    assert lint(verb="-- @include piece\nreturn used(other(KEYS[1]))\n", piece=PIECE) == []


def test_a_function_that_another_script_uses_may_be_unused(lint):
    one, two = "-- @include piece\nreturn used(KEYS[1])\n", "-- @include piece\nreturn other(ARGV[1])\n"
    assert lint(verb1=one, verb2=two, piece=PIECE) == []


def test_a_function_that_no_script_uses_is_told_once(lint):
    text = "-- @include piece\nreturn used(KEYS[1])\n"
    assert lint(verb1=text, verb2=text, piece=PIECE) == ["lua/include/piece.lua:4: (W211) unused function 'other'"]


def test_an_unused_local_of_a_script_is_told(lint):
    assert lint(verb="local a = 1\nreturn 2\n") == ["lua/verb.lua:1: (W211) unused variable 'a'"]


def test_an_undefined_global_is_told_where_it_stands(lint):
    found = lint(verb="-- @include piece\nreturn f()\n", piece="\nlocal function f()\n  return nowhere\nend\n")
    assert found == ["lua/include/piece.lua:3: (W113) accessing undefined variable 'nowhere'"]


@pytest.mark.parametrize("name", ["os", "print", "require", "struct", "cmsgpack", "bit", "server"])
def test_a_global_that_not_every_server_has_is_told(lint, name):
    assert lint(verb=f"return {name}\n") == [f"lua/verb.lua:1: (W113) accessing undefined variable '{name}'"]


def test_a_global_that_is_set_is_told(lint):
    assert lint(verb="x = 1\n") == ["lua/verb.lua:1: (W111) setting non-standard global variable 'x'"]


def test_a_shadowed_name_is_told_with_both_places(lint):
    found = lint(verb="-- @include piece\nlocal a = 1\nreturn a + b\n", piece="local a, b = 1, 2\n")
    assert "lua/verb.lua:2: (W411) variable 'a' was previously defined in include/piece.lua:1" in found


def test_a_syntax_error_is_told(lint):
    assert lint(verb="return (\n") == ["lua/verb.lua:1: (E011) expected expression near <eof>"]
