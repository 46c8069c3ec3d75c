"""A real browser for tests of pages: headless Chromium without network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = """
    --headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1200,900
    --force-prefers-reduced-motion
"""

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed; apt-get install chromium-driver"
)


@contextmanager
def opened(page: bytes, folder: Path) -> Iterator[Any]:
    """A driver with the page open, from a file in `folder`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    (folder / "index.html").write_bytes(page)
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS.split(), f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get((folder / "index.html").as_uri())
        yield driver
    finally:
        driver.quit()


def contrasts_by_theme(browser: Any) -> dict[float, float]:
    """Contrast of text and background (WCAG 2.2) in both themes, by luminance of the background."""
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    contrasts = {}
    for _ in range(2):
        browser.find_element("id", "theme").click()
        style = "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
        ink, page = (_luminance(colour) for colour in browser.execute_script(f"return {style}"))
        contrasts[round(page, 3)] = (max(ink, page) + 0.05) / (min(ink, page) + 0.05)
    return contrasts


def _luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def width_on_a_phone(browser: Any) -> int:
    """Width of the page in a window of 390 pixels; more than 390 if it scrolls sideways."""
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    width: int = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return width
