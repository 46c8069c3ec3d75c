"""A real browser for tests of pages: headless Chromium, by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-dev-shm-usage --force-prefers-reduced-motion
"""
WINDOW = {"width": 1200, "height": 900}


@dataclass(frozen=True)
class Tab:
    """An open page (`playwright.sync_api.Page`)."""

    page: Any
    messages: list[str] = field(default_factory=list)
    """Warnings and errors in the console, and uncaught exceptions."""

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)


class Browser:
    """Chromium. Each `tab` starts it, in 0.5 s: while playwright runs, its event loop occupies the thread, and tests of
    other files could not run theirs."""

    @contextmanager
    def tab(self, **options: Any) -> Iterator[Tab]:
        """A new window without cookies. `options`: those of playwright's `new_context`."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
            try:
                made = Tab(chromium.new_context(viewport=options.pop("viewport", WINDOW), **options).new_page())
                made.page.on("console", lambda message: _note(made.messages, message))
                made.page.on("pageerror", lambda error: made.messages.append(str(error)))
                yield made
            finally:
                chromium.close()

    @contextmanager
    def opened(self, content: bytes, folder: Path) -> Iterator[Tab]:
        """A page without network, from a file in `folder`."""
        (folder / "index.html").write_bytes(content)
        with self.tab(offline=True) as tab:
            tab.page.goto((folder / "index.html").as_uri())
            yield tab


def found() -> Browser:
    """Skips the test if there is no browser."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; apt-get install chromium")
    return Browser()


def _note(messages: list[str], message: Any) -> None:
    if message.type in ("warning", "error"):
        messages.append(message.text)


def contrasts_by_theme(tab: Tab) -> dict[float, float]:
    """Contrast of text and background (WCAG 2.2) in both themes, by luminance of the background."""
    tab.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    contrasts = {}
    for _ in range(2):
        tab.page.locator("#theme").click()
        ink, page = (_luminance(colour) for colour in tab.evaluate(f"({COLOURS})()"))
        contrasts[round(page, 3)] = (max(ink, page) + 0.05) / (min(ink, page) + 0.05)
    return contrasts


COLOURS = "() => (style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"


def _luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def width_on_a_phone(tab: Tab, width: int = 390) -> int:
    """Width of the page in a narrow window; more than the window's if it scrolls sideways."""
    tab.page.set_viewport_size({"width": width, "height": 800})
    found: int = tab.evaluate("document.documentElement.scrollWidth")
    tab.page.set_viewport_size(WINDOW)
    return found


PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def serious(browser: Browser, urls: list[str]) -> list[tuple[str, ...]]:
    """What axe calls serious or critical on these pages, and those that scroll sideways on a phone; both in light and
    in dark, where only contrasts can differ. Its script comes from elsewhere, so that the pages' policy is off."""
    from axe_playwright_python.sync_playwright import Axe

    axe, found = Axe(), list[tuple[str, ...]]()
    for options in ({}, PHONE):
        with browser.tab(bypass_csp=True, **options) as tab:
            for url in urls:
                tab.page.goto(url)
                for scheme in ("light", "dark"):
                    tab.page.emulate_media(color_scheme=scheme)
                    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
                    answer = axe.run(tab.page, options={"resultTypes": ["violations"], **rules}).response
                    found += [
                        (url, scheme, one["id"], one["nodes"][0]["html"][:200])
                        for one in answer["violations"]
                        if one["impact"] in ("serious", "critical")
                    ]
                if options and tab.evaluate("document.documentElement.scrollWidth") > 360:
                    found.append((url, "is wider than a phone"))
    return found
