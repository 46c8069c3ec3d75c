"""Requests through a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from curate.engine.requests import http
from curate.engine.requests.client import Answered, Requester
from tests.engine.asks import Ask

Send = Callable[..., list[Answered]]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Iterator[Send]:
    """Send some requests through a stage and wait for the results."""
    monkeypatch.setattr(http, "BACKOFF_SECONDS", 0.01)
    with ExitStack() as closing:

        def send(stage: Ask, requests: int = 20, first: int = 0, limiter: Any = None) -> list[Answered]:
            requester = Requester(stage, limiter)
            closing.callback(requester.close)
            futures = [requester.send(f"picture {n}") for n in range(first, first + requests)]
            return [future.result(timeout=60) for future in futures]

        yield send


def reasons(several: list[Answered]) -> list[str | None]:
    return [answered.reason for answered in several]
