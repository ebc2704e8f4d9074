"""A real server of a test's own, whose data can be put aside, and which can be killed and come back, with all or with those."""

import shutil

import redis

from tests._helpers import wait_until
from tests._ports import Program

KEEPS = {  # how it keeps its data; what was not kept when they were put aside is lost
    "aof": ["--appendonly", "yes", "--appendfsync", "always", "--save", ""],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""],
    "rdb": ["--appendonly", "no", "--save", ""],
}
NOTHING = ["--appendonly", "no", "--save", ""]


class Rewindable:
    """A server whose data can be put aside, and which can be set back to that.

    `how`: a name of KEEPS, or anything else for a server that keeps nothing. `more`: words for its command line.
    """

    def __init__(self, binary, directory, how, port, *more):
        self.port, self.url = port, f"redis://127.0.0.1:{port}/0"
        keeps = KEEPS.get(how, NOTHING)
        self.data, self._kept, self.how = directory / "data", directory / "kept", how
        self._command = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.data), *keeps, *more]
        self.data.mkdir(exist_ok=True)
        self.start()

    def start(self):
        """Starts it, with what it finds; returns when it has loaded that."""
        self._process = Program(self._command, port=self.port)
        with self.client() as client:
            wait_until(lambda: not client.info("persistence")["loading"], 10, "the server to load")

    def client(self, **options):
        """A client of redis-py, to be closed."""
        return redis.Redis(port=self.port, **options)

    def settle(self):
        """Returns when its files hold all that was answered before: an append-only file of `always` does at any time."""
        with self.client() as client:
            if self.how == "rdb":
                client.bgsave()
                wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], 10, "the save")
                assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
            if self.how == "everysec":  # it holds writes back while the disk is slow
                wait_until(lambda: not client.info("persistence")["aof_buffer_length"], 10, "the file to hold all")

    def rewrite(self):
        """Returns when its append-only file was rewritten."""
        with self.client() as client:
            client.bgrewriteaof()
            wait_until(lambda: not _rewrites(client.info("persistence")), 10, "the rewrite")
            assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"

    def keep(self):
        """Puts its data aside, as they are now."""
        self.settle()
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.data, self._kept)

    def kill(self):
        """Ends it at once."""
        self._process.kill()

    def restart(self):
        """It ends at once and comes back with what it finds."""
        self.kill()
        self.start()

    def rewind(self):
        """It ends at once and comes back as it was when its data were put aside."""
        self.kill()
        shutil.rmtree(self.data)
        if self._kept.exists():
            shutil.copytree(self._kept, self.data)
        else:
            self.data.mkdir()
        self.start()

    close = kill


def _rewrites(info):
    return info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]
