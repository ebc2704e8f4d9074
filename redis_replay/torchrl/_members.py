"""The members of an ensemble: asked at once, in threads; and those that do not answer."""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from threading import Event
from typing import Any

from redis_replay.exceptions import ConnectionLostError, MemberDownError
from redis_replay.torchrl._buffer import RedisReplayBuffer
from redis_replay.torchrl._process import PerProcess


class Either:
    """A cancel_event that is set once one of two is."""

    def __init__(self, one: Any, other: Any) -> None:
        self._events = [event for event in (one, other) if event is not None]

    def is_set(self) -> bool:
        """Whether one is."""
        return any(event.is_set() for event in self._events)


class _Own:
    """Threads, and who is down, with what tells when it is up again."""

    def __init__(self, n: int) -> None:
        self.down: dict[int, tuple[MemberDownError, Future[Any]]] = {}
        # Each may be busy with the end of a wait, and with finding out whether it is up again.
        self.threads = ThreadPoolExecutor(3 * n, thread_name_prefix="redis-replay-ensemble")


class Members:
    """Calls to several buffers at once. One that does not answer is an error, or with `skip` left out until it answers again.

    Args:
        buffers: those of the ensemble, in its order.
        skip: whether those that do not answer are left out.
    """

    def __init__(self, buffers: Sequence[RedisReplayBuffer], *, skip: bool) -> None:
        self.buffers = tuple(buffers)
        self._skip = skip
        self._own = PerProcess(lambda: _Own(len(self.buffers)))

    @property
    def _down(self) -> dict[int, tuple[MemberDownError, Future[Any]]]:
        return self._own.get().down

    @property
    def _threads(self) -> ThreadPoolExecutor:
        return self._own.get().threads

    @property
    def up(self) -> list[int]:
        """Positions of those that answer, as far as is known.

        Raises:
            MemberDownError: none does.
        """
        for position, (_, probe) in tuple(self._down.items()):
            if probe.done() and self._down.pop(position) and probe.exception() is not None:
                self._leave_out(position, probe.exception())
        if len(self._down) == len(self.buffers):
            raise next(iter(self._down.values()))[0]
        return [position for position in range(len(self.buffers)) if position not in self._down]

    def _leave_out(self, position: int, error: BaseException | None) -> MemberDownError | None:
        """None: it is left out from now on."""
        buffer = self.buffers[position].buffer
        down = MemberDownError(member=position, name=buffer.name, address=getattr(error, "address", ""), reason=str(error))
        down.__cause__ = error
        if not self._skip:
            return down
        self._down[position] = down, self._threads.submit(buffer.stats)
        return None

    def each(self, call: Callable[[RedisReplayBuffer], Any], positions: Sequence[int]) -> list[tuple[int, Any]]:
        """What `call` gives of each of these, or the error that it raised: a MemberDownError where the server does not answer,
        or with `skip` nothing.
        """
        return self._each(lambda position: call(self.buffers[position]), positions)

    def _each(self, call: Callable[[int], Any], positions: Sequence[int]) -> list[tuple[int, Any]]:
        futures = [(position, self._threads.submit(call, position)) for position in positions]
        found: list[tuple[int, Any]] = []
        for position, future in futures:
            error: BaseException | None = future.exception()
            if isinstance(error, ConnectionLostError) and (error := self._leave_out(position, error)) is None:
                continue
            found.append((position, error if error is not None else future.result()))
        return found

    def every(self, call: Callable[[RedisReplayBuffer], Any], positions: Sequence[int] | None = None) -> dict[int, Any]:
        """What `call` gives of each of these (all by default) that answers.

        Raises:
            MemberDownError: one does not answer (with `skip`: none does). What `call` raises.
        """
        found = dict(self.each(call, self.up if positions is None else positions))
        for result in found.values():
            if isinstance(result, BaseException):
                raise result
        _ = self.up
        return found

    def all(self, call: Callable[[int, RedisReplayBuffer], Any]) -> list[Any]:
        """What `call` gives of each member's position and buffer, at once: for what needs all of them, also with `skip`.

        Raises:
            the first error, with `member`, its position, and a note that names it.
        """
        found = dict(self._each(lambda position: call(position, self.buffers[position]), range(len(self.buffers))))
        results = [found[i] if i in found else self._down[i][0] for i in range(len(self.buffers))]
        for position, result in enumerate(results):
            if isinstance(result, BaseException):
                result.member = position  # type: ignore[attr-defined]
                result.add_note(f"member {position} of the ensemble, buffer {self.buffers[position].buffer.name!r}")
                raise result
        return results

    def wait(
        self, need: int, timeout: float, cancel_event: Any, positions: Sequence[int], *, every: bool
    ) -> bool:  # fmt: skip
        """Blocks until one of these, or every one that answers, has `need` records. False at the timeout or when cancelled.

        Raises:
            what the wait of a member raises; MemberDownError.
        """
        enough = Event()
        stop = Either(cancel_event, enough)
        futures = {
            self._threads.submit(self.buffers[i].buffer.wait_until_sampleable, need, timeout, stop): i for i in positions
        }  # fmt: skip
        try:
            return self._first(futures, every=every)
        finally:
            enough.set()

    def _first(self, futures: dict[Future[bool], int], *, every: bool) -> bool:
        said = []
        for future in as_completed(futures):
            if isinstance(error := future.exception(), ConnectionLostError):
                if (down := self._leave_out(futures[future], error)) is not None:
                    raise down
                continue
            said.append(future.result())
            if said[-1] is not every:  # one that is ready is enough; or one that is not
                return said[-1]
        if not said:
            _ = self.up
        return every

    def close(self) -> None:
        """Ends the threads and closes the members' handles."""
        for buffer in self.buffers:
            with contextlib.suppress(ConnectionLostError):
                buffer.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
