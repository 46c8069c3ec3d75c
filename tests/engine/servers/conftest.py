"""An environment with a program that stands in for vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.endpoints import Endpoint
from curate.engine.servers import process, server
from tests.engine.servers import fake_server

Make = Callable[..., Endpoint]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Folder of a Python environment with `vllm`."""
    program = tmp_path / "environment" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {fake_server.__file__} "$@"\n')
    program.chmod(0o755)
    return tmp_path / "environment"


@pytest.fixture
def make(environment: Path) -> Make:
    """An endpoint whose server behaves in a way (see fake_server)."""

    def made(startup_seconds: float = 120.0, gpus: float = 1.0, **fake: Any) -> Endpoint:
        arguments = ["--fake", json.dumps(fake)]
        launch = {"server": "vllm", "environment": str(environment), "arguments": arguments, "gpus": gpus}
        launch["startup_seconds"] = startup_seconds
        return Endpoint.model_validate({"model": "captioner", "launch": launch})

    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restarts and ends take no time, and no server survives a test."""
    monkeypatch.setattr(server, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(server, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    yield
    server.end_all()
