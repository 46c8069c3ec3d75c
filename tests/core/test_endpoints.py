"""Files of endpoints, and the message about each mistake in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.core.endpoints import Endpoint, Price, endpoint_of, read_endpoints
from curate.core.errors import InputError

WHOLE = """
captioner:
  base_urls: [http://node-1:8000/v1/, "https://node-2/v1"]
  model: llava-next
  key: env:LLAVA_KEY
  requests_per_minute: 6000
  price: {llava-next: {input: 0.15, output: 0.6}, other: {input: 1, output: 2}}
  schema: true
judge:
  model: /models/judge
  launch: {server: vllm, gpus: 2}
"""


def read(tmp_path: Path, text: str) -> dict[str, Endpoint]:
    (tmp_path / "endpoints.yaml").write_text(text)
    return read_endpoints(str(tmp_path / "endpoints.yaml"))


def error_of(tmp_path: Path, text: str) -> str:
    """The message about a file, without its folder."""
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_a_file(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    captioner = found["captioner"]
    assert captioner.base_urls == ("http://node-1:8000/v1", "https://node-2/v1")
    assert captioner.price == Price(input=0.15, output=0.6) and captioner.enforces_schema
    assert captioner.price.of(2_000_000, 500_000) == pytest.approx(0.6)
    assert found["judge"].launch is not None and found["judge"].launch.startup_seconds == 900.0


def test_a_description_is_the_same_after_a_trip_through_json(tmp_path: Path) -> None:
    """Detached runs get it so."""
    found = read(tmp_path, WHOLE)
    assert {name: Endpoint.model_validate_json(one.model_dump_json()) for name, one in found.items()} == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {base_urls: [", "endpoints.yaml:1: not valid YAML; expected NAME: {base_urls: [...], model: ...}"),
        ("[1]", "endpoints.yaml: expected a mapping NAME: {base_urls: [...], model: ...}"),
        ("a b: {}", "endpoints.yaml: 'a b' is not a name; expected letters, digits, . - and _"),
        ("a: 5", "endpoints.yaml: a: expected a mapping {base_urls: [...], model: ...}, not a single value"),
        ("a:", "endpoints.yaml: a: expected a mapping {base_urls: [...], model: ...}, not nothing"),
        (
            "a: 'https://me:pw-of-mine@h/v1'",
            "endpoints.yaml: a: expected a mapping {base_urls: [...], model: ...}, not a single value",
        ),
        (
            "a: {base_urls: [http://h/v1], model: m, price: {input: 3, out: 4}}",
            "endpoints.yaml: a: price.out: unknown key; did you mean 'output'?",
        ),
        (
            "a: {base_urls: [http://h/v1], model: m, max_in_flight: 0}",
            "endpoints.yaml: a: max_in_flight: input should be greater than or equal to 1",
        ),
        (
            "a: {base_urls: [http://h/v1], model: m, launch: {sever: vllm}}",
            "endpoints.yaml: a: launch.sever: unknown key; did you mean 'server'?",
        ),
        ("a: {model: m}", "endpoints.yaml: a: expected either base_urls, or launch to start a server"),
        ("a: {base_urls: [http://h/v1]}", "endpoints.yaml: a: model: missing; add it"),
        (
            "a: {base_urls: [http://h/v1], modell: m}",
            "endpoints.yaml: a: modell: unknown key; did you mean 'model'?",
        ),
        (
            "a: {base_urls: [h/v1], model: m}",
            "endpoints.yaml: a: base_urls: 'h/v1' is not a base URL; expected http://HOST:PORT/v1",
        ),
        (
            "a: {base_urls: ['http://h:99999/v1'], model: m}",
            "endpoints.yaml: a: base_urls: 'http://h:99999/v1' is not a base URL; expected http://HOST:PORT/v1",
        ),
        (
            "a: {base_urls: [http://h/v1/chat/completions], model: m}",
            "endpoints.yaml: a: base_urls: 'http://h/v1/chat/completions' is not a base URL; "
            "expected http://HOST:PORT/v1",
        ),
        (
            "a: {base_urls: ['https://me:pw-of-mine@h/v1'], model: m}",
            "endpoints.yaml: a: base_urls: a URL contains credentials; give them as `key: env:NAME`",
        ),
        (
            "a: {base_urls: [http://h/v1], model: lava, price: {llava: {input: 1, output: 2}}}",
            "endpoints.yaml: a: price: the price list has no model 'lava'; did you mean 'llava'?",
        ),
        (
            "a: {base_urls: [http://h/v1], model: m, price: 3}",
            "endpoints.yaml: a: price: expected a mapping with input, output",
        ),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, text: str, said: str) -> None:
    assert error_of(tmp_path, text) == f"endpoints: {said}"


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    with pytest.raises(InputError) as error:
        read_endpoints(path)
    assert str(error.value) == f"endpoints: {path}: cannot read the file of endpoints (No such file or directory)"


def test_no_endpoint_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        endpoint_of(read(tmp_path, WHOLE), "captioners")
    assert str(error.value) == (
        "endpoint: no endpoint is named 'captioners' (there are: captioner, judge); name one, or add it to the file"
    )
