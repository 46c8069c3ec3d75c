"""`video.look` on encoded videos, in its limited child."""

from __future__ import annotations

import subprocess
import sys

import pytest

from curate.core.contracts import Batch, Sample
from curate.core.errors import Undecodable
from curate.core.reader import as_reader
from curate.video.facts import SCHEMA, Facts
from curate.video.look import Look, facts
from tests.codec.video.make_videos import turned
from tests.video.make_shots import boxed, encoded, film, lighter, shot
from tests.video.test_hashes import distances


@pytest.fixture(scope="module")
def mp4() -> bytes:
    made = film([shot(1, "pan", 3), shot(2, "static", 3), shot(3, "zoom", 3)], ["cut", "fade"]).frames
    made[30] = lighter(made[30])
    return encoded([boxed(frame, 0, 18, 0, 18) for frame in made], "libx264", preset="veryfast")


def test_one_pass_finds_everything(mp4: bytes) -> None:
    found = facts(mp4)
    assert (found.width, found.height, found.frames, found.duration_ms) == (320, 180, 270, 9000)
    assert found.cuts_ms[0] == 3000 and all(5300 < cut < 6700 for cut in found.cuts_ms[1:])
    assert found.flashes == 1
    start, stop = found.black_ms
    assert 5500 < start < 6000 < stop < 6500
    assert found.bars == pytest.approx([0, 0.1, 0, 0.1], abs=0.015)
    assert 0.2 < (found.still_share or 0) < 0.4
    assert 1 < (found.motion_mean or 0) < 6 and (found.motion_peak or 0) > 4
    assert found.i_frames >= 2 and found.source_motion_mean
    assert (found.corrupt_frames, found.missing_frames) == (0, 0)
    assert len(found.frame_hashes) == 14


def test_facts_are_of_the_upright_frame() -> None:
    flat = encoded([boxed(frame, 0, 18, 0, 0) for frame in shot(4, "pan", 2, 0.3)], "libx264", preset="veryfast")
    upright, side = facts(flat), facts(turned(flat, 90))
    assert (side.width, side.height) == (180, 320)
    assert upright.bars == pytest.approx([0, 0.1, 0, 0], abs=0.01)
    assert side.bars == pytest.approx([0, 0, 0.1, 0], abs=0.01)  # turned clockwise: the top is at the right
    assert side.motion_mean == pytest.approx((upright.motion_mean or 0) * 320 / 180, rel=0.1)
    assert side.source_motion_mean == pytest.approx((upright.source_motion_mean or 0) * 320 / 180)


def test_a_frame_that_is_shown_for_long_is_as_good_as_repeated_ones() -> None:
    slides = [shot(seed, seconds=0.1, size=(160, 90), fps=10)[0] for seed in range(6)]
    times = [*range(0, 24_000, 4000), 23_900]
    once = facts(encoded([*slides, slides[-1]], "ffv1", "matroska", 10, times_ms=times))
    often = facts(encoded([slide for slide in slides for _ in range(40)], "ffv1", "matroska", 10))
    assert (once.frames, often.frames) == (7, 240)
    for one in (once, often):
        assert one.cuts_ms == [4000, 8000, 12_000, 16_000, 20_000]
    for name in ("duration_ms", "frame_hashes", "black_ms", "bars"):
        assert getattr(once, name) == getattr(often, name), name
    assert once.still_share == pytest.approx(often.still_share) == pytest.approx(0.9, abs=0.03)
    assert max(once.motion_mean or 9, often.motion_mean or 9) < 0.3


def test_pixel_formats_do_not_matter() -> None:
    frames = film([shot(5, "pan", 1, size=(160, 90)), shot(6, "static", 1, size=(160, 90))], ["cut"]).frames
    ways = {"yuv420p": "ffv1", "yuvj420p": "mjpeg", "yuv422p10le": "ffv1", "bgr0": "ffv1", "gray": "ffv1"}
    found = [facts(encoded(frames, codec, "matroska", pix_fmt=pixels, b="20M")) for pixels, codec in ways.items()]
    for one in found:
        assert one.cuts_ms == [1000]
        assert one.motion_mean == pytest.approx(2.5, rel=0.15)
    hashes = [[found and bytes.fromhex(found) for found in one.frame_hashes] for one in found[:4]]
    assert max(distances(one, hashes[0]).max() for one in hashes[1:]) <= 8


def test_the_columns_are_those_of_the_schema(mp4: bytes) -> None:
    stage = Look()
    prepared = stage.prepare(Sample(mp4, lambda encoded, **_: as_reader(encoded)))
    columns = stage.process(Batch(SCHEMA.empty_table(), [prepared]))
    assert list(columns) == SCHEMA.names == list(Facts.__annotations__)
    table = SCHEMA.empty_table().from_pydict(columns, SCHEMA)
    assert table.to_pylist()[0]["frame_hashes"][0] == bytes.fromhex(prepared.frame_hashes[0] or "")


def test_a_video_that_cannot_be_decoded_has_a_reason(mp4: bytes) -> None:
    for data, reason in ((b"", "empty"), (b"text" * 99, "not_a_video"), (mp4[: len(mp4) // 2], "truncated")):
        with pytest.raises(Undecodable) as caught:
            facts(data)
        assert caught.value.reason == reason


def test_this_process_loads_no_ffmpeg() -> None:
    code = "import sys; import curate.video.look, curate.video.divide; assert 'av' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
