"""What a sync handle draws, and its leases. Names, arguments and docstrings: no rule of replay is here."""

from typing import Any

from redis_replay import _arguments as args
from redis_replay import _handle as h
from redis_replay import _ops_lease as leases
from redis_replay import _ops_sample as draw
from redis_replay import _prefetch as ahead
from redis_replay import _scripts as scripts
from redis_replay._ahead import Place
from redis_replay._ops_wait import Wish
from redis_replay._shell import Shell
from redis_replay._types import LeasesEnded


class Draws(Shell):
    """The part of ReplayBuffer that gives batches out."""

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, *, wait: bool = False,
        timeout: float | None = None, cancel_event: Any = None, min_items: int | None = None, lease: float | None = None,
        stall_timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """A batch, reserved: check, choice, consumption and count are one step on the server.

        Args:
            batch_size: records to draw; at most 8,192 at random, 20,000 from an end
                (8,192 where records have priorities or versions). The handle's by default.
            return_info: give (data, SampleInfo).
            wait: block until a full batch is there, in order of arrival; a wait that succeeds has its batch.
            timeout: seconds to wait; None and inf without end, 0 asks once.
            cancel_event: anything with is_set(), looked at every 0.1 s; set, it ends the wait.
            stall_timeout: seconds without any write after which the wait gives up; None and inf: never.
            min_items: a smaller floor: fewer records will do. A draw with replacement then gives a full batch; any other
                comes back short.
            lease: seconds, other than the buffer's; this handle renews it as long as the thread lives. `info.lease` is its
                name. The batch that this thread drew before is acknowledged first.

        Returns:
            Each leaf with a leading dimension n, writable and the caller's own; Python scalars as arrays, texts as lists.
            A TensorDict buffer gives a TensorDict with "index" set, and "priority_weight" of a draw by priority (over leaves of
            those names).

        Raises:
            NotReadyError: too few records, and wait is False. ReplayTimeoutError (a TimeoutError): too few in time.
            StalledError; ReplayCancelledError (a RuntimeError); BufferShutDownError; ArgumentError: what can never be met;
            BufferGoneError, BufferClosedError, ConnectionLostError; OutcomeUnknownError: of acknowledging the batch before.
        """
        patience, decode = h.Patience(timeout, cancel_event, stall_timeout), h.decoder(return_info)
        wish = h.draw_wish(self._runtime().core, self._setup.batch_size, batch_size, min_items, wait, patience, lease)
        if self._ahead is not None and ahead.is_ahead(self._setup, batch_size, min_items, lease):
            turn = ahead.Turn.of(self._own, wish)
            taken = self._ahead.take(turn.ended, turn.until)
            if taken is not None:
                return taken if return_info else taken[0]
            wish = turn.rest()
        return self._draw_wish(wish, decode)

    def _draw_ahead(self, place: Place) -> Any:
        core, queue = self._runtime().core, self._ahead
        assert queue is not None
        if names := queue.vain():
            self._run("sample", leases.end, scripts.release, names)
        wish = ahead.ahead_wish(core, self._setup.batch_size, place.owner, queue.done.owner)
        return self._run("sample", draw.sample, wish, h.decoder(True))

    def _draw(
        self, decode: h.Decoder, batch_size: int | None, min_items: int | None, *, wait: bool, patience: h.Patience,
        lease: float | None = None,
    ) -> Any:  # fmt: skip
        """What `decode` makes of a batch. Where it raises, the batch goes back."""
        wish = h.draw_wish(self._runtime().core, self._setup.batch_size, batch_size, min_items, wait, patience, lease)
        return self._draw_wish(wish, decode)

    def _draw_wish(self, wish: Wish, decode: h.Decoder) -> Any:
        return self._run("sample", draw.sample, wish, decode, timeout=wish.timeout if wish.wait else None)

    def ack(self, lease: Any) -> LeasesEnded:
        """The reader is done with a batch: its uses count, and what had its last one is consumed.

        Args:
            lease: `info.lease`, or several of them.

        Returns:
            How many it ended, and how many had ended before: they ran out, and others may have their records; or `ack`,
            `release`, the next `sample` or `empty` had ended them. They go in steps: `done` of an error counts those before.
        """
        return self._end_leases(scripts.ack, lease)

    def release(self, lease: Any) -> LeasesEnded:
        """A batch goes back, as if it had not been drawn. Argument and result as `ack`."""
        return self._end_leases(scripts.release, lease)

    def _end_leases(self, verb: Any, lease: Any) -> LeasesEnded:
        ended: LeasesEnded = self._run(verb.__name__, leases.end, verb, args.lease_names(lease))
        return ended
