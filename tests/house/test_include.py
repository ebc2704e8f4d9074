"""How scripts are put together from their includes, and what is refused."""

import hashlib

import pytest

from redis_replay import _lua
from redis_replay._lua import ScriptSourceError


@pytest.fixture
def write(tmp_path):
    """Writes Lua files by name ("verb" or "include/piece") and gives their folder."""

    def files(**texts):
        (tmp_path / "include").mkdir(exist_ok=True)
        for file, text in texts.items():
            folder = tmp_path if file.startswith("verb") else tmp_path / "include"
            (folder / f"{file}.lua").write_text(text)
        return tmp_path

    return files


def test_an_include_stands_before_its_user(write):
    root = write(verb="-- @include piece\nlocal a = 1\nreturn f(a)\n", piece="local function f(x) return x end\n")
    assert _lua.join(root, "verb").text == "local f\ndo\nfunction f(x) return x end\nend\nlocal a = 1\nreturn f(a)\n"


def test_an_include_below_code_is_refused(write):
    root = write(verb="local a = 1\n-- @include piece\nreturn a\n", piece="local b = 1\n")
    with pytest.raises(ScriptSourceError, match=r"^verb\.lua:2: include piece above all code$"):
        _lua.join(root, "verb")


def test_an_include_may_include_others(write):
    root = write(verb="-- @include a\nreturn a()\n", a="-- @include b\nlocal a = b\n", b="local b = 1\n")
    assert _lua.join(root, "verb").text == "local b\ndo\nb = 1\nend\nlocal a\ndo\na = b\nend\nreturn a()\n"


def test_what_no_other_file_uses_stays_in_its_piece(write):
    piece = "local a, b = 1, 2\nlocal c = {\n  a}\nlocal function d() return c end\nlocal function e() return a, b, d end\n"
    scoped = _lua.join(write(verb="-- @include piece\nreturn b + e\n", piece=piece), "verb").text
    assert scoped == (
        "local b, e\ndo\nlocal a a, b = 1, 2\nlocal c = {\n  a}\nlocal function d() return c end\n"
        "function e() return a, b, d end\nend\nreturn b + e\n"
    )


def test_a_local_copy_of_a_global_is_that_global(write, server):
    piece = "local math = math\nlocal function f(x) return math.abs(x) end\n"
    root = write(verb="-- @include piece\nreturn f(-258)\n", piece=piece)
    assert server.client().eval(_lua.join(root, "verb").text, 0) == 258


def test_a_name_without_a_value_is_shared_like_any_other(write, server):
    piece = "local own, first, second -- nil at first\nlocal function set(x) own, first, second = x, x, x end\nset(0)\n"
    text = _lua.join(write(verb="-- @include piece\nset(7)\nreturn {first, second}\n", piece=piece), "verb").text
    assert "local own  -- nil at first\n" in text
    assert server.client().eval(text, 0) == [7, 7]


def test_a_copy_of_a_global_that_others_use_is_refused(write):
    root = write(verb="-- @include piece\nreturn struct\n", piece="local own, struct = 1, struct\n")
    refusal = r"^include/piece\.lua: others use own, struct, so struct cannot be made of another struct$"
    with pytest.raises(ScriptSourceError, match=refusal):
        _lua.join(root, "verb")


def test_a_script_may_have_more_than_200_locals_in_its_pieces(write, server):
    pieces = {f"p{i}": "".join(f"local x{i}_{k} = {k}\n" for k in range(90)) + f"local y{i} = x{i}_7\n" for i in range(4)}
    root = write(verb="".join(f"-- @include {name}\n" for name in pieces) + "return y0 + y1 + y2 + y3\n", **pieces)
    assert server.client().eval(_lua.join(root, "verb").text, 0) == 28


def test_a_piece_that_two_need_appears_once_before_its_first_user(write):
    root = write(
        verb="-- @include a\n-- @include b\nreturn a + b\n",
        a="-- @include shared\nlocal a = shared\n",
        b="-- @include shared\nlocal b = shared\n",
        shared="local shared = 1\n",
    )
    blocks = [f"local {name}\ndo\n{name} = {value}\nend\n" for name, value in (("shared", 1), ("a", "shared"), ("b", "shared"))]
    assert _lua.join(root, "verb").text == "".join(blocks) + "return a + b\n"


def test_a_piece_named_after_a_piece_that_needed_it_appears_once(write):
    root = write(verb="-- @include a\n-- @include b\nreturn a\n", a="-- @include b\nlocal a = b\n", b="local b = 1\n")
    assert _lua.join(root, "verb").text == "local b\ndo\nb = 1\nend\nlocal a\ndo\na = b\nend\nreturn a\n"


