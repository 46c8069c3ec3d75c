"""Money on the command line: a canary run and its price, ceilings, `curate status` and `curate limit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import image_files
from tests.e2e.commands import curate
from tests.servers.scripted import Endpoint, Scripted

IMAGES = 24


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_files.write_good(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


def written(folder: Path, images: Path, script: Scripted, **about: Any) -> Path:
    """A recipe that captions images."""
    endpoints = {"local": {"base_urls": [script.base_url], "model": "tiny", "max_in_flight": 2, **about}}
    (folder / "endpoints.yaml").write_text(yaml.safe_dump(endpoints))
    stages = {
        "pool": {"op": "acquire.folder", "namespace": "images", "path": str(images)},
        "generate": {"op": "caption.generate", "from": "pool", "endpoints": str(folder / "endpoints.yaml")},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return folder / "recipe.yaml"


def test_a_recipe_is_tried_stopped_and_resumed(
    workspace: Path, tmp_path: Path, images: Path, endpoint: Endpoint
) -> None:
    script = endpoint.script(style="captions")
    recipe = written(tmp_path, images, script, price={"input": 1.0, "output": 10.0})
    place = ("-w", workspace)
    assert "requests" not in curate("plan", recipe, *place).words
    canary = curate("run", recipe, *place, "--sample", "6rows", "--to", "generate", "--json", tmp_path / "canary.json")
    assert canary.code == 0, canary.err
    spent = json.loads((tmp_path / "canary.json").read_text())["spend"]["generate"]["local"]
    tried = script.stats()["requests"]
    assert 0 < tried == spent["requests"] < 14  # about 6
    planned = curate("plan", recipe, *place, "--json", tmp_path / "plan.json")
    [cost] = [one for one in json.loads((tmp_path / "plan.json").read_text())["stages"] if one["stage"] == "generate"]
    left = IMAGES - tried
    assert (cost["compute"], cost["requests"]) == (left, left) and 0 < cost["seconds"] < 600
    assert spent["dollars"] > 0 and cost["dollars"] == pytest.approx(spent["dollars"] / tried * left)
    assert f"about {left} requests, {cost['tokens']:,} tokens, $" in planned.words

    stopped = curate("run", recipe, *place, "--run-id", "one", "--max-dollars", f"{cost['dollars'] / 2:.6f}")
    assert "spent    " in stopped.out
    assert stopped.code == 3 and stopped.err.startswith("curate: stopped: $") and stopped.err.count("\n") == 1
    asked = script.stats()["requests"]
    assert tried < asked < IMAGES
    status = curate("status", "one", *place)
    assert "one: stopped" in status.words and f"generate local {asked - tried:,}" in status.words
    assert "spent $" in status.words and "%)" in status.words

    done = curate("run", recipe, *place, "--run-id", "two", "--max-tokens", "1000000", "--json", tmp_path / "two.json")
    assert done.code == 0 and f"spent {IMAGES - asked} requests, " in done.words
    spend = json.loads((tmp_path / "two.json").read_text())
    assert spend["spend"]["generate"]["local"]["requests"] == IMAGES - asked == spend["stages"]["generate"]["computed"]
    assert script.stats()["requests"] == IMAGES
    again = curate("run", recipe, *place)
    assert again.code == 0 and "spent" not in again.words


def test_a_run_without_prices_says_so(workspace: Path, tmp_path: Path, images: Path, endpoint: Endpoint) -> None:
    script = endpoint.script(style="captions", reports_usage=False)
    recipe = written(tmp_path, images, script)
    assert "has no price; add `price: " in curate("run", recipe, "-w", workspace, "--max-dollars", "1").error
    assert script.stats()["requests"] == 0
    done = curate("run", recipe, "-w", workspace, "--run-id", "one")
    assert "0 tokens in, 0 out, no price given; about " in done.words
    assert f" tokens more for {IMAGES} requests whose tokens were not reported" in done.words
    assert "no price given" in curate("status", "one", "-w", workspace).words
    told = curate("limit", "one", "-w", workspace, "--max-tokens", "2k").error
    assert told.endswith("run one: already done; only the limits of a running run can be changed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--max-tokens", "-5"), "--max-tokens -5: expected a number above 0; leave it out for no ceiling"),
        (("plan", "--to", "generat"), "--to generat: not a stage of the recipe; did you mean 'generate'?"),
        *(
            (
                ("run", "--sample", text),
                f"--sample {text}: expected a share above 0 and up to 1, such as 0.1% or 0.001, "
                "or rows, such as 20rows",
            )
            for text in ("0rows", "rows", "-3rows", "1.5rows", "2")
        ),
    ],
)
def test_options_out_of_range(
    workspace: Path, tmp_path: Path, images: Path, endpoint: Endpoint, words: tuple[str, ...], said: str
) -> None:
    recipe = written(tmp_path, images, endpoint.script())
    assert curate(words[0], recipe, "-w", workspace, *words[1:]).error == f"curate: {said}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "limit: nothing to change; give --requests-per-second, --max-tokens or another limit"),
        (("--max-tokens", "some"), "--max-tokens some: expected a number above 0, such as 50 or 2k, or none"),
        (("--endpoint", "a"), "limit: --endpoint needs --requests-per-minute or --tokens-per-minute, and they need it"),
        (("--tokens-per-minute", "5"), "limit: --endpoint needs --requests-per-minute or --tokens-per-minute, "
         "and they need it"),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense(workspace: Path, words: tuple[str, ...], said: str) -> None:
    assert curate("limit", "one", "-w", workspace, *words).error == f"curate: {said}"
