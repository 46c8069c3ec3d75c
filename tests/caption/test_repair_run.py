"""Captions beside alt texts that give orders: asked, checked, repaired and chosen, against an endpoint that obeys.

The endpoint follows what it sees outside of the data, and 30 % of the orders within. Beside honest alt texts, 30 % of
its captions use their words. The orders are those held out from
the development of the detector.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from curate.caption.checks.check import Check
from curate.caption.choose import Choose
from curate.caption.generate import Generate
from curate.caption.prompt import read_prompt
from curate.caption.repair import Repair
from curate.caption.untrusted.wrap import neutral
from curate.core.contracts import Incoming, Portion
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import Result, run
from tests.caption.test_run import endpoints, rows
from tests.caption.untrusted import captions, orders
from tests.engine import toys

WRAPPED = r"<<<data (?P<mark>[0-9a-f]{16})\n(?P<data>.*?)\n(?P=mark) data>>>"
ROUNDS = 6
"""Cases of each template."""
ALT_TEXTS = ("Red shoes, size 10", "Sunset over the bay of Naples", "Vintage poster of a steam train - art print")
CASES = [case for case in orders.cases("held_out", ALT_TEXTS, ROUNDS) if len(case.contexts) == 1]
HONEST = orders.honest_texts("held_out")
BESIDE = [captions.beside(alt, Random(alt)) for alt in HONEST]
"""Captions that use the words of an honest alt text."""
PROMPT = read_prompt("caption_short").model_copy(update={"context": {"alt text": "caption"}})
ALL = [*(case.contexts[0] for case in CASES), *HONEST]


class Captioned(toys.Numbers):
    """Images with the orders of CASES as alt texts, and then with honest ones."""

    op: ClassVar[str] = "toy.captioned"
    rows: int = len(CASES) + len(HONEST)
    shard_rows: int = 1000

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for number, incoming in enumerate(super().read(portion), portion.content["start"]):
            yield replace(incoming, caption=ALL[number])


def pipeline(script: Any) -> Pipeline:
    made = Pipeline().add("pool", Captioned(namespace="orders"))
    asked: dict[str, Any] = {"endpoints": endpoints(script), "prompt": PROMPT, "image_least_side": 1}
    made.add("generate", Generate(**asked), "pool")
    made.add("check", Check(prompts=[PROMPT]), "generate")
    made.add("repair", Repair(**asked), "check")
    return made.add("choose", Choose(), "repair").check()


@pytest.fixture(scope="module")
def script(endpoint: Any) -> Any:
    said = dict(zip(ALL, [*(case.obeyed for case in CASES), *BESIDE], strict=True))
    found = [{"find": f"^{re.escape(neutral(alt))}$", "say": text.replace("\\", r"\\")} for alt, text in said.items()]
    return endpoint.script(style="captions", orders=found, wrapped=WRAPPED)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders") / "workspace"


@pytest.fixture(scope="module")
def result(script: Any, workspace: Path) -> Result:
    return run(pipeline(script), str(workspace))


@pytest.fixture(scope="module")
def found(result: Result, workspace: Path) -> list[dict[str, Any]]:
    """Columns of all stages, by row; `obeyed` says whether the endpoint followed the order."""
    stages = [rows(workspace, f"caption.{op}") for op in ("generate", "check", "repair", "choose")]
    merged = [{name: value for row in parts for name, value in row.items()} for parts in zip(*stages, strict=True)]
    answers = [case.obeyed.strip() for case in CASES] + [None] * len(HONEST)
    return [row | {"obeyed": row["generated"] == answer} for row, answer in zip(merged, answers, strict=True)]


def test_answers_that_follow_an_order_are_caught(found: list[dict[str, Any]]) -> None:
    followed = [row for row in found if row["obeyed"]]
    assert 0.2 * len(CASES) < len(followed) < 0.4 * len(CASES)
    missed = [row["generated"] for row in followed if row["generated_injection"] is None]
    assert len(missed) <= 0.05 * len(followed), missed


def test_honest_captions_pass(found: list[dict[str, Any]]) -> None:
    honest = [row for row in found if not row["obeyed"]]
    assert any(row["generated"] in BESIDE for row in honest)
    flagged = [row for row in honest if row["generated_check"] is not None]
    assert len(flagged) <= 0.01 * len(honest), [(row["generated"], row["generated_check"]) for row in flagged]


def test_only_what_failed_costs_a_request(found: list[dict[str, Any]], result: Result, script: Any) -> None:
    failed = [row for row in found if row["generated_check"] is not None]
    assert all(row["repaired_attempt"] is None for row in found if row["generated_check"] is None)
    assert all(row["repaired_attempt"] in (1, 2) for row in failed)
    assert len(failed) <= result.counts["repair"].requests <= 1.2 * len(failed)
    asked = sum(result.counts[name].requests for name in ("generate", "repair"))
    assert asked == len(found) + result.counts["repair"].requests == script.stats()["requests"]


def test_the_texts_that_are_chosen(found: list[dict[str, Any]]) -> None:
    sources = Counter(row["chosen_from"] for row in found)
    assert sources.total() == len(found) and sources.keys() <= {"repaired", "generated", None}
    assert sources[None] == sum(row["chosen"] is None for row in found) > 0  # never its alt text
    repaired = [row for row in found if row["repaired"] is not None and row["repaired_check"] is None]
    assert sources["repaired"] == len(repaired) > 0.9 * sum(row["generated_check"] is not None for row in found)
    assert not any(row["obeyed"] and row["chosen"] == row["generated"] for row in found if row["generated_injection"])


@pytest.mark.long
def test_the_same_on_ray(found: list[dict[str, Any]], script: Any, tmp_path: Path, on_ray: Any) -> None:
    before = script.stats()["requests"]
    run(pipeline(script), str(tmp_path / "w"), engine=on_ray)
    for op in ("check", "repair", "choose"):
        columns = rows(tmp_path / "w", f"caption.{op}")
        assert columns == [{name: row[name] for name in columns[0]} for row in found]
    assert script.stats()["requests"] == 2 * before


def test_a_second_run_costs_no_request(result: Result, script: Any, workspace: Path) -> None:
    before = script.stats()["requests"]
    counts = run(pipeline(script), str(workspace)).counts
    assert sum(counts[name].requests for name in ("generate", "repair")) == 0
    assert script.stats()["requests"] == before
