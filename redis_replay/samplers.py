"""Samplers: which records a draw takes. Each is a small value that is stored with the buffer as text."""

from dataclasses import dataclass

__all__ = ["Fifo", "Lifo", "Sampler", "Uniform"]


@dataclass(frozen=True)
class Sampler:
    """What all samplers are. `repr()` of one is how the buffer stores it, and what `redis-cli` shows."""

    @property
    def distinct(self) -> bool:
        """Whether a batch never holds a record twice."""
        return True


@dataclass(frozen=True)
class Uniform(Sampler):
    """Every live record is equally likely.

    Args:
        replacement: draw with replacement (the default), so that a batch may hold a record more than once. False holds
            within a batch and not over epochs, unlike TorchRL's SamplerWithoutReplacement. In a buffer that consumes, a
            batch never holds a record twice, whatever is said here.
    """

    replacement: bool = True

    @property
    def distinct(self) -> bool:
        """Whether a batch never holds a record twice."""
        return not self.replacement


@dataclass(frozen=True)
class Fifo(Sampler):
    """The oldest live records, oldest first. With consume_after_n_samples=1 the buffer is a queue."""


@dataclass(frozen=True)
class Lifo(Sampler):
    """The newest live records, newest first. With consume_after_n_samples=1 the buffer is a stack."""
