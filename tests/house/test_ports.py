"""Servers of a test's own: a held port is nobody else's, a taken one is tried anew, and one that ends shows its log."""

import contextlib
import functools
import socket
import sys
from urllib.parse import urlsplit

import pytest

from redis_replay.embedded import EmbeddedServer, EmbeddedServerError
from tests import _ports, _server
from tests._ports import Program, ServerEndedError, held_port, on_ports


@pytest.fixture(params=_server.REAL)
def binary(request):
    return _server.find(request.param) or _server.missing(request.param)


def program(binary, folder, *ports):
    """A server without data; the second port is its cluster bus."""
    command = [binary, "--bind", "127.0.0.1", "--port", str(ports[0]), "--dir", str(folder), "--save", ""]
    return Program(
        [*command, *(["--cluster-enabled", "yes", "--cluster-port", str(ports[1])] if ports[1:] else [])], port=ports[0]
    )


def answers(port):
    """Whether a server is at the port; False where connections are refused."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares a port between who holds it and who listens")
def test_a_held_port_is_for_servers_of_the_test_alone(binary, tmp_path):
    """A server comes, goes and comes back; nobody else has the port before, between and after."""
    with held_port() as port:
        for _ in range(2):
            assert not answers(port)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with program(binary, tmp_path, port):
                assert answers(port)


@contextlib.contextmanager
def taken_port():
    """A port that somebody else's server has."""
    with on_ports(lambda port: EmbeddedServer(port=port)) as server:
        yield urlsplit(server.url).port


TAKEN = {
    "port": (program, 0, 1),
    "cluster bus": (program, 1, 2),
    "embedded": (lambda binary, folder, port: EmbeddedServer(binary=binary, port=port), 0, 1),
}


@pytest.mark.parametrize(("start", "which", "number"), TAKEN.values(), ids=TAKEN)
def test_a_port_that_was_taken_is_picked_anew(binary, tmp_path, monkeypatch, start, which, number):
    """Whichever of a server's ports somebody else, here a server, had first."""
    picked, hold = [], _ports.held_port

    @contextlib.contextmanager
    def taken_at_first():
        with hold() as port:
            picked.append(theirs if len(picked) == which else port)
            yield picked[-1]

    with taken_port() as theirs:
        monkeypatch.setattr(_ports, "held_port", taken_at_first)
        with on_ports(functools.partial(start, binary, tmp_path), number):
            assert (len(picked), answers(picked[-number])) == (2 * number, True)


def test_a_port_that_stays_taken_is_an_error_in_the_servers_words(binary, tmp_path, monkeypatch):
    """After a few ports: with the end of its log, or what the embedded server makes of that."""
    with taken_port() as port:
        tries = []
        monkeypatch.setattr(_ports, "held_port", lambda: contextlib.nullcontext(port))
        for start, kind, words in (
            (program, ServerEndedError, r"(?i)its log ends:\n(.|\n)*already in use"),
            (TAKEN["embedded"][0], EmbeddedServerError, "another program uses it"),
        ):
            with pytest.raises(kind, match=words):
                on_ports(lambda *ports, start=start: [tries.append(1), start(binary, tmp_path, *ports)][1]).__enter__()
        assert len(tries) == 2 * _ports.TRIES


def test_another_failure_is_not_tried_again(binary, tmp_path):
    """A server that ends for a reason of its own: at once, with its log."""
    tries = []

    def start(port):
        tries.append(port)
        return Program([binary, "--port", str(port), "--dir", str(tmp_path / "nowhere")], port=port)

    with pytest.raises(ServerEndedError, match=r"its log ends:\n(.|\n)*nowhere"), on_ports(start):
        pass
    assert len(tries) == 1


def test_a_program_that_never_answers_is_an_error_with_its_log():
    """It is ended, and what it said is told."""
    with held_port() as port, pytest.raises(ServerEndedError, match=r"waited 0.3 s for the server(.|\n)*its log ends:\nhello"):
        Program(["/bin/sh", "-c", "echo hello; exec sleep 60"], timeout=0.3, port=port)
