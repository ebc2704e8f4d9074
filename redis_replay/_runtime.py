"""What runs operations: blocking, in one process; awaiting, in one event loop. Owns sockets, subscription and lanes."""

import asyncio
import os
import threading
from typing import Any

from redis_replay import _ops_admin as admin
from redis_replay import _ops_lease as leases
from redis_replay import _resolve as resolve
from redis_replay._address import Address
from redis_replay._clock import monotonic, sleep
from redis_replay._connection import AsyncConnection, Connection
from redis_replay._core import CALL_SECONDS, Core, Lane, log
from redis_replay._renewal import AsyncRenewal, Renewal
from redis_replay._steps import Call, Fetch, Listen, Operation, Pause, Pipe, Step, Work
from redis_replay._wakeup import AsyncListener, Listener
from redis_replay.exceptions import BufferClosedError, BufferGoneError, ReplayError, ReplayTimeoutError

IDLE_SECONDS = 0.5  # after which an open number is settled, if no call has done it
INTERRUPT_SECONDS = 0.5  # how long an interrupted call may take to settle what it left open
LANE_SECONDS = 0.002  # between two looks for a free lane, where all are busy
CLOSE_SECONDS = 1.0  # how long close() waits for running calls, and then for the server


def _no_lane(core: Core, timeout: float) -> ReplayTimeoutError:
    return ReplayTimeoutError(name=core.name, what="a free lane", have=0, need=1, timeout_s=timeout)


def _interrupted(error: BaseException) -> bool:
    """Whether a call ended without having ended its request: by a signal, a cancelled task, a closed handle."""
    return isinstance(error, BufferClosedError) or not isinstance(error, ReplayError)


class Runtime:
    """For threads of one process."""

    def __init__(self, address: Address, core: Core) -> None:
        self.core = core
        self.connection = Connection(address, core)
        self.listener = Listener(self.connection)
        self._renewal = Renewal(core)
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether this process is not the one it was made in (a fork)."""
        return self._pid != os.getpid()

    def _perform(self, step: Step) -> Any:
        if isinstance(step, (Call, Pipe)):
            return self.connection.run(step)
        if isinstance(step, Fetch):
            return self.connection.fetch(step)
        if isinstance(step, Pause):
            return self.listener.pause(step)
        if isinstance(step, Listen):
            return self.listener.open(step)
        return step.do() if isinstance(step, Work) else sleep(step.seconds)

    def drive(self, operation: Operation) -> Any:
        """Runs an operation to its end."""
        try:
            step = next(operation)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:  # noqa: BLE001 - it is the operation that must judge it
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return stop.value
        finally:
            operation.close()  # an interrupt that came between two steps is the operation's, too

    def run(self, operation: Any, *args: Any, timeout: float = CALL_SECONDS) -> Any:
        """Runs an operation on a lane of its own.

        Raises:
            ReplayTimeoutError: every lane was busy for `timeout` seconds.
        """
        lane, before = None, 0
        try:
            lane = self._lane(timeout)
            before = lane.number
            result = self.drive(operation(self.core, lane, *args))
            self._renewal.arm(self.drive)
            self.core.put_lane(lane)
            return result
        except BaseException as error:
            resolve.attach(self, error)
            if lane is not None:
                self._end(lane, before, error)
            raise

    def _end(self, lane: Lane, before: int, error: BaseException) -> None:
        """Gives the lane of a failed call back. What an interrupt kept from the caller goes back first: it was open still."""
        if not self.core.withdraw_lane(lane, threading.get_ident()):
            return
        try:
            if _interrupted(error):
                if lane.number > before:
                    self.core.take_back(lane)
                self._settle(lane, monotonic() + INTERRUPT_SECONDS, forget=False)
        finally:
            self.core.put_lane(lane)
            if lane.open_number and lane.registered:
                self._settle_soon(IDLE_SECONDS)

    def _settle_soon(self, seconds: float) -> None:
        """An idle handle, too, settles what a call left open: it may hold records that others wait for."""
        timer = threading.Timer(seconds, self._settle_idle, (seconds,))
        timer.daemon = True
        timer.start()

    def _settle_idle(self, seconds: float) -> None:
        if self.core.closed or self.foreign or not self.core.lanes or not self.core.lanes[-1].open_number:
            return
        lane = self.core.take_lane(threading.get_ident())
        if lane is not None:
            self._settle(lane, monotonic() + INTERRUPT_SECONDS, forget=False)
            self.core.put_lane(lane)
            if lane.open_number and lane.registered:
                self._settle_soon(min(60.0, 2 * seconds))

    def _lane(self, timeout: float) -> Lane:
        until = monotonic() + timeout
        while (lane := self.core.take_lane(threading.get_ident())) is None:
            if monotonic() >= until:
                raise _no_lane(self.core, timeout)
            sleep(LANE_SECONDS)
        return lane

    def _settle(self, lane: Lane, until: float, *, forget: bool) -> None:
        """Ends what a call left open, if the server can be reached at once; else the lane's next request does."""
        if not lane.registered:
            return
        try:
            self.drive(admin.settle(self.core, lane, forget=forget, until=until))
        except ReplayError:
            return

    def close(self, release: bool = False) -> None:
        """Ends every wait, lets running calls end, acknowledges or releases the leases, gives the lanes back."""
        self.core.closed = True
        self.listener.close()
        until = monotonic() + CLOSE_SECONDS
        while not self.core.idle and monotonic() < until:
            sleep(LANE_SECONDS)
        until = monotonic() + CLOSE_SECONDS
        self._renewal.stop()
        self._end_leases(release, until)
        for lane in self.core.lanes:
            if monotonic() < until:
                self._settle(lane, until, forget=True)
        self.connection.close()

    def _end_leases(self, release: bool, until: float) -> None:
        """If the server can be reached at once; else they run out."""
        lane = self.core.take_lane(threading.get_ident()) if len(self.core.leases) else None
        if lane is None:
            return
        try:
            self.drive(leases.close(self.core, lane, release=release, until=until))
        except BufferGoneError:  # and the leases with it
            pass
        except ReplayError as error:
            log.warning("buffer %r: closed without having ended its leases: %s", self.core.name, error)
        self.core.put_lane(lane)


