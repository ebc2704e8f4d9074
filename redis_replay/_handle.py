"""What the sync and the async handle share: arguments checked, wishes made, batches decoded. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _decode as codec
from redis_replay import _ops_sample, _ops_wait, _ops_write
from redis_replay import _options as opt
from redis_replay import _scripts as scripts
from redis_replay._address import Address
from redis_replay._cache import CacheInfo
from redis_replay._clock import monotonic
from redis_replay._core import Core, LocalStats
from redis_replay._keys import Keys, check_name
from redis_replay._leases import caller
from redis_replay._lua import verbs
from redis_replay._ops_sample import Drawn
from redis_replay._types import SampleInfo
from redis_replay._versions import Versioned
from redis_replay.embedded import EmbeddedServer, resolve
from redis_replay.exceptions import (
    ArgumentError,
    OutcomeUnknownError,
    RecordNotFoundError,
    ServerRefusedError,
)
from redis_replay.samplers import MAX_ENDS, Prioritized, Sampler, not_negative

Decoder = Callable[[Core, Drawn], Any]  # makes a batch, as the caller gets it, of what was drawn
INNER = frozenset({*verbs(), "pipeline", "SCRIPT LOAD", "XRANGE"})  # what is done for a call, and has no name outside


@dataclass
class Setup:
    """What a handle is made from, and pickled to: where, which buffer, and how this handle uses it."""

    address: Address
    name: str
    batch_size: int | None
    poll_interval: float
    seed: int | None
    prefetch: int = 0
    cache_bytes: int = 0
    write_behind: float | None = None
    call_timeout: float | None = None

    def core(self, seed: int | None) -> Core:
        """A new core for this process."""
        core = Core(Keys(self.name, self.address.db), self.poll_interval, seed, monotonic)
        core.keep_payloads(self.cache_bytes)
        core.call_timeout = self.call_timeout
        return core


class Known(Versioned):
    """What a handle tells about itself and its buffer without asking anybody."""

    _setup: Setup

    @property
    def local_stats(self) -> LocalStats:
        """What the waits of this handle went through. Asks nobody."""
        return self._own.local

    def cache_info(self) -> CacheInfo:
        """Hits, misses, records and bytes of this handle's cache of payloads (`cache_bytes`). Asks nobody."""
        return self._own.cache.info() if self._own.cache is not None else CacheInfo(0, 0, 0, 0)

    @property
    def name(self) -> str:
        """The buffer's name."""
        return self._setup.name

    @property
    def capacity(self) -> int:
        """Records that the buffer holds at most."""
        return self._own.capacity

    @property
    def batch_size(self) -> int | None:
        """Default of `sample` and `wait_until_sampleable` on this handle."""
        return self._setup.batch_size

    @property
    def sampler(self) -> Sampler:
        """How records are drawn. Its beta is that of this handle now."""
        return self._own.sampler.annealed(self._own.beta)

    @property
    def consume_after_n_samples(self) -> int | None:
        """Hand-outs after which a record leaves the buffer. None: it stays."""
        return self._own.consume

    @property
    def draws_again(self) -> bool:
        """Whether a batch may hold a record more than once: a draw with replacement, in a buffer that does not consume."""
        return self._own.consume is None and getattr(self._own.sampler, "replacement", False)

    @property
    def beta(self) -> float:
        """The exponent of importance weights in this handle's draws, >= 0. Set it to anneal it; others have their own."""
        return self._own.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._own.beta = not_negative("beta", value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._setup.address)!r}, {self._setup.name!r})"


def setup(
    target: object, name: object, options: dict[str, Any], *, batch_size: object = None, poll_interval: object = 1.0,
    seed: object = None, prefetch: object = 0, cache_bytes: object = 0, write_behind: object = None,
    call_timeout: object = None,
) -> tuple[Setup, EmbeddedServer | None]:  # fmt: skip
    """Checks the arguments of a handle. Starts the server of an embedded:// URL, after the checks."""
    checked_name = check_name(name)
    opt.stored(options)
    if batch_size is not None:
        batch_size = opt.whole_number("batch_size", batch_size, 1, MAX_ENDS)
    if seed is not None:
        seed = opt.whole_number("seed", seed, 0, 2**128)
    poll, depth = opt.poll_seconds(poll_interval), opt.whole_number("prefetch", prefetch, 0, 64)
    if depth and batch_size is None:
        raise ArgumentError(name="prefetch", allowed="left out where batch_size is not given", found=prefetch)
    cached = opt.whole_number("cache_bytes", cache_bytes, 0, 2**53 - 1)
    delay, limit = opt.delay_seconds(write_behind), opt.call_seconds(call_timeout)
    server = resolve(target) if isinstance(target, str) and target.startswith("embedded:") else None
    address = Address(server or target)
    return Setup(address, checked_name, batch_size, poll, seed, depth, cached, delay, limit), server


