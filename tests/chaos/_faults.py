"""The faults of a run: one seeded deck of cards, dealt again and again, each card a fault."""

import contextlib
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from tests._proxy import Policy, Proxy, now_and_then
from tests.chaos._crew import Crew
from tests.chaos._ledger import Ledger
from tests.chaos._server import DurableServer
from tests.chaos._workers import IMPATIENT_S, LEASE_S, NAME

ROUNDS = 3  # of the deck, at least: so often each fault happens on the slowest machine


class Faults:
    """Injects faults. `counts` says how often which; `findings` is what the doctor said after a server's restarts."""

    def __init__(self, seed: int, server: DurableServer, proxy: Proxy, crew: Crew, ledger: Ledger) -> None:
        self._random = random.Random(seed)
        self._server, self._proxy, self._crew, self._ledger = server, proxy, crew, ledger
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.stall_s = 0.0  # the longest time that this process itself was late

    @property
    def _deck(self) -> list[tuple[str, Callable[[], object]]]:
        return [
            ("sockets cut", self._proxy.cut),
            ("connections gone silent", self._proxy.strand),
            ("network stalls", self._stall),
            ("requests late", lambda: self._later(self._random.uniform(1, 3) * IMPATIENT_S, self._proxy.postpone())),
            ("SCRIPT FLUSH", lambda: self._admin(lambda c: c.script_flush(self._random.choice(("SYNC", "ASYNC"))))),
            ("CLIENT KILL", self._client_kill),
            ("CLIENT PAUSE", self._client_pause),
            ("learners killed", lambda: self._kill("learner")),
            ("learners killed", lambda: self._kill("learner")),
            ("learners frozen", self._freeze),
            ("writers killed", lambda: self._kill("writer")),
            ("server killed", lambda: self._restart(self._server.kill)),
            ("server stopped", lambda: self._restart(self._server.stop)),
        ]

    def run(self, seconds: float) -> None:
        """Deals the deck for so long, and ROUNDS times at least. What was begun is ended."""
        self._proxy.replies = self._counted("replies lost", now_and_then(60, self._random.getrandbits(32)))
        self._proxy.requests = self._counted("requests cut", now_and_then(120, self._random.getrandbits(32), partly=True))
        until = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < until or rounds < ROUNDS:
            rounds += 1
            for what, inject in self._random.sample(self._deck, len(self._deck)):
                self._wait(self._random.uniform(0.05, 0.4))
                self._ledger.note("fault", what=what)
                self.counts[what] += 1
                inject()
        while self._due:
            self._wait(0.05)
        self._proxy.replies = self._proxy.requests = lambda _: None

    def _wait(self, seconds: float) -> None:
        """Lets time pass, and does what is due."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
                continue
            time.sleep(0.01)
            self.stall_s = max(self.stall_s, time.monotonic() - now - 0.01)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def _counted(self, what: str, policy: Policy) -> Policy:
        def counted(data: bytes) -> int | None:
            kept = policy(data)
            self.counts[what] += kept is not None
            return kept

        return counted

    def _admin(self, do: Callable[[redis.Redis], Any]) -> None:
        with self._server.client as client:
            do(client)

    def _stall(self) -> None:
        self._proxy.hold()
        self._later(self._random.uniform(0.1, 1), self._proxy.let_go)

    def _client_kill(self) -> None:
        kind = self._random.choice(("normal", "pubsub", "one"))
        if kind == "one":
            self._admin(self._kill_one)
        else:
            self._admin(lambda c: c.client_kill_filter(_type=kind, skipme=True))

    def _kill_one(self, client: redis.Redis) -> None:
        there = [c["id"] for c in client.client_list() if int(c["id"]) != client.client_id()]
        if there:
            client.client_kill_filter(_id=self._random.choice(there))

    def _client_pause(self) -> None:
        self._admin(lambda c: c.client_pause(self._random.randint(100, 1000), all=self._random.random() < 0.5))

    def _kill(self, kind: str) -> None:
        place = self._crew.one(kind)
        if place is not None:
            self._crew.kill(place)
            self._later(self._random.uniform(0, 0.5), lambda: self._crew.start(place))

    def _freeze(self) -> None:
        place = self._crew.one("learner")
        if place is not None:
            who = self._crew.freeze(place)
            self._later(self._random.uniform(0.5, 2.5) * LEASE_S, lambda: self._crew.thaw(place, who))

    def _restart(self, end: Callable[[], object]) -> None:
        """The doctor looks before anybody is let in."""
        end()
        self._wait(self._random.uniform(0, 0.3))
        self._server.start()
        with contextlib.closing(redis.Redis.from_url(self._server.url)) as client:
            if client.exists(f"rr:{{{NAME}}}:config"):
                self.findings += self._server.examine(NAME)
            else:
                self.findings.append("the buffer was gone after a restart of the server")
        self._proxy.lead_to(self._server.url)
