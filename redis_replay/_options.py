"""A buffer's settings and a call's arguments: what is allowed, and how they are stored."""

import math
import operator
from typing import Any

import numpy as np

from redis_replay import limiters
from redis_replay.exceptions import ArgumentError, ArgumentTypeError
from redis_replay.limiters import RateLimiter
from redis_replay.samplers import KINDS, Fifo, Prioritized, Sampler, Uniform

MAX_CAPACITY = 4_000_000_000  # a draw is one 32-bit random number
MAX_VERSION = 2**53 - 1
FOREVER = math.inf
MIN_LEASE, MAX_LEASE = 0.05, 86400.0  # seconds


class Unset:
    """The value of an option that was left out: it is not compared when attaching."""

    def __repr__(self) -> str:
        return "unset"


UNSET = Unset()


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int from `low` to `high`.

    Raises:
        ArgumentTypeError: it is no integer (a bool is none).
        ArgumentError: it is out of range.
    """
    allowed = f"a whole number from {low:,} to {high:,}"
    try:
        number = operator.index(value) if not isinstance(value, (bool, np.bool_)) else None  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - whatever an argument does when it is looked at, it is no number
        number = None
    if number is None:
        raise ArgumentTypeError(name=name, allowed=allowed, found=value)
    if not low <= number <= high:
        raise ArgumentError(name=name, allowed=allowed, found=value)
    return number


def flag(name: str, value: object) -> bool:
    """`value` as a bool.

    Raises:
        ArgumentTypeError: it is neither a bool nor 0 or 1.
    """
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentTypeError(name=name, allowed="True or False", found=value)


def seconds(name: str, value: object) -> float:
    """A timeout: None and inf are without end.

    Raises:
        ArgumentTypeError: it is no number (a bool is none).
        ArgumentError: it is negative or NaN.
    """
    allowed = "a number of seconds >= 0, or None"
    if value is None:
        return FOREVER
    try:
        number = None if isinstance(value, (bool, np.bool_, str, bytes, complex)) else float(value)  # type: ignore[arg-type]
    except OverflowError:
        return FOREVER
    except Exception:  # noqa: BLE001 - whatever an argument does when it is looked at, it is no number
        number = None
    if number is None:
        raise ArgumentTypeError(name=name, allowed=allowed, found=value)
    if not number >= 0:
        raise ArgumentError(name=name, allowed=allowed, found=value)
    return number


def poll_seconds(value: object) -> float:
    """poll_interval. A lane is forgotten after an hour without a request, so a waiter polls well within it."""
    number = seconds("poll_interval", value)
    if not 0.01 <= number <= 600:
        raise ArgumentError(name="poll_interval", allowed="a number of seconds from 0.01 to 600", found=value)
    return number


def delay_seconds(value: object) -> float | None:
    """write_behind; None: off."""
    if value is None:
        return None
    number = seconds("write_behind", value)
    if not 0.001 <= number <= 60:
        raise ArgumentError(name="write_behind", allowed="a number of seconds from 0.001 to 60, or None", found=value)
    return number


def call_seconds(value: object) -> float | None:
    """call_timeout; None: no such bound."""
    if value is None:
        return None
    number = seconds("call_timeout", value)
    if not 0.05 <= number <= 86_400:
        raise ArgumentError(name="call_timeout", allowed="a number of seconds from 0.05 to 86,400, or None", found=value)
    return number


def cancel(event: object) -> Any:
    """`event` if it can be asked `is_set()`.

    Raises:
        ArgumentTypeError: it has no is_set().
    """
    if event is None:
        return None
    try:
        bool(event.is_set())  # type: ignore[attr-defined]
    except Exception as error:
        raise ArgumentTypeError(name="cancel_event", allowed="None or anything with is_set()", found=event) from error
    return event


def _sampler(value: object) -> str:
    return repr(_selector("sampler", value))


def _remover(value: object) -> str:
    return repr(_selector("remover", value))


def _selector(name: str, value: object) -> Sampler:
    if value is None:
        return Uniform() if name == "sampler" else Fifo()
    if not isinstance(value, Sampler) or type(value) not in KINDS:  # nothing of a subclass would be stored
        raise ArgumentTypeError(name=name, allowed="a sampler of redis_replay.samplers, or None", found=value)
    return value


def _check_pair(sampler: object, remover: object) -> None:
    """There is one set of weights."""
    if not isinstance(sampler, Prioritized) or not isinstance(remover, Prioritized):
        return
    if (sampler.alpha, sampler.eps) != (remover.alpha, remover.eps):
        allowed = f"of the same alpha and eps as the sampler, which is {sampler!r}"
        raise ArgumentError(name="remover", allowed=allowed, found=remover)


def rate_limiter(value: object) -> RateLimiter | None:
    """A rate limiter, or None.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if value is None:
        return None
    if not isinstance(value, RateLimiter) or type(value) not in limiters.KINDS:
        raise ArgumentTypeError(name="rate_limiter", allowed="one of redis_replay.limiters, or None", found=value)
    return value


def _rate_limiter(value: object) -> str:
    return repr(rate_limiter(value))


def law(limiter: RateLimiter | None) -> str:
    """What the scripts go by; empty: nothing limits the rate."""
    return limiter.law.text if limiter is not None else ""


def _capacity(value: object) -> str:
    return str(whole_number("capacity", value, 1, MAX_CAPACITY))


def _uses(value: object) -> str:
    return "None" if value is None else str(whole_number("consume_after_n_samples", value, 1, 1_000_000))


def lease_seconds(value: object) -> float:
    """A lease.

    Raises:
        ArgumentTypeError: it is no number (a bool is none).
        ArgumentError: it is out of range.
    """
    number = seconds("lease", value)
    if value is None or not MIN_LEASE <= number <= MAX_LEASE:
        raise ArgumentError(name="lease", allowed=f"a number of seconds from {MIN_LEASE} to {MAX_LEASE:,}", found=value)
    return number


def _lease(value: object) -> str:
    return "None" if value is None else repr(lease_seconds(value))


def _staleness(value: object) -> str:
    return "None" if value is None else str(whole_number("max_staleness", value, 0, MAX_VERSION))


STORED = {
    "capacity": _capacity, "sampler": _sampler, "remover": _remover, "rate_limiter": _rate_limiter,
    "consume_after_n_samples": _uses, "lease": _lease, "max_staleness": _staleness,
}  # fmt: skip
DEFAULTS: dict[str, object] = {
    "sampler": None, "remover": None, "rate_limiter": None, "consume_after_n_samples": None, "lease": None,
    "max_staleness": None,
}  # fmt: skip


def stored(options: dict[str, object]) -> dict[str, tuple[str, bool]]:
    """Each setting as (text to store, whether the caller named it). `capacity` is absent where it was left out.

    Raises:
        ArgumentError, ArgumentTypeError: one is not allowed, or not with another.
    """
    out = {}
    for name, as_text in STORED.items():
        value = options.get(name, UNSET)
        if value is not UNSET:
            out[name] = (as_text(value), True)
        elif name in DEFAULTS:
            out[name] = (as_text(DEFAULTS[name]), False)
    _check_pair(options.get("sampler"), options.get("remover"))
    limiter = options.get("rate_limiter", UNSET)
    out["law"] = (law(limiter) if isinstance(limiter, RateLimiter) else "", False)  # follows from it: never compared
    if isinstance(limiter, RateLimiter) and "capacity" in out:
        limiter.check(int(out["capacity"][0]))
    return out
