"""What the demo's processes tell each other beside the buffer, through the same server.

    rr-demo:<name>:policy    string   version and allowance (two int64), then the weights as raw float32
    rr-demo:<name>:episodes  list     one JSON object for each ended episode, in order of ending
    rr-demo:<name>:progress  string   the learner's figures, JSON

Each write sets a time to live, so that a demo that was killed leaves nothing behind for long.
"""

import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import redis

_TTL_S = 600
_HEADER = struct.Struct("<qq")
_HALT, _HALT_TTL_S = 2**62, 60


@dataclass(frozen=True)
class Published:
    """Weights for the actors: `version` counts the learner's updates, `allowance` the records that may be written."""

    version: int
    allowance: int
    weights: bytes


@dataclass(frozen=True)
class Episode:
    """One ended episode: who played it, and the sum of its rewards."""

    actor: int
    total: float


@dataclass(frozen=True)
class Progress:
    """The learner's figures: gradient steps, the last loss, and how its waits went."""

    updates: int = 0
    loss: float = 0.0
    waits: int = 0
    wakeups_by_notice: int = 0
    wakeups_by_poll: int = 0
    wait_ms: list[float] = field(default_factory=list)


class Board:
    """One process's access to the keys above."""

    def __init__(self, url: str, name: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=10)
        self._policy, self._episodes, self._progress = (f"rr-demo:{name}:{what}" for what in ("policy", "episodes", "progress"))

    def publish(self, policy: Published, ttl_s: int = _TTL_S) -> None:
        """Replace the weights that actors fetch."""
        head = _HEADER.pack(policy.version, policy.allowance)
        self._redis.set(self._policy, head + policy.weights, ex=ttl_s)

    def halt(self) -> None:
        """Let every actor that waits for weights go on, to find the buffer shut."""
        self.publish(Published(_HALT, _HALT, b""), _HALT_TTL_S)

    def policy(self, known: int) -> Published | None:
        """The weights, or None while there are none newer than version `known`."""
        head = cast("bytes", self._redis.getrange(self._policy, 0, _HEADER.size - 1))
        if not head or _HEADER.unpack(head)[0] <= known:
            return None
        raw = cast("bytes | None", self._redis.get(self._policy))
        if not raw:
            return None
        version, allowance = _HEADER.unpack_from(raw)
        return Published(version, allowance, raw[_HEADER.size :])

    def report(self, episode: Episode) -> None:
        """Add an episode that has ended."""
        with self._redis.pipeline() as pipe:
            pipe.rpush(self._episodes, json.dumps(asdict(episode)))
            pipe.expire(self._episodes, _TTL_S)
            pipe.execute()

    def episodes(self, start: int) -> list[Episode]:
        """Those that ended after the first `start`, in order of ending."""
        rows = cast("list[bytes]", self._redis.lrange(self._episodes, start, -1))
        return [Episode(**json.loads(row)) for row in rows]

    def tell(self, progress: Progress) -> None:
        """Replace the learner's figures."""
        self._redis.set(self._progress, json.dumps(asdict(progress)), ex=_TTL_S)

    def progress(self) -> Progress:
        """The learner's latest figures; zeros before its first."""
        raw = cast("Any", self._redis.get(self._progress))
        return Progress(**json.loads(raw)) if raw else Progress()

    def clear(self, *, policy: bool = True) -> None:
        """Remove the keys; `policy=False` leaves that one to its time to live."""
        self._redis.delete(self._episodes, self._progress, *([self._policy] if policy else []))

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()
