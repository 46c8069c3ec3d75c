from __future__ import annotations

import io
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from curate.codec import frames as kernel
from curate.codec.frames import REASONS, Frame, extract, frames, select, survey
from curate.codec.images import decode
from curate.core.errors import Undecodable
from tests.codec import make_images

ANIMATIONS: dict[str, dict[str, Any]] = {
    "GIF": {},
    "WEBP": {"lossless": True},
    "PNG": {},
    "AVIF": {"quality": 60},
}
KINDS = {**ANIMATIONS, "TIFF": {"compression": "tiff_lzw"}}
RED, CLEAR = (255, 0, 0, 255), (0, 0, 0, 0)


def movie(kind: str, images: list[Image.Image], **options: Any) -> bytes:
    return make_images.encoded(images[0], kind, save_all=True, append_images=images[1:], **KINDS[kind], **options)


def noises(count: int, side: int = 16) -> list[Image.Image]:
    return [make_images.noise(side, side, seed) for seed in range(count)]


def dots(count: int) -> list[Image.Image]:
    """Transparent images with a red pixel that moves to the right."""
    found = [Image.new("RGBA", (8, 8), CLEAR) for _ in range(count)]
    for place, image in enumerate(found):
        image.putpixel((place, 0), RED)
    return found


def visible(frame: Frame) -> str:
    """Opaque pixels of the first row, as text."""
    image = Image.open(io.BytesIO(frame.data)).convert("RGBA")
    return "".join("#" if image.getpixel((x, 0)) == RED else "." for x in range(4))


def reason(data: bytes, **options: Any) -> str:
    with pytest.raises(Undecodable) as caught:
        list(frames(data, **options))
    assert caught.value.reason in REASONS
    assert "\n" not in str(caught.value)
    return caught.value.reason


