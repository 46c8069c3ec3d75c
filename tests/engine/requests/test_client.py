"""Parts of the client of endpoints."""

from __future__ import annotations

import email.utils
import os
import time

import pytest

from curate.engine.requests import client, http
from tests.engine.asks import Say
from tests.servers.scripted import Endpoint


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "86400"}, http.LONGEST_RETRY_AFTER),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "Retry-After": "3"}, 0.25),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert http.retry_after(headers) == seconds


def test_retry_after_as_a_date() -> None:
    found = http.retry_after({"Retry-After": email.utils.formatdate(time.time() + 30, usegmt=True)})
    assert found is not None and 20 < found <= 30


def test_a_forked_child_has_a_separate_loop(endpoint: Endpoint) -> None:
    script = endpoint.script()
    asker = client.Requester(Say(url=script.url))
    assert asker.send("picture 1").result().columns
    child = os.fork()
    if not child:
        os._exit(0 if client._process.loop is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    asker.close()
