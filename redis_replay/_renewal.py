"""Renews a handle's leases: a timer while it has any, nothing otherwise."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from redis_replay import _ops_lease as leases
from redis_replay._core import Core
from redis_replay._steps import Operation
from redis_replay.exceptions import ReplayError


class Renewal:
    """For threads."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timer: threading.Timer | None = None

    def arm(self, drive: Callable[[Operation], Any]) -> None:
        """Called after every call: sees to it that open leases are renewed in time. `drive` runs an operation; it is not
        kept, so that a handle that nobody has any more goes at once.
        """
        if self._timer is None and len(self._core.leases) and not self._core.closed:
            self._timer = threading.Timer(self._core.leases.period, self._renew, (drive,))
            self._timer.daemon = True
            self._timer.start()

    def _renew(self, drive: Callable[[Operation], Any]) -> None:
        until = self._core.clock() + self._core.leases.period
        try:
            drive(leases.renew(self._core, until))
        except ReplayError:
            pass  # the next try may succeed; what ran out until then is told by it
        finally:
            self._timer = None
            self.arm(drive)

    def stop(self) -> None:
        """The handle is closed."""
        if self._timer is not None:
            self._timer.cancel()


class AsyncRenewal:
    """For tasks of one event loop. Its methods are those of Renewal."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task: asyncio.Task[None] | None = None

    def arm(self, drive: Callable[[Operation], Awaitable[Any]]) -> None:
        """Called after every call: sees to it that open leases are renewed in time."""
        if self._task is None and len(self._core.leases) and not self._core.closed:
            self._task = asyncio.create_task(self._renew(drive), name="redis-replay leases")

    async def _renew(self, drive: Callable[[Operation], Awaitable[Any]]) -> None:
        while len(self._core.leases):
            await asyncio.sleep(self._core.leases.period)
            try:
                await drive(leases.renew(self._core, self._core.clock() + self._core.leases.period))
            except ReplayError:
                continue  # the next try may succeed; what ran out until then is told by it
        self._task = None

    async def stop(self) -> None:
        """The handle is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
