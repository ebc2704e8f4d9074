"""What a test may leave behind: nothing, save what its `leaves` marker names with a reason."""

import gc
import threading
from fnmatch import fnmatchcase

import pytest

from tests._server import Server


class Leaves:
    """What one test may leave: three name patterns, none by default."""

    def __init__(self, marker: pytest.Mark | None) -> None:
        self.patterns = {"keys": None, "threads": None, "connections": None}
        if marker is None:
            return
        if len(marker.args) != 1 or not isinstance(marker.args[0], str) or not marker.args[0]:
            raise pytest.UsageError("the leaves marker starts with a reason: leaves('reason', keys='pattern')")
        if unknown := set(marker.kwargs) - set(self.patterns):
            raise pytest.UsageError(f"the leaves marker knows {sorted(self.patterns)}, not {sorted(unknown)}")
        self.patterns.update(marker.kwargs)

    def pass_over(self, what: str, names: list[str]) -> list[str]:
        """The names that are not exempt."""
        pattern = self.patterns[what]
        return [name for name in names if pattern is None or not fnmatchcase(name, pattern)]


SETTLE_SECONDS = 1.0  # that a thread or a connection may take to end


def _settled(look) -> list[str]:
    """What `look` still finds when things have had a moment to end."""
    pause = threading.Event()
    for attempt in range(int(SETTLE_SECONDS / 0.01)):
        if not (found := look()):
            return []
        if attempt == 10:
            gc.collect()
        pause.wait(0.01)
    return found


def leaked_threads(before: set[threading.Thread], leaves: Leaves) -> list[str]:
    """Threads that keep a process from ending, and were not there before."""
    return _settled(
        lambda: leaves.pass_over(
            "threads", [t.name for t in threading.enumerate() if t not in before and t.is_alive() and not t.daemon]
        )
    )


def leaked_from_server(server: Server, leaves: Leaves) -> dict[str, list[str]]:
    """Keys on the server and connections to it, once the test's own clients are closed. The server is clean after."""
    server.close()
    client = server.client()
    try:
        keys = leaves.pass_over("keys", sorted(key.decode(errors="replace") for key in client.scan_iter(count=1000)))
        connections = _settled(lambda: leaves.pass_over("connections", _connections(client))) if server.is_real else []
        client.flushall()  # our own private server: the next test starts with nothing, whatever this one left
        if connections:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    finally:
        server.close()
    return {what: found for what, found in (("keys", keys), ("connections", connections)) if found}


def _connections(client) -> list[str]:
    own = client.client_id()
    return [
        f"{entry.get('name') or 'unnamed'} (last command {entry['cmd']})"
        for entry in client.client_list()
        if int(entry["id"]) != own
    ]
