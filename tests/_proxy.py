"""A byte proxy before a real server, that loses, cuts and delays what it is told to."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 16
Policy = Callable[[bytes], int | None]  # how many bytes of a chunk pass before the connection is cut; None: all, and no cut


def everything(_: bytes) -> None:
    """The policy of a good network."""


def now_and_then(mean: int, seed: int, *, partly: bool = False) -> Policy:
    """Cuts one chunk in `mean`, after 1 to 2 * mean - 1 others: all of it is lost, or, with `partly`, a part of it passes."""
    generator = random.Random(seed)
    lock = threading.Lock()
    left = [generator.randrange(1, 2 * mean)]

    def policy(data: bytes) -> int | None:
        with lock:
            left[0] -= 1
            if left[0]:
                return None
            left[0] = generator.randrange(1, 2 * mean)
            return generator.randrange(len(data)) if partly else 0

    return policy


class Proxy:
    """Listens on a TCP port and passes bytes on to `server_url`. Requests and replies have a policy each.

    Attributes:
        requests, replies: the policies in force.
        delay_s: how long a chunk of replies is kept before it is passed on.
        cuts: connections that a policy has cut so far.
        kept: a bytearray takes all requests from now on, and they do not arrive; None, as at first: they pass.
        arrived: chunks of requests that were passed on.
        resets: whether connections end with a reset instead of a FIN.
        pace: "requests" or "replies" to (bytes, seconds, least): chunks of `least` bytes go so many bytes at a time.
        mute: replies that hold these bytes do not arrive, and their connection stays open; `muted` counts them.
    """

    def __init__(self, server_url: str) -> None:
        self.lead_to(server_url)
        self.requests: Policy = everything
        self.replies: Policy = everything
        self.delay_s = 0.0
        self.cuts = 0
        self.kept: bytearray | None = None
        self.pace: dict[str, tuple[int, float, int]] = {}
        self.mute: bytes | None = None
        self.muted = 0
        self.arrived = 0
        self.resets = False
        self._stranded: set[socket.socket] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: set[socket.socket] = set()
        self._gates: dict[socket.socket, threading.Event] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server_url: str) -> None:
        """New connections go to this server from now on, as where a name or an address is given to another machine."""
        parts = urlsplit(server_url)
        self._upstream = unquote(parts.path) if parts.scheme == "unix" else (parts.hostname, parts.port)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.socket(socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET)
            try:
                far.connect(self._upstream)
            except OSError:
                near.close()
                far.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            for source, sink, direction in ((near, far, "requests"), (far, near, "replies")):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(CHUNK):
                if gate := self._gates.get(source):
                    gate.wait()
                if source in self._stranded:
                    continue
                if direction == "replies":
                    time.sleep(self.delay_s)
                    if self.mute is not None and self.mute in data:
                        self.muted += 1
                        continue
                elif self.kept is not None:
                    self.kept += data
                    continue
                self._flowing.wait()
                self.arrived += direction == "requests"
                keep = getattr(self, direction)(data)
                self._pass(sink, data if keep is None else data[:keep], direction)
                if keep is not None:
                    self.cuts += 1
                    break
        except OSError:
            pass
        self._end(source, sink)

    def _pass(self, sink: socket.socket, data: bytes, direction: str) -> None:
        while (pace := self.pace.get(direction)) and data and len(data) >= pace[2]:
            sink.sendall(data[: pace[0]])
            data = data[pace[0] :]
            time.sleep(pace[1])
        sink.sendall(data)

    def _end(self, *ended: socket.socket) -> None:
        for one in ended:
            with self._lock:
                self._sockets.discard(one)
                self._stranded.discard(one)
                self._gates.pop(one, None)
            with contextlib.suppress(OSError):
                if self.resets:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD if self.resets else socket.SHUT_RDWR)
            one.close()

    def strand(self) -> int:
        """The connections that there are carry nothing any more, and do not end: a cable was pulled. New ones work. Gives how
        many there were.
        """
        with self._lock:
            self._stranded |= self._sockets
            return len(self._sockets) // 2

    def hold(self) -> None:
        """Keeps everything back from now on, in both directions."""
        self._flowing.clear()

    def let_go(self) -> None:
        """Passes on what was kept back."""
        self._flowing.set()

    def postpone(self) -> Callable[[], None]:
        """Keeps back what the connections that are open carry; new ones pass. Gives what passes it on: also to the server
        what was sent by who has long closed its connection."""
        gate = threading.Event()
        with self._lock:
            self._gates |= dict.fromkeys(self._sockets, gate)
        return gate.set

    def cut(self) -> None:
        """Closes every connection."""
        with self._lock:
            there = list(self._sockets)
        self._end(*there)

    def close(self) -> None:
        """Ends the proxy."""
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut()
