import io

import numpy as np
import pytest
from PIL import Image

from curate.codec.images import decode
from curate.core.errors import Undecodable
from curate.encoders.student.pixels import decode_to, resize_to_grid


@pytest.mark.parametrize("size", [(500, 375), (90, 40), (2600, 2000)])
def test_resizing_equals_pillow(size):
    """The largest image is not contiguous in Pillow's memory."""
    image = Image.effect_mandelbrot(size, (-2, -1.5, 1, 1.5), 50).convert("RGB")
    image.putpixel((0, 0), (255, 0, 100))
    wanted = np.asarray(image.resize((96, 64), Image.Resampling.BICUBIC), dtype=int)
    found = resize_to_grid(image, 6, 4, 16)
    assert found.shape == (64, 96, 3)
    assert np.abs(found - wanted).max() <= 2
    assert (found != wanted).mean() < 0.05


@pytest.mark.parametrize(("mode", "exif"), [("RGB", 1), ("L", 1), ("CMYK", 1), ("RGB", 6)])
def test_jpegs_decode_to_pillows_pixels(mode, exif):
    image = Image.effect_mandelbrot((120, 90), (-2, -1.5, 1, 1.5), 50).convert(mode)
    tags = Image.Exif()
    tags[0x0112] = exif
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=tags)
    whole = decode(stream.getvalue())
    assert np.array_equal(decode_to(stream.getvalue(), lambda *size: size, 10**6)[..., :3], np.asarray(whole))
    wanted = resize_to_grid(whole, 5, 4, 16)
    assert np.array_equal(decode_to(stream.getvalue(), lambda *_: (80, 64), 10**6)[..., :3], wanted)
    smaller = decode_to(stream.getvalue(), lambda *_: (32, 32), 10**6)[..., :3].astype(int)
    assert smaller.shape == (32, 32, 3)
    assert np.abs(smaller - resize_to_grid(whole, 2, 2, 16)).mean() < 6
    with pytest.raises(Undecodable, match="truncated"):
        decode_to(stream.getvalue()[:-300], lambda *size: size, 10**6)
    with pytest.raises(Undecodable, match="too_many_pixels"):
        decode_to(stream.getvalue(), lambda *size: size, 10**3)


def test_resizing_keeps_orientation():
    image = Image.new("RGB", (100, 40), "white")
    image.paste((0, 0, 0), (0, 0, 50, 40))
    pixels = resize_to_grid(image, 4, 2, 8)
    assert pixels.shape == (16, 32, 3)
    assert pixels[:, :12].max() < 30
    assert pixels[:, 20:].min() > 225
