"""Operations on a buffer as a whole: open, attach, delete. Generators without I/O: see _steps."""

import secrets
from collections.abc import Generator
from copy import copy
from typing import Any

from redis_replay import _requests as rq
from redis_replay import _rights as rights
from redis_replay import _scripts as scripts
from redis_replay import _stored as stored
from redis_replay._core import CALL_SECONDS, LOG_SECONDS, Core, Lane, log
from redis_replay._server_facts import QUESTIONS, ServerFacts
from redis_replay._steps import EVENTS, Listen, Pause, Step
from redis_replay._types import Reply
from redis_replay.exceptions import (
    BufferDamagedError,
    BufferNotFoundError,
    ConfigMismatchError,
    ConnectionLostError,
    FormatError,
    NoPermissionError,
    OutOfMemoryError,
    ReplayTimeoutError,
    ServerNotReadyError,
    ServerRefusedError,
    ServerTooOldError,
)

FORMAT = "5"  # of what is stored; one higher whenever a key, an answer or a payload changes its meaning
OPEN_SECONDS = 1.5
NEED = "Redis 7.0 or Valkey 7.2"

Options = dict[str, tuple[str, bool]]


def open_buffer(core: Core, mode: str, options: Options, timeout: float = OPEN_SECONDS) -> Generator[Step, Any, None]:
    """Creates the buffer or attaches to it, by `mode`: create, attach or fresh.

    Raises:
        BufferNotFoundError, ConfigMismatchError, FormatError, BufferDamagedError, ServerTooOldError, ConnectionLostError.
    """
    until = core.clock() + timeout
    server = yield from probe(core, until)
    if core.lacks is not None and mode != "attach":
        raise core.lacks
    core.epoch = secrets.token_hex(8)
    script = scripts.open(format=FORMAT, mode=mode, option=options)
    reply = yield from rq.ask(core, script, until, ("OK", "MISMATCH", "FORMAT"))
    texts = reply.texts()
    if reply.word == "MISMATCH":
        raise _mismatch(core, texts)
    if reply.word == "FORMAT":
        raise FormatError(name=core.name, found=texts[0], supported=FORMAT)
    core.configure(dict(zip(texts[::2], texts[1::2], strict=True)))
    core.bulk_limit = server.bulk_limit
    server.tell(core)


def probe(core: Core, until: float) -> Generator[Step, Any, ServerFacts]:
    """Finds out by trying whether the server can give stream ids as we need them, and what the user may do; and asks what it
    is set to. Creates nothing.

    Raises:
        ServerTooOldError; NoPermissionError: the user may not even read.
    """
    adds = b"XADD", core.keys.key("none").encode(), b"NOMKSTREAM", b"0-*", b"d", b""
    # Without a MULTI, what follows would be run. DISCARD has nothing to do here, but a refusal comes before that.
    step = rq.commands(adds, (b"MULTI",), (b"EXEC",), (b"DISCARD",), *QUESTIONS)
    added, *control = yield from rq.deliver_once(core, step, until)
    # Who reads needs neither memory nor the right to add; and what lies under the key that is never there, `open` names.
    if isinstance(added, Exception) and not isinstance(added, (OutOfMemoryError, NoPermissionError, BufferDamagedError)):
        if isinstance(added, ServerRefusedError) and ("ID" in added.reason or "arguments" in added.reason):
            raise ServerTooOldError(address=added.address, found=added.reason, need=NEED)
        raise added
    _raise_lacks([control[0], control[2]])
    reads, writes = rights.probes(core.keys, core.channel)
    replies = yield from rq.deliver_once(core, rq.commands((b"MULTI",), *reads, *writes, (b"DISCARD",)), until)
    _raise_lacks(replies[1 : 1 + len(reads)])
    core.lacks = _lacks([control[1], *replies])
    return ServerFacts.of(control[3:])


def _lacks(replies: list[Any]) -> NoPermissionError | None:
    """All that is missing in one error, so that it can be granted at once."""
    errors = [reply for reply in replies if isinstance(reply, NoPermissionError)]
    if not errors:
        return None
    first, listed = errors[0], dict.fromkeys(right for error in errors for right in error.rights)
    verb = "commands that will be needed"
    return NoPermissionError(address=first.address, verb=verb, reason=first.reason, rights=tuple(listed))


def _raise_lacks(replies: list[Any]) -> None:
    if error := _lacks(replies):
        raise error


def _mismatch(core: Core, texts: list[str]) -> ConfigMismatchError:
    differences: dict[str, tuple[object, object]] = {
        name: (stored.setting(name, kept), stored.setting(name, given))
        for name, kept, given in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    }
    return ConfigMismatchError(name=core.name, differences=differences)


def attach(core: Core, options: Options, timeout: float) -> Generator[Step, Any, None]:
    """Waits until somebody has created the buffer, also while the server is still starting. Leaves no key.

    Raises:
        ReplayTimeoutError: nobody did within `timeout` seconds.
    """
    deadline = core.clock() + timeout
    listening, logged = False, core.clock()
    while True:
        if core.clock() - logged >= LOG_SECONDS:
            log.warning("buffer %r: still waiting for its creator", core.name)
            logged = core.clock()
        final = core.clock() >= deadline
        try:
            yield from open_buffer(core, "attach", options, min(OPEN_SECONDS, max(0.2, timeout)))
            return
        except (BufferNotFoundError, ConnectionLostError, ServerNotReadyError) as error:
            if final:
                raise _nobody(core, timeout, error) from error
        if listening:
            yield Pause(EVENTS, max(0.0, min(core.poll_interval, deadline - core.clock())))
        elif core.lacks is not None:  # who may only read waits for nothing
            raise copy(core.lacks)
        else:  # it may have been created before the subscription stood: look again at once
            yield Listen(EVENTS, min(1.0, max(0.05, deadline - core.clock())))
            listening = True


def _nobody(core: Core, timeout: float, error: Exception) -> Exception:
    if not isinstance(error, BufferNotFoundError):
        return error
    return ReplayTimeoutError(name=core.name, what="its creator", have=0, need=1, timeout_s=timeout)


def delete(core: Core) -> Generator[Step, Any, None]:
    """Takes every key of the buffer away. Gone before is as good: a lost reply makes us ask twice."""
    yield from rq.ask(core, scripts.delete(), answers=("OK", "GONE"))
    replies = yield from rq.deliver_once(core, rq.commands((b"UNLINK", *(key.encode() for key in core.keys.copy.all))))
    if isinstance(replies[0], Exception):  # of a load that is under way
        raise replies[0]


def settle(core: Core, lane: Lane, *, forget: bool, until: float | None = None) -> Generator[Step, Any, Reply]:
    """An empty request: ends what the lane left open. `forget`: it will not be used again."""
    until = core.clock() + CALL_SECONDS if until is None else until
    return (yield from rq.request(core, lane, scripts.settle(forget=forget and not lane.resent), until))
