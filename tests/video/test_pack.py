"""Datasets of videos and images: what a trainer reads of them, and what becomes of videos that cannot be packed."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from curate.codec.tars import members
from curate.codec.video import limited
from curate.core.contracts import OF_VIDEOS
from curate.core.errors import CurateError, InputError, StageError, Undecodable
from curate.core.reader import Reader
from curate.core.recipe.load import load
from curate.core.recipe.registry import resolve
from curate.core.store.storage import open_storage
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units.pack.tasks import READ_VIDEOS
from curate.pack.clips import clip_of
from curate.pack.webdataset import PackWebDataset
from distill.recipe.data import DataRecipe
from distill.samples.images.reader import ImageReader, PatchedImage
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import open_mixture, open_source
from tests.codec.video.make_videos import number_of, video
from tests.draw import drawn
from tests.engine import workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers
from tests.pack.test_webdataset import samples
from tests.video import packed
from tests.video.packed import Dataset, recipe, saved

LOSSY = {"failure_budget": 1.0}
ALL = Options(**LOSSY)
GROUPS = 6
VIDEOS = {"film.mp4", "again.avi", "sound.mkv", "tall.mp4", "few.mp4", "web.webm"}
SHOWN = [3, 11, 18, 26, 33, 41, 48, 56]
"""The frames at (i + 0.5) / 8 of 60 that last 2.4 s."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed.written(tmp_path_factory.mktemp("packed") / "videos")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all datasets, which have one pool."""
    return tmp_path_factory.mktemp("packed") / "workspace"


def ran(workspace: Path, tmp_path: Path, made: dict[str, Any]) -> Result:
    return run(load(saved(tmp_path / "recipe.yaml", made)), str(workspace), options=ALL)


def numbers(jpegs: list[bytes]) -> list[int]:
    return [number_of(np.asarray(Image.open(io.BytesIO(data)))) for data in jpegs]


def test_webdataset_reads_eight_frames_of_a_clip(folder: Path, workspace: Path, tmp_path: Path) -> None:
    result = ran(workspace, tmp_path, recipe(folder))
    made = Dataset(result)
    found = {sample["__key__"]: sample for tar in made.tars for sample in samples(Path(made.storage.root) / tar)}
    assert list(found) == made.index.column("name").to_pylist() and len(made.tars) == 3
    assert set(made.rows) == {*VIDEOS, "a.png", "b.jpg"}
    assert result.ledger["dataset"].rejected == Counter(not_an_image=1)
    for name, row in made.rows.items():
        sample, frames = found[row["name"]], [f"{number:02d}.jpg" for number in range(8)]
        about = json.loads(sample["json"])
        assert about["key"] == row["key"]
        if name not in VIDEOS:
            assert sample[row["ext"]] == (folder / name).read_bytes() and "00.jpg" not in sample
            assert {row[column] for column in OF_VIDEOS.names} == {None} and "media" not in about
            continue
        shown = [0, 1, 2] if name == "few.mp4" else SHOWN
        assert [frame for frame in frames if frame in sample] == frames[: len(shown)]
        jpegs = [sample[frame] for frame in frames[: len(shown)]]
        assert made.frames(row) == jpegs and row["frames"] == len(jpegs) and row["ext"] == "jpg"
        size = Image.open(io.BytesIO(jpegs[0])).size
        assert size == (row["width"], row["height"]) == (about["width"], about["height"])
        assert size == ((64, 96) if name == "tall.mp4" else (96, 64))
        assert numbers([np_turned(data) for data in jpegs] if name == "tall.mp4" else jpegs) == shown
        assert (row["clip_offset"], row["clip_size"], "mp4" in sample) == (None, None, False)
        assert about["duration_ms"] == row["duration_ms"] > 0 and about["media"] == "video"
        assert (about["frames_ms"], about["damaged"]) == ([40 * number for number in shown], 0)
        assert len({about["sha256"], about["original_sha256"]}) == 2 and about["original_width"] == row["width"]
    film = made.rows["film.mp4"]
    assert found[film["name"]]["txt"] == b"numbers that count"
    record = latest(open_storage(str(workspace)), result.run_id)
    told = {name: about for name, _, about in explain(record, film["key"])}["dataset"]["members"]
    assert told == [f"{made.tars[film['shard']]}: 8 frames of {film['name']} at byte {film['offset']:,}"]


