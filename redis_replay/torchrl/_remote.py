"""A handle as the target of an RRef of torch.distributed.rpc."""

from typing import Any

from torchrl._utils import accept_remote_rref_udf_invocation

from redis_replay.torchrl._buffer import RedisReplayBuffer


@accept_remote_rref_udf_invocation
class RemoteRedisReplayBuffer(RedisReplayBuffer):
    """A RedisReplayBuffer whose methods take an RRef of one for `self`, as TorchRL's RemoteTensorDictReplayBuffer, with the
    order of its arguments. Only for code that is written so: processes need no RPC to share a buffer, a URL will do.
    """

    def sample(  # type: ignore[override]
        self, batch_size: int | None = None, include_info: bool | None = None, return_info: bool = False, *,
        wait: bool = False, timeout: float | None = None, cancel_event: Any = None,
    ) -> Any:  # fmt: skip
        """As RedisReplayBuffer.sample, in another order."""
        return super().sample(
            batch_size, return_info, include_info, wait=wait, timeout=timeout, cancel_event=cancel_event
        )  # fmt: skip


for _name, _method in vars(RemoteRedisReplayBuffer).items():
    if callable(_method) and not _name.startswith("_"):  # RPC pickles a method by where it is found
        _method.__module__, _method.__qualname__ = __name__, f"RemoteRedisReplayBuffer.{_name}"
