"""The page in a real browser, opened from a file: no errors, clusters that open, pictures that load."""

from __future__ import annotations

import shutil

import pytest

from curate.report.html import ReportHtml
from tests.report.report_view import balanced_pool

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = """
    --headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1200,900
    --force-prefers-reduced-motion
"""

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed; apt-get install chromium-driver"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    folder = tmp_path_factory.mktemp("report")
    (folder / "index.html").write_bytes(ReportHtml(label="meta.category").render(balanced_pool())["index.html"])
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS.split(), f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get((folder / "index.html").as_uri())
    yield driver
    driver.quit()


def wait(browser, script: str, *arguments):
    """What the script returns, once that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(f"return {script}", *arguments))


def test_a_cluster_opens_and_its_pictures_load(browser):
    branch = browser.find_element("css selector", "#browse details")
    assert not branch.get_attribute("open")
    branch.find_element("css selector", "summary").click()
    pictures = branch.find_elements("css selector", "figure img")
    assert len(pictures) > 5
    browser.execute_script("arguments[0].scrollIntoView()", pictures[0])
    assert wait(browser, "arguments[0].naturalWidth", pictures[0]) == 96


@pytest.mark.long
def test_every_picture_loads_once_all_is_open(browser):
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.execute_script("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    wait(browser, "[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert browser.execute_script("return document.images.length") > 60


@pytest.mark.long
def test_a_picture_opens_with_its_facts_and_steps_to_the_next(browser):
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
    browser.execute_script("document.querySelectorAll('#refused details').forEach(part => part.open = false)")
    chip = browser.find_element("css selector", "#funnel a.chip")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chip)
    chip.click()
    target = browser.find_element("css selector", chip.get_attribute("href").partition("#")[2].join(["#", ""]))
    wait(browser, "arguments[0].open", target)


@pytest.mark.long
def test_a_word_is_explained(browser):
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
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    colours = set()
    for _ in range(2):
        browser.find_element("id", "theme").click()
        style = "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
        ink, page = (luminance(colour) for colour in browser.execute_script(f"return {style}"))
        assert (max(ink, page) + 0.05) / (min(ink, page) + 0.05) > 7
        colours.add(round(page, 3))
    assert len(colours) == 2


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.long
def test_a_phone_scrolls_in_one_direction(browser):
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.long
def test_the_console_is_silent(browser):
    assert browser.get_log("browser") == []
