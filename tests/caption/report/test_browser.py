"""The page in a real browser, opened from a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from curate.caption.report.report import CaptionReport
from tests.caption.captioned import captioned_pool
from tests.html.browser import Browser, Tab, contrasts_by_theme, width_on_a_phone

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    page = CaptionReport(cluster="cluster_1", clusters_shown=3).render(captioned_pool())["index.html"]
    with browser.opened(page, tmp_path_factory.mktemp("captions")) as opened:
        yield opened


def test_a_reason_leads_to_its_examples(tab: Tab) -> None:
    link = tab.page.locator("#checks a").first
    target = tab.page.locator(str(link.get_attribute("href")))
    target.evaluate("target => { target.open = false; }")
    link.click()
    tab.page.wait_for_function("target => target.open", arg=target.element_handle())
    assert target.locator(".sample .text p").first.is_visible()


def test_values_of_a_text_open(tab: Tab) -> None:
    values = tab.page.locator("#samples .values").first
    assert not values.locator("dl").is_visible()
    values.locator("summary").click()
    assert "prompt tokens" in values.inner_text()


def test_light_and_dark_are_both_readable(tab: Tab) -> None:
    contrasts = contrasts_by_theme(tab)
    assert len(contrasts) == 2 and min(contrasts.values()) > 7


def test_a_phone_scrolls_in_one_direction(tab: Tab) -> None:
    assert width_on_a_phone(tab) == 390


def test_the_console_is_silent(tab: Tab) -> None:
    assert tab.messages == []
