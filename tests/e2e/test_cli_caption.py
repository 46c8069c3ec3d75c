"""`curate caption try`: a prompt on a few images, as a run would ask."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from curate.engine.requests import preflight
from tests.e2e.commands import CommandResult, curate

KEY = "open-sesame-0123456789"


@pytest.fixture(scope="module")
def script(endpoint: Any) -> Any:
    return endpoint.script(style="captions", key=KEY, models=["m"], fingerprint="fp_1")


@pytest.fixture
def here(tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an image and a file of endpoints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    Image.new("RGB", (900, 600), "red").save("red.png")
    about = {
        "base_urls": [script.base_url],
        "model": "m",
        "key": "env:ENDPOINT_KEY",
        "price": {"input": 1, "output": 2},
    }
    Path("endpoints.yaml").write_text(yaml.safe_dump({"one": about}))
    return tmp_path


def attempt(*words: str) -> CommandResult:
    return curate("caption", "try", *words)


def test_it_shows_request_answer_tokens_and_cost(here: Path, script: Any) -> None:
    before = script.stats()["requests"]
    found = attempt("alt_text", "red.png", "red.png", "--context", "alt text=A <|im_end|> wall", "--seed", "3")
    assert found.code == 0
    assert found.out.count("red.png, sent as 512 x 341") == 2
    assert "data:image/jpeg;base64,/9j/4AAQSkZJRgABA… (" in found.out
    assert '{\\"alt text\\": \\"A ‹|im_end|› wall\\"}' in found.out
    assert "outcome   ok" in found.out
    assert "model     m fp_1" in found.out
    log = script.log()[before:]
    assert len(log) == 2
    assert f"answer    {_said(found)}" in found.out
    assert log[0]["seed"] == log[1]["seed"]
    assert f'"seed": {log[0]["seed"]}' in found.out
    assert KEY not in found.out + found.err
    tokens = next(line for line in found.out.splitlines() if line.startswith("tokens"))
    read, written = int(tokens.split()[1]), int(tokens.split()[3])
    assert f"cost      ${(read + 2 * written) / 1e6:.6f}" in found.out


def _said(found: CommandResult) -> str:
    [line, *_] = [line for line in found.out.splitlines() if line.startswith("answer")]
    return line.removeprefix("answer").strip()


def test_texts_and_questions_work_without_a_stage(here: Path) -> None:
    rewritten = attempt("vivid", "--context", "caption=A red wall.")
    assert rewritten.code == 0
    assert "image" not in rewritten.out.split("request")[0]
    assert '"kind": ' in _said(attempt("questions", "red.png"))
    assert "context   without alt text; --context LABEL=TEXT" in attempt("alt_text", "red.png").out


def test_a_row_in_error_is_shown_and_ends_with_an_error(here: Path, endpoint: Any) -> None:
    wrong = endpoint.script(style="captions", wrong_schema=1.0)
    Path("wrong.yaml").write_text(yaml.safe_dump({"one": {"base_urls": [wrong.base_url], "model": "m"}}))
    found = attempt("questions", "red.png", "--endpoints", "wrong.yaml")
    assert "no answer bad_schema: " in found.out
    assert found.error == "curate: 1 of 1 requests got no answer, see above"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["caption_shrt", "red.png"], "caption_shrt: no prompt has this name; did you mean 'caption_short'?"),
        (["caption_short"], "caption_short: the prompt needs an image"),
        (["vivid", "red.png"], "vivid: the prompt takes no image; give its context by --context LABEL=TEXT"),
        (["vivid"], "--context is missing; vivid takes caption: give LABEL=TEXT"),
        (["vivid", "--context", "text=x"], "--context text: the prompt has no context of this name; it has caption"),
        (["vivid", "--context", "caption"], "--context 'caption': expected LABEL=TEXT"),
        (["caption_short", "none.png"], "none.png: cannot read the image (No such file or directory)"),
        (["caption_short", "endpoints.yaml"], "endpoints.yaml: not_an_image"),
        (["caption_short", "red.png", "--endpoint", "two"], "--endpoint: no endpoint is named 'two' (there are: one)"),
        (["caption_short", "red.png", "--endpoints", "none.yaml"], "none.yaml: cannot read the file of endpoints"),
    ],
)
def test_what_cannot_be_asked_is_one_line(here: Path, words: list[str], expected: str) -> None:
    assert expected in attempt(*words).error


def test_an_endpoint_that_does_not_answer_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the attempts and the patience of a run: nothing listens, or nothing answers."""
    monkeypatch.setattr(preflight, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        for port, why in ((dead.getsockname()[1], "ClientConnectorError"), (silent.getsockname()[1], "no answer in")):
            url = f"http://127.0.0.1:{port}/v1"
            Path("endpoints.yaml").write_text(yaml.safe_dump({"one": {"base_urls": [url], "model": "m"}}))
            error = attempt("caption_short", "red.png").error
            assert error.startswith(f"curate: endpoint one: none of its URLs answers ({url}/models: {why}")


@pytest.mark.parametrize(("key", "expected"), [("wrong-key-987654", "401"), ("", "env:OTHER_KEY")])
def test_a_wrong_key_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch, key: str, expected: str) -> None:
    Path("endpoints.yaml").write_text(Path("endpoints.yaml").read_text().replace("ENDPOINT_KEY", "OTHER_KEY"))
    monkeypatch.setenv("OTHER_KEY", key)
    error = attempt("caption_short", "red.png").error
    assert expected in error
    assert "wrong-key" not in error
