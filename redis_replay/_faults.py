"""What goes wrong between us and the server: the client library's exceptions as ours. The one place for that."""

from redis import exceptions as r

from redis_replay import exceptions as e
from redis_replay._keys import Keys
from redis_replay._steps import LostError, NotNowError, NotSentError, ScriptMissingError

# Codes of "not now": nothing was done, and a later try may do it.
_LATER = ("LOADING", "BUSY ", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN")
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
        if isinstance(error, r.OutOfMemoryError) or text.startswith("OOM") or "> 'maxmemory'" in text:
            return e.OutOfMemoryError(name=self.name, reason=text)
        if "WRONGTYPE" in text:
            return e.BufferDamagedError(
                name=self.name,
                key=Keys(self.name).key("*"),
                found="has another type",
                expected="that of docs/redis-cli.md",
            )
        refused = e.ServerRefusedError(address=self.address, verb=verb, reason=text)
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
        if isinstance(error, _LOGIN) or "Invalid Database" in text or isinstance(error, r.ResponseError):
            return e.ServerRefusedError(address=self.address, verb=verb if sent else "to log in", reason=text)
        lost = e.ConnectionLostError(address=self.address, reason=text)
        return LostError(lost) if sent else NotSentError(lost)
