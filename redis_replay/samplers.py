"""Samplers: which records a draw takes. Each is a small value that is stored with the buffer as text."""

import ast
from dataclasses import dataclass

__all__ = ["Fifo", "Lifo", "Sampler", "Uniform"]

MAX_RANDOM = 8_192  # random draws of one script
MAX_ENDS = 20_000  # records of one step, and draws from an end


@dataclass(frozen=True)
class Sampler:
    """What all samplers are. `repr()` of one is how the buffer stores it, and what `redis-cli` shows."""

    @property
    def max_batch(self) -> int:
        """Records that one draw may take."""
        return MAX_ENDS

    def probability(self, live: int) -> float:  # noqa: ARG002 - an end is certain, whatever is live
        """With which one draw gives a record that it gave, of `live` ones."""
        return 1.0


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
    def max_batch(self) -> int:
        """Records that one draw may take."""
        return MAX_RANDOM

    def probability(self, live: int) -> float:
        """1 / live."""
        return 1.0 / live


@dataclass(frozen=True)
class Fifo(Sampler):
    """The oldest live records, oldest first. With consume_after_n_samples=1 the buffer is a queue."""


@dataclass(frozen=True)
class Lifo(Sampler):
    """The newest live records, newest first. With consume_after_n_samples=1 the buffer is a stack."""


def parse(text: str) -> Sampler:
    """The sampler whose `repr()` is `text`.

    Raises:
        ValueError: there is none in this version.
    """
    known = {kind.__name__: kind for kind in (Uniform, Fifo, Lifo)}
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in known:
        raise ValueError(f"no sampler of this version: {text}")
    return known[call.func.id](**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
