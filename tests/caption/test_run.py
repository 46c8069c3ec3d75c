"""The part of the contract suite for stages that ask: runs on both engines against the scripted endpoint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curate.caption.ask import Ask
from curate.caption.generate import Generate
from curate.caption.prompt import read_prompt
from curate.caption.rewrite import Rewrite
from curate.caption.summarise import Summarise
from curate.caption.untrusted.wrap import WRAPPED, unwrapped
from curate.core.errors import CurateError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import toys, workspaces

ROWS, BROKEN = 24, 7
"""Images, of which every 7th is broken."""
ALIVE = [number for number in range(ROWS) if number % BROKEN]
SCRIPT: dict[str, Any] = {
    "style": "captions", "models": ["m"], "fingerprint": "fp_1", "damaged": 0.5, "empty": 0.1, "filtered": 0.1,
    "with_context": 0.3, "wrapped": WRAPPED.pattern,
}  # fmt: skip
CONTEXT = {"title": "caption", "video caption": "generated", "description": "rewritten"}
LOSSES = Options(failure_budget=1.0)


def endpoints(script: Any, name: str = "scripted", **more: Any) -> dict[str, Any]:
    return {name: {"base_urls": [script.base_url], "model": "m"} | more}


def pool(rows: int = ROWS, **more: Any) -> Pipeline:
    return Pipeline().add("pool", toys.Numbers(namespace="captions", rows=rows, shard_rows=10, **more))


def pipeline(script: Any, name: str = "scripted", **more: Any) -> Pipeline:
    """All stages that ask, in a chain."""
    asked = {"endpoints": endpoints(script, name)} | more
    made = pool(broken=BROKEN).add("generate", Generate(**asked), "pool")
    made.add("rewrite", Rewrite(**asked), "generate").add("ask", Ask(**asked), "rewrite")
    prompt = read_prompt("video_summary_72").model_copy(update={"context": CONTEXT})
    return made.add("summarise", Summarise(**asked, prompt=prompt), "ask").check()


def rows(workspace: Path, op: str) -> list[dict[str, Any]]:
    """Facts of an op, in pool order."""
    [shards] = workspaces.facts(workspace, op).values()
    return [row for _, held in sorted(shards.items()) for row in held]


@pytest.fixture(scope="module")
def script(endpoint: Any) -> Any:
    return endpoint.script(**SCRIPT)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captions") / "workspace"


@pytest.fixture(scope="module")
def result(script: Any, workspace: Path) -> Result:
    return run(pipeline(script), str(workspace), options=LOSSES)


def test_every_alive_row_has_an_answer_or_an_outcome(result: Result, workspace: Path) -> None:
    found = rows(workspace, "caption.generate")
    assert len(found) == ROWS
    assert [row["_reason"] for row in found if row["_status"] == 1] == ["not_an_image"] * (ROWS - len(ALIVE))
    done = [row for row in found if row["_status"] == 0]
    outcomes = Counter(row["generated_outcome"] for row in done)
    assert outcomes.total() == len(ALIVE)
    assert set(outcomes) == {"ok", "empty", "refused"}
    for row in done:
        assert (row["generated"] is not None) == (row["generated_outcome"] == "ok")
        assert row["generated"] != ""
        assert row["generated_model"] == "m"
        assert row["generated_fingerprint"] == "fp_1"
        assert row["generated_prompt_tokens"] > 85
    assert len({row["generated_seed"] for row in done}) == len(ALIVE)


def test_rows_without_a_text_are_not_asked_to_be_rewritten(result: Result, workspace: Path) -> None:
    texts = [row["generated"] for row in rows(workspace, "caption.generate") if row["_status"] == 0]
    rewritten = rows(workspace, "caption.rewrite")
    assert [row["rewritten_outcome"] is None for row in rewritten] == [text is None for text in texts]
    assert result.counts["rewrite"].requests == sum(text is not None for text in texts)


def test_answers_fit_their_columns(result: Result, workspace: Path) -> None:
    schema = read_prompt("questions").schema_of_answer()
    assert schema is not None
    found = [row for row in rows(workspace, "caption.ask") if row.get("answers")]
    assert len(found) > 10
    for row in found:
        value = json.loads(row["answers"])
        assert value.keys() == schema["properties"].keys()
        assert {name: row[f"answers_{name}"] for name in value} == value


def test_the_server_saw_each_request_once_and_only_wrapped_context(
    result: Result, script: Any, workspace: Path
) -> None:
    log = script.log()
    prompts = Counter((line["prompt"], *line["images"], line["seed"]) for line in log)
    assert set(prompts.values()) == {1}
    assert sum(counts.requests for counts in result.counts.values()) == len(log)
    rewrites = [line for line in log if line["text"].startswith("Rewrite the caption")]
    texts = {row["generated"] for row in rows(workspace, "caption.generate")} - {None}
    assert {unwrapped(line["text"])["caption"] for line in rewrites} == texts
    assert not any(text in WRAPPED.sub("", line["prompt"]) for line in rewrites for text in texts)


def test_a_second_run_sends_no_request(result: Result, script: Any, workspace: Path) -> None:
    before = script.stats()["requests"]
    for again in (pipeline(script), pipeline(script, "renamed", max_in_flight=2)):
        counts = run(again, str(workspace), options=LOSSES).counts
        assert sum(one.requests for one in counts.values()) == 0
    assert script.stats()["requests"] == before


def test_another_model_or_prompt_sends_new_requests(endpoint: Any, tmp_path: Path) -> None:
    script = endpoint.script(style="captions", reported_model="reported")
    told = read_prompt("caption_short").model_copy(update={"description": "Other words."})
    for model, prompt, asked in (
        ("a", "caption_short", 5),
        ("a", told, 0),
        ("b", "caption_short", 5),
        ("a", "alt_text", 5),
    ):
        stage = Generate(endpoints=endpoints(script, model=model), prompt=prompt)
        counts = run(pool(5).add("generate", stage, "pool").check(), str(tmp_path / "w")).counts
        assert counts["generate"].requests == asked
    assert Counter(line["model"] for line in script.log()) == {"a": 10, "b": 5}


@pytest.mark.long
def test_the_same_on_ray(result: Result, script: Any, workspace: Path, tmp_path: Path, on_ray: Any) -> None:
    run(pipeline(script), str(tmp_path / "ray"), options=LOSSES, engine=on_ray)
    for op in ("generate", "rewrite", "summarise", "ask"):
        ours, theirs = (workspaces.facts(place, f"caption.{op}") for place in (workspace, tmp_path / "ray"))
        assert theirs.items() <= ours.items(), op


def test_variants_share_the_rows_and_are_found_again(endpoint: Any, tmp_path: Path) -> None:
    script = endpoint.script(style="captions")
    known = endpoints(script) | {"large": endpoints(script)["scripted"] | {"model": "large"}}
    variants = [{"prompt": "caption_long", "share": 1}, {"prompt": "alt_text", "endpoint": "large", "share": 1}]
    stage = Generate(endpoints=known, endpoint="scripted", variants=variants)
    made = pool(40).add("generate", stage, "pool").check()
    run(made, str(tmp_path / "w"))
    found = Counter(
        (row["generated_prompt"], row["generated_endpoint"]) for row in rows(tmp_path / "w", "caption.generate")
    )
    assert set(found) == {("caption_long@1", "scripted"), ("alt_text@1", "large")}
    assert min(found.values()) > 8
    assert Counter(line["model"] for line in script.log()) == {
        "m": found["caption_long@1", "scripted"],
        "large": found["alt_text@1", "large"],
    }
    assert run(made, str(tmp_path / "w")).counts["generate"].requests == 0


def test_an_endpoint_that_never_fits_the_schema_gives_errors(endpoint: Any, tmp_path: Path) -> None:
    script = endpoint.script(style="captions", wrong_schema=1.0)
    made = pool(5)
    made.add("ask", Ask(endpoints=endpoints(script)), "pool").check()
    run(made, str(tmp_path / "w"), options=LOSSES)
    assert [row["_reason"] for row in rows(tmp_path / "w", "caption.ask")] == ["bad_schema"] * 5
    assert script.stats()["requests"] == 10


def test_images_over_the_endpoints_limit_are_errors(endpoint: Any, tmp_path: Path) -> None:
    script = endpoint.script(style="captions", max_image_bytes=100)
    for limit, reason in ({}, "endpoint_refuses"), ({"max_image_bytes": 100}, "image_too_large"):
        place = tmp_path / reason
        stage = Generate(endpoints=endpoints(script, **limit))
        made = pool(3).add("generate", stage, "pool").check()
        run(made, str(place), options=LOSSES)
        assert [row["_reason"] for row in rows(place, "caption.generate")] == [reason] * 3


def test_a_wrong_key_ends_the_run_with_one_line(endpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = endpoint.script(style="captions", key="open-sesame", models=["m"])
    monkeypatch.setenv("WRONG_KEY", "not-the-key-at-all")
    stage = Generate(endpoints=endpoints(script, key="env:WRONG_KEY"))
    made = pool(3).add("generate", stage, "pool").check()
    with pytest.raises(CurateError, match="401") as caught:
        run(made, str(tmp_path / "w"))
    assert "\n" not in str(caught.value)
    assert "not-the-key-at-all" not in str(caught.value)
