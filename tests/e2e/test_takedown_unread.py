"""Takedowns of samples without readable bytes, and of keys and URLs that the workspace does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.acquire.download.download import AcquireDownload
from curate.acquire.folder import AcquireFolder
from curate.acquire.lists.list import AcquireList
from curate.api import Workspace
from curate.core.recipe.pipeline import Pipeline
from curate.video.divide import Windows
from tests.acquire.download.site import IMAGES, Site, write_list
from tests.codec.video.make_videos import video
from tests.e2e.commands import CommandResult, curate

UNKNOWN = [f"https://nowhere.example/{number}.jpg" for number in range(5)]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def once(runner_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a download and one that failed, an empty file, and windows of a video that an mp4 may hold and
    of one that it may not."""
    folder = tmp_path_factory.mktemp("unread")
    films = folder / "films"
    films.mkdir()
    for name, data in {"film.mp4": video("mp4 h264"), "web.webm": video("webm vp8"), "none.mp4": b""}.items():
        (films / name).write_bytes(data)
    workspace = Workspace(str(folder / "workspace"))
    made = Pipeline().add("pool", AcquireFolder(path=str(films), media=("video",), namespace="films"))
    made.add("windows", Windows(namespace="windows", max_seconds=1.0), "pool")
    workspace.submit(made.check()).wait()
    with Site() as site:
        urls = [site.url(next(iter(IMAGES))), site.at("/404")]
        path = write_list(folder / "list.jsonl", [{"url": url, "caption": None} for url in urls])
        made = Pipeline().add("urls", AcquireList(path=str(path)))
        made.add("pool", AcquireDownload(**site.settings()), list="urls")
        workspace.submit(made.check()).wait()
    return folder


@pytest.fixture
def work(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once / "workspace", tmp_path / "workspace"))


def rows(work: Path) -> list[Row]:
    tables = [pq.read_table(path) for path in sorted((work / "pools").rglob("*.parquet"))]
    return [row for table in tables if "source_id" in table.column_names for row in table.to_pylist()]


def named(work: Path, name: str) -> Row:
    return next(row for row in rows(work) if row["source_id"].endswith(name))


def windows(work: Path, parent: Row) -> list[str]:
    found = sorted(row["key"] for row in rows(work) if row["parent"] == parent["key"])
    assert len(found) > 1
    return found


def take(work: Path, *words: str) -> tuple[CommandResult, Row]:
    printed = curate("takedown", *words, "-w", work, "--why", "asked for", "--json")
    return printed, json.loads(printed.out)


def verified(work: Path, receipt: Row) -> CommandResult:
    return curate("takedown", "verify", work / receipt["receipt"])


def test_a_clip_that_cannot_be_copied_is_verified_by_its_video(work: Path) -> None:
    web = named(work, "web.webm")
    clips, data = windows(work, web), video("webm vp8")
    printed, receipt = take(work, web["key"], "--erase")
    assert printed.code == 0 and receipt["found"]["unstored"] == dict.fromkeys(clips, web["key"])
    said = verified(work, receipt)
    assert said.code == 0 and "never stored" not in said.out, said
    (work / "copy").write_bytes(data)
    assert "copy has the bytes" in verified(work, receipt).words
    (work / "copy").unlink()
    again = take(work, web["key"], "--erase")[1]  # the video is zeros now
    assert again["found"]["unstored"] == receipt["found"]["unstored"] and verified(work, again).code == 0
    alone = take(work, clips[0], "--erase")[1]
    said = verified(work, alone)
    assert said.code == 0 and f"never stored or unknown, so that no bytes were looked for: {clips[0]}" in said.out, said


def test_a_clip_that_can_be_copied_has_its_own_mark(work: Path) -> None:
    film = named(work, "film.mp4")
    receipt = take(work, film["key"], "--erase")[1]
    assert receipt["found"]["unstored"] == {}
    assert receipt["found"]["marked"].keys() == {film["key"], *windows(work, film)}
    for plan in work.glob("takedowns/*/plan.json"):
        plan.unlink()
    lost = take(work, windows(work, film)[0], "--erase")[1]
    assert "is known, so nothing can be verified" in verified(work, lost).error  # it had bytes once


