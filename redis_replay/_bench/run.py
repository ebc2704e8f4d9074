"""The command: one JSON object for each workload and size."""

import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import redis

from redis_replay._bench.figures import Figures, Options
from redis_replay._bench.target import Target, served
from redis_replay._bench.workloads import ONE_SIZE, WORKLOADS

__all__ = ["Options", "run"]


def run(options: Options, write: Callable[[str], object] = print) -> int:
    """Write an object for each figure, also to the options' file; exit code 1 if a workload failed.

    Raises:
        ValueError: there is no such workload.
    """
    failed, peer = False, {"peer": "redis-replay", "version": _version(options.url)}
    for workload, size in _plan(options):
        row = peer | _row(options, workload, size)
        failed |= "error" in row["extra"]
        line = json.dumps(row)
        write(line)
        if options.json_file:
            with options.json_file.open("a") as file:
                file.write(line + "\n")
    return int(failed)


def _plan(options: Options) -> Iterator[tuple[str, int]]:
    wanted = list(WORKLOADS) if options.workload == "all" else options.workload.split(",")
    unknown = [name for name in wanted if name not in WORKLOADS]
    if unknown:
        raise ValueError(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    for workload in wanted:
        for size in options.sizes[:1] if workload in ONE_SIZE else options.sizes:
            yield workload, size


def _row(options: Options, workload: str, size: int) -> dict[str, Any]:
    figures = _figures(options, workload, size)
    rate = figures.items_per_s
    surroundings = {
        "stored": Target("", "", size, options.reward).stored,
        "transport": "TCP" if (options.url or "").startswith("redis") else "unix socket",
        "load1": round(os.getloadavg()[0], 2),
    }
    return {
        "workload": workload,
        "size": size,
        "items_per_s": rate and round(rate),
        "mb_per_s": rate and round(rate * size / 1e6, 1),
        "p50_ms": figures.p50_ms,
        "p99_ms": figures.p99_ms,
        "extra": figures.extra | surroundings,
    }


def _figures(options: Options, workload: str, size: int) -> Figures:
    try:
        return WORKLOADS[workload](options, size)
    except Exception as error:  # noqa: BLE001 - the other workloads still give theirs
        return Figures(extra={"error": f"{type(error).__name__}: {error}"[-2000:]})


def _version(url: str | None) -> str:
    try:
        ours = version("redis-replay")
    except PackageNotFoundError:
        ours = "from a source tree"
    with served(url) as where, redis.Redis.from_url(where) as client:
        info = client.info("server")
    theirs = f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"
    return f"{ours}, {theirs}"
