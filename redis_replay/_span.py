"""How long one exchange with the server may take."""

from redis_replay._clock import monotonic
from redis_replay._core import SLOWEST

MOST_BYTES = 2**26  # of a reply that may come later than its timeout, as long as it comes fast enough
SILENT_SECONDS = 5.0  # in which not a byte goes or comes: the other end is lost, however much time there is


class Span:
    """The time that one exchange has, from its first byte to its last: who sends byte by byte gets no more of it, who sends
    SLOWEST bytes a second does.
    """

    def __init__(self) -> None:
        self._timeout = self._until = 0.0
        self._came = 0

    def begin(self, seconds: float) -> None:
        """An exchange begins."""
        self._timeout, self._until, self._came = seconds, monotonic() + seconds, 0

    def came(self, n: int) -> None:
        """So many bytes more."""
        self._came += n

    def left(self) -> float:
        """Seconds for what it does next.

        Raises:
            TimeoutError: there are none.
        """
        left = self._until + min(self._came, MOST_BYTES) / SLOWEST - monotonic()
        if left <= 0:
            raise TimeoutError(f"timed out; {self._came:,} bytes of its reply came in time")
        return min(left, self._timeout, SILENT_SECONDS)
