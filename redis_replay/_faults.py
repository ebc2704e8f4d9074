"""What goes wrong between us and the server: told from what a signal handler raises, translated, and logged once."""

import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Literal

from redis import exceptions as r

from redis_replay import _rights
from redis_replay import exceptions as e
from redis_replay._clock import monotonic
from redis_replay._core import log
from redis_replay._keys import Keys
from redis_replay._steps import LostError, NotNowError, NotSentError, ScriptMissingError, UnansweredError

# Codes of "not now": nothing was done, and a later try may do it.
_LATER = ("LOADING ", "BUSY ", "TRYAGAIN ", "MASTERDOWN ", "CLUSTERDOWN ", "READONLY ", "NOREPLICAS ", "MISCONF ")
# redis-py, which logs in and carries the fake, cuts these codes off.
_CUT = {
    r.BusyLoadingError: "LOADING", r.TryAgainError: "TRYAGAIN", r.MasterDownError: "MASTERDOWN", r.ReadOnlyError: "READONLY",
    r.ClusterDownError: "CLUSTERDOWN", r.NoScriptError: "NOSCRIPT", r.OutOfMemoryError: "OOM",
}  # fmt: skip
# What a script ends with that meets values which no script has written.
_DATA = (
    "attempt to ",
    "bad argument",
    "must be a number",
    "not an integer",
    "not a float",
    "not a valid float",
    "Invalid stream ID",
    "overflow",
)
_LOGIN = (r.AuthenticationError, r.AuthorizationError)


class WireError(Exception):
    """A socket failed, or could not be had: `error` says how."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Faults:
    """In `with`: what a socket raises comes out as WireError, and nothing else does."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if isinstance(error, (r.RedisError, OSError)) and not by_handler(error):
            raise WireError(error) from error
        return False


FAULTS = _Faults()


def by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it: TimeoutError is what a socket raises, and what a handler of SIGALRM does."""
    trace = error.__traceback__
    interrupted: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        if interrupted and any(value is interrupted for value in _arguments(frame)):
            return True  # only a handler is handed the frame that it interrupts
        trace, interrupted = trace.tb_next, frame
    return False


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *args
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        yield from value if type(value) is tuple else (value,)


def _text(error: Exception) -> str:
    """As the server sent it, its code in front. ERR is none."""
    text = str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
    code = _CUT.get(type(error), "")
    return f"{code} {text}" if not text.startswith(code) else text.removeprefix("ERR ")


class Translator:
    """Knows the names that errors carry."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def refusal(self, verb: str, error: Exception) -> Exception:
        """An error that the server answered with."""
        text = _text(error)
        if text.startswith("NOSCRIPT"):
            return ScriptMissingError(text)
        if text.startswith(_LATER):
            return self.not_now(verb, text)
        if text.startswith("OOM") or "> 'maxmemory'" in text:
            return e.OutOfMemoryError(name=self.name, reason=text)
        if "WRONGTYPE" in text:
            return e.BufferDamagedError(
                name=self.name,
                key=Keys(self.name).key("*"),
                found="has another type",
                expected="that of docs/redis-cli.md",
            )
        if (verb != "pipeline" or "script" in text) and any(words in text for words in _DATA):
            return e.BufferDamagedError(
                name=self.name, key=Keys(self.name).key("*"), found=f"makes {verb} fail ({text})", expected="what scripts wrote"
            )
        return self._refused(verb, text)

    def not_now(self, verb: str, text: str) -> NotNowError:
        """The server serves nobody for the moment."""
        return NotNowError(e.ServerNotReadyError(address=self.address, verb=verb, reason=text))

    def fault(self, verb: str, error: Exception, *, sent: bool) -> Exception:
        """An error on the way: of the connection, or of logging in. `sent`: a request was, perhaps, on it."""
        text = _text(error)
        if text.startswith(_LATER):
            return self.not_now(verb, text)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return e.CertificateError(address=self.address, reason=text)
        # Awaited, a refusal during the login comes as a lost connection.
        refused = isinstance(error, (*_LOGIN, r.ResponseError)) or "Invalid Database" in text
        if refused or _rights.missing(text, self.name):
            return self._refused(verb if sent else "to log in", text)
        lost = e.ConnectionLostError(address=self.address, reason=text)
        lost.__cause__ = error
        return LostError(lost) if sent else NotSentError(lost)

    def _refused(self, verb: str, text: str) -> e.ServerRefusedError:
        if rights := _rights.missing(text, self.name):
            return e.NoPermissionError(address=self.address, verb=verb, reason=text, rights=rights)
        return e.ServerRefusedError(address=self.address, verb=verb, reason=text)


class Outage:
    """Whether a handle's server is lost. One line says so, and one that it is back, whichever of its sockets notice."""

    def __init__(self, name: str, address: str) -> None:
        self.lost = False
        self._deaf = False
        self._began = 0.0
        self._about = name, address
        self._lock = threading.Lock()

    def begin(self, error: Exception, born: float) -> None:
        """A socket that was opened at `born` failed. One that is older than the last outage was lost in that."""
        with self._lock:
            if self.lost or born < self._began:
                return
            self.lost, self._began = True, monotonic()
        log.warning("buffer %r: the server at %s is lost (%s); trying again", *self._about, _reason(error))

    def end(self, born: float) -> None:
        """The server served a call, on a socket that was opened at `born`."""
        with self._lock:
            if not self.lost or born < self._began:
                return
            self.lost, seconds = False, monotonic() - self._began
        log.warning("buffer %r: the server at %s serves again, after %.1f s", *self._about, seconds)

    def deafen(self, error: Exception) -> None:
        """Calls are served, perhaps, but no subscription is to be had."""
        with self._lock:
            if self.lost or self._deaf:
                return
            self._deaf = True
        log.warning("buffer %r: no subscription at %s (%s); waits go by their poll_interval", *self._about, _reason(error))

    def hear(self) -> None:
        """There is a subscription."""
        with self._lock:
            was, self._deaf = self._deaf, False
        if was:
            log.warning("buffer %r: there is a subscription at %s again", *self._about)


def _reason(error: Exception) -> str:
    while isinstance(error, (UnansweredError, WireError)):
        error = error.error
    return getattr(error, "reason", "") or _text(error)
