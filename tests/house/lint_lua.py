"""Lints the Lua scripts as they are sent: joined with their includes. `python tests/house/lint_lua.py`

luacheck reads each joined script; what it finds is told by the file and line where it stands, once. A function of an
include may be unused in one script, but not in all that include it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.resources.abc import Traversable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from redis_replay import _lua  # noqa: E402

_FOUND = re.compile(r".*?:(\d+):(\d+): (\(\w\d+\) .*)")
_LINE = re.compile(r"on line (\d+)")


def joined(root: Traversable, verb: str) -> list[_lua.Line]:
    """Every line of the script that is sent, comments included, so that luacheck's line numbers can be told."""
    return list(dict.fromkeys(_lua.expand(root, f"{verb}.lua")))


def findings(root: Traversable, verb: str) -> set[tuple[str, int, str]]:
    """What luacheck says about one joined script: file, line, text."""
    lines = joined(root, verb)
    command = ["luacheck", "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", "-"]
    source = "\n".join(text for _, _, text in lines)
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    found = {match.groups() for line in done.stdout.splitlines() if (match := _FOUND.match(line))}
    if done.returncode > 2 or bool(done.returncode) != bool(found):
        raise SystemExit(f"luacheck failed on {verb}: {done.stdout}{done.stderr}")

    def place(line: str) -> tuple[str, int]:
        return lines[int(line) - 1][:2]

    return {(*place(line), _LINE.sub(lambda m: "in {}:{}".format(*place(m[1])), text)) for line, _, text in found}


def lint(root: Traversable, verbs: tuple[str, ...]) -> list[str]:
    """All findings in all scripts, one line each."""
    told: dict[tuple[str, int, str], list[str]] = {}
    for verb in verbs:
        for finding in findings(root, verb):
            told.setdefault(finding, []).append(verb)
    users: dict[str, int] = {}
    for verb in verbs:
        for file in {file for file, _, _ in joined(root, verb)}:
            users[file] = users.get(file, 0) + 1
    return [
        f"lua/{file}:{line}: {text}"
        for (file, line, text), by in sorted(told.items())
        if not (text.startswith("(W2") and len(by) < users[file])
    ]


def compile_only(root: Traversable, verbs: tuple[str, ...], luac: str) -> list[str]:
    """Syntax errors alone, for a machine without luacheck."""
    wrong = []
    with tempfile.NamedTemporaryFile(suffix=".lua") as file:
        for verb in verbs:
            Path(file.name).write_text("\n".join(text for _, _, text in joined(root, verb)))
            done = subprocess.run([luac, "-p", file.name], capture_output=True, text=True)
            if done.returncode:
                wrong.append(f"{verb}: {done.stderr.strip()}")
    return wrong


def main() -> int:
    """0 if nothing is wrong. In CI luacheck must be there."""
    root, verbs = _lua.folder(), _lua.verbs()
    luac = shutil.which("luac5.1") or shutil.which("luac")
    if shutil.which("luacheck"):
        wrong = lint(root, verbs)
    elif os.environ.get("CI", "").lower() in ("", "0", "false", "no") and luac:
        print("NO LUACHECK: only the syntax is checked; install luacheck (Debian: apt-get install lua-check)")
        wrong = compile_only(root, verbs, luac)
    else:
        wrong = ["NO LUACHECK: install it (Debian: apt-get install lua-check); the Lua scripts were not checked"]
    print("\n".join(wrong) if wrong else f"Lua: {len(verbs)} scripts, nothing wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