def attempt(data: bytes) -> list[Frame] | str:
    """Frames, or the reject reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(frames(data, max_pixels=1 << 20, most_pixels=1 << 24))
        except Undecodable as error:
            return error.reason


def tiny_gif(count: int) -> bytes:
    """A GIF of 1 x 1 pixel whose frames take 13 bytes each."""
    head = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\x00\x00\x00\x00\x00"
    return head + b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00" * count + b";"


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_is_a_separate_image(kind: str) -> None:
    images = [make_images.gradient(16, 16).rotate(90 * turn) for turn in range(4)]
    data = movie(kind, images)
    found = list(frames(data))
    assert [frame.ext for frame in found] == ["png"] * 4
    assert {frame.count for frame in found} == {4}
    assert decode(found[0].data).tobytes() == decode(data).tobytes()
    for frame, image in zip(found, images, strict=True):
        difference = np.abs(np.asarray(decode(frame.data), int) - np.asarray(image, int)).mean()
        assert difference < (8 if kind in ("AVIF", "GIF") else 0.001)


@pytest.mark.parametrize("kind", ANIMATIONS)
def test_spans_of_an_animation_are_seconds_without_gaps(kind: str) -> None:
    durations = [100, 100, 100] if kind == "AVIF" else [50, 100, 250]
    spans = [frame.span for frame in frames(movie(kind, noises(3), duration=durations))]
    assert [span["frame"] for span in spans] == [0, 1, 2]
    assert [round(1000 * (span["stop"] - span["start"])) for span in spans] == durations
    assert spans[0]["start"] == 0 and all(one["stop"] == two["start"] for one, two in pairwise(spans))


def test_spans_do_not_depend_on_the_selected_frames() -> None:
    data = movie("GIF", noises(9), duration=[10 * n for n in range(1, 10)])
    everything = list(frames(data))
    assert list(frames(data, every=4)) == [everything[0], everything[4], everything[8]]
    assert list(frames(data, most=3)) == [everything[0], everything[3], everything[6]]


def test_pages_may_differ_in_size_and_mode() -> None:
    pages = [
        Image.new("1", (30, 20), 1),
        Image.new("L", (10, 20), 9),
        Image.new("CMYK", (9, 8), (0, 255, 255, 0)),
        Image.new("I;16", (7, 3), 65535),
        Image.new("RGBA", (3, 4), (1, 2, 3, 4)),
    ]
    data = make_images.encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    found = list(frames(data))
    assert [frame.span for frame in found] == [{"page": page} for page in range(5)]
    images = [Image.open(io.BytesIO(frame.data)) for frame in found]
    assert [image.size for image in images] == [page.size for page in pages]
    assert [image.mode for image in images] == ["1", "L", "RGB", "RGB", "RGBA"]
    assert images[3].getpixel((0, 0)) == (255, 255, 255)
    assert list(extract(data, [frame.span for frame in found])) == [frame.data for frame in found]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("GIF", {"disposal": 1}, ["#...", "##..", "###.", "####"]),
        ("GIF", {"disposal": 2}, ["#...", ".#..", "..#.", "...#"]),
        ("PNG", {"disposal": 0, "blend": 1}, ["#...", "##..", "###.", "####"]),
        ("PNG", {"disposal": 1, "blend": 1}, ["#...", ".#..", "..#.", "...#"]),
        ("PNG", {"disposal": 0, "blend": 0}, ["#...", ".#..", "..#.", "...#"]),
        ("WEBP", {}, ["#...", ".#..", "..#.", "...#"]),
    ],
)
def test_frames_are_composed_as_a_viewer_shows_them(kind: str, options: dict[str, Any], expected: list[str]) -> None:
    data = movie(kind, dots(4), **options)
    found = list(frames(data))
    assert [visible(frame) for frame in found] == expected
    assert list(extract(data, [frame.span for frame in found])) == [frame.data for frame in found]
    assert all(Image.open(io.BytesIO(frame.data)).mode == "RGBA" for frame in found)


def test_the_default_image_of_an_apng_is_not_a_frame() -> None:
    data = movie("PNG", [Image.new("RGB", (16, 16), "blue"), *noises(2)], default_image=True, duration=100)
    found = list(frames(data))
    assert [frame.span for frame in found] == [
        {"frame": 0, "start": 0.0, "stop": 0.1},
        {"frame": 1, "start": 0.1, "stop": 0.2},
    ]
    assert [decode(frame.data).tobytes() for frame in found] == [image.tobytes() for image in noises(2)]


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_frames_are_upright(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = movie(kind, [make_images.gradient(20, 10), make_images.gradient(20, 10).rotate(180)], exif=exif)
    found = list(frames(data))
    assert [decode(frame.data).size for frame in found] == [(10, 20)] * 2
    assert decode(found[0].data).tobytes() == decode(data).tobytes()


@pytest.mark.parametrize(("kind", "ext"), [("JPEG", "jpg"), ("PNG", "png"), ("GIF", "gif"), ("TIFF", "tif")])
def test_a_still_keeps_its_bytes(kind: str, ext: str) -> None:
    data = make_images.encoded(make_images.noise(), kind)
    assert list(frames(data, every=3, most=1)) == [Frame({"frame": 0}, data, ext, 1)]
    assert list(extract(data, [{"frame": 0}])) == [data]


def test_frames_have_no_metadata() -> None:
    data = movie("TIFF", noises(2), dpi=(300, 300), icc_profile=b"profile")
    assert all(Image.open(io.BytesIO(frame.data)).info == {} for frame in frames(data))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(st.integers(2, 7), st.integers(1, 4), st.none() | st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_extract_returns_the_same_bytes_as_frames(
    kind: str, count: int, every: int, most: int | None, clear: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (count, 9, 7, 4), dtype=np.uint8)
    values[..., 3] = rng.choice([0, 255], values.shape[:3]) if clear else 255
    data = movie(kind, [Image.fromarray(value) for value in values])
    found = list(frames(data))
    assert list(extract(data, [frame.span for frame in found])) == [frame.data for frame in found]
    wanted = select(len(found), every, most)
    assert list(frames(data, every, most)) == [found[number] for number in wanted]


@given(st.integers(1, 500), st.integers(1, 20), st.none() | st.integers(1, 50))
def test_selected_frames_are_evenly_spaced(count: int, every: int, most: int | None) -> None:
    found = select(count, every, most)
    assert found[0] == 0 and found == sorted(set(found)) and found[-1] < count
    assert all(number % every == 0 for number in found)
    assert len(found) == min(len(range(0, count, every)), most or count)
    gaps = {two - one for one, two in pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= every


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_a_truncated_file_never_gives_all_frames(kind: str) -> None:
    data = movie(kind, noises(4))
    for cut in range(20, len(data) - 64, 97):
        found = attempt(data[:cut])
        if kind == "GIF" and isinstance(found, list):
            assert 0 < len(found) < 4  # truncated between two frames: the file does not tell that more follow
        else:
            assert found in ("truncated", "corrupt")


@pytest.mark.parametrize("kind", ["GIF", "PNG"])
def test_frames_before_a_corrupt_one_come_first(kind: str) -> None:
    data = bytearray(movie(kind, noises(6)))
    data[len(data) // 2 - 100 : len(data) // 2 + 100] = bytes(200)
    given_out = frames(bytes(data))
    assert next(given_out).span["frame"] == 0
    with pytest.raises(Undecodable, match="corrupt"):
        list(given_out)


@pytest.mark.parametrize("data", [b"", b"no image", make_images.encoded(make_images.noise(), "GIF")[:500]])
def test_other_files_are_rejected(data: bytes) -> None:
    assert reason(data) in ("empty", "not_an_image", "truncated")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_limits_are_exact_and_come_before_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = movie(kind, noises(4))
    assert len(list(frames(data, max_pixels=256, most_pixels=1024))) == 4
    monkeypatch.setattr(kernel, "_composed", None)
    assert reason(data, max_pixels=255) == "too_many_pixels"
    assert reason(data, most_pixels=1023) == "frame_bomb"
    with pytest.raises(Undecodable, match=r"frame_bomb: \d frames of 1,024 pixels; at most 1,000 pixels"):
        list(frames(data, most_pixels=1000))


def test_a_single_image_is_not_a_frame_bomb() -> None:
    data = make_images.encoded(make_images.noise(), "JPEG")
    assert len(list(frames(data, most_pixels=1))) == 1


def test_pages_larger_than_the_first_are_counted() -> None:
    data = movie("TIFF", [Image.new("L", (2, 2)), Image.new("L", (50, 50))])
    assert reason(data, max_pixels=2499) == "too_many_pixels"
    assert reason(data, most_pixels=2503) == "frame_bomb"


def test_too_many_frames_are_a_frame_bomb() -> None:
    assert reason(tiny_gif(kernel.MOST_FRAMES + 1)) == "frame_bomb"
    assert survey(tiny_gif(kernel.MOST_FRAMES)).count == kernel.MOST_FRAMES


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
@pytest.mark.long
def test_a_thousand_frames(kind: str) -> None:
    images = [Image.new("L", (8, 8), value % 251) for value in range(1000)]
    data = movie(kind, images)
    found = list(frames(data))
    assert len(found) == 1000
    assert decode(found[999].data).getpixel((0, 0)) == (999 % 251,) * 3
    assert list(extract(data, [found[999].span])) == [found[999].data]


def test_a_missing_frame_is_an_error() -> None:
    data = movie("GIF", noises(2))
    for span in ({"frame": 2}, {"page": 0}, {}):
        with pytest.raises(Undecodable, match="not in order among 2"):
            next(extract(data, [span]))


SMALL = [movie(kind, noises(3, 8)) for kind in KINDS]


@given(st.sampled_from(SMALL), st.lists(st.tuples(st.floats(0, 0.999), st.binary(max_size=4)), max_size=6))
def test_damage_gives_frames_or_a_reason(data: bytes, damage: list[tuple[float, bytes]]) -> None:
    damaged = bytearray(data)
    for place, patch in damage:
        start = int(place * len(damaged))
        damaged[start : start + len(patch)] = patch
    found = attempt(bytes(damaged))
    assert isinstance(found, list) or found in REASONS
