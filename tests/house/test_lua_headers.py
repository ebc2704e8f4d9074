"""The header of each script says what the script does: its slots, its replies."""

import re

import pytest

from redis_replay import _codes, _keys, _lua

VERBS = _lua.verbs()
KEY_LIST = "the list of include/keys.lua"
WORD = re.compile(r"\{\s*'([A-Z][A-Z_]+)'")
UNITS = re.compile(r"_(us|ms|s|bytes)$")


def own_lines(verb):
    """The script's own code, without what it includes and without comments."""
    lines = _lua.expand(_lua.folder(), f"{verb}.lua")
    return [text.partition("--")[0] for file, _, text in lines if file == f"{verb}.lua"]


def comments(verb):
    lines = _lua.expand(_lua.folder(), f"{verb}.lua")
    return [text for file, _, text in lines if file == f"{verb}.lua" and text.startswith("--")]


def used(verb, table):
    """The numbers of the KEYS or ARGV slots that the script's own code names."""
    return {int(number) for line in own_lines(verb) for number in re.findall(rf"\b{table}\[(\d+)\]", line)}


def listed(slots):
    return [number for slot in slots for number in range(slot.first, (slot.last or slot.first) + 1)]


def test_there_are_scripts():
    assert VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_first_line_names_the_verb_and_its_purpose(verb):
    header = _lua.header(verb)
    assert header.verb == verb
    assert header.purpose


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_are_listed_without_a_gap(verb):
    assert listed(_lua.header(verb).argv) == list(range(1, len(listed(_lua.header(verb).argv)) + 1))


@pytest.mark.parametrize("verb", VERBS)
def test_only_the_last_argument_stands_for_the_rest(verb):
    assert all(slot.last for slot in _lua.header(verb).argv[:-1])


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_has_a_name_and_a_type(verb):
    assert [slot for slot in _lua.header(verb).argv if not re.fullmatch(r"[a-z_]+", slot.name) or not slot.type] == []


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_that_are_used_are_listed(verb):
    assert used(verb, "ARGV") <= set(listed(_lua.header(verb).argv))


@pytest.mark.parametrize("verb", VERBS)
def test_keys_are_those_of_the_one_list(verb):
    header = _lua.header(verb)
    if header.keys:
        assert listed(header.keys) == sorted(used(verb, "KEYS"))
    else:
        assert any(KEY_LIST in line for line in comments(verb))


def test_the_one_list_of_keys_is_that_of_the_python_side():
    piece = _lua.folder().joinpath("include", "keys.lua").read_text("utf-8")
    for number, name in enumerate(_keys.NAMES, 1):
        assert re.search(rf"KEYS\[{number}\].*\b{name}\b", piece), (number, name)


@pytest.mark.parametrize("verb", VERBS)
def test_every_word_that_is_listed_is_in_the_script(verb):
    assert set(_lua.header(verb).returns) - set(re.findall(r"'([A-Z][A-Z_]+)'", _lua.load(verb).text)) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_word_that_the_script_itself_answers_is_listed(verb):
    words = {word for line in own_lines(verb) for word in WORD.findall(line)} & _codes.words()
    assert words - set(_lua.header(verb).returns) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_listed_word_is_known_to_the_python_side(verb):
    assert set(_lua.header(verb).returns) - _codes.words() == set()


def test_every_known_word_is_answered_by_a_script():
    assert _codes.words() - {word for verb in VERBS for word in _lua.header(verb).returns} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_that_writes_or_publishes_says_what(verb):
    header, code = _lua.header(verb), "\n".join(own_lines(verb))
    assert header.writes or not re.search(r"'(HSET|HINCRBY|HDEL|X(ADD|DEL|TRIM|GROUP)|[ZS](ADD|REM)|DEL|UNLINK|RENAME)'", code)
    assert header.publishes or "'PUBLISH'" not in code


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_of_time_and_size_name_their_unit(verb):
    for slot in _lua.header(verb).argv:
        if re.search(r"(timeout|interval|lease|poll|size_limit)", slot.name) and slot.type != "text":
            assert UNITS.search(slot.name), slot


PIECES = sorted(piece.name for piece in _lua.folder().joinpath("include").iterdir())


@pytest.mark.parametrize("piece", PIECES)
def test_every_include_says_what_it_is_for(piece):
    first = _lua.folder().joinpath("include", piece).read_text("utf-8").splitlines()[0]
    assert first.startswith(f"-- {piece.removesuffix('.lua')}: ")


def test_every_include_is_used():
    used_pieces = {file for verb in VERBS for file, _, _ in _lua.expand(_lua.folder(), f"{verb}.lua")}
    assert {f"include/{piece}" for piece in PIECES} - used_pieces == set()