def check_prefetch(setup: Setup, core: Core) -> None:
    """What is drawn ahead must not be lost with the handle.

    Raises:
        ArgumentError: the buffer consumes, and lends nothing by default.
    """
    if setup.prefetch and core.consume is not None and core.lease is None:
        allowed = "0 where consume_after_n_samples is given without lease: what was drawn ahead would be lost with the handle"
        raise ArgumentError(name="prefetch", allowed=allowed, found=setup.prefetch)


def name_call(error: BaseException, call: str) -> None:
    """Gives an error the name of the call as its caller knows it, where it was raised under one of ours."""
    if isinstance(error, ServerRefusedError) and error.verb in INNER:
        error.restate(verb=call)
    if isinstance(error, OutcomeUnknownError) and error.verb in ("add", "gate", "version", "alpha"):
        error.restate(verb=call)
        error.question.call = call


def shared(target: object) -> None:
    """Refuses a server of its own for a buffer that somebody else creates.

    Raises:
        ArgumentError: the URL is embedded://.
    """
    if isinstance(target, str) and target.startswith("embedded:"):
        raise ArgumentError(name="url", allowed="that of a server which the buffer's creator uses, too", found=target)


def mode(options: dict[str, Any], fresh: bool) -> str:
    """What `open` shall do.

    Raises:
        ArgumentError: fresh=True without a capacity; a lease without consume_after_n_samples.
    """
    if options["capacity"] is not opt.UNSET:
        lends = options["lease"] is not opt.UNSET and options["lease"] is not None
        if lends and (options["consume_after_n_samples"] is opt.UNSET or options["consume_after_n_samples"] is None):
            raise ArgumentError(name="consume_after_n_samples", allowed="given with lease", found=None)
        return "fresh" if opt.flag("fresh", fresh) else "create"
    if opt.flag("fresh", fresh):
        raise ArgumentError(name="capacity", allowed="given with fresh=True", found=None)
    return "attach"


def sizes(core: Core, default: int | None, batch_size: object, min_items: object) -> tuple[int, int]:
    """batch_size and min_items of a draw.

    Raises:
        ArgumentError: neither the call nor the handle has a batch_size; it is above the limit of one draw, or needs more
            than the buffer can hold.
        ArgumentTypeError: not a whole number.
    """
    n = _size(core, default, batch_size)
    least = n if min_items is None else opt.whole_number("min_items", min_items, 1, n)
    return n, reachable(core, "batch_size" if min_items is None else "min_items", least)


def _size(core: Core, default: int | None, batch_size: object) -> int:
    if batch_size is None:
        batch_size = default
    if batch_size is None:
        raise ArgumentError(name="batch_size", allowed="given here or to the buffer", found=None)
    return opt.whole_number("batch_size", batch_size, 1, core.max_batch)


def reachable(core: Core, what: str, n: int) -> int:
    """`n`, if the buffer can ever hold as many."""
    if n > core.capacity:
        raise ArgumentError(name=what, allowed=f"at most the capacity, {core.capacity:,}", found=n)
    return n


def needed(core: Core, default: int | None, min_items: object) -> int:
    """min_items of a wait; the handle's batch_size by default."""
    if min_items is None:
        min_items = default
    if min_items is None:
        raise ArgumentError(name="min_items", allowed="given here, or batch_size to the buffer", found=None)
    return reachable(core, "min_items", opt.whole_number("min_items", min_items, 1, opt.MAX_CAPACITY))


@dataclass(frozen=True)
class Patience:
    """How long a call waits: its arguments as the caller gave them."""

    timeout: object
    cancel_event: object
    stall_timeout: object

    def checked(self, core: Core) -> dict[str, Any]:
        """The fields of a Wish.

        Raises:
            ArgumentError, ArgumentTypeError: one is not allowed, whether or not the call would wait.
        """
        return {
            "timeout": core.bound(opt.FOREVER) if self.timeout is None else opt.seconds("timeout", self.timeout),
            "cancel_event": opt.cancel(self.cancel_event),
            "stall_timeout": opt.seconds("stall_timeout", self.stall_timeout),
        }


def draw_wish(
    core: Core, default: int | None, batch_size: object, min_items: object, wait: bool, patience: Patience, lease: object
) -> _ops_wait.Wish:
    """The wish of `sample`, of the thread or task that runs."""
    how, me = patience.checked(core), caller()
    n, least = sizes(core, default, batch_size, min_items)
    how |= {"wait": opt.flag("wait", wait), "lease": lent(core, lease), "owner": me, "before": me}
    return _ops_sample.sample_wish(core, n, least, **how)


