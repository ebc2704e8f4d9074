"""The life of a TorchRL handle: made, copied, pickled, drawing ahead, closed; and what others ask of it on the way."""

import contextlib
import copy
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch

from redis_replay import ReplayBuffer
from redis_replay import _ops_read as read
from redis_replay import _options as opt
from redis_replay._ahead import Ahead
from redis_replay.exceptions import ArgumentError, BufferClosedError, ConfigMismatchError, ReplayError
from redis_replay.torchrl import _path as path
from redis_replay.torchrl._count import Count
from redis_replay.torchrl._process import PerProcess

SHOW_SECONDS = 0.2  # that a repr waits for the server


class RedisStorage:
    """Stands where TorchRL has a Storage: shared by nature, on no device."""

    initialized = True

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    @property
    def max_size(self) -> int:
        """Records that the buffer holds at most."""
        return self.buffer.capacity

    def __len__(self) -> int:
        """Records that are stored, those included that a reader is still fetching."""
        return self.buffer.storage_size

    def __repr__(self) -> str:
        where = repr(self.buffer).removeprefix(f"{type(self.buffer).__name__}(").removesuffix(")")
        return f"RedisStorage({where}, len={self._len()}, max_size={self.max_size})"

    def _len(self) -> int | str:
        """For whoever prints it: a debugger or a log must not hang, nor fail."""
        try:
            return int(self.buffer._read("stats", read.stats, SHOW_SECONDS)["storage_size"])
        except Exception:  # noqa: BLE001 - whatever is wrong, others will say it
            return "unknown"


