"""Files that are made to harm a decoder: bombs, truncated and damaged files of all formats."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from tests.codec import make_images

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "JPEG2000")
IMAGES = [make_images.encoded(make_images.noise(48, 40), name) for name in FORMATS]


def files(count: int) -> Iterator[bytes]:
    """The same ones at each call."""
    rng = random.Random(0)
    made = [*_bombs(), b"", b"\0" * 4096, b"<svg/>", b"\xff\xd8\xff" + bytes(1000)]
    yield from made[:count]
    for number in range(count - len(made)):
        data = bytearray(IMAGES[number % len(IMAGES)])
        match number // len(IMAGES) % 4:
            case 0:
                del data[rng.randrange(1, len(data)) :]
            case 1:  # anywhere
                for _ in range(rng.randrange(1, 30)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            case 2:  # in the header
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(12, min(len(data), 200))] = rng.choice((0, 1, 127, 128, 255))
            case 3:  # a part twice
                at = rng.randrange(len(data))
                data[at:at] = data[rng.randrange(at + 1) :]
        yield bytes(data)


def _bombs() -> Iterator[bytes]:
    yield make_images.png_bomb()
    yield from (make_images.text_bomb(kind) for kind in (b"zTXt", b"iCCP"))
    yield make_images.webp_header(16_000, 16_000)
    # as many pixels as are allowed, from few bytes
    yield make_images.png(9_900, 9_900, 1, 0, bytes(9_900 * (9_900 // 8 + 2)))
    yield b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 9_900, 9_900, 1, 24, 0, 0, 1, 1, 0, 0)
    yield b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02"
