"""What is said first on a new connection: what this handle was answered and given, so that a server that has lost some of it
(a restart that lost the last second, a failover) is found out and set right. No I/O here.
"""

from typing import Any

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import Core, log
from redis_replay._lua import load
from redis_replay._scripts import Script
from redis_replay._steps import NotNowError, ScriptMissingError
from redis_replay._types import Reply
from redis_replay.exceptions import BufferDamagedError, NoPermissionError

READS = ("READONLY", "MISCONF", "NOREPLICAS")  # refusals of a server that still reads
KNOWN_SECONDS = 1800.0  # a server keeps an unused lane for an hour: one that is missing before half of it was lost


class Greeting:
    """One exchange: `words` are sent, their reply is `heard`, until there are no more. A handle that is not open has none."""

    def __init__(self, core: Core, where: str) -> None:
        self._core = core
        self._where = where
        self._given = core.given
        recent = [f"{lane}:{n}" for lane, (n, at) in list(core.answers.items()) if core.clock() - at < KNOWN_SECONDS]
        script = scripts.greet(given=core.given, numbers=" ".join(recent))
        self._script = rq.pack_script(core, Script(script.verb, (core.epoch.encode(), *script.args)))
        self.words = self._script if not core.closed else b""

    def heard(self, reply: Any) -> bool:
        """Takes the reply in. Whether all is said; if not, and there are no words either, they are due before the next call.

        Raises:
            ReplayError, NotNowError: the server refused.
        """
        if isinstance(reply, ScriptMissingError):
            self.words = rq.pack(b"SCRIPT", b"LOAD", load("greet").text.encode())
            return False
        if isinstance(reply, bytes):  # it is loaded
            self.words = self._script
            return False
        self.words = b""
        if not isinstance(reply, Exception):
            return self._judge(rq.read(reply))
        if _forbids_writing(reply):
            return False
        raise reply

    def _judge(self, reply: Reply) -> bool:
        if reply.word not in ("OK", "REWOUND", "GONE", "DAMAGED"):  # the last two are told by the call itself
            raise rq.refused(self._core, "greet", reply)
        if reply.word == "REWOUND":
            log.warning(
                "buffer %r: the server at %s was rewound (a restart without its last writes, or a failover): its last index "
                "was %d, and this handle was given %d; acknowledged work was lost, and no lost index is given again",
                self._core.name, self._where, rq.numbers(self._core, reply, 1)[0], self._given,
            )  # fmt: skip
        return reply.word != "DAMAGED"


def _forbids_writing(refusal: Exception) -> bool:
    """Whether a call that only reads may be served all the same: by a replica, to a user of few rights, of what is damaged."""
    if isinstance(refusal, NotNowError):
        return str(getattr(refusal.error, "reason", "")).startswith(READS)
    return isinstance(refusal, (NoPermissionError, BufferDamagedError))
