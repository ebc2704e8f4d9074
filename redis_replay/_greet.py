"""What is said first on a new connection: what this handle was answered and given, so that a server that has lost some of it
(a restart that lost the last second, a failover) is found out and set right. No I/O here.
"""

from typing import Any

from redis_replay import _requests as rq
from redis_replay import _scripts as scripts
from redis_replay._core import Core, log
from redis_replay._lua import load
from redis_replay._scripts import Script
from redis_replay._steps import ScriptMissingError

KNOWN_SECONDS = 1800.0  # a server keeps an unused lane for an hour: one that is missing before half of it was lost


class Greeting:
    """One exchange: `words` are sent, their reply is `heard`, until there are no more. Who knows nothing yet has none."""

    def __init__(self, core: Core, where: str) -> None:
        self._core = core
        self._where = where
        self._given = core.given
        recent = [f"{lane}:{n}" for lane, (n, at) in list(core.answers.items()) if core.clock() - at < KNOWN_SECONDS]
        script = scripts.greet(given=core.given, numbers=" ".join(recent))
        self._script = rq.pack_script(core, Script(script.verb, (core.epoch.encode(), *script.args)))
        self._last: int | None = None  # the server's, as it was before it was told
        self.words = self._script if (core.given or recent) and not core.closed else b""

    def heard(self, reply: Any) -> None:
        """Takes the reply in.

        Raises:
            ReplayError: the server refused.
        """
        if isinstance(reply, ScriptMissingError):
            self.words = rq.pack(b"SCRIPT", b"LOAD", load("greet").text.encode())
        elif isinstance(reply, Exception):
            raise reply
        elif isinstance(reply, bytes):  # it is loaded
            self.words = self._script
        else:
            self._judge(rq.read(reply))

    def _judge(self, reply: Any) -> None:
        if reply.word not in ("OK", "REWOUND", "GONE"):  # that the buffer is gone is told by the call itself
            raise rq.refused(self._core, "greet", reply)
        if reply.word == "REWOUND":
            last, left = map(int, reply.data)
            self._last = last if self._last is None else self._last
            if left:
                return
        self.words = b""
        if self._last is not None:
            self._core.given = 0  # from here on the server knows all there is
            log.warning(
                "buffer %r: the server at %s was rewound (a restart without its last writes, or a failover): its last index "
                "was %d, and this handle was given %d; acknowledged work was lost, and no lost index is given again",
                self._core.name, self._where, self._last, self._given,
            )  # fmt: skip
