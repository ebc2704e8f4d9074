"""docker-compose.yml holds what it promises: its command line is tried on a real server, without Docker."""

from pathlib import Path

import pytest
import redis
import yaml

from tests import _server
from tests._ports import Program

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
REDIS = COMPOSE["services"]["redis"]
ACTORS = ["actor-1", "actor-2"]


def option(command, name):
    return command[command.index(name) + 1]


@pytest.fixture(scope="module", params=_server.REAL)
def settings(request, tmp_path_factory):
    """CONFIG GET * of a server started with the compose file's command, with another directory, and a socket added."""
    binary = _server.find(request.param) or _server.missing(request.param)
    directory = tmp_path_factory.mktemp("data")
    arguments = [str(directory) if word == "/data" else word for word in REDIS["command"][1:]]
    socket = directory / "s"
    command = [binary, *arguments, "--port", "0", "--unixsocket", str(socket)]
    with Program(command, unix_socket_path=str(socket)):
        with redis.Redis(unix_socket_path=str(socket), decode_responses=True) as client:
            found = client.config_get("*")
        yield found


def test_the_command_starts_the_images_server():
    server = REDIS["image"].partition("/")[0]
    assert REDIS["command"][0] == f"{server}-server"
    assert REDIS["healthcheck"]["test"] == ["CMD", f"{server}-cli", "ping"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "noeviction"),
        ("save", ""),
        ("stream-node-max-entries", "3"),
    ],
)
def test_a_setting_takes(settings, setting, value):
    assert settings[setting] == value


def test_data_goes_to_the_named_volume(settings):
    assert option(REDIS["command"], "--dir") == "/data"
    assert REDIS["volumes"] == ["redis-data:/data"]
    assert "redis-data" in COMPOSE["volumes"]
    assert settings["dir"] != "/data"


def test_ports_are_bound_to_this_machine_alone():
    assert REDIS["ports"] == ["127.0.0.1:6379:6379"]


def test_the_server_alone_starts_without_a_profile():
    assert [name for name, service in COMPOSE["services"].items() if "profiles" not in service] == ["redis"]


@pytest.mark.parametrize("name", [*ACTORS, "learner"])
def test_a_demo_service_waits_for_a_healthy_server(name):
    service = COMPOSE["services"][name]
    assert service["profiles"] == ["demo"]
    assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", [*ACTORS, "learner"])
def test_a_demo_service_runs_the_demo_on_that_server(name):
    command = COMPOSE["services"][name]["command"]
    assert command[0] == "demo"
    assert option(command, "--url") == "redis://redis:6379/0"
    assert option(command, "--role") == ("learner" if name == "learner" else "actor")


def test_each_actor_has_a_number_of_its_own():
    numbers = [option(COMPOSE["services"][name]["command"], "--actor-id") for name in ACTORS]
    assert numbers == ["0", "1"]


@pytest.mark.parametrize("name", [*ACTORS, "learner"])
def test_the_command_line_knows_a_demo_services_options(name):
    from redis_replay import _commands

    demo = _commands.commands.commands["demo"]
    known = {flag for parameter in demo.params for flag in parameter.opts}
    assert {word for word in COMPOSE["services"][name]["command"] if word.startswith("--")} <= known


def test_the_dockerfile_copies_only_what_is_there():
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    sources = [source for line in lines for source in line[1:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert [source for source in sources if f"!{source}" not in ignored] == []