def wait_wish(core: Core, default: int | None, min_items: object, patience: Patience) -> _ops_wait.Wish:
    """The wish of `wait_until_sampleable`."""
    how = patience.checked(core)
    return _ops_wait.wait_wish(needed(core, default, min_items), 0, wait=True, **how)


def can_wish(core: Core, default: int | None, n: object) -> _ops_wait.Wish:
    """The wish of `can_sample`: judged as a newcomer that would take a batch."""
    need = _size(core, default, n)
    return _ops_wait.wait_wish(need, need, wait=False)


def room_wish(core: Core, n: object, timeout: object, cancel_event: object) -> _ops_wait.Wish:
    """The wish of `wait_until_writable`."""
    how = Patience(timeout, cancel_event, None).checked(core)
    return _ops_wait.room_wish(opt.whole_number("n", n, 1, opt.MAX_CAPACITY), 0, wait=True, **how)


def room_now(n: object) -> _ops_wait.Wish:
    """The wish of `can_insert`: judged as a newcomer that would write so many."""
    number = opt.whole_number("n", n, 1, opt.MAX_CAPACITY)
    return _ops_wait.room_wish(number, number, wait=False)


def terms(core: Core, timeout: object, cancel_event: object) -> _ops_write.Terms:
    """How long a write waits.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is not allowed.
    """
    how = Patience(timeout, cancel_event, None).checked(core)
    return _ops_write.Terms(how["timeout"], how["cancel_event"])


def pace(core: Core, limiter: object) -> scripts.Script:
    """The script of `set_rate_limiter`."""
    wanted = opt.rate_limiter(limiter)
    if wanted is not None:
        wanted.check(core.capacity)
    return scripts.pace(rate_limiter=repr(wanted), law=opt.law(wanted))


def lent(core: Core, lease: object) -> float | None:
    """Seconds for which a draw is lent; None: it consumes at once.

    Raises:
        ArgumentError: a lease for a buffer that never consumes.
    """
    if lease is None:
        return core.lease
    seconds = opt.lease_seconds(lease)
    if core.consume is None:
        raise ArgumentError(name="lease", allowed="left out where consume_after_n_samples is None", found=lease)
    return seconds


def decoder(return_info: object) -> Decoder:
    """That of `sample`."""
    return _with_info if opt.flag("return_info", return_info) else _decode


def _decode(core: Core, drawn: Drawn) -> Any:
    assert core.schema is not None
    payloads, index = drawn.payloads, drawn.index.tolist()
    if isinstance(payloads, list):
        data = codec.decode_batch(core.schema, payloads, index)
    else:
        data = codec.decode_arrived(core.schema, payloads, index)
    if core.schema.root == "tensordict":
        _set_each(data, "index", drawn.index)
        if (weight := _priority_weight(core, drawn)) is not None:
            _set_each(data, "priority_weight", weight)
    return data


def _set_each(data: Any, key: str, values: NDArray[Any]) -> None:
    """A leaf of a TensorDict with one value for each record, whatever batch dimensions the records have themselves."""
    data.set(key, _tensor(values).reshape(-1, *[1] * (data.batch_dims - 1)).expand(data.batch_size).clone())


def _with_info(core: Core, drawn: Drawn) -> tuple[Any, SampleInfo]:
    probability = core.sampler.probability(len(drawn.index), drawn.live, drawn.priority, drawn.whole)
    weight = _priority_weight(core, drawn)
    info = SampleInfo(
        drawn.index,
        probability,
        drawn.times_sampled,
        drawn.last,
        drawn.lease,
        priority=drawn.priority,
        priority_weight=weight,
        version=drawn.version,
    )
    return _decode(core, drawn), info


def _priority_weight(core: Core, drawn: Drawn) -> NDArray[np.float32] | None:
    if not isinstance(core.sampler, Prioritized) or drawn.priority is None or drawn.whole is None:
        return None
    return core.sampler.priority_weight(drawn.priority, core.beta, drawn.whole)


def _tensor(index: Any) -> Any:
    import torch

    return torch.from_numpy(index)


def found(core: Core, index: object, wanted: Sequence[int], payloads: Sequence[bytes | None]) -> Any:
    """The answer of `get`: a record for one index, a batch for many."""
    for i, payload in zip(wanted, payloads, strict=True):
        if payload is None:
            raise RecordNotFoundError(name=core.name, index=i)
    if core.schema is None:
        raise ArgumentError(name="index", allowed="at least one, as nothing was written yet", found=index)
    stored = [p for p in payloads if p is not None]
    if np.ndim(index) == 0:  # type: ignore[arg-type]
        return codec.decode_record(core.schema, stored[0], wanted[0])
    return codec.decode_batch(core.schema, stored, wanted)
