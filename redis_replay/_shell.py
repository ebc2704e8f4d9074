"""The sync handle's life: opened, its operations run, closed, pickled. The names for users are in _sync."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from redis_replay import _handle as h
from redis_replay import _ops_behind as behind
from redis_replay import _ops_read as read
from redis_replay import _options as opt
from redis_replay._ahead import Ahead, Place
from redis_replay._behind import Behind
from redis_replay._core import CALL_SECONDS, Core, log
from redis_replay._prefetch import is_held
from redis_replay._runtime import Runtime
from redis_replay.exceptions import BufferClosedError, NotWrittenError, ReplayError


class Shell(h.Known, ABC):
    """What runs a handle's operations: each goes down once and comes up once."""

    def _prepare(self, url: object, name: object, options: dict[str, Any], how: dict[str, Any]) -> None:
        self._setup, self._server = h.setup(url, name, options, **how)
        self._closed = False
        self._start(self._setup.core(self._setup.seed))

    def _start(self, core: Core) -> None:
        """What a handle has of its own in this process."""
        self._now, depth = Runtime(self._setup.address, core), self._setup.prefetch
        self._ahead = Ahead(self._draw_ahead, self._moment, depth, core.leases, is_held(core)) if depth else None
        delay = self._setup.write_behind
        self._behind = Behind(self._write_out, core.name, delay) if delay is not None else None

    def _write_out(self, items: Sequence[behind.Item], settled: Any) -> None:
        self._now.run(behind.write_out, items, settled, timeout=opt.FOREVER)

    @abstractmethod
    def _draw_ahead(self, place: Place) -> Any:
        """A batch for a place of what is drawn ahead."""

    def _moment(self, until: float | None) -> tuple[str, ...]:
        moment: tuple[str, ...] = self._read("sample", read.moment, until)
        return moment

    def _open(self, operation: Any, *args: Any) -> None:
        try:
            self._now.drive(operation(self._now.core, *args))
            h.check_prefetch(self._setup, self._now.core)
        except BaseException as error:
            self.close()
            h.name_call(error, "open")
            raise

    @property
    def _own(self) -> Core:
        return self._now.core

    # Running operations

    def _runtime(self) -> Runtime:
        if self._closed:
            raise BufferClosedError(name=self._setup.name)
        if self._now.foreign:  # forked: nothing of the parent's sockets, lanes and random numbers may be used
            self._start(self._now.core.renew())
        return self._now

    def _read(self, call: str, operation: Any, *args: Any) -> Any:
        now = self._runtime()
        try:
            return now.drive(operation(now.core, *args))
        except ReplayError as error:
            h.name_call(error, call)
            raise

    def _run(self, call: str, operation: Any, *args: Any, timeout: float | None = None) -> Any:
        now = self._runtime()
        limit = now.core.bound(CALL_SECONDS) if timeout is None else timeout
        try:
            return now.run(operation, *args, timeout=limit)
        except ReplayError as error:
            h.name_call(error, call)
            raise

    def close(self) -> None:
        """Ends this handle, not the buffer: its waits end with BufferClosedError, its leases are acknowledged. Idempotent.

        Raises:
            NotWrittenError: not all that `add` took (`write_behind`) could be written within 5 s. The handle is closed all the
            same.
        """
        self._close(release=False)

    def _close(self, release: bool) -> None:
        if self._closed:
            return
        self._closed, mine = True, not self._now.foreign
        if mine and self._behind is not None:
            self._behind.drain()
        if mine and self._ahead is not None:
            self._ahead.stop()
        if mine:
            self._now.close(release)
        if mine and self._ahead is not None:
            self._ahead.close()
        if self._server is not None:
            self._server.close()
        if mine and self._behind is not None:
            self._behind.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Closes the handle. After an exception its leases are released, not acknowledged."""
        try:
            self._close(release=kind is not None)
        except NotWrittenError as error:
            if kind is None:
                raise
            log.error("%s", error)  # what ended the block is told

    def __getstate__(self) -> dict[str, Any]:
        """Address, options and identity: no data, no socket. The password goes along."""
        return {"setup": self._setup, "identity": self._now.core.identity(), "closed": self._closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._setup, self._server, self._closed = state["setup"], None, state["closed"]
        core = self._setup.core(None)
        core.identify(state["identity"])
        self._start(core)
