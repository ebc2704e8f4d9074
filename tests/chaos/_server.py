"""A durable server that is killed and started again, at the same place, with the same data."""

import os
import signal
import time
from pathlib import Path

import redis

from redis_replay import ReplayBuffer
from redis_replay.embedded import EmbeddedServer


class DurableServer:
    """A server that keeps its data in `directory`, synced as `fsync` says. `url` is another one after each start."""

    def __init__(self, binary: str, directory: Path, fsync: str) -> None:
        self._binary = binary
        self._directory = directory
        self._fsync = fsync
        self.start()

    def start(self) -> None:
        """Starts it, and has it loaded."""
        self._server = EmbeddedServer(self._directory, binary=self._binary)
        self.url = self._server.url
        with redis.Redis.from_url(self.url) as client:
            client.config_set("appendfsync", self._fsync)

    @property
    def client(self) -> redis.Redis:
        """A client of its own for each use, to be closed."""
        return redis.Redis.from_url(self.url)

    def kill(self) -> float:
        """SIGKILL. Gives when."""
        os.kill(self._server.pid, signal.SIGKILL)
        at = time.monotonic()
        self._server.close()
        return at

    def stop(self) -> None:
        """SIGTERM: it syncs what it has."""
        self._server.close()

    def examine(self, name: str) -> list[str]:
        """What the doctor finds in a buffer, as text."""
        with ReplayBuffer(self.url, name) as buffer:
            return [f"{f.invariant} {f.key}: {f.expected}, found {f.found}" for f in buffer.doctor().findings]
