"""What a workload is told, and what it gives."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis_replay._bench.target import full_size


@dataclass(frozen=True)
class Options:
    """The command line of `redis-replay bench`. Sizes in bytes, times in seconds."""

    workload: str = "all"
    sizes: list[int] = field(default_factory=lambda: [100, 1024, 28224])
    seconds: float = 5.0
    rounds: int = 3
    reward: bool = False
    json_file: Path | None = None
    url: str | None = None
    capacity: int | None = None
    waits: int = 300
    growth: list[int] = field(default_factory=lambda: [10_000, 1_000_000])
    writers: list[int] = field(default_factory=lambda: [1, 16, 64, 256])


@dataclass(frozen=True)
class Figures:
    """What one workload gives. None: it has no such figure. p50 and p99 are of one call for a batch."""

    items_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def capacity(options: Options, size: int) -> int:
    """Records of a full buffer."""
    return options.capacity or full_size(size)
