"""What a process has of its own: threads and locks do not live through a fork."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that a forked child makes anew."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._pid, self._value = make, os.getpid(), make()

    def get(self) -> T:
        """This process's."""
        if self._pid != os.getpid():
            self._pid, self._value = os.getpid(), self._make()
        return self._value
