"""The subscription that a handle's waits share: slow, lost, and opened anew while others wait."""

import contextlib
import threading

import pytest

from redis_replay import samplers
from redis_replay.exceptions import ReplayTimeoutError
from tests._helpers import SOON, wait_until
from tests._proxy import Proxy
from tests._waiting import Running, blocked, record, records

pytestmark = pytest.mark.fault
QUEUE = {"sampler": samplers.Fifo(), "consume_after_n_samples": 1}


class Gate:
    """Holds up whoever calls a method of `owner`, until it is opened; counts those inside at once."""

    def __init__(self, owner, name):
        self._call, self._open = getattr(owner, name), threading.Event()
        self.arrived = threading.Event()
        self.inside = self.most = 0
        setattr(owner, name, self._enter)

    def _enter(self, *args):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.arrived.set()
        try:
            self._open.wait(10)
            return self._call(*args)
        finally:
            self.inside -= 1

    def open(self):
        """Lets them go on."""
        self._open.set()


def kill_subscriptions(server):
    """The server closes the connection of every subscriber."""
    server.client().execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def test_slow_subscription_holds_up_no_other_wait(real_server, make_buffer):
    """While one wait's subscription is not confirmed, another wait on the handle ends at its own timeout."""
    with contextlib.closing(Proxy(real_server.url)) as proxy:
        buffer, other = make_buffer(target=proxy.url, **QUEUE), make_buffer(**QUEUE)
        proxy.mute = b"subscribe"
        slow = Running(buffer.sample, 1, wait=True)
        wait_until(lambda: proxy.muted, description="the subscription")
        quick = Running(buffer.sample, 1, wait=True, timeout=0.3)
        assert (quick.how(timeout=SOON), quick.seconds < SOON) == (ReplayTimeoutError, True)
        proxy.mute = None
        proxy.cut()
        other.add(record(7))
        assert slow.how(timeout=SOON) == [7]


def test_lost_subscription_is_opened_by_one(real_server, make_buffer):
    """When a wait begins while another one opens the lost subscription anew, there is one subscription, not two."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    calls = [Running(buffer.sample, 1, wait=True)]
    blocked(writer)
    gate = Gate(buffer._now.listener, "_subscribe")
    kill_subscriptions(real_server)
    assert gate.arrived.wait(5)
    entering = Gate(buffer._now.listener, "open")
    entering.open()
    calls.append(Running(buffer.sample, 1, wait=True))
    assert entering.arrived.wait(5)
    threading.Event().wait(0.1)  # time for it to do the wrong thing
    gate.open()
    blocked(writer, 2)
    writer.extend(records(2))
    assert (gate.most, sorted(call.how()[0] for call in calls)) == (1, [0, 1])


def test_notice_lost_before_the_pause_is_made_good(real_server, make_buffer):
    """A wait whose notice falls into a gap of the subscription looks again, though the gap closed before its pause."""
    buffer, writer = make_buffer(poll_interval=30, **QUEUE), make_buffer(**QUEUE)
    reader = Running(buffer.sample, 99, wait=True)
    blocked(writer)
    wait_until(lambda: buffer._now.listener._reading, description="the reader's pause")  # which the gate does not hold up
    pausing = Gate(buffer._now.listener, "pause")
    call = Running(buffer.wait_until_sampleable, 2)
    blocked(writer, 2)
    assert pausing.arrived.wait(5)
    opening = Gate(buffer._now.listener, "_subscribe")
    kill_subscriptions(real_server)
    assert opening.arrived.wait(5)
    writer.extend(records(2))
    opening.open()
    wait_until(lambda: buffer._now.listener.generation == 2, description="the new subscription")
    pausing.open()
    assert call.how(timeout=SOON) is True
    writer.shutdown()
    reader.error()


def test_subscriptions_killed_in_a_storm(real_server, make_buffer):
    """While the server kills subscriptions all the time, waits that come and go are all served, by notice or by poll."""
    buffer, writer = make_buffer(poll_interval=0.1, **QUEUE), make_buffer(**QUEUE)
    over = threading.Event()

    def storm():
        while not over.wait(0.01):
            kill_subscriptions(real_server)

    def reads():
        return [tag for _ in range(10) for tag in buffer.sample(1, wait=True, timeout=10)["i"].tolist()]

    storming = Running(storm)
    readers = [Running(reads) for _ in range(6)]
    for tag in range(60):
        writer.add(record(tag))
    drawn = sorted(tag for call in readers for tag in call.result(20))
    over.set()
    assert (drawn, storming.error()) == (list(range(60)), None)