class Life(ABC):
    """What a handle is, apart from what it does with records."""

    shared = True
    service_backend = "ray"  # what RayCollector asks for: clients that work in other processes
    dim_extend = 0
    initialized = True
    _may_draw_ahead = True

    buffer: ReplayBuffer

    def _prepare(
        self, priority_key: str, transform: object, factory: Callable[[], object] | None, collate_fn: Any, pin: bool,
        device: Any,
    ) -> None:  # fmt: skip
        if transform is not None and factory is not None:
            raise ArgumentError(name="transform_factory", allowed="left out where transform is given", found=factory)
        made = path.compose(factory() if factory is not None else transform)
        where = torch.device(device) if device is not None else None
        self.priority_key = priority_key
        self._path = path.Path(made, collate_fn, opt.flag("pin_memory", pin), where)

    def _plan(self, prefetch: object, batch_size: object, consume: object) -> None:
        self._depth = 0 if prefetch is None else opt.whole_number("prefetch", prefetch, 0, 64)
        if self._depth and not self._may_draw_ahead:
            raise ArgumentError(name="prefetch", allowed=f"left out for a {type(self).__name__}", found=prefetch)
        if self._depth and batch_size is None:
            raise ArgumentError(name="prefetch", allowed="left out where batch_size is not given", found=prefetch)
        if self._depth and consume not in (opt.UNSET, None):
            raise ArgumentError(name="prefetch", allowed="left out where consume_after_n_samples is given", found=prefetch)

    def _opened(self) -> None:
        """Sees to it that the buffer is one for this class.

        Raises:
            ConfigMismatchError: it is another kind; the handle is closed.
        """
        differences = self._differences()
        if differences:
            self.close()
            raise ConfigMismatchError(name=self.buffer.name, differences=differences)

    def _differences(self) -> dict[str, tuple[object, object]]:
        """Settings that the class cannot do with, as (stored, needed)."""
        return {}

    def _take(self, buffer: ReplayBuffer, *, owner: bool) -> None:
        """What a handle has of its own in this process."""
        self.buffer, self._owner = buffer, owner
        self._count = PerProcess(lambda: Count(lambda: buffer.write_count))
        self._iterator: Iterator[Any] | None = None
        if self._depth and buffer.consume_after_n_samples is not None:
            buffer.close()
            raise ArgumentError(name="prefetch", allowed="left out for a buffer that consumes", found=self._depth)
        self._ahead = PerProcess(lambda: Ahead(lambda _: self._draw_full(), lambda _: self._moment(), self._depth))

    # Others

    def client(self) -> Self:
        """Another handle on the buffer, with sockets of its own: its `shutdown` closes it alone."""
        return copy.copy(self)

    def clients(self, n: int) -> list[Self]:
        """So many of them, one for each worker."""
        return [self.client() for _ in range(opt.whole_number("n", n, 0, 65_536))]

    def share(self, shared: bool = True) -> Self:
        """The handle itself: a buffer on a server is shared by nature.

        Raises:
            ArgumentError: it shall not be.
        """
        if not opt.flag("shared", shared):
            raise ArgumentError(name="shared", allowed="True: the buffer is on a server", found=shared)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Address and options: no data, no socket, no thread."""
        kept = {name: self.__dict__[name] for name in ("priority_key", "_path", "_depth")}
        return kept | {"buffer": copy.copy(self.buffer)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffer = state.pop("buffer")
        self.__dict__.update(state)
        self._take(buffer, owner=False)

    # What it is

    @property
    def _storage(self) -> RedisStorage:
        return RedisStorage(self.buffer)

    @property
    def storage(self) -> RedisStorage:
        """Stands where TorchRL has a Storage."""
        return self._storage

    @property
    def write_count(self) -> int:
        """Records written since the start, or since an `empty()` that reset it, by everyone. What others wrote within the last
        50 ms may be missing.
        """
        return self._count.get().read()

    @property
    def is_alive(self) -> bool:
        """Whether this handle is open, its server answers, and the buffer is there and not shut down."""
        try:
            return self._is_open()
        except ReplayError:
            return False

    def _is_open(self) -> bool:
        return self._moment()[0] == "open"

    def _moment(self) -> tuple[str, ...]:
        moment: tuple[str, ...] = self.buffer._read("stats", read.moment)
        return moment

    # Drawing ahead

    @property
    def _drawn_ahead(self) -> int:
        return len(self._ahead.get())

    def _next_ahead(self, batch_size: int | None) -> Any:
        """A batch that was drawn ahead, if the call wants one of that size; None: there is none."""
        if not self._depth or batch_size not in (None, self.buffer.batch_size):
            return None
        return self._ahead.get().take()

    @abstractmethod
    def _draw_full(self) -> Any:
        """Data and info of a batch of the handle's size, from no fewer records than that."""

    def _forget(self) -> None:
        self._count.get().forget()
        self._ahead.get().clear()

    # Ends

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002 - TorchRL's argument: nothing here takes long
        """Of the handle that was constructed: for everyone, every wait ends with BufferShutDownError, draws and writes are
        refused; `stats()` still answers. Of a `client()`, an attached or an unpickled one: closes that handle. Idempotent.
        """
        if not self._owner:
            self.close()
            return
        self._forget()
        with contextlib.suppress(BufferClosedError):
            self.buffer.shutdown(drain=False)

    def reopen(self) -> None:
        """A buffer that was shut down is open again, for everyone, with what it holds."""
        self.buffer.reopen()

    def close(self) -> None:
        """Ends this handle, not the buffer. Idempotent."""
        self._ahead.get().close()
        self.buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the handle."""
        self.close()

    def __repr__(self) -> str:
        """As TorchRL's: storage, sampler, what else is set; `len` is "unknown" where the server does not tell it at once."""
        made = self._path
        parts = {
            "storage": self.storage, "sampler": self.buffer.sampler, "batch_size": self.buffer.batch_size,
            "transform": made.transform if len(made.transform) else None, "collate_fn": made.collate_fn,
            "device": made.device, "prefetch": self._depth or None,
        }  # fmt: skip
        shown = [textwrap.indent(f"{name}={value}", "    ") for name, value in parts.items() if value is not None]
        return f"{type(self).__name__}(\n" + ",\n".join(shown) + ")"