@pytest.mark.parametrize("kept", ["frames", "both", "clip"])
def test_the_reader_of_distill_reads_clips(kept: str, folder: Path, workspace: Path, tmp_path: Path) -> None:
    made = Dataset(ran(workspace, tmp_path, recipe(folder, **({} if kept == "frames" else {"video": kept}))))
    if kept == "clip":
        source = {"dataset": made.storage.root, "modality": "video", "max_tokens": 96}
        message = r"^data\.sources\.0: \d of \d samples of .* are mp4 files without frames; .*, or set only: images$"
        with pytest.raises(InputError, match=message):
            open_mixture(DataRecipe.model_validate({"sources": [source]}))
        images = open_mixture(DataRecipe.model_validate({"sources": [source | {"only": "images"}]}))
        chosen = np.flatnonzero(images.chosen)
        assert {made.names[images.key(row)] for row in chosen} == {"a.png", "b.jpg"}
        assert all(ImageReader(images, patch=8, max_tokens=96).get(int(row)).frames == 1 for row in chosen)
        return
    dataset = open_source(made.storage.root)
    members, reader = MemberReader(dataset), ImageReader(dataset, patch=8, max_tokens=96)
    for row, place in enumerate(dataset.strings("key")):
        name = made.names[place]
        assert json.loads(members.member(row, "json") or b"")["key"] == place
        image = reader.get(row)
        assert isinstance(image, PatchedImage)
        if name in VIDEOS:
            assert members.frames(row) == made.frames(made.rows[name])
            assert image.frames == (3 if name == "few.mp4" else 8)
            assert image.grid == ((12, 8) if name == "tall.mp4" else (8, 12))
        else:
            assert image.frames == 1 and members.read(row) == (folder / name).read_bytes()
        if name == "film.mp4":
            assert members.member(row, "txt") == b"numbers that count"


def np_turned(jpeg: bytes) -> bytes:
    """Turned back, as a PNG."""
    sink = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).transpose(Image.Transpose.ROTATE_90).save(sink, "PNG")
    return sink.getvalue()


def test_one_frame_is_a_plain_jpeg(folder: Path, workspace: Path, tmp_path: Path) -> None:
    made = Dataset(ran(workspace, tmp_path, recipe(folder, frames=1, short_side=32)))
    row = made.rows["film.mp4"]
    with open(f"{made.storage.root}/{made.tars[row['shard']]}", "rb") as tar:
        own = [member for member in members(tar) if member.name.startswith(row["name"])]
    assert [member.name.removeprefix(row["name"]) for member in own] == [".jpg", ".txt", ".json"]
    assert (own[0].offset, own[0].size) == (row["offset"], row["size"])
    assert (row["width"], row["height"], row["frames"], row["frame_offsets"]) == (48, 32, 1, [0])


