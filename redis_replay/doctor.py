"""The doctor of buffers that may be damaged: also of one that no handle opens.

```python
from redis_replay import doctor

report = doctor.examine("redis://localhost:6379/0", "cartpole")
if not report.ok:
    print(doctor.repair("redis://localhost:6379/0", "cartpole", "before.ckpt").did)
```
"""

from os import PathLike
from typing import Any

from redis_replay import _handle as handle
from redis_replay import _ops_repair as mend
from redis_replay._core import Core
from redis_replay._ops_doctor import TOTALLED
from redis_replay._ops_doctor import examine as _examine
from redis_replay._ops_repair import Repaired
from redis_replay._runtime import Runtime
from redis_replay._steps import Operation
from redis_replay._types import Finding, Report
from redis_replay.exceptions import BufferDamagedError

__all__ = ["Finding", "Repaired", "Report", "examine", "repair"]


def examine(url: object, name: str) -> Report:
    """What is wrong with a buffer. Changes nothing.

    Args:
        url: as a ReplayBuffer takes it.
        name: of the buffer.

    Raises:
        BufferNotFoundError, FormatError, ConnectionLostError.
    """

    def look(core: Core) -> Operation:
        try:
            yield from mend.attach(core)
        except BufferDamagedError as damage:
            if damage.key != core.keys.key("config"):
                raise
            return Report((Finding("I3", damage.key, damage.expected, damage.found),), unchecked=TOTALLED)
        return (yield from _examine(core))

    report: Report = _run(url, name, look)
    return report


def repair(url: object, name: str, path: str | PathLike[str]) -> Repaired:
    """Mends what can be mended without inventing data; says what it did. Where nothing is wrong it changes nothing.

    Everybody else's calls on the buffer wait meanwhile. What is left of it is dumped to `path` first, a checkpoint that `loads`
    takes; a copy is built from that, and takes the buffer's place in one step. Records keep their indices; leases and holds
    end. If the repair is killed, the buffer is as it was, and others' calls go on after a minute.

    Args:
        url: as a ReplayBuffer takes it.
        name: of the buffer.
        path: of the dump.

    Raises:
        RepairError: something is lost that only could be invented; nothing was changed. UnderWayError: another repair is, or
        a load. OSError: the dump cannot be written. BufferNotFoundError, FormatError, OutOfMemoryError, NoPermissionError,
        ConnectionLostError.
    """
    repaired: Repaired = _run(url, name, lambda core: mend.repair(core, path))
    return repaired


def _run(url: object, name: str, operation: Any) -> Any:
    setup, server = handle.setup(url, name, {})
    now = Runtime(setup.address, setup.core(None))
    try:
        return now.drive(operation(now.core))
    finally:
        now.close()
        if server is not None:
            server.close()
