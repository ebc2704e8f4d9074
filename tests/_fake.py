"""The fake server of the tests: fakeredis, which compiles each script once in a process and not once in a call.

As users get it, fakeredis compiles all of a script's text, 70 kB, at each call: 2 ms, which is most of what such a call
takes. Here the first compilation is kept, as Lua's own bytecode, with line numbers and names. What a script does and
how it fails are the same: it still starts at its first line, in its server's own runtime, and everything around it (EVAL,
EVALSHA, the cache of texts that SCRIPT FLUSH empties, globals, garbage) is fakeredis'. The server that users have is looked
at in tests/e2e/test_plugin.py; and tests/house/test_fake.py compares the two.
"""

import functools

import fakeredis
from fakeredis.commands_mixins.scripting_mixin import LUA_MODULE


@functools.cache
def _bytecode(code):
    """What a text compiles to."""
    runtime = LUA_MODULE.LuaRuntime(encoding=None)
    return runtime.eval("string.dump")(runtime.compile(code))


class _Runtime:
    """A Lua runtime that remembers what it has compiled."""

    def __init__(self, runtime):
        self._runtime = runtime
        self._compiled = {}

    def execute(self, code):
        if not isinstance(code, bytes):  # fakeredis' own: one line, that collects garbage
            return self._runtime.execute(code)
        if code not in self._compiled:
            try:
                self._compiled[code] = self._runtime.compile(_bytecode(code))
            except LUA_MODULE.LuaError:
                return self._runtime.execute(code)  # no Lua: it says so in its own words
        return self._compiled[code]()

    def __getattr__(self, name):
        return getattr(self._runtime, name)


class FakeServer(fakeredis.FakeServer):
    """A fakeredis server. It makes its runtime at the first script, and that is where it gets ours."""

    def __setattr__(self, name, value):
        super().__setattr__(name, _Runtime(value) if name == "_lua_runtime" else value)
