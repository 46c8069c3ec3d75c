"""The registry of media; the kernels of images are tested in test_images and test_frames."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from curate.codec import media
from curate.codec.frames import frames
from curate.core.errors import InputError, Undecodable
from tests.codec.make_images import encoded, noise
from tests.codec.test_frames import movie, noises


def test_an_image_is_probed_opened_and_shown_small() -> None:
    data = encoded(noise(200, 100), "PNG")
    image = media.sniffed(data, ["image"])
    assert image is media.of("image") is media.DEFAULT
    assert image.probe(data).width == image.open(data).width == 200
    small = Image.open(io.BytesIO(image.thumbnail(data, 64)))
    assert (small.format, small.size) == ("WEBP", (64, 32))
    for read in (
        image.probe,
        image.open,
        lambda data: image.thumbnail(data, 8),
        lambda data: list(image.frames(data, [0])),
    ):
        with pytest.raises(Undecodable) as caught:
            read(data[:40])
        assert caught.value.reason in image.reasons


def test_the_frame_at_a_time_is_the_one_that_is_shown() -> None:
    image, data = media.DEFAULT, movie("PNG", noises(4), duration=[100, 200, 100, 100])
    every = list(frames(data))
    times = [0, 0.05, 0.1, 0.29, 0.3, 0.45, 9]
    assert list(image.frames(data, times)) == [every[place] for place in (0, 0, 1, 1, 2, 3, 3)]
    assert list(image.frames(data, [])) == []
    assert list(image.extract(data, [frame.span for frame in every])) == [frame.data for frame in every]


@pytest.mark.parametrize("data", [encoded(noise(8, 8), "PNG"), movie("TIFF", noises(3))])
def test_without_times_every_moment_shows_the_first_frame(data: bytes) -> None:
    assert [frame.data for frame in media.DEFAULT.frames(data, [0, 5])] == [next(frames(data)).data] * 2


def test_bytes_of_no_known_format_are_of_the_first_medium() -> None:
    assert media.sniffed(b"hello", ["image"]) is media.DEFAULT


def test_an_unknown_medium_is_named() -> None:
    with pytest.raises(InputError, match=r"^imag: not a medium; did you mean 'image'\?$"):
        media.of("imag")


def test_an_image_that_does_not_fit_into_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(noise(200, 100), "PNG")
    monkeypatch.setattr(media, "MOST_IMAGE_BYTES", len(data))
    assert media.DEFAULT.open(data).width == 200
    with pytest.raises(Undecodable) as caught:
        media.DEFAULT.open(data + b"\0")
    assert caught.value.reason == "too_many_bytes" and caught.value.reason in media.DEFAULT.reasons