async def _work(step: Work) -> Any:
    """In a thread. It is over when this is, even if cancelled: what it began can be undone then."""
    task = asyncio.ensure_future(asyncio.to_thread(step.do))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class AsyncRuntime:
    """For tasks of one event loop. Its methods are those of Runtime."""

    def __init__(self, address: Address, core: Core) -> None:
        self.core = core
        self.connection = AsyncConnection(address, core)
        self.listener = AsyncListener(self.connection)
        self._renewal = AsyncRenewal(core)
        self._pid, self._loop = os.getpid(), asyncio.get_running_loop()
        self._settling: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()  # those at their first try

    @property
    def foreign(self) -> bool:
        """Whether this is not the process and the event loop it was made in."""
        return self._pid != os.getpid() or self._loop is not asyncio.get_running_loop()

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, (Call, Pipe)):
            return await self.connection.run(step)
        if isinstance(step, Fetch):
            return await self.connection.fetch(step)
        if isinstance(step, Pause):
            return await self.listener.pause(step)
        if isinstance(step, Listen):
            return await self.listener.open(step)
        return await (_work(step) if isinstance(step, Work) else asyncio.sleep(step.seconds))

    async def drive(self, operation: Operation) -> Any:
        """Runs an operation to its end."""
        try:
            step = next(operation)
            while True:
                try:
                    result = await self._perform(step)
                except BaseException as error:  # noqa: BLE001 - it is the operation that must judge it
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return stop.value
        finally:
            operation.close()  # an interrupt that came between two steps is the operation's, too

    async def run(self, operation: Any, *args: Any, timeout: float = CALL_SECONDS) -> Any:
        """Runs an operation on a lane of its own."""
        lane = await self._lane(timeout)
        try:
            result = await self.drive(operation(self.core, lane, *args))
        except BaseException as error:
            resolve.attach_async(self, error)
            if _interrupted(error) or lane.open_number:
                self._settle_later(lane)
            else:
                self.core.put_lane(lane)
            raise
        self.core.put_lane(lane)
        self._renewal.arm(self.drive)
        return result

    async def _lane(self, timeout: float) -> Lane:
        until = monotonic() + timeout
        if self._ending:  # what calls before left open may be what this one asks for
            await asyncio.wait(tuple(self._ending), timeout=min(timeout, INTERRUPT_SECONDS))
        while (lane := self.core.take_lane(threading.get_ident())) is None:
            if monotonic() >= until:
                raise _no_lane(self.core, timeout)
            await asyncio.sleep(LANE_SECONDS)
        return lane

    def _settle_later(self, lane: Lane) -> None:
        """A cancelled task must not wait: a task of its own ends what the call left open, then gives the lane back."""
        task = self._loop.create_task(self._settle_at_last(lane))
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # where it was asyncio.run that cancelled, none can run
        for tasks in (self._settling, self._ending):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: self.core.put_lane(lane))

    async def _settle_at_last(self, lane: Lane) -> None:
        pause = IDLE_SECONDS
        await self._settle(lane, monotonic() + INTERRUPT_SECONDS, forget=False)
        self._ending.discard(asyncio.current_task())
        while lane.open_number and lane.registered and not self.core.closed:
            await asyncio.sleep(pause)
            await self._settle(lane, monotonic() + INTERRUPT_SECONDS, forget=False)
            pause = min(60.0, 2 * pause)

    async def _settle(self, lane: Lane, until: float, *, forget: bool) -> None:
        if not lane.registered:
            return
        try:
            await self.drive(admin.settle(self.core, lane, forget=forget, until=until))
        except ReplayError:
            return

    async def close(self, release: bool = False) -> None:
        """Ends every wait, lets running calls end, acknowledges or releases the leases, gives the lanes back."""
        self.core.closed = True
        await self.listener.close()
        until = monotonic() + CLOSE_SECONDS
        while not self.core.idle and monotonic() < until:  # noqa: ASYNC110 - calls end without telling
            await asyncio.sleep(LANE_SECONDS)
        until = monotonic() + CLOSE_SECONDS
        await self._renewal.stop()
        await self._end_leases(release, until)
        for lane in self.core.lanes:
            if monotonic() < until:
                await self._settle(lane, until, forget=True)
        for task in tuple(self._settling):
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)
        await self.connection.close()

    async def _end_leases(self, release: bool, until: float) -> None:
        lane = self.core.take_lane(threading.get_ident()) if len(self.core.leases) else None
        if lane is None:
            return
        try:
            await self.drive(leases.close(self.core, lane, release=release, until=until))
        except BufferGoneError:  # and the leases with it
            pass
        except ReplayError as error:
            log.warning("buffer %r: closed without having ended its leases: %s", self.core.name, error)
        self.core.put_lane(lane)