def test_equal_lines_of_one_file_all_stay(write):
    root = write(verb="if a then\n  f()\nend\nif b then\n  f()\nend\n")
    assert _lua.join(root, "verb").text == "if a then\n  f()\nend\nif b then\n  f()\nend\n"


def test_comment_lines_and_blank_lines_are_not_sent(write):
    root = write(verb="-- verb: a purpose\n\nlocal a = 1  -- why\n   -- more\n\nreturn a\n")
    assert _lua.join(root, "verb").text == "local a = 1  -- why\nreturn a\n"


def test_sha_is_the_name_that_the_server_gives_the_text(write, server):
    script = _lua.join(write(verb="-- verb: a purpose\nreturn 'ä'\n"), "verb")
    assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()
    assert server.client(decode_responses=True).script_load(script.text) == script.sha


def test_the_same_include_twice_in_a_file_is_refused(write):
    root = write(verb="-- @include a\n\n-- @include a\n", a="local a = 1\n")
    with pytest.raises(ScriptSourceError, match=r"^verb\.lua:3: a is already included on line 1$"):
        _lua.join(root, "verb")


def test_a_missing_include_is_refused(write):
    root = write(verb="-- @include a\n", a="-- x\n-- @include nowhere\n")
    with pytest.raises(ScriptSourceError, match=r"^include/a\.lua:2: there is no file include/nowhere\.lua$"):
        _lua.join(root, "verb")


def test_a_missing_verb_is_refused(write):
    with pytest.raises(ScriptSourceError, match=r"^verb\.lua: there is no file verb\.lua$"):
        _lua.join(write(), "verb")


def test_a_circle_of_includes_is_refused(write):
    root = write(verb="-- @include a\n", a="-- @include b\n", b="-- x\n-- @include a\n")
    circle = r"verb\.lua -> include/a\.lua -> include/b\.lua -> include/a\.lua"
    with pytest.raises(ScriptSourceError, match=rf"^include/b\.lua:2: circle of includes: {circle}$"):
        _lua.join(root, "verb")


def test_a_piece_that_includes_itself_is_refused(write):
    root = write(verb="-- @include a\n", a="-- @include a\n")
    with pytest.raises(ScriptSourceError, match=r"^include/a\.lua:1: circle of includes"):
        _lua.join(root, "verb")


def test_a_source_error_is_an_import_error():
    assert issubclass(ScriptSourceError, ImportError)


def test_every_verb_of_this_installation_loads():
    assert [_lua.load(verb).verb for verb in _lua.verbs()] == list(_lua.verbs())


def test_a_script_is_put_together_once_a_process(write, monkeypatch):
    root = write(verb="return 1\n")
    monkeypatch.setattr(_lua, "folder", lambda: root)
    _lua.load.cache_clear()
    first = _lua.load("verb")
    write(verb="return 2\n")
    assert _lua.load("verb") is first
    _lua.load.cache_clear()


HEADER = """\
-- verb: what it is for
-- KEYS[1]  rr:{NAME}:config    hash    settings, epoch, state
-- KEYS[2]  rr:{NAME}:counters  hash    every counter
-- ARGV[1]  epoch               text    the epoch the caller was opened on
-- ARGV[2]  lease_ms            number, ms
-- ARGV[3..8] seed              int     six of them
-- ARGV[9..]  payload           bytes   the records
-- Returns  OK index…             what was written
--   NOT_READY have need  nothing changed:
--                        and nothing will
--   SHUT | GONE  over
-- Writes   config, counters
--          and records
-- Publishes nothing
-- @include piece
local config = KEYS[1]
-- Returns NOT this
"""


@pytest.fixture
def header(write, monkeypatch):
    monkeypatch.setattr(_lua, "folder", lambda: root)
    root = write(verb=HEADER)
    _lua.header.cache_clear()
    yield _lua.header("verb")
    _lua.header.cache_clear()


def test_header_names_the_verb_and_its_purpose(header):
    assert (header.verb, header.purpose) == ("verb", "what it is for")


def test_header_lists_keys_and_arguments(header):
    assert [tuple(slot) for slot in header.keys] == [
        (1, 1, "rr:{NAME}:config", "hash", "settings, epoch, state"),
        (2, 2, "rr:{NAME}:counters", "hash", "every counter"),
    ]
    assert [tuple(slot) for slot in header.argv] == [
        (1, 1, "epoch", "text", "the epoch the caller was opened on"),
        (2, 2, "lease_ms", "number, ms", ""),
        (3, 8, "seed", "int", "six of them"),
        (9, 0, "payload", "bytes", "the records"),
    ]


def test_header_lists_reply_words(header):
    assert list(header.returns) == ["OK", "NOT_READY", "SHUT", "GONE"]
    assert header.returns["NOT_READY"].startswith("have need")


def test_header_says_what_is_written_and_published(header):
    assert (header.writes, header.publishes) == ("config, counters and records", "nothing")
