"""An experience-replay buffer that lives in Redis or Valkey, for actors and learners in different processes and machines."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis_replay._async import AsyncReplayBuffer
    from redis_replay._sync import ReplayBuffer
    from redis_replay._types import Finding, LeasesEnded, Report, SampleInfo, Updated

__all__ = ["AsyncReplayBuffer", "Finding", "LeasesEnded", "ReplayBuffer", "Report", "SampleInfo", "Updated"]

_MODULES = {"AsyncReplayBuffer": "_async", "ReplayBuffer": "_sync"}  # all others: _types


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports what a name needs when it is asked for first: numpy and redis take 0.15 s."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES.get(name, '_types')}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
