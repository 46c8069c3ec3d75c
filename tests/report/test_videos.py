"""A page about videos: films, time in the funnel, classes, and cuts."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curate.codec.video.times import times_ms
from curate.core.hashing import make_key
from curate.core.reader import LostError, Reader
from curate.html.thumbnails import MISSING, Thumbnail, thumbnail
from curate.report.html import ReportHtml
from curate.report.page.videos import MARKS, TIMELINES
from curate.report.survey import scope as report_scope
from tests.codec.video.make_videos import number_of, two_sizes, video
from tests.html.browser import Browser, Tab, width_on_a_phone
from tests.report.memory_view import MemoryView, small_pool
from tests.report.test_html import Page, render
from tests.report.videos import FILM, film_pool, row


@pytest.fixture(scope="module")
def html() -> bytes:
    return ReportHtml().render(film_pool())["index.html"]


@pytest.fixture(scope="module")
def page(html: bytes) -> Page:
    return Page(html.decode())


def film_of(page: Page, name: str) -> dict[str, str | None] | None:
    (found,) = [image for image in page.all("img") if image.get("data-key") == make_key("videos", name)] or [None]
    return found


def test_a_film_is_eight_frames_over_the_whole_time(page: Page) -> None:
    found = film_of(page, "two.mp4")
    assert found and found["class"] == "film" and found["style"] == "aspect-ratio: 96 / 64"
    image = Image.open(io.BytesIO(base64.b64decode(str(found["src"]).partition(",")[2])))
    tiles = np.split(np.asarray(image.convert("RGB")), 8, axis=1)
    assert [number_of(tile) for tile in tiles] == [ms // 40 for ms in times_ms(2_400, 8)]


def test_short_and_changing_videos_are_films_too() -> None:
    few = thumbnail(video("mp4 mpeg4", 3), 64, 8)
    assert (few.frames, few.width, few.height) == (8, 64, 43)
    other = thumbnail(two_sizes(), 64, 8)
    assert other.frames == 8 and Image.open(io.BytesIO(other.data)).width == 8 * other.width


def test_the_funnel_counts_seconds(page: Page) -> None:
    total, moving = "1 min 08 s", "7.2 s"  # three of 2.4 s, and one of 61
    assert f"moving filter.where 4 {total} − 1 = 3 {moving}" in page.text
    assert f"look video.look 5 {total} − 1 = 4 {total}" in page.text
    assert f"divide video.divide 3 {moving} – 3 {moving}" in page.text


def test_no_seconds_where_the_rows_are_not_those_of_the_ledger() -> None:
    view = film_pool()
    view.stages["divide"].ledger |= {"before": 4, "after": 4}
    assert "divide video.divide 4 – 4" in render(view).text


def test_seconds_of_a_part_stand_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_scope, "READ_SHARDS", 2)
    view = film_pool([row(f"more-{number}.mp4") for number in range(7)])
    view.shard_rows, view.encoded = 3, {}
    page = render(view)
    assert "pool acquire.folder 12 about 2 min 26 s" in page.text  # twice 73 seconds in 6 rows
    assert "1 min 13 s in all, 12.0 s of them pass, in the shards read" in page.text


def test_classes_and_parts_are_those_of_the_facts(page: Page) -> None:
    text = page.text
    assert "2 to 5 s 3 3" in text and "1 to 5 min 1 0" in text and "20 to 60 s 0 0" in text
    assert "under 0.5 1 0" in text and "2 to 5 1 1" in text and "20 to 50 1 1" in text
    assert "Kept In clips 5.8 s 81 %" in text and "Short Shots that are too short 0.9 s 12 %" in text
    assert "Rejected Shots that are too long –" in text
    assert "All divided videos 7.2 s" in text


def test_a_timeline_shows_shots_black_and_clips(page: Page) -> None:
    assert "one.mp4 , 2.4 s: 2 shots, 1 clip, 1 black stretch" in text_of(page)
    bars = [
        (bar["class"], round(24 * float(bar["x"][:-1])), round(24 * float(bar["width"][:-1])))
        for bar in page.all("rect")
        if "x" in bar
    ]
    assert [bar for bar in bars if bar[1:] != (0, 2_400)] == [
        ("shot", 0, 1_000), ("shot", 1_400, 1_000), ("black", 1_000, 400), ("clip", 0, 1_000),
    ]  # fmt: skip
    assert page.text.count("cut: 1.00 s") == 1


def text_of(page: Page) -> str:
    return page.text.replace("\N{NO-BREAK SPACE}", " ")


def test_what_has_no_film_says_why(page: Page) -> None:
    """Also a video that was read, and is gone or damaged since."""
    assert film_of(page, "corrupt.mp4") is None and film_of(page, "lost.mp4") is None
    assert "truncated" in page.text and MISSING.reason in page.text
    view = film_pool()
    view.encoded |= {make_key("videos", "one.mp4"): b"no video" * 9, make_key("videos", "two.mp4"): b""}
    damaged = render(view)
    assert film_of(damaged, "one.mp4") is film_of(damaged, "two.mp4") is None
    assert "not a video" in damaged.text and "2 shots, 1 clip, 1 black stretch" in damaged.text


def test_a_video_that_is_lost_while_it_is_read_has_no_film() -> None:
    class Lost(Reader):
        def read_at(self, offset: int, size: int) -> bytes:
            if offset + size > 4_000:
                raise LostError("changed", "other bytes than before")
            return super().read_at(offset, size)

    assert thumbnail(Lost(video(*FILM)), 64, 8) == Thumbnail(reason="changed", detail="other bytes than before")


def test_the_page_is_bounded_for_many_cuts_and_videos() -> None:
    many = {"cuts_ms": list(range(10, 60_000, 50)), "clips_ms": list(range(0, 60_000, 50)), "duration_ms": 60_000}
    view = film_pool([row(f"long-{number}.mp4", **many) for number in range(10)])
    view.encoded = {}
    page = render(view)
    timelines = [one for one in page.all("div") if one.get("class") == "card timeline"]
    assert len(timelines) == TIMELINES
    assert len(page.all("line")) + len(page.all("rect")) < 3 * MARKS * TIMELINES + 500


def test_a_pool_of_both_media_has_both_and_images_alone_have_neither() -> None:
    view = film_pool()
    images = small_pool(30)
    for one in images.rows[20:]:
        view.rows.append({name: one.get(name) for name in view.types} | {"copies": 1, "rejected_by": None})
        view.encoded[one["key"]] = images.encoded[one["key"]]
    both = render(view)
    assert {image.get("class") for image in both.all("img") if "data-key" in image} == {"film", None}
    assert "Every sample is accounted for" in both.text
    alone = ReportHtml().render(MemoryView(images.rows, images.stages, images.encoded))["index.html"].decode()
    assert not re.search(r"film|timeline|seconds|[Vv]ideo", alone.partition("</style>")[2].partition("<script")[0])
    assert "img.film" not in alone


@pytest.fixture(scope="module")
def tab(browser: Browser, html: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    place: Path = tmp_path_factory.mktemp("videos") / "index.html"
    place.write_bytes(html)
    with browser.tab(offline=True, reduced_motion="no-preference") as opened:
        opened.page.goto(place.as_uri())
        yield opened


def shown_by(tab: Tab, where: str) -> list[float]:
    """What an animation shows of a film every half second, in percent of its width; nothing if none runs."""
    found: list[str] = tab.page.locator(where).first.evaluate(
        """film => film.getAnimations().flatMap(one => [0, 1, 2, 3, 4, 5, 6, 7].map(place => {
            one.currentTime = 500 * place + 250;
            return getComputedStyle(film).objectPosition;
        }))"""
    )
    return [float(one.partition("%")[0]) for one in found]


EVERY_FRAME = pytest.approx([100 * place / 7 for place in range(8)], abs=0.01)
FILM_SHOWN, VIEWED = "#kept .open:has(img) img", ".shown img"


@pytest.mark.long
def test_a_film_plays_while_it_is_pointed_at_or_focused(tab: Tab) -> None:
    film = tab.page.locator("#kept .open:has(img)").first
    film.scroll_into_view_if_needed()
    assert tab.page.locator(FILM_SHOWN).first.evaluate("image => image.naturalWidth") == 8 * 96
    assert shown_by(tab, FILM_SHOWN) == []
    film.hover()
    assert shown_by(tab, FILM_SHOWN) == EVERY_FRAME
    tab.page.mouse.move(0, 0)
    assert shown_by(tab, FILM_SHOWN) == []
    tab.page.keyboard.press("Tab")
    film.focus()
    assert shown_by(tab, FILM_SHOWN) == EVERY_FRAME
    tab.page.emulate_media(reduced_motion="reduce")
    assert shown_by(tab, FILM_SHOWN) == []
    tab.page.emulate_media(reduced_motion="no-preference")
    assert width_on_a_phone(tab) == 390 and tab.messages == []


@pytest.mark.long
def test_the_viewer_plays_or_shows_all_frames(tab: Tab) -> None:
    tab.page.locator("#kept .open:has(img)").first.click()
    assert shown_by(tab, VIEWED) == EVERY_FRAME
    for preference, frames in (("no-preference", 1), ("reduce", 8)):
        tab.page.emulate_media(reduced_motion=preference)
        box = tab.page.locator(VIEWED).bounding_box()
        assert box["width"] / box["height"] == pytest.approx(frames * 96 / 64, rel=0.02)