@pytest.mark.parametrize("kept", ["clip", "both"])
def test_clips_are_copied_with_their_sound(kept: str, folder: Path, workspace: Path, tmp_path: Path) -> None:
    result = ran(workspace, tmp_path, recipe(folder, video=kept))
    made = Dataset(result)
    packed = {one["__key__"]: one for tar in made.tars for one in samples(Path(made.storage.root) / tar)}
    assert result.ledger["dataset"].rejected == Counter(not_an_image=1, not_copyable=1)
    assert set(made.rows) == {*VIDEOS, "a.png", "b.jpg"} - {"web.webm"}
    for name in VIDEOS - {"web.webm"}:
        row = made.rows[name]
        mp4 = made.span(row, row["clip_offset"], row["clip_size"])
        found, source = limited.probe(mp4), limited.probe((folder / name).read_bytes())
        assert (found.format, found.has_audio) == ("mp4", source.has_audio)
        assert (mp4 == (folder / name).read_bytes()) == name.endswith(".mp4")
        assert abs(row["duration_ms"] - (found.duration_ms or 0)) <= 40
        if kept == "clip":
            about = json.loads(packed[row["name"]]["json"])
            assert about["format"] == "mp4" and about.get("original_format", "mp4") == source.format
            place = row["clip_offset"], row["clip_size"]
            assert (row["offset"], row["size"], row["ext"], row["frames"]) == (*place, "mp4", 0)
            assert row["frame_offsets"] == row["frame_sizes"] == []
        elif name != "few.mp4":
            jpegs = made.frames(row)
            assert numbers([np_turned(data) for data in jpegs] if name == "tall.mp4" else jpegs) == SHOWN
    assert made.rows["a.png"]["clip_size"] is None


def test_a_file_like_an_mp4_with_a_codec_that_an_mp4_cannot_hold_is_rejected() -> None:
    with pytest.raises(Undecodable, match=r"prores; an mp4 holds h264, "):
        clip_of(Reader(video("mov prores")), None, None, "clip", 8, 32)


