"""ReplayBuffer: names, arguments and docstrings. No rule of replay and no key is here."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from redis_replay import _arguments as args
from redis_replay import _handle as h
from redis_replay import _ops_admin as admin
from redis_replay import _ops_doctor as doctor
from redis_replay import _ops_read as read
from redis_replay import _ops_wait as waits
from redis_replay import _ops_write as write
from redis_replay import _options as opt
from redis_replay import _saving as saving
from redis_replay import _scripts as scripts
from redis_replay import _versions as versions
from redis_replay._behind import SHUTDOWN_SECONDS, done
from redis_replay._decode import decode_record
from redis_replay._drawing import Draws
from redis_replay._encode import encode_batch, encode_record
from redis_replay._ops_behind import Item
from redis_replay._types import Report, Stats, Updated
from redis_replay.exceptions import BufferShutDownError
from redis_replay.limiters import RateLimiter


class ReplayBuffer(saving.Saves, versions.SetsVersion, Draws):
    """A replay buffer in Redis or Valkey. Creates it, or attaches to it if it is there and its settings are equal.

    Threads may share a handle; forked and spawned processes and unpickled copies get sockets of their own.

    Args:
        url: a URL (redis://, rediss://, unix://, or embedded:// for a private server), a redis.Redis (fakeredis
            included), or an EmbeddedServer.
        name: 1 to 200 characters of A-Z a-z 0-9 _ . - / : @ + =.
        capacity: records that the buffer holds at most. Left out, the buffer must exist.
        batch_size: default of `sample` and `wait_until_sampleable`.
        sampler: one of redis_replay.samplers; None is Uniform().
        remover: another one, which says what is evicted when the buffer is full; None is Fifo(), the oldest first.
        rate_limiter: one of redis_replay.limiters: how far writes may run ahead of draws, and draws of writes; None: no limit.
        consume_after_n_samples: a record leaves the buffer when it has been handed out so often; None is never.
        lease: seconds for which a batch is lent: its uses count when it is acknowledged, by `ack`, by the same thread's next
            `sample` or by `close`; else it comes back. 0.05 to 86,400, with consume_after_n_samples; None: uses count at once.
        max_staleness: how much older than the buffer's version (`set_version`) a record may be; older ones are dropped.
            0: of the current version alone; None: as old as it likes.
        seed: of this handle's draws; None is fresh entropy. A forked, unpickled or copied handle gets its own stream.
        prefetch: batches of batch_size that a thread of this handle keeps on their way or ready for `sample`, 0 to 64. One that
            was asked for before an `empty`, a `loads` or a `shutdown` is never given out. They count as drawn when they are. A
            buffer that consumes has to lend (`lease`) for it: what was not given out goes back at `close`.
        cache_bytes: memory for payloads that this handle keeps, those it drew last, so as not to fetch them again; 0: none.
            What is drawn is decided by the server all the same. `cache_info()` tells what it brings.
        write_behind: seconds, 0.001 to 60, that a record waits at most for others that are written with it: `add` takes it, and
            a thread writes; None: `add` writes. 4,096 records or 8 MiB are taken at most before `add` waits. `flush` and
            `extend` wait for all of it, `shutdown` and `close` for 5 s, no other call. What is taken is lost with a killed
            process.
        poll_interval: seconds after which a wait looks again although no notice came, 0.01 to 600.
        call_timeout: seconds, 0.05 to 86,400, that bound each call which is given no `timeout`: waits, outages, all of it (of a
            checkpoint, each step); a call's own timeout=inf is without end. None: such waits have no end, other calls have 5 s.
        fresh: delete the buffer first, if it is there.

    Settings that are left out are not compared; an explicit None is.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is not allowed.
        ConfigMismatchError: it exists with other settings.
        BufferNotFoundError: it does not exist, and capacity was left out.
        FormatError, BufferDamagedError, ServerTooOldError, ConnectionLostError, ServerRefusedError.
    """

    def __init__(
        self,
        url: object,
        name: str,
        *,
        capacity: object = opt.UNSET,
        batch_size: int | None = None,
        sampler: object = opt.UNSET,
        remover: object = opt.UNSET,
        rate_limiter: object = opt.UNSET,
        consume_after_n_samples: object = opt.UNSET,
        lease: object = opt.UNSET,
        max_staleness: object = opt.UNSET,
        seed: int | None = None,
        prefetch: int = 0,
        cache_bytes: int = 0,
        write_behind: float | None = None,
        poll_interval: float = 1.0,
        call_timeout: float | None = None,
        fresh: bool = False,
    ) -> None:
        options = {
            "capacity": capacity, "sampler": sampler, "remover": remover, "rate_limiter": rate_limiter,
            "consume_after_n_samples": consume_after_n_samples, "lease": lease, "max_staleness": max_staleness,
        }  # fmt: skip
        how = {
            "batch_size": batch_size, "seed": seed, "prefetch": prefetch, "cache_bytes": cache_bytes,
            "write_behind": write_behind, "poll_interval": poll_interval, "call_timeout": call_timeout,
        }  # fmt: skip
        mode = h.mode(options, fresh)
        self._prepare(url, name, options, how)
        self._open(admin.open_buffer, mode, opt.stored(options))

    @classmethod
    def attach(
        cls, url: object, name: str, *, timeout: float | None = None, batch_size: int | None = None,
        seed: int | None = None, prefetch: int = 0, cache_bytes: int = 0, write_behind: float | None = None,
        poll_interval: float = 1.0, call_timeout: float | None = None,
    ) -> Self:  # fmt: skip
        """A handle on a buffer that somebody creates, perhaps later; also while the server is still starting.

        Args:
            url: as in the constructor, but not embedded://, which is nobody else's.
            timeout: seconds to wait for its creator; None and inf without end, 0 asks once.

        Raises:
            ReplayTimeoutError: nobody created it in time. ConnectionLostError: the server could not be reached in time.
        """
        how = {
            "batch_size": batch_size, "seed": seed, "prefetch": prefetch, "cache_bytes": cache_bytes,
            "write_behind": write_behind, "poll_interval": poll_interval, "call_timeout": call_timeout,
        }  # fmt: skip
        limit = opt.seconds("timeout", timeout)
        h.shared(url)
        self = cls.__new__(cls)
        self._prepare(url, name, {}, how)
        self._open(admin.attach, {}, limit)
        return self

    # Writing

    def add(
        self, record: Any, *, priority: Any = None, version: Any = None, timeout: float | None = None, cancel_event: Any = None
    ) -> Any:  # fmt: skip
        """Writes one record (a dict of arrays, tensors, scalars, text, bytes or dicts; or a TensorDict). Gives its index (int).

        With `write_behind` it takes a copy of the record, and gives a Future (concurrent.futures, or asyncio's) of its index,
        which ends with whatever ends the write; timeout and cancel_event are then of the wait until the record is taken. Of
        records before that could not be written it raises NotWrittenError, once, and takes nothing.

        Args:
            priority: a number >= 0, where the sampler or the remover goes by priority; None: its default for new records.
            version: a whole number >= 0, of what the record was made with, where the buffer has max_staleness or Freshest();
                None: that of the buffer when it arrives. One that is too old already is written, counted and dropped at once.
            timeout: seconds for the call, outages and the wait for room included; None and inf: without end while the rate
                limiter is against it, and 5 s else. 0 asks once.
            cancel_event: anything with is_set(), looked at every 0.1 s of a wait; set, it ends the wait.

        Raises:
            SchemaError: it does not fit the schema that the first write fixed. ReplayTimeoutError: the rate limiter blocked it
            so long. ReplayCancelledError, BufferShutDownError, LimitError, OutOfMemoryError, BufferGoneError,
            ConnectionLostError; OutcomeUnknownError: no reply came.
        """
        core = self._runtime().core
        terms = h.terms(core, timeout, cancel_event)
        given, origin = args.priorities(core, priority, 1), versions.origin(core, version, 1)
        rows = encode_record(record, core.schema)
        if self._behind is not None and core.schema is not None:
            return self._behind.add(Item.of(core, rows, given, origin), terms)
        index = int(self._run("add", write.write, rows, terms, given, origin)[0])
        return done(Future(), index) if self._behind is not None else index

    def flush(self, timeout: float | None = None, cancel_event: Any = None) -> None:
        """Returns when all that `add` has taken (`write_behind`) is stored; at once where it takes nothing.

        Raises:
            NotWrittenError: some of it is not, since the last call: the future of each knows why. ReplayTimeoutError,
            ReplayCancelledError: what was taken stays taken.
        """
        core = self._runtime().core
        if self._behind is not None:
            self._behind.flush(h.terms(core, timeout, cancel_event))

    def extend(
        self, batch: Any, *, priority: Any = None, version: Any = None, timeout: float | None = None, cancel_event: Any = None
    ) -> NDArray[np.int64]:  # fmt: skip
        """Writes a batch: leaves with a leading batch dimension, or a list of records. Gives their indices, int64 (n,).

        All of it is written or none, up to 20,000 records (5,000 where they have priorities or versions, 2,500 where
        the remover is not Fifo) and 64 MiB; a longer one goes in steps, in order. Room is made first, so no step evicts
        its own records, but of one larger than the capacity only the tail stays; the rest counts as written and evicted.

        Args:
            priority, version: a number for all records, or one for each, as `add`.
            timeout, cancel_event: as `add`; without end each step has 1 s more for each MiB of it.

        Raises:
            as `add`, and NotWrittenError, as `flush`: nothing of the batch was written.
            `done` of any other error says how many records were written in steps before. ArgumentError: more records in
            one step than the rate limiter ever lets through at once.
        """
        core = self._runtime().core
        terms = h.terms(core, timeout, cancel_event)
        if self._behind is not None:
            began = core.clock()
            self._behind.flush(terms)
            terms = terms.after(core.clock() - began)
        rows = encode_batch(batch, core.schema)
        given, origin = args.priorities(core, priority, len(rows)), versions.origin(core, version, len(rows))
        indices: NDArray[np.int64] = self._run("extend", write.write, rows, terms, given, origin)
        return indices

    def update_priority(self, index: Any, priority: Any) -> Updated:
        """Sets priorities by index (one or many): a number for all, or one for each; of an index named twice the last holds.

        What is not in the buffer any more is ignored: an index never means another record. 0 hides a record from draws.

        Raises:
            ArgumentError (a ValueError): a priority is NaN, infinite, negative or no number; its name tells the position, and
            nothing was applied. The sampler has no priorities.
        """
        wanted = args.indices(index)
        given = args.new_priorities(self._runtime().core, priority, len(wanted))
        updated: Updated = self._run("update_priority", write.update_priority, wanted, given)
        return updated

    def set_alpha(self, alpha: float) -> None:
        """Another exponent of priorities, for everyone: (priority + eps) ** alpha of all that is stored. What is new is weighed
        by it from the first step on; each step re-weighs about 500 blocks of 8 records, and draws between go partly by the
        weights of before. Cut off, call it again: nothing is weighed twice.

        Raises:
            ArgumentError (a ValueError): no finite number >= 0, or neither the sampler nor the remover is Prioritized.
            OutcomeUnknownError: no reply came; call it again.
        """
        self._run("set_alpha", write.set_alpha, args.alpha(self._runtime().core, alpha))

    def remove(self, index: Any) -> int:
        """Takes records out by index (one or many); those that are not there are passed over. Gives how many were."""
        return int(self._run("remove", write.remove, args.indices(index)))

    def empty(self, empty_write_count: bool = True) -> None:
        """Takes all records out. Indices go on: none ever means other bytes.

        Args:
            empty_write_count: start write_count, consumed, evicted and removed at 0; False counts what goes as removed.
        """
        self._run("empty", write.change, scripts.empty(reset=opt.flag("empty_write_count", empty_write_count)))

    # Drawing and waiting

    def wait_until_sampleable(
        self, min_items: int | None = None, timeout: float | None = None, cancel_event: Any = None,
        stall_timeout: float | None = None,
    ) -> bool:  # fmt: skip
        """Blocks until `min_items` records (the handle's batch_size by default) are there. True then; False at the timeout
        or when cancelled. Advice about the moment, not a reservation: that is `sample(wait=True)`.

        Raises:
            StalledError: nobody wrote for `stall_timeout` seconds of the wait. BufferShutDownError, BufferGoneError,
            BufferClosedError, ConnectionLostError, ArgumentError, ArgumentTypeError.
        """
        patience = h.Patience(timeout, cancel_event, stall_timeout)
        wish = h.wait_wish(self._runtime().core, self._setup.batch_size, min_items, patience)
        return bool(self._run("wait_until_sampleable", waits.wait_until, wish, timeout=wish.timeout))

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample(batch_size)` would succeed now. False also when the buffer is shut down."""
        wish = h.can_wish(self._runtime().core, self._setup.batch_size, batch_size)
        return bool(self._run("can_sample", waits.can, wish))

    def wait_until_writable(self, n: int = 1, timeout: float | None = None, cancel_event: Any = None) -> bool:
        """Blocks until the rate limiter would let `n` records in. True then; False at the timeout or when cancelled. Advice
        about the moment: `extend` waits by itself, and has its place.

        Raises:
            ArgumentError: it never lets so many in at once. BufferShutDownError, also while it is draining; BufferGoneError,
            BufferClosedError, ConnectionLostError, ArgumentTypeError.
        """
        wish = h.room_wish(self._runtime().core, n, timeout, cancel_event)
        return bool(self._run("wait_until_writable", waits.wait_until, wish, timeout=wish.timeout))

    def can_insert(self, n: int = 1) -> bool:
        """Whether `extend` of `n` records would go through now. False also when the buffer is shut down or draining."""
        return bool(self._run("can_insert", waits.can, h.room_now(n)))

    def set_rate_limiter(self, rate_limiter: RateLimiter | None) -> None:
        """Another rate limiter from now on, or none, for everyone, in one step: to load offline data first, say. Who waits
        looks again. What is in the buffer counts as if it had come under it, so that nobody owes anything.

        Raises:
            ArgumentTypeError: it is none. ArgumentError: the buffer can never hold as much as it asks for.
        """
        self._run("set_rate_limiter", write.change, h.pace(self._runtime().core, rate_limiter))

    def __iter__(self) -> Iterator[Any]:
        """Batches of the handle's batch_size, each waited for, until the buffer is shut down."""
        while True:
            try:
                yield self.sample(wait=True)
            except BufferShutDownError:
                return

    # Looking

    def get(self, index: Any) -> Any:
        """The record stored under an index, or the batch under many. Draws nothing and counts nothing.

        Raises:
            RecordNotFoundError: there is none (any more). RecordDecodeError.
        """
        core, wanted = self._runtime().core, args.indices(index)
        return h.found(core, index, wanted, self._read("get", read.get, wanted))

    def records(self) -> Iterator[Any]:
        """Every stored record in order of index, read in pages while the buffer goes on.

        Raises:
            RecordDecodeError: an entry that is no record; its `index` says which.
        """
        after: int | None = None
        while after != 0:
            after, indices, payloads = self._read("records", read.page, after or 0)
            schema = self._runtime().core.schema
            for index, payload in zip(indices, payloads, strict=True):
                assert schema is not None
                yield decode_record(schema, payload, index)

    def priorities(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Every stored record's index and priority, int64 (n,) and float64 (n,), in order of index: also of those that no draw
        gave out. Read in pages while the buffer goes on.

        Raises:
            ArgumentError: records have no priorities here.
        """
        each: tuple[NDArray[np.int64], NDArray[np.float64]] = self._read("priorities", read.priorities)
        return each

    def stats(self) -> Stats:
        """Every counter in one round trip: scalars by name, the dicts `lag` and `by_writer`, and the list `blocked`.
        docs/redis-cli.md says what each means.
        """
        counters: Stats = self._read("stats", read.stats)
        return counters

    def doctor(self) -> Report:
        """Checks the invariants of docs/architecture.md. Changes nothing."""
        report: Report = self._read("doctor", doctor.examine)
        return report

    def __len__(self) -> int:
        """sampleable_size."""
        return self.sampleable_size

    def __bool__(self) -> bool:
        """True: an empty buffer is a buffer."""
        return True

    @property
    def write_count(self) -> int:
        """Records written since the start, or since an `empty()` that reset it. Exact to 2^63 - 1."""
        return int(self._read("stats", read.stats)["write_count"])

    @property
    def sampleable_size(self) -> int:
        """Live records: those that may be drawn now."""
        return int(self._read("stats", read.stats)["sampleable_size"])

    @property
    def storage_size(self) -> int:
        """Stored records, those included that a reader is still fetching."""
        return int(self._read("stats", read.stats)["storage_size"])

    # Ends of life

    def shutdown(self, drain: bool = True) -> None:
        """For everyone: writers are refused, waits end. With `drain`, a buffer that consumes gives out what is left first,
        the last batch short and marked `info.last`.
        """
        if self._behind is not None:
            self._runtime()
            self._behind.hurry(SHUTDOWN_SECONDS)
        self._run("shutdown", write.change, scripts.shutdown(drain=opt.flag("drain", drain)))

    def reopen(self) -> None:
        """A buffer that was shut down is open again, with what it holds."""
        self._run("reopen", write.change, scripts.reopen())

    def delete(self) -> None:
        """Deletes the buffer for everyone: no key is left, every wait ends with BufferGoneError. Closes this handle."""
        self._read("delete", admin.delete)
        self.close()
