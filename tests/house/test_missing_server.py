"""A missing server is loud for a person and fatal in CI."""

import pytest

from tests import _server


@pytest.mark.parametrize("kind", _server.REAL)
@pytest.mark.parametrize("environ", [{}, {"CI": ""}, {"CI": "0"}, {"CI": "false"}])
def test_missing_server_skips_for_a_person(kind, environ):
    with pytest.raises(pytest.skip.Exception, match=f"NO {kind.upper()} SERVER: .*install"):
        _server.missing(kind, environ)


@pytest.mark.parametrize("kind", _server.REAL)
@pytest.mark.parametrize("environ", [{"CI": "1"}, {"CI": "true"}, {"CI": "woodpecker"}])
def test_missing_server_fails_in_ci(kind, environ):
    with pytest.raises(pytest.fail.Exception, match=f"NO {kind.upper()} SERVER: .*install"):
        _server.missing(kind, environ)


def test_a_kind_that_is_not_installed_is_reported_missing(monkeypatch):
    monkeypatch.setattr(_server, "_running", {})
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO REDIS SERVER"):
        _server.running("redis")


@pytest.mark.parametrize("kind", _server.REAL)
def test_a_server_that_died_is_started_anew(kind, monkeypatch):
    monkeypatch.setattr(_server, "_running", {})
    first = _server.running(kind)
    assert _server.running(kind) is first
    first.close()
    with _server.running(kind) as second:
        assert second.pid != first.pid
