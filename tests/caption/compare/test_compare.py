"""Content of the pages. test_browser.py judges in a browser."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from curate.caption.compare.compare import Compare
from curate.caption.compare.statistics import wilson
from curate.core.recipe.registry import resolve
from tests.caption.captioned import judged_pool
from tests.report.memory_view import MemoryView
from tests.report.test_html import Page

PRICED: dict[str, Any] = {"base_urls": "http://h:1/v1", "model": "m", "price": {"input": 100, "output": 200}}
BOTH = {"a": "generated", "b": "long"}
ALL = BOTH | {"judge": "judge", "similarity_a": "near_a", "similarity_b": "near_b", "samples": 30}


def files(view: MemoryView, **parameters: Any) -> dict[str, bytes]:
    return Compare(**(BOTH | parameters)).render(view)


def opened(data: bytes) -> Page:
    page = Page(data.decode())
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return files(judged_pool(), **ALL, endpoints={"local": PRICED, "large": PRICED})


def test_is_registered() -> None:
    assert resolve("caption.compare") is Compare
    assert all(field.description for field in Compare.model_fields.values())
    assert Compare(**ALL).reads() == (
        "generated", "long", "near_a", "near_b", "judge_verdict", "judge_ab", "judge_ba",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"b": "generated"}, "'generated' is the column `a` too; give two columns"),
        ({"similarity_a": "near_a"}, "similarity_b: missing; give the similarities of both texts, or of neither"),
        ({"samples": 0}, "samples"),
    ],
)
def test_bad_parameters(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Compare(**(BOTH | given))


def test_the_summary_counts_pairs_and_verdicts(made: dict[str, bytes]) -> None:
    view, text = judged_pool(), opened(made["index.html"]).text
    alive = [row for row in view.rows if not row.get("rejected_by")]
    pairs = [row for row in alive if row.get("generated") and row.get("long")]
    verdicts = Counter(row["judge_verdict"] for row in pairs if row.get("judge_verdict"))
    equal = sum(row["generated"] == row["long"] for row in pairs)
    assert f"Samples with both texts {len(pairs)} {equal} of them equal" in text
    lost, lacking = len(view.rows) - len(alive), len(alive) - len(pairs)
    assert f"{lost} of {len(view.rows)} rows are left out because a stage rejected them" in text
    assert f"{lacking} because they lack a text" in text
    assert sum(verdicts.values()) == len(pairs) - equal
    for name, verdict in (("generated is better", "a"), ("long is better", "b"), ("tie", "tie")):
        assert f"{name} {verdicts[verdict]} " in text
    rate = wilson(verdicts["b"], verdicts["a"] + verdicts["b"])
    assert rate is not None
    assert f"95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %" in text
    assert f"in {verdicts['inconsistent']} samples the model chose the text shown first both times, in 0" in text


def test_figures_are_paired(made: dict[str, bytes]) -> None:
    text = opened(made["index.html"]).text
    pairs = len([row for row in judged_pool().rows if row.get("generated")])
    assert "Similarity to the image" in text
    assert f"+0.050 +0.050 to +0.050 {pairs}" in text


def test_cost_is_per_thousand_answers(made: dict[str, bytes]) -> None:
    rows = [row for row in judged_pool().rows if row.get("long")]
    dollars = sum(100 * 200 + 200 * row["long_completion_tokens"] for row in rows) / 1e6
    assert f"long , per 1,000 ? ${1000 * dollars / len(rows):.2f}" in opened(made["index.html"]).text
    assert "$" not in opened(files(judged_pool(), **ALL)["index.html"]).text


def test_the_blind_page_does_not_tell_which_is_which(made: dict[str, bytes]) -> None:
    html, key = made["judge.html"].decode(), json.loads(made["key.json"])
    for word in ("generated", "judge_verdict", "inconsistent", *(pair["key"] for pair in key["pairs"].values())):
        assert word not in html
    page = opened(made["judge.html"])
    assert [article["data-id"] for article in page.all("article")] == list(key["pairs"])
    named = [attributes for tag, attributes in page.tags if tag in ("article", "div", "img", "figure")]
    assert {name for attributes in named for name in attributes} <= {
        "aria-label", "data-id", "class", "data-side", "src", "width", "height", "alt", "loading", "decoding", "id",
        "data-page", "hidden",
    }  # fmt: skip


def test_the_key_tells_which_is_which(made: dict[str, bytes]) -> None:
    key, rows = json.loads(made["key.json"]), {row["key"]: row for row in judged_pool().rows}
    text, firsts = opened(made["judge.html"]).text, Counter()
    for pair in key["pairs"].values():
        row, order = rows[pair["key"]], ("generated", "long") if pair["first"] == "a" else ("long", "generated")
        first, second = (" ".join(row[name].split()) for name in order)
        assert f"1 {first} 2 {second}" in text
        assert pair["judge"] == row["judge_verdict"]
        firsts[pair["first"]] += 1
    assert firsts.total() == 30 and set(firsts) == {"a", "b"}


def test_pairs_shown_with_their_names_are_not_judged(made: dict[str, bytes]) -> None:
    shown = {text for text in opened(made["index.html"]).texts if re.fullmatch("[0-9a-f]{12}", text)}
    judged = {pair["key"][:12] for pair in json.loads(made["key.json"])["pairs"].values()}
    assert len(shown) == 12 and not shown & judged


def test_equal_and_rejected_pairs_are_not_shown(made: dict[str, bytes]) -> None:
    view = judged_pool()
    for row in view.rows[:100]:
        row |= {"rejected_by": "choose", "reject_reason": "bad"}
    key = json.loads(files(view, samples=1000)["key.json"])
    left = [row for row in view.rows[100:] if row.get("generated") and row["generated"] != row["long"]]
    assert {pair["key"] for pair in key["pairs"].values()} == {row["key"] for row in left}
    assert all(pair["judge"] is None for pair in key["pairs"].values())


def test_nothing_to_compare() -> None:
    view = judged_pool(4)
    for row in view.rows:
        row["long"] = None
    found = files(view, judge="judge")
    assert "There is no pair of different texts to judge" in opened(found["judge.html"]).text
    assert "The model has judged no sample" in opened(found["index.html"]).text
    assert json.loads(found["key.json"])["pairs"] == {}


def test_texts_are_escaped() -> None:
    view = judged_pool(6)
    for row in view.rows[1:]:
        row["long"] = "<script>alert(1)</script>"
    found = files(view, samples=2)
    for name in ("index.html", "judge.html"):
        page = opened(found[name])
        assert "<script>alert(1)</script>" in page.text and len(page.all("script")) == 1


def test_pages_do_not_depend_on_shards_and_threads() -> None:
    one, other = judged_pool(40), judged_pool(40)
    other.shard_rows = 7
    assert files(one, **ALL, threads=1) == files(other, **ALL, threads=4)
