"""What a server's crash loses, by how it keeps data: a writer and a learner are at work, the server gets SIGKILL, and starts.

A power cut is played by taking away what was appended to the file in the last second: all that `everysec` may not have synced
yet. A real one loses that much at worst, or less.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from redis_replay import ReplayBuffer, samplers
from redis_replay.embedded import EmbeddedServer
from redis_replay.exceptions import ReplayError
from tests.chaos._server import DurableServer
from tests.chaos._workers import IMPATIENT_S, NAME, PATIENT_S, records, set_patience

WORK_S = 1.5
POWER_S = 1.0  # of the file that a power cut takes away
BATCH = 4
ALWAYS = "always, SIGKILL"


@dataclass
class Loss:
    """Records of all kills together.

    Attributes:
        written: acknowledged to the writer. `acked`: of these, acknowledged by the learner.
        lost: written, not acked, and not there any more.
        back: acked, and there again.
        renamed: indices of lost records that were given to other records after the restart, by a handle that knows nothing of
            them. Where the buffer itself is lost, those who do end with BufferGoneError.
        findings: the doctor's, after the restart.
    """

    what: str
    written: int = 0
    acked: int = 0
    lost: int = 0
    back: int = 0
    renamed: int = 0
    findings: list[str] = field(default_factory=list)


class _Work:
    """One writer and one learner, until their server is gone: what each was told."""

    def __init__(self, url: str) -> None:
        set_patience(IMPATIENT_S)  # the server will be gone for good
        self._url = url
        self.written: dict[int, int] = {}  # tag -> index
        self.drawn: set[int] = set()
        self.acked: set[int] = set()
        self._threads = [threading.Thread(target=target) for target in (self._write, self._learn)]
        with ReplayBuffer(url, NAME, capacity=10**6, sampler=samplers.Fifo(), consume_after_n_samples=1, lease=60):
            pass
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        buffer, first = ReplayBuffer(self._url, NAME), 1
        try:
            while True:
                tags = list(range(first, first + BATCH))
                self.written.update(zip(tags, buffer.extend(records(tags)).tolist(), strict=True))
                first += BATCH
        except ReplayError:
            buffer.close()

    def _learn(self) -> None:
        """Takes about half of what is written."""
        buffer = ReplayBuffer(self._url, NAME)
        try:
            while True:
                batch, info = buffer.sample(BATCH, True, wait=True, timeout=0.5)
                self.drawn.update(batch["i"].tolist())
                buffer.ack(info.lease)
                self.acked.update(batch["i"].tolist())
        except ReplayError:
            buffer.close()

    def join(self) -> None:
        """Until both have seen that the server is gone."""
        for thread in self._threads:
            thread.join()
        set_patience(PATIENT_S)


def _judge(loss: Loss, work: _Work, url: str, *, kept: bool) -> None:
    """Looks at what is there after the restart. What the learner had drawn and not yet acked counts as neither."""
    with ReplayBuffer(url, NAME, capacity=10**6, sampler=samplers.Fifo(), consume_after_n_samples=1, lease=60) as buffer:
        there = {int(record["i"]) for record in buffer.records()}
        lost = set(work.written) - there - work.drawn
        loss.written += len(work.written)
        loss.acked += len(work.acked)
        loss.lost += len(lost)
        loss.back += len(work.acked & there)
        loss.findings += [f"{f.invariant} {f.key}: {f.expected}, found {f.found}" for f in buffer.doctor().findings]
        if lost and kept:
            indices = {work.written[tag] for tag in lost}
            loss.renamed += len(_next_indices(buffer, max(indices)) & indices)


def _next_indices(buffer: ReplayBuffer, last: int) -> set[int]:
    """The indices that new records get, until they pass `last`."""
    given: set[int] = {0}
    while max(given) < last:
        given.update(buffer.extend(records([10**7] * 500)).tolist())
    return given


def _incremental(directory: Path) -> Path:
    """The file that the server appends to."""
    return max((directory / "appendonlydir").glob("*.incr.aof"))


class _Sizes(threading.Thread):
    """Notes how large a file is, all the time."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path, self._sizes, self._over = path, [(0.0, 0)], threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.01):
            self._sizes.append((time.monotonic(), self._path.stat().st_size))

    def at(self, when: float) -> int:
        """Its size then. Ends the thread."""
        self._over.set()
        self.join()
        return max(size for at, size in self._sizes if at <= when)


def _kept(loss: Loss, binary: str, directory: Path, fsync: str, *, power_cut: bool) -> None:
    server = DurableServer(binary, directory, fsync)
    sizes = _Sizes(_incremental(directory))
    work = _Work(server.url)
    time.sleep(WORK_S)
    killed = server.kill()
    work.join()
    size = sizes.at(killed - POWER_S)
    if power_cut:
        with open(_incremental(directory), "r+b") as file:
            file.truncate(size)
    server.start()
    _judge(loss, work, server.url, kept=True)
    server.stop()


def _unkept(loss: Loss, binary: str) -> None:
    with EmbeddedServer(binary=binary) as server:
        work = _Work(server.url)
        time.sleep(WORK_S)
    work.join()
    with EmbeddedServer(binary=binary) as server:
        _judge(loss, work, server.url, kept=False)


def losses(binary: str, directory: Path, kills: int) -> Iterator[Loss]:
    """One for each way of keeping data."""
    ways = [(ALWAYS, "always", False), ("everysec, SIGKILL", "everysec", False), ("everysec, power cut", "everysec", True)]
    for what, fsync, power_cut in ways:
        loss = Loss(what)
        for n in range(kills):
            _kept(loss, binary, directory / f"{what}-{n}", fsync, power_cut=power_cut)
        yield loss
    loss = Loss("nothing kept, SIGKILL")
    for _ in range(kills):
        _unkept(loss, binary)
    yield loss


def breaches(found: Loss) -> Iterator[str]:
    """What must not be, however data is kept: damage, an index that means other bytes; and any loss where each write is synced
    before its reply.
    """
    yield from (f"{found.what}: {finding}" for finding in found.findings)
    if found.renamed:
        yield f"{found.what}: {found.renamed} indices were given again"
    if found.what == ALWAYS and found.lost + found.back:
        yield f"{found.what}: lost something: {found}"


def report(found: Loss) -> str:
    """One line."""
    return (
        f"  {found.what:22} written {found.written:6}, acked {found.acked:6}; lost {found.lost:6},"
        f" acked and back {found.back:6}, indices given again {found.renamed:6}"
    )
