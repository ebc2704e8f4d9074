"""Draws by priority, as TorchRL's prioritized buffers."""

from typing import Any

from redis_replay import _options as opt
from redis_replay.exceptions import ArgumentError
from redis_replay.samplers import Prioritized
from redis_replay.torchrl._buffer import RedisReplayBuffer


class RedisPrioritizedReplayBuffer(RedisReplayBuffer):
    """A RedisReplayBuffer whose sampler is redis_replay.samplers.Prioritized, with TorchRL's defaults: "priority_weight" is
    (P / the least P of the buffer) ** -beta. `buffer.beta` anneals beta.

    Args:
        alpha, beta, eps, max_priority_within_buffer: as TorchRL's PrioritizedSampler. Left out, the buffer must exist.
        normalize: "buffer", as TorchRL; "batch" divides by the largest weight of the batch, and keeps no order of priorities.
        **options: as RedisReplayBuffer.

    Raises:
        as RedisReplayBuffer.
    """

    def __init__(
        self, url: object, name: str, *, alpha: float | None = None, beta: float | None = None, eps: float = 1e-8,
        max_priority_within_buffer: bool = False, normalize: str = "buffer", **options: Any,
    ) -> None:  # fmt: skip
        sampler: object = opt.UNSET
        if alpha is not None and beta is not None:
            sampler = Prioritized(
                alpha, beta, eps, max_priority_within_buffer=max_priority_within_buffer, normalize=normalize
            )  # fmt: skip
        elif (alpha is None) != (beta is None) or options.get("capacity", opt.UNSET) is not opt.UNSET:
            raise ArgumentError(name="alpha", allowed="given together with beta", found=alpha)
        super().__init__(url, name, sampler=sampler, **options)

    def _differences(self) -> dict[str, tuple[object, object]]:
        return {} if self.sampler.weighs else {"sampler": (self.sampler, Prioritized)}
