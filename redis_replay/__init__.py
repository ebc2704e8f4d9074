"""An experience-replay buffer that lives in Redis or Valkey, for actors and learners in different processes and machines."""

from redis_replay._async import AsyncReplayBuffer
from redis_replay._sync import ReplayBuffer
from redis_replay._types import Finding, LeasesEnded, Report, SampleInfo, Updated

__all__ = ["AsyncReplayBuffer", "Finding", "LeasesEnded", "ReplayBuffer", "Report", "SampleInfo", "Updated"]
