"""The blind page in a real browser, opened from a file: a person judges by keyboard and downloads the verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.api.verdicts import tally_of
from curate.caption.compare.compare import Compare
from tests.caption.captioned import judged_pool
from tests.html.browser import Browser, Tab, contrasts_by_theme, width_on_a_phone

pytestmark = pytest.mark.long
PAIRS = 6


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    for name, data in Compare(a="generated", b="long", judge="judge", samples=PAIRS).render(judged_pool()).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def opened(browser: Browser, page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser.opened((page / "judge.html").read_bytes(), tmp_path_factory.mktemp("judge")) as found:
        yield found


@pytest.fixture
def tab(opened: Tab) -> Tab:
    """Every test begins without choices."""
    opened.evaluate("localStorage.clear()")
    opened.page.reload()
    return opened


def press(tab: Tab, *keys: str) -> None:
    for key in keys:
        tab.page.keyboard.press(key)


def status(tab: Tab) -> str:
    return str(tab.page.locator(".progress span").first.inner_text())


def shown(tab: Tab) -> list[str]:
    """Ids of the visible pairs."""
    pairs = tab.page.locator(".pair").all()
    return [str(pair.get_attribute("data-id")) for pair in pairs if pair.is_visible()]


def test_one_pair_at_a_time_by_keyboard(tab: Tab, page: Path) -> None:
    ids = list(json.loads((page / "key.json").read_bytes())["pairs"])
    assert shown(tab) == ids[:1] and status(tab) == "Pair 1 of 6, 0 judged"
    press(tab, "1", "2", "0")
    assert shown(tab) == ids[3:4] and status(tab) == "Pair 4 of 6, 3 judged"
    press(tab, "ArrowLeft", "ArrowLeft")
    better = tab.page.locator(".pair:not([hidden]) .better").all()
    assert [text.get_attribute("data-side") for text in better] == ["2"]
    press(tab, *["ArrowRight"] * 5)
    assert shown(tab) == ids[-1:]


def test_choices_survive_a_reload(tab: Tab) -> None:
    press(tab, "1", "1")
    tab.page.reload()
    assert status(tab) == "Pair 3 of 6, 2 judged"


def test_buttons_do_what_keys_do(tab: Tab) -> None:
    tab.page.locator("[data-choice='2']").first.click()
    tab.page.locator("[data-step='-1']").first.click()
    pressed = tab.page.locator("[aria-pressed='true']").all()
    assert [button.get_attribute("data-choice") for button in pressed] == ["2"]
    assert not tab.page.locator("[data-step='-1']").first.is_enabled()


def test_digits_in_the_name_are_not_verdicts(tab: Tab) -> None:
    tab.page.locator("input[name=name]").press_sequentially("Ada 12")
    assert status(tab) == "Pair 1 of 6, 0 judged"


def test_downloaded_verdicts_are_counted(tab: Tab, page: Path, tmp_path: Path) -> None:
    key = json.loads((page / "key.json").read_bytes())["pairs"].values()
    press(tab, *("1" if pair["first"] == "b" else "2" for pair in key))  # `long` each time
    assert tab.page.locator(".done").is_visible()
    tab.page.locator("input[name=name]").press_sequentially("Ada Byron")
    with tab.page.expect_download() as download:
        tab.page.locator(".save button").click()
    assert download.value.suggested_filename.endswith("-Ada-Byron.json")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    found = tally_of(str(page), [str(file)])
    assert [(name, wins.b) for name, wins in found.people] == [("Ada Byron", PAIRS)]
    assert found.together.judged == PAIRS


def test_light_and_dark_are_both_readable(tab: Tab) -> None:
    contrasts = contrasts_by_theme(tab)
    assert len(contrasts) == 2 and min(contrasts.values()) > 7


def test_a_phone_scrolls_in_one_direction(tab: Tab) -> None:
    assert width_on_a_phone(tab) == 390


def test_the_console_is_silent(tab: Tab) -> None:
    press(tab, "1", "0")
    assert tab.messages == []


def test_the_summary_on_a_phone(opened: Tab, page: Path) -> None:
    opened.page.goto((page / "index.html").as_uri())
    assert width_on_a_phone(opened) == 390
    assert min(contrasts_by_theme(opened).values()) > 7
    assert opened.messages == []
