"""Two texts per image, judged by a model and compared, through the engine and an endpoint."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curate.acquire.folder import AcquireFolder
from curate.caption.checks.check import Check
from curate.caption.compare.compare import Compare
from curate.caption.compare.judge import Judge
from curate.caption.generate import Generate
from curate.caption.report.report import CaptionReport
from curate.caption.untrusted.wrap import unwrapped
from curate.core.errors import RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import Result, run
from tests.e2e.texts import write_images
from tests.report.test_html import Page
from tests.servers.scripted import Endpoint, Scripted

IMAGES = 40
PRICE = {"input": 1.0, "output": 2.0}


@dataclass(frozen=True)
class Servers:
    writer: Scripted
    judge: Scripted

    @property
    def requests(self) -> int:
        return sum(one.stats()["requests"] for one in (self.writer, self.judge))


def pipeline(place: Path, servers: Servers, price: dict[str, float] = PRICE) -> Pipeline:
    known = {"price": price, "model": "vlm", "schema": True}
    endpoints: dict[str, Any] = {
        "writer": {"base_urls": [servers.writer.base_url], **known},
        "judge": {"base_urls": [servers.judge.base_url], **known},
    }
    writes = {"endpoints": endpoints, "endpoint": "writer"}
    made = Pipeline().add("pool", AcquireFolder(path=str(place / "images"), namespace="judged", shard_rows=16))
    made.add("short", Generate(**writes, output="short"), "pool")
    made.add("long", Generate(**writes, prompt="caption_long", output="long"), "short")
    made.add("check", Check(column="short", prompts=["caption_short"]), "long")
    made.add("judge", Judge(endpoints=endpoints, endpoint="judge", a="short", b="long"), "check")
    compare = Compare(a="short", b="long", judge="judge", endpoints=endpoints, samples=10)
    made.add("compare", compare, "judge")
    return made.add("report", CaptionReport(endpoints=endpoints), "judge").check()


@pytest.fixture(scope="module")
def servers(endpoint: Endpoint) -> Servers:
    """A fifth of the captions are loops, a fifth of all answers have no text."""
    known = {"style": "captions", "enforces_schema": True, "fingerprint": "fp", "filtered": 0.1, "empty": 0.1}
    return Servers(endpoint.script(**known, loops=0.2), endpoint.script(**known))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("judged")
    write_images(made / "images", IMAGES)
    return made


@pytest.fixture(scope="module")
def result(servers: Servers, place: Path) -> Result:
    return run(pipeline(place, servers), str(place / "workspace"))


def page(result: Result, stage: str, name: str = "index.html") -> Page:
    found = Page(open_storage(result.outputs[stage]).read(name).decode())
    assert found.open == []
    return found


def test_every_answer_of_the_servers_is_on_the_page(result: Result, servers: Servers) -> None:
    """Tokens of all requests, as the servers counted them."""
    told, text = [one.stats() for one in (servers.writer, servers.judge)], page(result, "report").text
    prompt, answer = (sum(one[f"{name}_tokens"] for one in told) for name in ("prompt", "completion"))
    assert f"requests, {prompt + answer:,} tokens" in text
    assert f"Spent by this run ? ${(prompt * PRICE['input'] + answer * PRICE['output']) / 1e6:.4f} " in text
    assert "writer : vlm fp" in text and "judge : vlm fp" in text


def test_outcomes_add_up_to_the_images(result: Result) -> None:
    found = page(result, "report")
    lines = [" ".join(found.texts).split(f"caption.{op}") for op in ("generate", "judge")]
    for parts, count in zip(lines, (2, 1), strict=True):
        assert len(parts) == count + 1
        for part in parts[1:]:
            numbers = [int(one) for one in part.split()[:8]]
            assert sum(numbers[:-1]) == numbers[-1] == IMAGES


def test_checks_are_counted(result: Result) -> None:
    """The stage counts reasons of texts that are null too; the page shows those as outcomes."""
    counted = result.ledger["check"].counters
    text = page(result, "report").text
    assert counted["check_repetition"] > 0
    assert f"repetition {counted['check_repetition']} " in text[text.rindex("Checks ?") :]
    assert "texts follow an order of their context" in text


def test_both_orders_are_requested(result: Result, servers: Servers) -> None:
    """Each pair of texts twice, about the same image and with swapped texts."""
    asked: dict[Any, list[dict[str, str]]] = {}
    for line in servers.judge.log():
        asked.setdefault(tuple(line["images"]), []).append(unwrapped(line["prompt"]))
    assert len(asked) > IMAGES / 2
    for one, other in asked.values():
        assert (one["first"], one["second"]) == (other["second"], other["first"])


def test_the_pages_have_the_verdicts(result: Result) -> None:
    key = json.loads(open_storage(result.outputs["compare"]).read("key.json"))
    verdicts = Counter(pair["judge"] for pair in key["pairs"].values())
    assert len(key["pairs"]) == 10 and {"a", "b"} & set(verdicts)
    assert "judge.html has 10 pairs" in page(result, "compare").text


def test_another_price_rebuilds_the_pages_and_asks_nothing(result: Result, servers: Servers, place: Path) -> None:
    before = servers.requests
    dear = {"input": 1000.0, "output": 2000.0}
    again = run(pipeline(place, servers, dear), str(place / "workspace"))
    assert servers.requests == before
    assert again.reused["judge"] and not again.reused["report"] and not again.reused["compare"]
    assert again.outputs["report"] != result.outputs["report"]


def test_an_unknown_column_is_one_line(tmp_path: Path) -> None:
    made = Pipeline().add("pool", AcquireFolder(path=str(tmp_path), namespace="x"))
    with pytest.raises(RecipeError, match="column 'generatd' is missing upstream"):
        made.add("report", CaptionReport(texts=("generatd",)), "pool").check()
