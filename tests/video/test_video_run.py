"""Runs over a pool of videos: copies, clips, windows and frames, and what is computed when something changes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.codec.members import member_columns, read_members
from curate.core.errors import Reject
from curate.core.hashing import make_key
from curate.core.nouns import facts, tombstones
from curate.core.nouns.pools import is_virtual
from curate.core.store.storage import open_storage
from curate.engine.record import claims, gc
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.html.numbers import duration
from curate.report.html import ReportHtml
from curate.video.clips import FATES
from tests.engine.output import Output
from tests.video.pool import pipeline

VIDEOS = ("film", "again", "smaller", "trimmed", "other", "edited")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Output]:
    folder = tmp_path_factory.mktemp("films") / "w"
    yield Output(str(folder), run(pipeline(), str(folder), run_id="first"))
    shutil.rmtree(folder)


@pytest.fixture
def copied(made: Output, tmp_path: Path) -> Path:
    """Another workspace with the same run."""
    return Path(shutil.copytree(made.storage.url.removeprefix("file://"), tmp_path / "w"))


def rows(made: Output, pool: str) -> list[dict[str, Any]]:
    return [row for shard in made.shards_of(pool) for row in made.storage.read_table(shard.table).to_pylist()]


def column(made: Output, stage: str, name: str, of: str = "source_id") -> dict[str, Any]:
    """Values by the source ids of their rows."""
    found = {}
    for shard, table in made.facts(stage):
        every = facts.expanded(table, shard.rows, [name])
        ids = made.storage.read_table(shard.table).column(of).to_pylist()
        found |= dict(zip(ids, every.column(name).to_pylist(), strict=True))
    return found


@pytest.mark.long
def test_copies_of_videos_are_sets(made: Output) -> None:
    names = {row["key"]: row["source_id"] for row in rows(made, "pool")}
    sets = {name: names.get(key or "") for name, key in column(made, "members", "duplicate_set").items()}
    assert sets["film"] == sets["again"] == sets["smaller"] == sets["trimmed"]
    assert sets["film"] in ("film", "again") and (sets["other"], sets["edited"]) == ("other", "edited")
    meant = {name: names.get(key or "") for name, key in column(made, "meant", "semantic_set").items()}
    assert meant["film"] == meant["again"] == meant["smaller"] != meant["other"]
    vectors = column(made, "embed", "embedding")
    assert {name for name, vector in vectors.items() if vector is not None} == set(VIDEOS)


def test_headers_are_read(made: Output) -> None:
    codecs = column(made, "inspect", "codec")
    assert {codecs[name] for name in VIDEOS} == {"mpeg4", "mjpeg"} and codecs["again"] == "mjpeg"
    assert codecs["text"] is codecs["empty"] is None


def test_the_seconds_of_a_video_add_up(made: Output) -> None:
    sums = {fate: column(made, "divide", f"clips_{fate}_ms") for fate in FATES}
    duration = column(made, "look", "duration_ms")
    for name in VIDEOS:
        assert sum(sums[fate][name] for fate in FATES) == duration[name] > 4_000
    edited = {fate: sums[fate]["edited"] for fate in FATES}
    assert edited == {"kept": 7_800, "short": 1_000, "trimmed": 200, "black": 1_000, "rejected": 0}


def test_facts_of_clips_roll_up_to_their_video(made: Output) -> None:
    clips = column(made, "number", "clips")
    assert {name: clips[name] for name in VIDEOS} == dict.fromkeys(VIDEOS, 2) | {"edited": 3}
    kept = column(made, "divide", "clips_kept_ms")
    assert {name: column(made, "sum", "clips_ms_sum")[name] for name in VIDEOS} == {n: kept[n] for n in VIDEOS}
    assert column(made, "mean", "clips_ms_mean")["edited"] == 2_600
    widths = column(made, "widths", "frame_width")
    assert {width for name, width in widths.items() if name.startswith("film#")} == {160}
    assert {width for name, width in widths.items() if name.startswith("smaller#")} == {96}


def test_clips_and_windows_are_virtual_and_say_what_they_are(made: Output) -> None:
    clips, windows, frames = (rows(made, name) for name in ("clips", "windows", "frames"))
    assert all(is_virtual(shard) for name in ("clips", "windows") for shard in made.shards_of(name))
    assert {row["kind"] for row in clips} == {"clip"} and {row["kind"] for row in windows} == {"window"}
    assert all("kind" not in row for row in frames)  # a pool of images
    by_key = {row["key"]: row for row in clips}
    lengths: dict[str, int] = {}
    for row in windows:
        span = json.loads(row["span"])
        assert row["duration_ms"] == span["stop_ms"] - span["start_ms"] <= 1_000
        assert row["root"] == make_key("films", row["source_id"].split("#")[0]) == by_key[row["parent"]]["parent"]
        lengths[row["parent"]] = lengths.get(row["parent"], 0) + row["duration_ms"]
    assert lengths == {key: row["duration_ms"] for key, row in by_key.items()}


def test_stages_of_images_work_on_frames(made: Output) -> None:
    frames = [row["source_id"] for row in rows(made, "frames")]
    assert len(frames) == 2 * len(rows(made, "clips"))
    alike, names = column(made, "keepers", "duplicate_set"), {row["key"]: row for row in rows(made, "frames")}
    kept = {name: names[key]["source_id"].split("#")[0] for name, key in alike.items()}
    film, copies = ("film", "again", "smaller", "trimmed"), ("film", "again", "smaller")
    assert all((name.split("#")[0] in film) == (kept[name] in film) for name in frames)
    assert len({kept[f"{name}#start_ms=0,stop_ms=2900#time_ms=667"] for name in copies}) == 1
    assert set(column(made, "group", "cluster_1").values()) == {0, 1}


def test_what_a_run_knows_of_a_clip_leads_to_its_video(made: Output) -> None:
    record = latest(made.storage, "first")
    for pool, above in {"clips": 1, "windows": 2, "frames": 2}.items():
        row = next(row for row in rows(made, pool) if row["source_id"].startswith("edited#"))
        story = {name: about for name, _, about in explain(record, row["key"])}
        assert story[pool]["span"] == row["span"]
        assert story["parent: " * above + "pool"]["source_id"] == "edited"
        assert story["parent: " * above + "divide"]["clips_black_ms"] == 1_000
    refused = {name: about for name, _, about in explain(record, "text")}
    assert (refused["look"]["status"], refused["look"]["reason"]) == ("unusable", "not_a_video")
    assert explain(record, "empty")[1][2]["reason"] == "empty"


def computed(result: Result, *stages: str) -> dict[str, int]:
    return {name: result.counts[name].computed for name in stages}


@pytest.mark.long
def test_ten_more_videos_cost_ten(copied: Path) -> None:
    again = run(pipeline(more=10), str(copied))
    of_videos, of_clips = ("look", "divide", "clips", "embed"), ("windows", "frames", "embedded")
    of_frames = ("seen", "prints", "vectors")
    assert computed(again, *of_videos, *of_clips) == dict.fromkeys((*of_videos, *of_clips), 10)
    assert computed(again, *of_frames) == dict.fromkeys(of_frames, 20)


def test_other_clips_are_computed_and_unchanged_ones_keep_their_keys(made: Output, copied: Path) -> None:
    again = run(pipeline(divide={"min_seconds": 0.5}), str(copied))
    assert computed(again, "look", "sets", "embed") == {"look": 0, "sets": 0, "embed": 0}
    assert computed(again, "embedded", "vectors") == {"embedded": 1, "vectors": 2}  # the answers of other clips stay
    before, after = ({row["key"]: row for row in rows(it, "clips")} for it in (made, Output(str(copied), again)))
    assert before.items() <= after.items()
    assert [after[key]["source_id"] for key in after.keys() - before] == ["edited#start_ms=3100,stop_ms=3900"]


def test_a_tombstone_of_a_video_takes_its_clips_windows_and_frames(made: Output, copied: Path) -> None:
    storage = open_storage(str(copied))
    tombstones.add(storage, [make_key("films", "edited")], "asked for")
    again = run(pipeline(), str(copied))
    lost = {name: sum("edited" in row["source_id"] for row in rows(made, name)) for name in ("frames", "windows")}
    assert lost == {"frames": 6, "windows": 9}
    assert again.ledger["every"].rejected["tombstone"] == 6
    assert again.ledger["every_window"].rejected["tombstone"] == 9
    assert not sum(computed(again, "look", "clips", "windows", "frames", "vectors", "embedded").values())
    packed = open_storage(again.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()
    assert set(packed) == {row["key"] for row in rows(made, "frames") if "edited" not in row["source_id"]}


def test_gc_keeps_the_videos_that_clips_are_extracted_from(copied: Path) -> None:
    storage = open_storage(str(copied))
    run(pipeline(drop=("dataset", "every")), str(copied), run_id="second")
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, drop=["first"])
        gc.collect(storage, garbage, runs)
    assert not list(copied.glob("datasets/*/*/*.tar"))
    made = Output(str(copied), run(pipeline(), str(copied), run_id="third"))
    assert not sum(computed(made.result, "look", "clips", "windows", "frames", "vectors", "embedded").values())
    for shard in made.shards_of("windows"):
        wanted = made.storage.read_table(shard.table, columns=list(member_columns([shard]))).to_pydict()
        assert not [one for one in read_members(made.storage, shard, wanted) if isinstance(one, Reject)]


def test_the_report_shows_the_seconds_of_the_facts(made: Output, copied: Path) -> None:
    """And films of the clips, which are extracted for them."""
    reports = pipeline().add("videos", ReportHtml(), "divide").add("parts", ReportHtml(), "clips").check()
    again = run(reports, str(copied))
    videos, clips = (
        " ".join(re.sub(r"<[^>]+>", " ", Path(again.outputs[name], "index.html").read_text()).split())
        for name in ("videos", "parts")
    )
    total = duration(sum(ms or 0 for ms in column(made, "look", "duration_ms").values()) / 1000)
    kept = duration(sum(ms or 0 for ms in column(made, "divide", "clips_kept_ms").values()) / 1000)
    assert f"divide video.divide 6 {total} – 6 {total}" in videos and f"All divided videos {total}" in videos
    assert f"Kept In clips {kept}" in videos and "edited , 10.0 s: 3 shots, 3 clips, 1 black stretch" in videos
    assert f"{len(rows(made, 'clips'))} made, {kept}" in clips
    for name, films in (("videos", 6), ("parts", 13)):
        assert len(re.findall('class="film"[^>]* src=', Path(again.outputs[name], "index.html").read_text())) == films
