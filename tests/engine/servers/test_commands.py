"""Command lines and environment variables of servers, and the machines that cannot start one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from curate.core.endpoints import Endpoint
from curate.engine.servers import problem
from curate.engine.servers.commands import command, variables


def endpoint(server: str, **launch: Any) -> Endpoint:
    return Endpoint.model_validate({"model": "org/captioner", "launch": {"server": server, **launch}})


def test_the_command_line_of_vllm() -> None:
    made = command(endpoint("vllm", environment="/opt/vllm", arguments=["--max-model-len", "4096"]), 8001)
    assert made == [
        "/opt/vllm/bin/vllm", "serve", "org/captioner", "--host", "127.0.0.1", "--port", "8001",
        "--served-model-name", "org/captioner", "--max-model-len", "4096",
    ]  # fmt: skip


def test_vllm_uses_all_its_gpus() -> None:
    made = command(endpoint("vllm", gpus=4), 8001)
    assert made[made.index("--tensor-parallel-size") + 1] == "4"
    assert "--tensor-parallel-size" not in command(endpoint("vllm", gpus=0.5), 8001)


def test_the_command_line_of_transformers() -> None:
    own = str(Path(sys.prefix) / "bin" / "transformers")
    made = [own, "serve", "org/captioner", "--host", "127.0.0.1", "--port", "8001"]
    assert command(endpoint("transformers"), 8001) == made
    assert command(endpoint("transformers", gpus=0), 8001) == [*made, "--device", "cpu"]


def test_no_credential_reaches_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "CURATE_X", "HTTPS_PROXY", "PYTHONPATH", "MY_KEY")
    for name in hidden:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("HF_HOME", "/models")
    given = endpoint("vllm", environment="/opt/vllm").launch
    assert given is not None
    made = variables(given)
    assert "secret" not in made.values() and not set(hidden) & set(made)
    assert (made["CUDA_VISIBLE_DEVICES"], made["HF_HOME"]) == ("3", "/models")
    assert made["PATH"].startswith("/opt/vllm/bin:")
    assert variables(given.model_copy(update={"gpus": 0.0}))["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("arguments", [["--api-key", "sk-not-shown"], ["--hf-token=sk-not-shown"]])
def test_no_credential_is_an_argument(arguments: list[str]) -> None:
    """The list of processes shows it to everybody."""
    with pytest.raises(ValidationError, match="would be visible in the list of processes; leave it out") as error:
        endpoint("vllm", arguments=arguments)
    assert "not-shown" not in str(error.value)


def test_a_machine_without_the_program_says_so(environment: Path) -> None:
    assert problem("big", endpoint("vllm", environment=str(environment))) is None
    wrong = problem("big", endpoint("vllm", environment="/no/such/place"))
    assert wrong is not None and wrong.startswith(
        "endpoint big: no program /no/such/place/bin/vllm to launch; expected"
    )
    assert problem("big", Endpoint(base_urls=("http://host:8000/v1",), model="m")) is None
