"""The section about downloads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from curate.acquire.fetch.codes import CODES
from curate.core.contracts import Fetch
from curate.core.fetches import FETCHED, LEAST_FETCHES, Code, Fetches
from curate.core.ledger import Entry
from curate.report.html import ReportHtml
from curate.report.page.downloads import downloads
from curate.report.page.terms import fetch_meaning
from curate.report.survey.sizes import ImageSizes
from tests.html.browser import Browser, contrasts_by_theme, width_on_a_phone
from tests.report.memory_view import MemoryView, manifest, small_pool
from tests.report.test_html import Page, render

FAILURES: list[Code] = [
    ("error", "dns"), ("error", "http_503"), ("unusable", "http_404"), ("unusable", "opt_out_x_robots_tag"),
    ("unusable", "robots_txt"), ("unusable", "http_799"),
]  # fmt: skip


def downloaded_pool() -> MemoryView:
    """The small pool, downloaded from 60 hosts in 25 minutes."""
    view, fetches = small_pool(), Fetches()
    for number in range(3000):
        code = FETCHED if number % 7 else FAILURES[number // 7 % len(FAILURES)]
        host = f"images-{number % 60}.{'a-long-name.' * (number % 6)}example.org"
        fetches.count(Fetch(host, 1 + number % 3, (number % 60) / 10, 40_000), code, 1e9 + number / 2)
    pool = manifest("pool", "acquire.download", Entry(240, Counter(missing_file=1), 239))
    pool.extra["fetches"] = fetches.to_json()
    view.stages = {"import": pool} | {name: stage for name, stage in view.stages.items() if name != "import"}
    return view


@pytest.fixture(scope="module")
def page() -> Page:
    return render(downloaded_pool())


def test_counts_rates_and_opt_outs(page: Page) -> None:
    [found] = downloads(downloaded_pool().stages, ImageSizes())
    assert found.total == 3000 == found.done + found.errors + found.unusable
    assert found.done + sum(row.count for row in found.codes) == 3000 and found.rest == (0, 0)
    assert found.seconds == 1500 and found.bytes == 3000 * 40_000
    assert {row.name: row.count for row in found.opted_out} == {"robots.txt": 71, "x-robots-tag": 71}
    assert found.opt_outs == 142
    assert "3,000 URLs of import were fetched in 25 min 00 s" in page.text
    assert "Opted out 142 4.7 %" in page.text and "Received 120 MB 80 kB/s" in page.text
    assert "http 404" in page.text and "The host answered 404 (Not Found)." in page.text
    assert "The host answered 799." in page.text


def test_hosts_are_ranked_by_failures_and_by_mean_time() -> None:
    view = downloaded_pool()
    [found] = downloads(view.stages, ImageSizes())
    failed = [host.failed for _, host in found.failing]
    assert len(failed) == 20 and failed == sorted(failed, reverse=True) and failed[-1] > 0
    means = [host.mean_seconds for _, host in found.slowest]
    assert len(means) == 20 and means == sorted(means, reverse=True)
    assert min(host.fetches for _, host in found.slowest) >= LEAST_FETCHES


def test_sizes_come_from_the_pool_s_columns(page: Page) -> None:
    assert "Shorter side, pixels Shorter side Share images 64 to 127 240 100 %" in page.text
    assert "4:5 to 5:4, about square 240 100 %" in page.text


def test_the_section_is_linked_and_its_terms_are_explained(page: Page) -> None:
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert "downloads" in ids and "#downloads" in {link["href"] for link in page.all("a")}
    for button in page.all("button"):
        assert button.get("popovertarget") in ids | {None}


def test_a_pool_that_was_not_downloaded_has_no_such_section() -> None:
    page = render(small_pool())
    assert "Downloads" not in page.text and "Fetched" not in page.text
    assert downloads(small_pool().stages, ImageSizes()) == []


def test_a_pool_whose_fetches_all_failed() -> None:
    fetches = Fetches()
    fetches.count(Fetch("", 0), ("error", "runner_died"), 1e9)
    view = MemoryView([], {"pool": manifest("pool", "acquire.download", Entry(1, error=Counter(runner_died=1)))})
    view.stages["pool"].extra["fetches"] = fetches.to_json()
    text = render(view).text
    assert "1 URL of pool was fetched in 10.0 s" in text and "They gave 0 images" in text
    assert "Host failed" not in text and "Host mean" not in text and "Shorter side" not in text


def test_every_code_has_a_meaning() -> None:
    assert [code for code in CODES if code != "done" and not fetch_meaning(code)] == []


@pytest.mark.long
def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    page = ReportHtml().render(downloaded_pool())["index.html"]
    with browser.opened(page, tmp_path) as tab:
        assert width_on_a_phone(tab) == 390
        assert min(contrasts_by_theme(tab).values()) > 7
        assert tab.messages == []