def test_virtual_clips_are_cut_out_when_they_are_packed(folder: Path, workspace: Path, tmp_path: Path) -> None:
    result = ran(workspace, tmp_path, recipe(folder, windows=True, video="both", carry=["span"], shard_rows=20))
    made = Dataset(result, "windows")
    assert result.ledger["dataset"].rejected == Counter(not_copyable=3)  # the windows of web.webm
    assert len(made.rows) == 4 * 3 + 1 > READ_VIDEOS and len(made.tars) == 1
    parts = [row for name, row in made.rows.items() if name.startswith("sound.mkv")]
    for row in parts:
        span = json.loads(row["span"])
        mp4 = made.span(row, row["clip_offset"], row["clip_size"])
        assert mp4 == limited.extract(video("mkv h264"), span).bytes() and limited.probe(mp4).has_audio
        assert row["duration_ms"] == (length := span["stop_ms"] - span["start_ms"])
        assert numbers(made.frames(row)) == [(span["start_ms"] + (2 * i + 1) * length // 16) // 40 for i in range(8)]
    assert len(parts) == 3


def test_clips_that_cannot_be_copied_are_unusable_for_all_stages(folder: Path, workspace: Path, tmp_path: Path) -> None:
    made = recipe(folder, windows=True)
    del made["stages"]["all"], made["stages"]["dataset"]
    made["stages"]["embed"] = {"op": "video.embed", "from": "windows", "frames": 1}
    made["stages"]["frames"] = {"op": "video.frames", "from": "windows", "namespace": "frames", "frames": 1}
    ledger = ran(workspace, tmp_path, made).ledger
    assert ledger["embed"].unusable == ledger["frames"].unusable == Counter(not_copyable=3)
    assert not ledger["embed"].error and not ledger["frames"].error


@pytest.mark.parametrize("lost", ["gone", "changed"])
def test_a_clip_whose_video_is_lost_ends_the_run_with_one_line(
    lost: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "videos"))
    select = resolve("select.all")
    plan = select.plan

    def later(self: Any, *given: Any) -> Any:
        (own / "film.mp4").unlink(missing_ok=True)
        if lost == "changed":
            (own / "film.mp4").write_bytes(video("mp4 h264", 50))
        return plan(self, *given)

    monkeypatch.setattr(select, "plan", later)
    what = "vanished: film.mp4" if lost == "gone" else r"changed: film.mp4: \d+ bytes, but \d+ were listed"
    with pytest.raises(StageError, match=rf"^dataset: \S+/videos/: {what}; restore the file, or run"):
        ran(tmp_path / "w", tmp_path, recipe(own, windows=True, in_place=True))


def test_a_tar_cut_within_the_frames_of_a_clip(folder: Path, workspace: Path, tmp_path: Path) -> None:
    made = Dataset(ran(workspace, tmp_path, recipe(folder)))
    row = next(row for row in made.rows.values() if row["frames"] == 8)
    data = made.storage.read(made.tars[row["shard"]])
    *_, last = members(io.BytesIO(data[: row["offset"] + row["frame_offsets"][4] + 9]))
    assert (last.name, last.reject) == (f"{row['name']}.04.jpg", "truncated_tar")


def test_the_samples_of_a_tar_are_of_one_group(folder: Path, workspace: Path, tmp_path: Path) -> None:
    plain = Dataset(ran(workspace, tmp_path, recipe(folder, windows=True)), "windows")
    made = Dataset(ran(workspace, tmp_path, recipe(folder, windows=True, group_by=["aspect", "duration"])), "windows")
    assert made.rows.keys() == plain.rows.keys()
    by_tar: dict[int, list[str]] = {}
    for row in made.index.to_pylist():
        by_tar.setdefault(row["shard"], []).append(row["group"])
    assert [groups[0] for groups in by_tar.values()] == ["2x3-0to2s", *["3x2-0to2s"] * 4]
    assert all(len(set(groups)) == 1 for groups in by_tar.values()) and len(made.tars) == len(by_tar)
    for name, row in made.rows.items():
        assert made.frames(row) == plain.frames(plain.rows[name])
    with pytest.raises(ValidationError, match="carry: the index already has a column 'group'"):
        PackWebDataset(name="d", group_by=["aspect"], carry=["group"])


def test_columns_of_videos_are_carried_under_other_names(folder: Path, workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(CurateError, match=r"already has a column 'duration_ms'; carry it under another name"):
        ran(workspace, tmp_path, recipe(folder, carry=["duration_ms"]))
    made = Dataset(ran(workspace, tmp_path, recipe(folder, frames=1, carry={"all": "frames", "rate": "fps"})))
    assert (made.rows["film.mp4"]["all"], made.rows["film.mp4"]["rate"]) == (60, 25.0)


# --- kills and the other engine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """A run in another process: its recipe, its workspace and its points."""
    place = tmp_path_factory.mktemp("packed-clean")
    made = saved(place / "recipe.yaml", recipe(folder, windows=True, video="both", shard_rows=9))
    with Drivers() as drivers:
        points = {"CURATE_FAULT_LOG": str(place / "log")}
        said = drivers.run(place / "w", recipe=str(made), options=LOSSY, environment=points)
    assert said["error"] is None
    return (
        made,
        place / "w",
        [
            line
            for line in (place / "log").read_text().splitlines()
            if "datasets/" in line and "work" not in line.split("/")
        ],
    )


@pytest.mark.long
def test_killed_at_every_point(undisturbed: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    made, clean, points = undisturbed
    assert len([point for point in points if ".tar" in point]) >= 4
    with Drivers() as drivers:
        groups = drawn([points[first::GROUPS] for first in range(GROUPS)])
        assert groups
        for group, some in enumerate(groups):  # apart, because a shard under way at three deaths is set aside
            once, here = tmp_path / f"once-{group}", tmp_path / str(group)
            once.mkdir()
            dying = {"CURATE_FAULT_KILL": "|".join(some), "CURATE_FAULT_ONCE": str(once)}
            deaths = 0
            while (said := drivers.run(here, recipe=str(made), options=LOSSY, environment=dying))["signal"]:
                deaths += 1
            assert said["error"] is None and deaths == len(some) == len(list(once.iterdir()))
            workspaces.assert_same(clean, here)


@pytest.mark.long
def test_the_other_engine_and_its_killed_workers_make_the_same(
    undisturbed: tuple[Path, Path, list[str]], tmp_path: Path, on_ray: Any
) -> None:
    made, clean, _ = undisturbed
    (tmp_path / "deaths").mkdir()
    with deaths(on_ray, ["publish:datasets/*.tar:published"], tmp_path / "deaths"):
        run(load(made), str(tmp_path / "w"), engine=on_ray, options=ALL)
    workspaces.assert_same(clean, tmp_path / "w")
