"""The process that samples, trains and publishes weights."""

import time

from redis_replay import ReplayBuffer
from redis_replay._demo.actor import Job
from redis_replay._demo.board import Board, Progress, Published
from redis_replay.exceptions import BufferGoneError, BufferShutDownError

_TELL_S = 0.2


class Learner:
    """A trainer fed by the buffer. So many updates are made as there are transitions to pay for them, and no more."""

    def __init__(self, job: Job, buffer: ReplayBuffer, board: Board) -> None:
        from redis_replay._demo.trainer import Trainer  # torch: only this process pays for its import

        self._job, self._buffer, self._board = job, buffer, board
        self._trainer = Trainer(job.settings, job.seed)
        self._updates, self._loss, self._told = 0, 0.0, 0.0
        self._publish()

    def turn(self) -> None:
        """Wait for the transitions that pay for the next updates, make these, publish the weights."""
        settings, patience = self._job.settings, self._job.patience_s
        self._await_transitions()
        for _ in range(settings.chunk):
            batch = self._buffer.sample(settings.batch_size, wait=True, timeout=patience)
            self._loss = self._trainer.update(batch)
        self._updates += settings.chunk
        self._publish()
        if time.monotonic() - self._told > _TELL_S:
            self._tell()

    def _await_transitions(self) -> None:
        # As long as nothing was evicted, the size is the number of transitions ever written.
        need = min(self._due(self._updates + self._job.settings.chunk), self._job.settings.capacity)
        if not self._buffer.wait_until_sampleable(need, timeout=self._job.patience_s):
            raise TimeoutError("the actors have written too little for " + str(self._job.patience_s) + " s")

    def _due(self, updates: int) -> int:
        return self._job.settings.warmup + int(updates * self._job.settings.steps_per_update)

    def _publish(self) -> None:
        ahead = self._due(self._updates + self._job.settings.ahead)
        self._board.publish(Published(self._updates, min(ahead, self._job.steps), self._trainer.weights()))

    def _tell(self) -> None:
        stats, self._told = self._buffer.local_stats, time.monotonic()
        self._board.tell(
            Progress(
                updates=self._updates,
                loss=self._loss,
                waits=stats.waits,
                wakeups_by_notice=stats.wakeups_by_notice,
                wakeups_by_poll=stats.wakeups_by_poll,
                wait_ms=list(stats.wait_ms),
            )
        )


def run(job: Job) -> None:
    """Train until the buffer is shut down."""
    board = Board(job.url, job.name)
    try:
        with ReplayBuffer.attach(job.url, job.name, timeout=job.patience_s, seed=job.seed) as buffer:
            learner = Learner(job, buffer, board)
            while True:
                learner.turn()
    except (BufferShutDownError, BufferGoneError):
        return
    finally:
        board.close()
