"""Where a buffer lives: a URL, a client or a server of the user's, as what our own connections are made with."""

import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_replay.exceptions import ArgumentError, ArgumentTypeError

SCHEMES = "a URL: redis://, rediss://, unix:// or embedded://"
ESCAPED = "with a number as port and database, and @ : / ? # in a password as %40 %3A %2F %3F %23"
KINDS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")  # of redis-py's; a Sentinel's looks up its address
SOCKET_SECONDS = 5.0
CONNECT_SECONDS = 1.0

# What a URL or a client may name for TLS. A key is looked at before the certificate that it belongs to.
_FILES = {
    "ssl_ca_certs": "certificates of authorities",
    "ssl_ca_path": "a folder of certificates",
    "ssl_keyfile": "a client's key",
    "ssl_certfile": "a client's certificate, whose key is there or in ssl_keyfile",
}
_SCHEME = re.compile(r"[a-z]+://")
_BARE = re.compile(r"([a-z]+:/{0,2})?[\w.-]*(:[0-9]*)?(/[\w./-]*)?")

# The user's settings that say where the server is and how to log in; the rest is ours to choose.
_KEEP = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "socket_keepalive", "client_name",
    "socket_keepalive_options", "socket_type", "server", "version", "server_type", "lua_modules", "client_class",
)  # fmt: skip


def _ours(kwargs: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in kwargs.items() if k in _KEEP or k.startswith("ssl")}
    kept.setdefault("client_name", "redis-replay")
    if kept["client_name"] is None or "client_class" in kept:
        kept.pop("client_name")
    return kept | {
        "protocol": 2,  # raw replies have one shape
        "decode_responses": False,
        "health_check_interval": 0,
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
    }


class Address:
    """A server's address. Pickles whole (its password included), except that of a fakeredis, which is in this process."""

    def __init__(self, target: object) -> None:
        """Takes a URL, a redis.Redis (fakeredis included, its asyncio kind too) or anything with a `url`.

        Raises:
            ArgumentError: the URL has an unknown scheme or cannot be read; a file that TLS needs cannot; the client decodes
                responses, or connects in a way of its own (by a Sentinel).
            ArgumentTypeError: it is none of these.
        """
        self.url = target if isinstance(target, str) else getattr(target, "url", None)
        if isinstance(self.url, str):
            self._from_url(self.url)
        elif isinstance(target, (redis.Redis, aredis.Redis)):
            self._from_client(target)
        else:
            raise ArgumentTypeError(name="url", allowed=SCHEMES + ", a redis.Redis or an EmbeddedServer", found=type(target))
        self._check_files(load=True)

    def _from_url(self, url: str) -> None:
        try:
            pool = redis.ConnectionPool.from_url(url)
        except ValueError:  # its text may quote a part of the password
            raise ArgumentError(name="url", allowed=f"{SCHEMES} ({ESCAPED})", found=without_password(url)) from None
        path = urlsplit(url).path.strip("/")
        if path and "path" not in pool.connection_kwargs and not path.isdecimal():  # the client library takes it for 0
            raise ArgumentError(name="url", allowed="a URL that ends with a database number", found=without_password(url))
        self.kind = pool.connection_class.__name__
        self.kwargs = _ours(pool.connection_kwargs)

    def _from_client(self, client: Any) -> None:
        pool = client.connection_pool
        if pool.connection_kwargs.get("decode_responses"):
            raise ArgumentError(name="decode_responses", allowed="False in the client given as url", found=True)
        self.kind = pool.connection_class.__name__
        if not self.fake and self.kind not in KINDS:
            allowed = f"{SCHEMES}, an EmbeddedServer, or a redis.Redis whose connections are one of {', '.join(KINDS)}"
            raise ArgumentError(name="url", allowed=allowed, found=self.kind)
        self.kwargs = _ours(pool.connection_kwargs)

    @property
    def fake(self) -> bool:
        """Whether it is a fakeredis."""
        return bool(self.kind.startswith("Fake"))

    @property
    def db(self) -> int:
        """The database number."""
        return int(self.kwargs.get("db") or 0)

    def __str__(self) -> str:
        if self.fake:
            return "fakeredis"
        where = self.kwargs.get("path") or f"{self.kwargs.get('host', 'localhost')}:{self.kwargs.get('port', 6379)}"
        return f"{'rediss://' if self.kind == 'SSLConnection' else ''}{where}/{self.db}"  # TLS: half of what may be wrong there

    def __getstate__(self) -> dict[str, Any]:
        if self.fake:
            raise TypeError("a buffer on fakeredis lives in this process: pass it to threads, not to other processes")
        return self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> "Address":
        return self

    def _check_files(self, *, load: bool) -> None:
        """What TLS needs. The system's own errors for a file that is not there do not name it.

        Raises:
            ArgumentError: one cannot be read; or with `load`, it is not what it must be.
        """
        for name, what in _FILES.items():
            path = self.kwargs.get(name) if self.kind.startswith("SSL") else None
            if not path:
                continue
            try:
                if name == "ssl_ca_path":
                    next(Path(path).iterdir(), None)
                else:
                    open(path, "rb").close()
                if load:
                    self._load(name, path)
            except OSError as error:
                allowed = f"the path of {what} ({error.strerror})"
                raise ArgumentError(name=name, allowed=allowed, found=path) from None

    def _load(self, name: str, path: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if name == "ssl_ca_certs":
            context.load_verify_locations(path)
        elif name == "ssl_certfile":
            password = self.kwargs.get("ssl_password") or ""  # None: it would be asked for at the terminal
            context.load_cert_chain(path, self.kwargs.get("ssl_keyfile") or None, password=password)

    def connection(self, timeout: float) -> Any:
        """One connection of redis-py's, not opened yet; its login ends within `timeout`."""
        self._check_files(load=False)
        limits = {"socket_timeout": timeout, "socket_connect_timeout": min(timeout, CONNECT_SECONDS)}
        return self._class(redis.connection, "")(**(self.kwargs | limits), retry=Retry(NoBackoff(), 0), retry_on_error=[])

    def async_connection(self, timeout: float) -> Any:
        """As `connection`, for an event loop; the caller limits its login."""
        self._check_files(load=False)
        # Under a socket_timeout redis-py sends in a wait_for, which may swallow a cancellation before Python 3.12.
        limits = {"socket_timeout": None, "socket_connect_timeout": min(timeout, CONNECT_SECONDS)}
        kwargs = self.kwargs | limits | {"retry": AsyncRetry(NoBackoff(), 0), "retry_on_error": []}
        if self.fake:
            kwargs["client_class"] = aredis.Redis
        return self._class(aredis.connection, "Async")(**kwargs)

    def _class(self, module: Any, prefix: str) -> Any:
        if self.fake:
            from fakeredis._clients import _async, _sync

            return _async.FakeAsyncRedisConnection if prefix else _sync.FakeRedisConnection
        return getattr(module, self.kind)


def without_password(url: str) -> str:
    """The URL, if it has no place where a password could be; else its scheme."""
    return url if _BARE.fullmatch(url) else f"{scheme[0]}***" if (scheme := _SCHEME.match(url)) else "***"