@pytest.mark.parametrize("how", ["--erase", "--apply"])
@pytest.mark.parametrize("name", ["/404", "none.mp4", "web.webm#"])
def test_what_was_never_stored_is_named_beside_what_is_verified(work: Path, name: str, how: str) -> None:
    """A URL that failed, an empty file, and a clip that cannot be copied, of a video that stays."""
    row = next(row for row in rows(work) if name in row["source_id"])
    good = next(row for row in rows(work) if row["source_id"].endswith(next(iter(IMAGES))))
    entry = row["url"] or row["key"]
    for entries in ([entry], [entry, good["url"]]):
        printed, receipt = take(work, *entries, how)
        assert (printed.code, printed.err) == (0, ""), printed
        assert receipt["found"]["unstored"] == {row["key"]: None} and receipt["found"]["unknown"] == []
        said = verified(work, receipt)
        assert (
            said.code == 0 and f"never stored or unknown, so that no bytes were looked for: {row['key']}" in said.out
        ), said
    if how == "--erase":
        (work / "copy").write_bytes(IMAGES[next(iter(IMAGES))])
        assert "copy has the bytes" in verified(work, receipt).words


def test_an_erased_sample_is_known_by_its_url(work: Path) -> None:
    url = next(row["url"] for row in rows(work) if row["source_id"].endswith(next(iter(IMAGES))))
    first = take(work, url, "--erase")[1]
    assert url not in {row["url"] for row in rows(work)}
    printed, again = take(work, url, "--erase")
    assert printed.code == 0 and again["found"]["unknown"] == []
    assert (again["found"]["keys"], again["found"]["marks"]) == (first["found"]["keys"], first["found"]["marks"])
    assert verified(work, again).code == 0
    assert curate("tombstone", "add", url, "-w", work, "--why", "x").code == 0


def test_unknown_entries_are_named_and_have_their_own_status(work: Path) -> None:
    film, key = named(work, "film.mp4")["key"], "ab" * 16
    entries = [film, key, *UNKNOWN]
    names = f"unknown, in no pool or dataset: {key}, {UNKNOWN[0]}, {UNKNOWN[1]} and 3 more"
    found = curate("takedown", *entries, "-w", work)
    assert found.code == 4 and f"{names}; check them, or add --known" in found.out and f"key {film}" in found.out
    expected = curate("takedown", *entries, "-w", work, "--known")
    assert expected.code == 0 and f"{names}\n" in expected.out
    printed, receipt = take(work, *entries, "--erase")
    assert printed.code == 4 and receipt["found"]["unknown"] == entries[1:]
    assert film in receipt["found"]["keys"] and key not in receipt["found"]["keys"]
    assert verified(work, receipt).code == 0
    listed = curate("tombstone", "list", "-w", work).out
    assert all(entry in listed for entry in entries)
    assert take(work, *entries, "--apply", "--known")[0].code == 0


def test_where_all_entries_are_unknown(work: Path) -> None:
    said = curate("takedown", *UNKNOWN, "-w", work).error
    assert f"has {', '.join(UNKNOWN[:3])} and 2 more; give a key" in said
    printed, receipt = take(work, *UNKNOWN, "--erase", "--known")
    assert printed.code == 0 and receipt["found"]["keys"] == [] and receipt["found"]["unknown"] == UNKNOWN


def test_unknown_tombstones_are_named_and_kept(work: Path, tmp_path: Path) -> None:
    clip = windows(work, named(work, "film.mp4"))[0]
    (tmp_path / "list.txt").write_text("\n".join(["# asked for", "", clip, *UNKNOWN]))
    words = ["tombstone", "add", f"@{tmp_path / 'list.txt'}", "-w", work, "--why", "asked for"]
    printed = curate(*words)
    assert printed.code == 4 and printed.out.startswith("6 entries tombstoned")
    assert f"unknown, in no pool or dataset: {', '.join(UNKNOWN[:3])} and 2 more" in printed.out
    assert curate(*words).code == 4  # they are tombstoned now, and still unknown
    assert curate(*words, "--known").code == 0
    assert curate("tombstone", "add", clip, named(work, "film.mp4")["sha256"], *words[3:]).code == 0
