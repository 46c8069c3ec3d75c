import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError, Reject
from distill.recipe.data import DataRecipe
from distill.samples.sources.clips import split_span, spread
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import open_mixture, open_source
from tests.distill.clips import clip, frame, write_clips
from tests.distill.datasets import drawn_items, write_dataset

SAMPLES = [clip(0, 8), [frame(200)], clip(1, 3), clip(2, 2), [frame(201)], clip(3, 12)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [f"text {number}" for number in range(len(SAMPLES))]
    return write_clips(tmp_path_factory.mktemp("clips") / "d", SAMPLES, texts=texts, with_mp4=True)


def mixture_of(folder: Path, **source):
    values = {"dataset": str(folder), "max_tokens": 12, "modality": "video", **source}
    return open_mixture(DataRecipe.model_validate({"sources": [values]}))


@given(stored=st.integers(1, 70), frames=st.integers(1, 70))
def test_frames_are_spread_evenly(stored, frames):
    places = spread(stored, frames)
    assert len(places) == min(stored, frames)
    assert places == sorted(set(places)) and places[0] >= 0 and places[-1] < stored
    gaps = np.diff(places)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
    assert places[0] <= stored / len(places) and stored - 1 - places[-1] <= stored / len(places)
    if frames == 1:
        assert places == [stored // 2]


@given(
    files=st.lists(st.binary(max_size=1500), min_size=1, max_size=12),
    pax=st.booleans(),
    width=st.sampled_from([1, 2]),
    folder=st.sampled_from(["", "a/b.c/", "d" * 120 + "/", "é" * 60 + "/"]),
)
def test_a_span_has_the_files_in_the_order_of_their_numbers(files, pax, width, folder):
    """Also with extended headers (a float as time), long names, and numbers in any width."""
    stream = io.BytesIO()
    order = sorted(range(len(files)), key=lambda number: f"{number:0{width}d}")  # 1, 10, 11, 2: as names are sorted
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) as tar:
        for number in order:
            info = tarfile.TarInfo(f"{folder}clip.{number:0{width}d}.jpg")
            info.size, info.mtime = len(files[number]), 0.5 if pax else 0
            tar.addfile(info, io.BytesIO(files[number]))
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as tar:
        found = tar.getmembers()
    end = found[-1].offset_data + found[-1].size
    seen = len(folder if pax else folder.encode()) < 80  # a longer name has no number in the plain header
    expected = files if seen else [files[number] for number in order]
    assert split_span(stream.getvalue()[found[0].offset_data - 512 : end]) == expected


def test_images_and_clips_of_a_packed_dataset(folder):
    mixture = mixture_of(folder)
    members, rows = MemberReader(mixture), np.arange(len(SAMPLES))
    assert mixture.stored_frames(rows).tolist() == mixture.frames(rows).tolist() == [8, 1, 3, 2, 1, 12]
    for row, frames in enumerate(SAMPLES):
        if len(frames) == 1:
            assert members.read(row) == frames[0]
        else:
            assert members.frames(row) == frames
        assert members.member(row, "txt") == f"text {row}".encode()
        assert json.loads(members.member(row, "json") or b"")["title"] == f"title {row}"
    assert mixture_of(folder, frames=4).frames(rows).tolist() == [4, 1, 3, 2, 1, 4]


def test_one_read_gets_all_frames(folder, monkeypatch):
    members, reads, real = MemberReader(mixture_of(folder)), [], os.pread
    monkeypatch.setattr(os, "pread", lambda *args: reads.append(args) or real(*args))
    assert members.frames(5) == SAMPLES[5]
    assert len(reads) == 1


def test_a_carried_column_called_frames_does_not_make_clips(tmp_path):
    items = drawn_items(3)
    for item in items:
        item.columns["frames"] = 12
    mixture = mixture_of(write_dataset(tmp_path / "d", items))
    assert mixture.frames(np.arange(3)).tolist() == [1, 1, 1]
    assert mixture.sources[0].integers("frames").tolist() == [12, 12, 12]


def write_webdataset(folder: Path, samples, **others: bytes) -> Path:
    folder.mkdir()
    with wds.TarWriter(str(folder / "t-0.tar"), encoder=False) as writer:
        for number, frames in enumerate(samples):
            single = len(frames) == 1
            named = {"jpg": frames[0]} if single else {f"{place:02d}.jpg": data for place, data in enumerate(frames)}
            writer.write({"__key__": f"clip{number}", **others, **named, "json": b"{}", "mp4": b"0" * 5000})
    return folder


def test_any_webdataset_may_have_clips(tmp_path):
    found = open_source(str(write_webdataset(tmp_path / "d", SAMPLES, txt=b"words")))
    assert found.integers("frames").tolist() == [8, -1, 3, 2, -1, 12]
    assert not any(name.startswith("00.jpg") for name in found.columns)
    assert found.integers("width").tolist() == [32] * 6
    members = MemberReader(found)
    assert [members.frames(row) for row in (0, 2, 3, 5)] == [SAMPLES[row] for row in (0, 2, 3, 5)]
    assert [members.read(row) for row in (1, 4)] == [SAMPLES[row][0] for row in (1, 4)]
    assert members.member(5, "txt") == b"words" and members.member(5, "mp4") == b"0" * 5000
    changed = [*SAMPLES[:-1], [*SAMPLES[-1][:-1], frame(99)]]
    assert open_source(str(write_webdataset(tmp_path / "e", changed, txt=b"words"))).fingerprint != found.fingerprint


def test_a_sample_with_a_plain_image_or_frames_apart_stays_an_image(tmp_path):
    folder = write_webdataset(tmp_path / "d", [clip(0, 3)], jpeg=frame(77))
    with tarfile.open(folder / "t-1.tar", "w") as tar:
        for name in ("a.00.jpg", "a.txt", "a.01.jpg"):
            info = tarfile.TarInfo(name)
            info.size = len(frame(5))
            tar.addfile(info, io.BytesIO(frame(5)))
    found = open_source(str(folder))
    assert not found.has("frames")
    assert [MemberReader(found).read(row) for row in (0, 1)] == [frame(77), frame(5)]


def test_a_tar_cut_within_the_frames_of_a_clip_is_named_with_the_clip(tmp_path, folder, caplog):
    cut = shutil.copytree(folder, tmp_path / "packed")
    mixture = mixture_of(cut)
    with (cut / "clips-000001.tar").open("r+b") as tar:
        tar.truncate(mixture.number("offset", 5) + mixture.number("size", 5) // 2)
    with pytest.raises(Reject, match=rf"clips-000001\.tar at \d+: \d+ of \d+ bytes, in the frames of {mixture.key(5)}"):
        MemberReader(mixture).frames(5)
    data = bytearray((folder / "clips-000000.tar").read_bytes())
    start = mixture.number("offset", 0) + len(SAMPLES[0][0]) + 1200
    data[start:] = bytes(len(data) - start)
    (cut / "clips-000000.tar").write_bytes(data)
    with pytest.raises(Reject, match=rf"clips-000000\.tar at 512: \d of 8 frames of {mixture.key(0)}"):
        MemberReader(mixture).frames(0)
    general = write_webdataset(tmp_path / "general", [clip(0, 8), clip(1, 8)])
    with (general / "t-0.tar").open("r+b") as tar:
        names = tarfile.open(fileobj=tar).getmembers()  # noqa: SIM115
        tar.truncate(next(item.offset_data for item in names if item.name == "clip1.04.jpg") + 10)
    found = open_source(str(general))
    assert found.strings("name") == ["clip0"]
    assert "t-0.tar: 1 samples before an error of the tar" in caplog.text
    assert "perhaps within the frames of clip1" in caplog.text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"modality": "image"}, r"sources\.0: 4 of 6 samples of .* are clips of up to 12 frames, but its modality is im"
         r"age; set modality: video, or frames: 1 to read each clip's middle frame as an image, or only: images$"),
        ({"only": "images", "frames": 8}, r"frames: 8 frames of the clips of .*, but it has no clips; remove the s"),
        ({"frames": 13}, r"frames: 13 frames of the clips of .*, but its clips have 12 frames at most; set it"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_clips_are_one_line(folder, source, message):
    with pytest.raises(InputError, match=message) as raised:
        mixture_of(folder, **source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"frames": 2}, r"frames: 2 frames of the clips of .*, but it has no clips; remove the setting"),
        ({"only": "clips"}, r"only: clips, but .* has none of them; remove the source"),
    ],
)
def test_settings_of_clips_for_images_are_one_line(tmp_path, source, message):
    with pytest.raises(InputError, match=message):
        mixture_of(write_dataset(tmp_path / "d", drawn_items(3)), **source)


