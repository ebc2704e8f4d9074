"""Lua scripts: found in the wheel or the checkout, joined with what they include, and made ready to send.

A line `-- @include <name>`, above all code, stands for `lua/include/<name>.lua`. It appears once in a script, before its first
user, and what no other file uses of it is its own: Lua takes 200 local names at a time.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

_INCLUDE = re.compile(r"\s*--\s*@include\s+(\w+)\s*$")
_COMMENT = re.compile(r"\s*--(?!\[=*\[)")
_LOCAL = re.compile(r"^local (?:function (?P<function>\w+)\(|(?P<names>\w+(?:, \w+)*)(?P<value> =)?)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_SLOT = re.compile(r"(KEYS|ARGV)\[(\d+)(\.\.(\d*))?\]\s+(.*)")
_PART = re.compile(r"(Returns|Writes|Publishes)\b\s*(.*)")
_REPLY = re.compile(r"([A-Z][A-Z_]+(?: \| [A-Z][A-Z_]+)*)\b\s*(.*)")
Line = tuple[str, int, str]  # file, line number, text


class ScriptSourceError(ImportError):
    """A script cannot be put together. The text names the file and the line."""


class Script(NamedTuple):
    """What is sent: `text` without comments and blank lines, and `sha`, the name that the server gives it."""

    verb: str
    text: str
    sha: str


class Slot(NamedTuple):
    """KEYS or ARGV `first` to `last` (0: all after); `name` is a key's pattern or an argument's name."""

    first: int
    last: int
    name: str
    type: str
    meaning: str


class Header(NamedTuple):
    """The first comment block of a script. `returns` maps each reply word to its data and meaning."""

    verb: str
    purpose: str
    keys: list[Slot]
    argv: list[Slot]
    returns: dict[str, str]
    writes: str
    publishes: str


@cache
def folder() -> Traversable:
    """The folder `lua`: inside the package in a wheel, beside it in a checkout."""
    inside = files("redis_replay") / "lua"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "lua"


def expand(root: Traversable, file: str) -> Iterator[Line]:
    """Every line of `file` behind those of its includes, comments still there, each piece once."""
    return _expand(root, file, set())


def _expand(root: Traversable, file: str, done: set[str], at: str = "", above: tuple[str, ...] = ()) -> Iterator[Line]:
    if file in above:
        raise ScriptSourceError(f"{at}: circle of includes: {' -> '.join((*above, file))}")
    if file in done:
        return
    done.add(file)
    if not (source := root.joinpath(*file.split("/"))).is_file():
        raise ScriptSourceError(f"{at or file}: there is no file {file}")
    seen: dict[str, int] = {}
    code = False
    for number, text in enumerate(source.read_text("utf-8").splitlines(), 1):
        if not (match := _INCLUDE.match(text)):
            code = code or bool(text.strip() and not _COMMENT.match(text))
            yield file, number, text
        elif code:
            raise ScriptSourceError(f"{file}:{number}: include {match[1]} above all code")
        elif match[1] in seen:
            raise ScriptSourceError(f"{file}:{number}: {match[1]} is already included on line {seen[match[1]]}")
        else:
            seen[match[1]] = number
            yield from _expand(root, f"include/{match[1]}.lua", done, f"{file}:{number}", (*above, file))


def _scoped(file: str, piece: str, shared: Container[str]) -> str:
    """A piece in a block of its own, from which only names come out that others use, too: Lua takes 200 locals at a time."""

    def declare(match: re.Match[str]) -> str:
        names = (match["function"] or match["names"]).split(", ")
        private = [name for name in names if name not in used]
        if private == names:
            return match[0]  # as it stands: in `local struct = struct` the second one is the global
        for name in names if match["value"] else ():
            if re.search(rf"(?<![.\w]){name}\b(?!\s*=)", piece[match.end() :].partition("\n")[0]):
                raise ScriptSourceError(f"{file}: others use {', '.join(names)}, so {name} cannot be made of another {name}")
        kept = f"local {', '.join(private)} " if private else ""
        if not (match["function"] or match["value"]):
            return kept
        return f"{kept}function {names[0]}(" if match["function"] else f"{kept}{', '.join(names)} ="

    declared = [name for match in _LOCAL.finditer(piece) for name in (match["function"] or match["names"]).split(", ")]
    used = [name for name in declared if name in shared]
    body = _LOCAL.sub(declare, piece)
    return f"local {', '.join(used)}\ndo\n{body}end\n" if used else piece


def join(root: Traversable, verb: str) -> Script:
    """The verb's script as it is sent."""
    pieces: dict[str, str] = {}
    for file, _, text in expand(root, f"{verb}.lua"):
        if text.strip() and not _COMMENT.match(text):
            pieces[file] = f"{pieces.get(file, '')}{text.rstrip()}\n"
    words = Counter(chain.from_iterable(set(_WORD.findall(piece)) for piece in pieces.values()))
    shared = {word for word, n in words.items() if n > 1}
    own = pieces.pop(f"{verb}.lua", "")
    text = "".join(_scoped(file, piece, shared) for file, piece in pieces.items()) + own
    return Script(verb, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def load(verb: str) -> Script:
    """The verb's script from this installation, put together once a process."""
    return join(folder(), verb)


def verbs() -> tuple[str, ...]:
    """Every verb that this installation has, in alphabetical order."""
    return tuple(sorted(f.name[:-4] for f in folder().iterdir() if f.name.endswith(".lua")))


@cache
def header(verb: str) -> Header:
    """The first comment block of the verb's script, taken apart."""
    lines = folder().joinpath(f"{verb}.lua").read_text("utf-8").splitlines()
    comments = takewhile(lambda line: line.startswith("--") and not _INCLUDE.match(line), lines)
    slots: dict[str, list[Slot]] = {"KEYS": [], "ARGV": []}
    parts: dict[str, list[str]] = {"": [], "Returns": [], "Writes": [], "Publishes": []}
    part = ""
    for line in (comment[2:].strip() for comment in comments):
        if slot := _SLOT.match(line):
            last = int(slot[4] or 0) if slot[3] else int(slot[2])
            columns = [*re.split(r"\s{2,}", slot[5], maxsplit=2), "", ""][:3]
            slots[slot[1]].append(Slot(int(slot[2]), last, *columns))
            continue
        start = _PART.match(line)
        part = start[1] if start else part
        parts[part].append(start[2] if start else line)
    replies = {w: m[2] for text in parts["Returns"] if (m := _REPLY.match(text)) for w in m[1].split(" | ")}
    name, _, purpose = "".join(parts[""][:1]).partition(": ")
    writes, publishes = (" ".join(parts[part]) for part in ("Writes", "Publishes"))
    return Header(name, purpose, slots["KEYS"], slots["ARGV"], replies, writes, publishes)
