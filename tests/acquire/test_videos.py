"""Folders and tars of videos, alone and beside images: plans and samples."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from curate.acquire.folder import AcquireFolder
from curate.acquire.kinds import VIDEO_EXTENSIONS
from curate.acquire.webdataset import AcquireWebDataset
from curate.api import make_stage
from curate.codec.formats import RASTER_EXTENSIONS
from curate.core.errors import InputError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from tests.acquire.helpers import PNG, by_id, read_all, rejects, write, write_tar

BOTH = ("video", "image", "video")


def folder(root: Path, **more: object) -> AcquireFolder:
    return AcquireFolder(**{"namespace": "test", "path": str(root)} | more)


def test_the_media_select_files_by_extension(tmp_path: Path) -> None:
    write(tmp_path, {"a.MP4": b"1", "a.txt": "a film", "b.mkv": b"2", "c.png": PNG, "d.doc": b"3"})
    assert list(by_id(folder(tmp_path))) == ["c.png"]
    assert list(by_id(folder(tmp_path, media=["video"]))) == ["a.MP4", "b.mkv"]
    found = by_id(folder(tmp_path, media=BOTH))
    assert {name: (sample.ext, sample.caption) for name, sample in found.items()} == {
        "a.MP4": ("mp4", "a film"), "b.mkv": ("mkv", None), "c.png": ("png", None),
    }  # fmt: skip
    assert list(by_id(folder(tmp_path, media=BOTH, videos=["doc"], extensions=[".PNG"]))) == ["c.png", "d.doc"]
    assert not set(VIDEO_EXTENSIONS) & set(RASTER_EXTENSIONS)


def test_the_order_of_media_does_not_count_and_images_are_the_default() -> None:
    one, other = (AcquireFolder(namespace="n", path="x", media=media) for media in (BOTH, ["image", "video"]))
    assert AcquireFolder(namespace="n", path="x", media="video").media == ("video",)
    assert one.media == ("image", "video") and one.parameters() == other.parameters()
    assert "media" in one.parameters()
    for cls in (AcquireFolder, AcquireWebDataset):
        new = {"media", "videos", "shard_bytes", "max_video_bytes"}
        assert not new & set(cls(namespace="n", path="x", media=["image"]).parameters())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"media": ["vidio"]}, "'vidio' is not a medium; did you mean 'video'?"),
        ({"media": ["sound"]}, "'sound' is not a medium; expected image or video"),
        ({"media": []}, "no medium; expected image or video"),
        ({"videos": ["mp4"]}, "it is about videos, of which this pool has none; add video to `media`"),
        ({"media": ["video"], "images": ["jpg"]}, "it is about images, of which this pool has none; add image to"),
    ],
)
def test_wrong_media_are_one_line(given: dict[str, object], problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make_stage("acquire.webdataset", namespace="n", path="x", **given)
    assert problem in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValidationError):
        AcquireWebDataset(namespace="n", path="x", **given)


def test_videos_have_a_separate_limit_of_bytes(tmp_path: Path) -> None:
    write(tmp_path, {"a.mp4": b"1" * 30, "b.png": b"1" * 30, "c.mp4": b"1" * 50})
    source = folder(tmp_path, media=BOTH, max_bytes=20, max_video_bytes=40)
    assert rejects(source) == {"b.png": "too_large", "c.mp4": "too_large"}
    assert rejects(folder(tmp_path, media=BOTH)) == {}


def test_a_folder_without_videos_says_what_it_looked_for(tmp_path: Path) -> None:
    write(tmp_path, {"b.png": PNG})
    with pytest.raises(InputError, match=r"no videos in '.*' \(1 other files\); looked for 3g2, 3gp, asf"):
        folder(tmp_path, media=["video"]).plan()
    write(tmp_path / "empty", {"x.doc": b""})
    with pytest.raises(InputError, match=r"no images or videos in "):
        folder(tmp_path / "empty", media=BOTH).plan()


def test_shards_are_cut_by_bytes_and_by_rows(tmp_path: Path) -> None:
    sizes = [40, 40, 40, 150, 10, 10, 10, 10, 300, 5]
    write(tmp_path, {f"{place}.mp4": b"1" * size for place, size in enumerate(sizes)})

    def cut(**more: object) -> list[list[int]]:
        plan = folder(tmp_path, media=["video"], **more).plan()
        return [[file["size"] for file in portion.content["files"]] for portion in plan]

    assert cut() == [sizes]
    expected = [[40, 40], [40], [150], [10, 10, 10], [10], [300], [5]]
    assert cut(shard_bytes=100, shard_rows=3) == cut(shard_bytes=100, shard_rows=3, in_place=True) == expected
    # a file that is not read takes no room
    assert cut(shard_bytes=100, max_video_bytes=200) == [[40, 40], [40], [150], [10, 10, 10, 10, 300, 5]]
    assert [portion.rows for portion in folder(tmp_path, media=["video"], shard_bytes=100).plan()] == [2, 1, 1, 4, 1, 1]


def tar(root: Path, media: tuple[str, ...] | list[str], **more: object) -> AcquireWebDataset:
    return AcquireWebDataset(**{"namespace": "test", "path": str(root), "media": media} | more)


def test_a_tar_of_videos_with_captions(tmp_path: Path) -> None:
    """As PVD and video2dataset lay it out."""
    write_tar(
        tmp_path / "00000.tar",
        {
            "0/000.mp4": b"film", "0/000.json": '{"caption": "words", "duration": 3}', "0/000.txt": "said",
            "0/001.json": '{"caption": "a film", "url": "https://x.org/1"}', "0/001.webm": b"film",
            "0/002.jpg": PNG, "0/002.mp4": b"film", "0/003.jpg": PNG, "0/004.m4a": b"sound",
        },
    )  # fmt: skip
    found = by_id(tar(tmp_path, ["video"]))
    assert {name: (one.ext, one.caption, one.reject) for name, one in found.items()} == {
        "0/000": ("mp4", "said", None),
        "0/001": ("webm", "a film", None),
        "0/002": ("mp4", None, None),
        "0/003": ("", None, "no_member"),
        "0/004": ("", None, "no_member"),
    }
    assert found["0/000"].meta == {"duration": 3} and found["0/001"].url == "https://x.org/1"
    mixed = {name: one.ext or one.reject for name, one in by_id(tar(tmp_path, BOTH)).items()}
    assert mixed == {"0/000": "mp4", "0/001": "webm", "0/002": "mp4", "0/003": "jpg", "0/004": "no_member"}
    assert rejects(tar(tmp_path, ["image"])) == {"0/000": "no_image", "0/001": "no_image", "0/004": "no_image"}


def test_the_tables_of_video2dataset(tmp_path: Path) -> None:
    write_tar(tmp_path / "00000.tar", {"000000000.mp4": b"film", "000000000.json": "{}", "000000000.txt": "a film"})
    rows = [
        {"url": "https://x.org/a", "key": "000000000", "status": "success", "caption": "a film"},
        {"url": "https://x.org/b", "key": "000000001", "status": "failed_to_download", "caption": "gone"},
        {"url": "https://x.org/c", "key": "000000002", "status": "failed_to_subsample", "caption": "broken"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "00000.parquet")
    found = read_all(tar(tmp_path, ["video"]))
    assert [(one.caption, one.ext or one.reject) for one in found] == [
        ("a film", "mp4"), ("gone", "download_failed"), ("broken", "resize_failed"),
    ]  # fmt: skip


@pytest.mark.parametrize(("media", "op"), [(["video"], "image.inspect"), (["image"], "video.look")])
def test_a_stage_that_sees_none_of_the_media_fails_when_it_is_planned(media: list[str], op: str) -> None:
    made = (
        Pipeline().add("pool", AcquireFolder(namespace="n", path="x", media=media)).add("stage", make_stage(op), "pool")
    )
    with pytest.raises(RecipeError) as caught:
        made.check()
    sees = op.partition(".")[0]
    said = str(caught.value)
    assert f"{op} reads {sees} samples, but those of 'pool' are {media[0]}; " in said and "\n" not in said
    assert ("put video.frames before it" in said) == (sees == "image")
    Pipeline().add("pool", AcquireFolder(namespace="n", path="x", media=BOTH)).add("s", make_stage(op), "pool").check()


def test_a_large_video_is_not_read_when_it_is_listed_or_imported_in_place(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"film")
    os.truncate(path, 300 << 20)
    [sample] = read_all(folder(tmp_path, media=["video"], in_place=True))
    assert sample.reject is None and not isinstance(sample.data, bytes)
    assert sample.data is not None and sample.data.size == 300 << 20
