"""Content of the page. test_browser.py tests how it looks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.caption.report.report import CaptionReport
from curate.core.recipe.registry import resolve
from tests.caption.captioned import captioned_pool, said
from tests.report.memory_view import MemoryView
from tests.report.test_html import Page

LOCAL: dict[str, Any] = {"base_urls": "http://h:1/v1", "model": "m", "key": "env:NO_SUCH_KEY"}
PRICED = {"local": {**LOCAL, "price": {"input": 100, "output": 200}}}


def render(view: MemoryView, **parameters: Any) -> Page:
    files = CaptionReport(**parameters).render(view)
    assert set(files) == {"index.html"}
    page = Page(files["index.html"].decode())
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def page() -> Page:
    return render(captioned_pool(), title="Some captions", cluster="cluster_1", endpoints=PRICED)


def test_is_registered() -> None:
    assert resolve("caption.report") is CaptionReport
    assert all(field.description for field in CaptionReport.model_fields.values())


def test_only_prices_of_endpoints_matter_and_no_key_is_needed() -> None:
    cheap, priced = CaptionReport(endpoints={"local": LOCAL}), CaptionReport(endpoints=PRICED)
    assert cheap.parameters() == priced.parameters()
    assert cheap.identity() != priced.identity()
    assert priced.secrets() == {}


def test_named_columns_are_checked_by_the_plan() -> None:
    assert CaptionReport(texts=("generated",), cluster="cluster_2").reads() == ("generated", "cluster_2")
    assert CaptionReport().reads() == ()
    with pytest.raises(ValidationError, match="texts"):
        CaptionReport(texts=())


def test_all_sections_are_there(page: Page) -> None:
    ids = {attributes.get("id") for _, attributes in page.tags}
    anchors = {link["href"].removeprefix("#") for link in page.all("a") if link["href"].startswith("#")}
    assert anchors <= ids
    assert {"outcomes", "cost", "texts", "checks", "samples", "failures", "prompts"} <= ids


def test_figures(page: Page) -> None:
    assert "generated caption.generate 101 6 6 0 6 0 1 120" in page.text
    assert "repaired caption.repair 24 0 0 0 0 89 7 120" in page.text
    assert "Errors: http 503 6" in page.text
    assert "Chosen texts: generated 83, repaired 24, none 6, caption 6." in page.text
    assert "78 % of 107 texts pass" in page.text
    assert "6 of 107 texts follow an order of their context ? Sign Share Texts payload 6 5.6 %" in page.text
    assert "generated_chats 59 55 % of 107" in page.text


def test_a_server_that_changed_is_marked(page: Page) -> None:
    assert page.text.count("changed within the run") == 2
    assert "fp_1" in page.text and "fp_2" in page.text


def test_cost_follows_the_price(page: Page) -> None:
    tokens = [(200, len(row["repaired"].split())) for row in captioned_pool().rows if row.get("repaired")]
    dollars = sum(100 * prompt + 200 * answer for prompt, answer in tokens) / 1e6
    assert (
        f"24 {200 * 24:,} {sum(answer for _, answer in tokens):,} ${dollars:.2f} ${1000 * dollars / 24:.2f}"
        in page.text
    )
    assert "no price" in render(captioned_pool(20)).text


def test_a_card_has_the_image_and_each_text(page: Page) -> None:
    assert len(page.all("img")) >= 28
    assert all(image["src"].startswith("data:image/webp") and image["alt"] for image in page.all("img"))
    assert "IMG_" in page.text and "catches the eye" in page.text
    assert "no text" in page.text  # of an answer that was refused


def test_texts_are_escaped() -> None:
    view = captioned_pool(8)
    view.rows[1] |= {"caption": "<script>alert(1)</script>", **said("generated", "<img src=x onerror=alert(1)>")}
    page = render(view)
    assert "<script>alert(1)</script>" in page.text and "<img src=x onerror=alert(1)>" in page.text
    assert len(page.all("script")) == 1


def test_structured_answers_are_shown_by_field_and_not_measured() -> None:
    view = captioned_pool(8)
    view.types = {**view.types, "answers": pa.string(), "answers_outcome": pa.string()}
    view.stages["ask"] = view.stages["generate"].__class__(
        "columns", "caption.ask", 1, "f", {"output": "answers"}, ledger=view.stages["generate"].ledger
    )
    view.rows[1] |= {"answers": '{"people": true, "kind": "photo"}', "answers_outcome": "ok"}
    page = render(view)
    assert "people yes kind photo" in page.text
    assert "answers caption.ask 1 0 0 0" in page.text
    measured = page.text[page.text.rindex("Before and after") : page.text.index("Images and their texts")]
    assert "answers" not in measured


def test_an_image_without_bytes_and_a_pool_without_texts() -> None:
    view = captioned_pool(8)
    view.encoded.clear()
    assert "no bytes" in render(view).text
    view.rows = []
    assert "Images 0" in render(view).text


def test_the_page_does_not_depend_on_shards_and_threads() -> None:
    one, other = captioned_pool(40), captioned_pool(40)
    other.shard_rows = 9
    assert CaptionReport(threads=1).render(one) == CaptionReport(threads=4).render(other)
