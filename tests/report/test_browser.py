"""The page in a real browser, opened from a file: no errors, clusters open, images load."""

from __future__ import annotations

import pytest

from curate.report.html import ReportHtml
from tests.html.browser import contrasts_by_theme, needs_browser, opened, width_on_a_phone
from tests.report.memory_view import balanced_pool

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = ReportHtml(label="meta.category").render(balanced_pool())["index.html"]
    with opened(page, tmp_path_factory.mktemp("report")) as driver:
        yield driver


def wait(browser, script: str, *arguments):
    """Value of the script, once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(f"return {script}", *arguments))


def test_a_cluster_opens_and_its_images_load(browser):
    branch = browser.find_element("css selector", "#browse details")
    assert not branch.get_attribute("open")
    branch.find_element("css selector", "summary").click()
    images = branch.find_elements("css selector", "figure img")
    assert len(images) > 5
    browser.execute_script("arguments[0].scrollIntoView()", images[0])
    assert wait(browser, "arguments[0].naturalWidth", images[0]) == 96


@pytest.mark.long
def test_every_image_loads_once_everything_is_open(browser):
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.execute_script("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    wait(browser, "[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert browser.execute_script("return document.images.length") > 60


@pytest.mark.long
def test_an_image_opens_with_its_facts_and_steps_to_the_next(browser):
    opener = browser.find_elements("css selector", "#kept button.open")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", opener[0])
    opener[0].click()
    viewer = browser.find_element("id", "viewer")
    first = viewer.text
    assert "Caption" in first
    assert "a round" in first
    viewer.find_element("css selector", "[data-step='1']").click()
    assert viewer.text != first
    viewer.find_element("css selector", "form button:last-child").click()
    assert not viewer.is_displayed()


@pytest.mark.long
def test_a_link_to_a_reason_opens_it(browser):
    browser.execute_script("document.querySelectorAll('#rejected details').forEach(part => part.open = false)")
    chip = browser.find_element("css selector", "#funnel a.chip")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chip)
    chip.click()
    target = browser.find_element("css selector", chip.get_attribute("href").partition("#")[2].join(["#", ""]))
    wait(browser, "arguments[0].open", target)


@pytest.mark.long
def test_a_term_is_explained(browser):
    button = browser.find_element("css selector", "#balance .figures .what")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    note = browser.find_element("id", button.get_attribute("popovertarget"))
    assert not note.is_displayed()
    button.click()
    assert note.is_displayed()
    assert "evenly" in note.text
    browser.execute_script("arguments[0].hidePopover()", note)


@pytest.mark.long
def test_light_and_dark_are_both_readable(browser):
    contrasts = contrasts_by_theme(browser)
    assert len(contrasts) == 2 and min(contrasts.values()) > 7


@pytest.mark.long
def test_a_phone_scrolls_in_one_direction(browser):
    assert width_on_a_phone(browser) == 390


@pytest.mark.long
def test_the_console_is_silent(browser):
    assert browser.get_log("browser") == []
