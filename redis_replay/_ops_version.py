"""The operation that raises a buffer's version. A generator without I/O: see _steps."""

from collections.abc import Generator
from typing import Any

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import CALL_SECONDS, Core, Lane
from redis_replay._steps import Step
from redis_replay.exceptions import ReplayError


def set_version(core: Core, lane: Lane, version: int) -> Generator[Step, Any, int]:
    """Drops what is too old under `version`, in steps, the last of which raises. Gives how many records were dropped."""
    dropped = 0
    while True:
        until = core.clock() + CALL_SECONDS
        try:
            reply = yield from rq.request(core, lane, scripts.version(version=version), until, writes=True)
            if reply.word not in ("OK", "MORE"):
                raise rq.refused(core, "version", reply)
        except ReplayError as error:
            error.done = dropped
            raise
        dropped += rq.numbers(core, reply, 1)[0]
        if reply.word == "OK":
            return dropped
