"""Torch and TensorDict, touched only where the data holds them: users of numpy never pay for the import.

To recognise a tensor, `sys.modules` is enough: nobody can hold one before somebody has imported torch.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from redis_replay._schema import Leaf, is_torch_dtype

Array = np.ndarray[Any, "np.dtype[Any]"]

# What Tensor.numpy() and torch.from_numpy know in every version; the others travel as integers of their width.
_DIRECT = frozenset({
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
})  # fmt: skip
_SMALL = 1024  # elements
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def is_tensor(value: object) -> bool:
    """Whether the value is a torch.Tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_tensordict(value: object) -> bool:
    """Whether the value is a TensorDict of any make (a lazy stack too), not a tensorclass."""
    kind = getattr(sys.modules.get("tensordict"), "TensorDictBase", None)
    return kind is not None and isinstance(value, kind)


def is_lazy_stack(value: object) -> bool:
    """Whether the value is a LazyStackedTensorDict, whose records may differ in shape."""
    kind = getattr(sys.modules.get("tensordict"), "LazyStackedTensorDict", None)
    return kind is not None and isinstance(value, kind)


def non_tensor(value: Any, n: int | None) -> Any:
    """What a NonTensorData or NonTensorStack holds (with `n`: a list of n values); a tensorclass as a TensorDict; any other
    value as it is.
    """
    tensordict = None if is_tensor(value) else sys.modules.get("tensordict")
    if tensordict is not None and isinstance(value, tensordict.NonTensorStack):
        return value.tolist()
    if tensordict is not None and isinstance(value, tensordict.NonTensorData):
        return value.data if n is None else [value.data] * n
    if tensordict is not None and tensordict.is_tensorclass(value):
        return value.to_tensordict()
    return value


def refusal(tensor: Any) -> str | None:
    """Why the tensor cannot be stored, in words, or None if it can."""
    dtype = dtype_name(tensor.dtype)
    if tensor.is_nested:
        return f"a nested tensor of {dtype}"
    if tensor.is_quantized or not is_torch_dtype(dtype):
        return f"torch {dtype}"
    if tensor.layout is not sys.modules["torch"].strided:
        return f"torch {dtype} of layout {str(tensor.layout).removeprefix('torch.')}"
    return "a tensor on the meta device, without values" if tensor.is_meta else None


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """The torch dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


def alike(values: Sequence[Any]) -> bool:
    """Whether all these tensors are so like the first that what can be said of it holds for all."""
    return len({(v.dtype, v.layout, v.device, None if v.is_nested else v.shape) for v in values}) == 1


def gather(values: Sequence[Any]) -> Any:
    """Tensors of one leaf as an array (n, *shape) or a list of arrays."""
    # Stacking copies once more, but a small tensor's own way to numpy takes longer than its copy.
    first = values[0]
    if len(values) > 1 and first.numel() <= _SMALL and dtype_name(first.dtype) in _DIRECT and alike(values):
        return to_numpy(sys.modules["torch"].stack(tuple(values)))
    return [to_numpy(value) for value in values]


def to_numpy(tensor: Any) -> Array:
    """The values in numpy, uncopied if they are on the CPU; as integers where numpy lacks the tensor's dtype."""
    if dtype_name(tensor.dtype) not in _DIRECT:
        integer = getattr(sys.modules["torch"], _INTEGERS[tensor.element_size()])
        tensor = tensor.detach().resolve_conj().resolve_neg().view(integer)
    array: Array = tensor.numpy(force=True)  # detached, on the CPU, and without pending conjugation
    return array


def to_tensor(array: Array, dtype: str) -> Any:
    """A tensor over the array's memory. Raises ValueError if torch, or its dtype, is not there."""
    torch = _load("torch")
    tensor = torch.from_numpy(array)
    if dtype in _DIRECT:
        return tensor
    if not hasattr(torch, dtype):
        raise ValueError(f"torch {torch.__version__} has no {dtype}")
    return tensor.view(getattr(torch, dtype))


def stack_non_tensors(values: list[Any]) -> Any:
    """The values as one leaf of a TensorDict, one for each record."""
    return _load("tensordict").NonTensorStack(*map(wrap_non_tensor, values))


def wrap_non_tensor(value: Any) -> Any:
    """The value as a leaf of a TensorDict without a batch dimension."""
    return _load("tensordict").NonTensorData(value, batch_size=[])


def make_tensordict(tree: dict[str, Any], lead: list[int], batches: list[Leaf]) -> Any:
    """A TensorDict of the tree. `lead` is its batch size, `batches` the leaves that add to it, parents first."""
    extra = {x.path: [*lead, *x.shape] for x in batches}
    made = _load("tensordict").TensorDict(tree, batch_size=extra.pop((), lead))
    for path, size in extra.items():
        made.get(path).batch_size = size
    return made


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"the records hold {name} data, and {name} is not installed") from None
