"""What a buffer holds, page by page, as columns with their indices: `records()` by the page, which tells the indices too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay import _ops_read as read
from redis_replay import _tensors as tensors
from redis_replay._decode import decode_batch
from redis_replay._sync import ReplayBuffer
from redis_replay.transfer._errors import TransferError


def pages(buffer: ReplayBuffer, where: str) -> Iterator[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Every stored record in order of index: indices int64 (n,), and nested dicts of arrays (n, ...) or lists of n.

    Raises:
        TransferError: a leaf has a type that numpy does not know. What ReplayBuffer.records raises.
    """
    after: int | None = None
    while after != 0:
        after, indices, payloads = buffer._read("records", read.page, after or 0)
        schema = buffer._runtime().core.schema
        if indices and schema is not None:
            yield np.array(indices, np.int64), plain(decode_batch(schema, payloads, indices), where)


def plain(value: Any, where: str, path: str = "") -> Any:
    """Nested dicts of arrays and lists: no tensors, no TensorDicts."""
    if isinstance(value, dict):
        return {key: plain(leaf, where, f"{path}/{key}" if path else key) for key, leaf in value.items()}
    if tensors.is_tensordict(value):
        return plain({key: _untied(value.get(key)) for key in sorted(value.keys())}, where, path)
    if not tensors.is_tensor(value):
        return value
    try:
        return value.numpy()
    except TypeError as error:
        raise TransferError(where=where, reason=f"numpy has no type for {path}, {value.dtype}") from error


def _untied(value: Any) -> Any:
    return value.tolist() if type(value).__name__ in ("NonTensorStack", "NonTensorData") else value
