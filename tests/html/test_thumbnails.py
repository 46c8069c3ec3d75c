from __future__ import annotations

import io
import weakref

import pytest
from PIL import Image

from curate.core.reader import Reader
from curate.html.thumbnails import MISSING, thumbnail, thumbnails
from tests.codec.make_images import encoded, gradient, noise, png_bomb
from tests.codec.video.make_videos import video
from tests.report.memory_view import MemoryView, drawing


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    assert image.format == "WEBP"
    return image


@pytest.mark.parametrize(
    ("size", "expected"), [((200, 100), (64, 32)), ((30, 20), (30, 20)), ((1000, 10), (40, 10)), ((10, 900), (10, 40))]
)
def test_thumbnails_fit_and_are_never_enlarged(size, expected):
    found = thumbnail(encoded(noise(*size), "PNG"), 64)
    assert (found.width, found.height) == expected == opened(found.data).size


def test_colours_survive():
    found = opened(thumbnail(encoded(gradient(64, 64), "PNG"), 64).data).convert("RGB")
    assert found.getpixel((60, 32))[0] > 200
    assert found.getpixel((3, 32))[0] < 60


def test_undecodable_images_have_a_reason():
    assert thumbnail(b"", 64).reason == "empty"
    assert thumbnail(b"hello", 64).reason == "not an image"
    bomb = thumbnail(png_bomb(), 64)
    assert (bomb.data, bomb.reason) == (b"", "too many pixels")
    assert "50,000 x 50,000; at most 100,000,000 pixels" in bomb.detail


def test_rows_without_bytes_have_a_reason():
    view = MemoryView([], {}, {"a" * 32: drawing(1), "b" * 32: b"nothing"})
    found = thumbnails(view, ["a" * 32, "c" * 32, "b" * 32, "a" * 32], pixels=48, threads=2)
    assert found["a" * 32].data
    assert found["b" * 32].reason == "not an image"
    assert found["c" * 32] == MISSING
    assert sorted(view.requested) == ["a" * 32, "b" * 32, "c" * 32]


def test_few_videos_are_in_memory_at_a_time():
    """However many are shown."""
    held, most, data = weakref.WeakSet(), [], video("mp4 mpeg4", 3)

    class Films(MemoryView):
        def images(self, keys):
            for key in keys:
                reader = Reader(data)
                held.add(reader)
                most.append(len(held))
                yield key, reader
                del reader

    found = thumbnails(Films([], {}), [f"{number:032x}" for number in range(12)], pixels=32, threads=1, frames=8)
    assert {one.frames for one in found.values()} == {8} and max(most) <= 4 < len(most)