def test_a_source_may_be_limited_to_its_images_or_clips(folder):
    images, clips = ({"modality": "image", "only": "images"}, {"only": "clips", "natural_side": [10, 50]})
    assert mixture_of(folder).eligible is None
    assert mixture_of(folder, **images).eligible.tolist() == [False, True, False, False, True, False]
    assert mixture_of(folder, **clips).eligible.tolist() == [True, False, True, True, False, True]
    assert mixture_of(folder, modality="image", frames=1).frames(np.arange(6)).tolist() == [1] * 6


def test_a_video_of_one_frame_is_a_clip(tmp_path, folder):
    copied = shutil.copytree(folder, tmp_path / "d")
    table = pq.read_table(copied / "index.parquet")
    frames = pa.array([8, None, 3, 2, 1, 12], table.schema.field("frames").type)
    pq.write_table(table.set_column(table.schema.get_field_index("frames"), "frames", frames), copied / "index.parquet")
    assert mixture_of(copied, modality="image", only="images").eligible.nonzero()[0].tolist() == [1]
    assert mixture_of(copied, only="clips").eligible.nonzero()[0].tolist() == [0, 2, 3, 4, 5]


def test_columns_of_a_user_with_the_names_of_clips_do_not_make_clips(tmp_path):
    items = drawn_items(3)
    for item in items:
        item.columns["frame_offsets"] = 12
    assert mixture_of(write_dataset(tmp_path / "d", items)).frames(np.arange(3)).tolist() == [1, 1, 1]
