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
        self._due = 0.0  # when it goes off

    def arm(self, drive: Callable[[Operation], Any]) -> None:
        """Called after every call: sees to it that open leases are renewed in time. `drive` runs an operation; it is not
        kept, so that a handle that nobody has any more goes at once.
        """
        if not len(self._core.leases) or self._core.closed:
            return
        due, old = self._core.clock() + self._core.leases.period, self._timer
        if old is not None and old.is_alive() and self._due <= due:
            return
        timer = threading.Timer(self._core.leases.period, self._renew, (drive,))
        timer.daemon = True
        timer.start()
        self._timer, self._due = timer, due  # an interrupt before this leaves one too many, which does nothing
        if old is not None:
            old.cancel()

    def _renew(self, drive: Callable[[Operation], Any]) -> None:
        if self._timer is not threading.current_thread():
            return  # another has taken its place
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
        self._sooner = asyncio.Event()
        self._due = 0.0

    def arm(self, drive: Callable[[Operation], Awaitable[Any]]) -> None:
        """Called after every call: sees to it that open leases are renewed in time."""
        if not len(self._core.leases) or self._core.closed:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._renew(drive), name="redis-replay leases")
        elif self._core.clock() + self._core.leases.period < self._due:
            self._sooner.set()  # a shorter lease has come

    async def _renew(self, drive: Callable[[Operation], Awaitable[Any]]) -> None:
        while len(self._core.leases):
            if await self._interrupted_pause():
                continue
            try:
                await drive(leases.renew(self._core, self._core.clock() + self._core.leases.period))
            except ReplayError:
                continue  # the next try may succeed; what ran out until then is told by it
        self._task = None

    async def _interrupted_pause(self) -> bool:
        """Waits until it is time. True: it must be sooner than was thought."""
        period = self._core.leases.period
        self._due = self._core.clock() + period
        try:
            async with asyncio.timeout(period):
                await self._sooner.wait()
        except TimeoutError:
            return False
        self._sooner.clear()
        return True

    async def stop(self) -> None:
        """The handle is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
