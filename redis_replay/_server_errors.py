"""Errors of the server and of the way to it. Their public place is redis_replay.exceptions."""

from typing import Any

from redis_replay._error import ReplayError


class ConnectionLostError(ReplayError, ConnectionError):
    """The server cannot be reached or does not answer. `address` names it, without a password."""

    text = "no answer from the server at {address}: {reason}"
    address: str
    reason: str


class MemberDownError(ConnectionLostError):
    """Of an ensemble: the server of the buffer `name`, its member `member` (0 is the first), does not answer."""

    text = "member {member} of the ensemble, buffer {name!r}: no answer from the server: {reason}"
    member: int
    name: str


class CertificateError(ReplayError):
    """TLS: the server's certificate names another host, or is signed by an unknown authority. Nothing was sent."""

    text = (
        "the certificate of the server at {address} is not to be trusted: {reason}; docs/security.md tells what it must be like"
    )
    address: str
    reason: str


class EmbeddedServerError(ReplayError):
    """A server of our own cannot be started. `reason` says why."""

    text = "{reason}"
    reason: str


class ServerTooOldError(ReplayError):
    """The server lacks what redis-replay needs."""

    text = "the server at {address} is too old ({found}); redis-replay needs {need}"
    address: str
    found: str
    need: str


class OutOfMemoryError(ReplayError):
    """The server has reached its maxmemory. Nothing was written; what frees memory still works."""

    text = "buffer {name!r}: the server is out of memory (maxmemory): {reason}; nothing was written; raise maxmemory, or draw, remove or empty: what frees memory still works"
    name: str
    reason: str


class ServerRefusedError(ReplayError):
    """The server refused a call: rights, a wrong password or database, and so on. `verb` is the call."""

    text = "the server at {address} refused {verb}: {reason}"
    address: str
    verb: str
    reason: str


class ServerNotReadyError(ServerRefusedError):
    """The server served nobody until the call's timeout: it loads, is busy, or is a replica. The call did nothing."""

    text = "the server at {address} serves nobody for now, and {verb} was not done: {reason}"


class NoPermissionError(ServerRefusedError):
    """The server's ACL does not allow it. `rights` are those that the user lacks, each as ACL SETUSER takes it."""

    text = "the server at {address} refused {verb}: its user lacks {rights} ({reason}); docs/security.md tells which rights are needed"
    rights: tuple[str, ...]

    def _message(self, **data: Any) -> str:
        return super()._message(**data | {"rights": " ".join(data["rights"])})


class ProtocolError(ReplayError):
    """A script gave an answer that this version does not know."""

    text = "script {verb!r} gave an answer that this version of redis-replay does not know: {reply!r}; let all its clients run one version"
    verb: str
    reply: object
