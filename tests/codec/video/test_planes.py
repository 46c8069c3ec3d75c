from __future__ import annotations

import hashlib

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.codec import media
from curate.codec.video.planes import KR_KB, Planes, of_frame, small_size
from curate.core.errors import Undecodable
from tests.codec.video.make_videos import numbered

GOLDEN = "78912d3df84672055a088e7bb73d0eab966a3ba0fc829d906824809fdfa0e5be"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("space", KR_KB)
@pytest.mark.parametrize("full", [False, True])
def test_colours_follow_the_equations(space: int, full: bool) -> None:
    y, u, v = (noise(32, 48, seed=seed) for seed in range(3))
    kr, kb = KR_KB[space]
    offset, luma, chroma = (0, 255, 255) if full else (16, 219, 224)
    grey, cb, cr = (y - float(offset)) / luma, (u - 128.0) / chroma, (v - 128.0) / chroma
    red, blue = grey + 2 * (1 - kr) * cr, grey + 2 * (1 - kb) * cb
    green = (grey - kr * red - kb * blue) / (1 - kr - kb)
    expected = np.clip(np.stack([red, green, blue], -1) * 255, 0, 255)
    assert np.abs(Planes((y, u, v), space, full, 0).rgb() - expected).max() <= 1.01


@pytest.mark.parametrize("form", ["yuv420p", "yuvj422p", "yuv444p", "yuv420p10le", "gray", "bgr0", "gbrp", "yuv411p"])
@pytest.mark.parametrize("size", [(96, 64), (97, 65), (31, 2)])
def test_an_image_survives(form: str, size: tuple[int, int]) -> None:
    smooth = np.mgrid[: size[1], : size[0]].sum(0)[..., None] * np.array([1, 1, 1]) % 256
    rgb = np.minimum(smooth, 255 - smooth).astype(np.uint8) + 40
    frame = av.VideoFrame.from_ndarray(rgb).reformat(format=form, dst_color_range="JPEG" if "j" in form else None)
    planes = of_frame(frame)
    assert planes.size == size
    assert np.abs(planes.rgb().astype(int) - rgb).mean() < 4


@pytest.mark.parametrize("form", ["pal8", "rgb565le", "nv12", "yuv420p10be", "monow", "grayf32le", "ya8", "xyz12le"])
def test_other_pixel_formats_have_a_reason(form: str) -> None:
    frame = av.VideoFrame(16, 16, form)
    with pytest.raises(Undecodable) as caught:
        of_frame(frame)
    assert caught.value.reason == "unsupported"


def test_an_unknown_colour_space_has_a_reason() -> None:
    frame = av.VideoFrame(16, 16, "yuv420p")
    frame.colorspace = 8
    with pytest.raises(Undecodable, match="colour space 8"):
        of_frame(frame)


def test_tall_frames_are_of_bt709() -> None:
    assert [of_frame(av.VideoFrame(16, height, "yuv420p")).space for height in (576, 578)] == [6, 1]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 80), st.sampled_from([0, 90, 180, 270]))
def test_sizes(width: int, height: int, side: int, rotation: int) -> None:
    chroma = ((height + 1) // 2, (width + 1) // 2)
    planes = Planes((noise(height, width), noise(*chroma), noise(*chroma)), 6, False, rotation)
    small = planes.rgb(side)
    wide, high = small_size(width, height, side)
    assert small.shape[:2] == ((wide, high) if rotation % 180 else (high, wide))
    assert min(wide, high) == min(side, width, height)
    assert np.array_equal(planes.rgb(), np.rot90(Planes(planes.planes, 6, False, 0).rgb(), rotation // 90))


def test_the_same_bytes_on_every_processor() -> None:
    digest = hashlib.sha256()
    for planes in (
        Planes((noise(65, 97), noise(33, 49, seed=1), noise(33, 49, seed=2)), 1, False, 90),
        Planes((noise(64, 96), noise(64, 48, seed=1), noise(64, 48, seed=2)), 9, True, 0),
        Planes(tuple(np.moveaxis(numbered(7), -1, 0)), 0, True, 180),
    ):
        for side in (None, 24):
            digest.update(planes.rgb(side))
    assert digest.hexdigest() == GOLDEN, "raise the version of the medium"


def test_another_ffmpeg_is_another_version_of_the_medium() -> None:
    assert (av.ffmpeg_version_info, media.of("video").version) == ("8.1.2", 1), "its decoders may give other pixels"
