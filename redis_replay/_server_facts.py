"""What a server is set to: how it evicts, and how long a value may be. Asked at open; many managed servers do not tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis_replay._core import Core, log

# INFO is asked in the same round trip, for those that refuse CONFIG.
QUESTIONS = (b"CONFIG", b"GET", b"maxmemory-policy"), (b"CONFIG", b"GET", b"proto-max-bulk-len"), (b"INFO", b"memory")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`policy` is its maxmemory-policy; `bulk_limit` its proto-max-bulk-len, in bytes. None: it does not tell. `informs`: it
    answers INFO, so that lua/greet.lua can tell one process from another.
    """

    policy: str | None
    bulk_limit: int | None
    informs: bool

    @classmethod
    def of(cls, answers: Sequence[Any]) -> "ServerFacts":
        """Reads the answers to QUESTIONS; a refusal may stand for each."""
        policy, bulk_limit, info = answers
        limit = _setting(bulk_limit)
        return cls(_setting(policy) or _of_info(info), int(limit) if limit else None, isinstance(info, bytes))

    def tell(self, core: Core) -> None:
        """Says in the log what a user should know: once for each handle that is opened."""
        untold = []
        if self.policy is None:
            untold.append("its maxmemory-policy, which must not be one of allkeys-* (docs/limits.md)")
        if not self.informs:
            untold.append("by INFO which process it is: indices that a crash loses may be given again (docs/guarantees.md)")
        if untold:
            log.info("buffer %r: the server does not tell %s", core.name, "; nor ".join(untold))
        if self.policy is not None and self.policy.startswith("allkeys-"):
            log.warning(
                "buffer %r: the server's maxmemory-policy is %s: when its memory is full, it throws away whole keys, and the "
                "buffer with them; set it to noeviction (docs/limits.md)",
                core.name,
                self.policy,
            )


def _setting(answer: Any) -> str | None:
    return answer[1].decode() if isinstance(answer, list) and len(answer) == 2 else None


def _of_info(answer: Any) -> str | None:
    if not isinstance(answer, bytes):
        return None
    for line in answer.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "maxmemory_policy":
            return value
    return None
