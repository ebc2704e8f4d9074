"""What goes wrong between us and the server: the client library's exceptions as ours. The one place for that."""

from redis import exceptions as r

from redis_replay import _rights
from redis_replay import exceptions as e
from redis_replay._keys import Keys
from redis_replay._steps import LostError, NotNowError, NotSentError, ScriptMissingError

# Codes of "not now": nothing was done, and a later try may do it.
_LATER = ("LOADING", "BUSY ", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN")
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


class Translator:
    """Knows the names that errors carry."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def refusal(self, verb: str, error: Exception) -> Exception:
        """An error that the server answered with."""
        text = str(error).removeprefix("ERR ")
        if isinstance(error, r.NoScriptError) or text.startswith("NOSCRIPT"):
            return ScriptMissingError(text)
        if isinstance(error, r.OutOfMemoryError) or text.startswith("OOM") or "maxmemory" in text:
            return e.OutOfMemoryError(name=self.name, reason=text)
        if "WRONGTYPE" in text:
            return e.BufferDamagedError(
                name=self.name,
                key=Keys(self.name).key("*"),
                found="has another type",
                expected="that of docs/redis-cli.md",
            )
        if any(words in text for words in _DATA):
            return e.BufferDamagedError(
                name=self.name, key=Keys(self.name).key("*"), found=f"makes {verb} fail ({text})", expected="what scripts wrote"
            )
        refused = self._refused(verb, text)
        if isinstance(error, (r.BusyLoadingError, r.TryAgainError)) or text.startswith(_LATER):
            return NotNowError(refused)
        return refused

    def fault(self, verb: str, error: Exception, *, sent: bool) -> Exception:
        """An error on the way: of the connection, or of logging in. `sent`: a request was, perhaps, on it."""
        text = str(error) or type(error).__name__
        if isinstance(error, r.BusyLoadingError):
            text = f"LOADING {text}"
        if text.startswith(_LATER):
            return NotNowError(e.ServerRefusedError(address=self.address, verb=verb, reason=text))
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return e.CertificateError(address=self.address, reason=text)
        # Awaited, a refusal during the login comes as a lost connection.
        refused = isinstance(error, (*_LOGIN, r.ResponseError)) or "Invalid Database" in text
        if refused or _rights.missing(text, self.name):
            return self._refused(verb if sent else "to log in", text)
        lost = e.ConnectionLostError(address=self.address, reason=text)
        return LostError(lost) if sent else NotSentError(lost)

    def _refused(self, verb: str, text: str) -> e.ServerRefusedError:
        if rights := _rights.missing(text, self.name):
            return e.NoPermissionError(address=self.address, verb=verb, reason=text, rights=rights)
        return e.ServerRefusedError(address=self.address, verb=verb, reason=text)
