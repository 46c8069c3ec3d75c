"""What a run says about its endpoints before it computes anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from rich.console import Console

from curate.core.errors import PreflightError
from curate.engine.requests.preflight import problems
from tests.engine.asks import ask, go
from tests.servers.scripted import Endpoint


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ASKED_KEY", "sk-very-secret-1")
    return "env:ASKED_KEY"


@pytest.fixture
def closed() -> str:
    """A URL without a server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_an_endpoint_that_can_be_asked(endpoint: Endpoint, key: str, closed: str) -> None:
    """Servers that list no models, or not in the usual way, are not blamed; nor is one of two that does not answer."""
    known = endpoint.script(key="sk-very-secret-1", models=["other", "scripted"])
    assert not problems(ask(known.base_url, key=key))
    assert not problems(ask(endpoint.script().base_url))
    assert not problems(ask(f"{endpoint.script().base_url}/elsewhere"))
    assert not problems(ask(closed, known.base_url, key=key))
    assert known.stats()["requests"] == 0


def test_a_wrong_key(endpoint: Endpoint, key: str) -> None:
    script = endpoint.script(key="sk-another")
    (found,) = problems(ask(script.base_url, key=key))
    assert found.startswith(
        f"endpoint local: the key env:ASKED_KEY is rejected by {script.base_url}/models (401 Unauth"
    )
    assert "sk-very-secret-1" not in found and "\n" not in found


def test_a_missing_key(endpoint: Endpoint) -> None:
    (found,) = problems(ask(endpoint.script(key="sk-another").base_url))
    assert "needs a key (401 Unauthorized); add `key: env:NAME`" in found


def test_a_model_that_the_endpoint_does_not_have(endpoint: Endpoint) -> None:
    script = endpoint.script(models=["llava", "qwen"])
    (found,) = problems(ask(script.base_url))
    expected = f"no model 'scripted' at {script.base_url} (it has: llava, qwen); correct the model"
    assert found == f"endpoint local: {expected}"


def test_a_model_under_a_name_that_is_not_listed(endpoint: Endpoint) -> None:
    """The server answers for it, so it knows it."""
    script = endpoint.script(models=["llava"], unknown_model_status=200)
    assert not problems(ask(script.base_url)) and script.stats()["requests"] == 1


def test_no_url_answers(closed: str) -> None:
    (found,) = problems(ask(closed))
    assert found.startswith(f"endpoint local: none of its URLs answers ({closed}/models: ClientConnectorError")
    assert found.endswith("start it, or correct base_urls")


def test_a_run_does_not_begin(workspace: Path, closed: str) -> None:
    with pytest.raises(PreflightError, match="stage_1: endpoint local: none of its URLs answers"):
        go(workspace, ask(closed), rows=10)
    assert not (workspace / "pools").exists()


def test_a_run_that_needs_no_request_does_not_need_the_endpoint(
    workspace: Path, endpoint: Endpoint, closed: str
) -> None:
    """Its answers are stored, and the machine with the model may do something else by now."""
    go(workspace, ask(endpoint.script().base_url), rows=10)
    result = go(workspace, ask(closed, patience_seconds=0.1), rows=10)
    assert result.reused["stage_1"]


def test_the_warning_of_such_a_run(
    workspace: Path, endpoint: Endpoint, closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from curate.engine.run import run
    from tests.engine import toys

    go(workspace, ask(endpoint.script().base_url), rows=10)
    run(toys.chain(ask(closed), rows=10), str(workspace), console=Console(width=300))
    assert "warning: pipeline: stage_1: endpoint local: none of its URLs answers" in capsys.readouterr().out
