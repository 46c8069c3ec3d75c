from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from PIL import Image

from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.errors import Reject
from curate.image.inspect import Inspect
from tests.codec import make_images


def inspected(stage: Inspect, *data: bytes) -> pa.Table:
    prepared = [stage.prepare(Sample(item, decode)) for item in data]
    batch = Batch(pa.table({"key": [f"{i:032x}" for i in range(len(data))]}), prepared)
    return pa.table(stage.process(batch), schema=stage.schema())


PNG = make_images.encoded(make_images.gradient(96, 48), "PNG")
TINY = make_images.encoded(Image.new("RGB", (1, 1)), "PNG")
GIF = make_images.encoded(
    Image.new("RGB", (40, 40), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (40, 40), "blue")]
)


def test_columns() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = make_images.encoded(make_images.gradient(96, 48), "JPEG", exif=exif)
    rgba = make_images.encoded(Image.new("RGBA", (64, 64)), "PNG")
    table = inspected(Inspect(), PNG, jpeg, GIF, rgba)
    assert table.drop_columns(["mode"]).to_pylist() == [
        dict(zip(table.drop_columns(["mode"]).column_names, row, strict=True))
        for row in [
            (96, 48, 2.0, "png", 1, 1, False),
            (48, 96, 0.5, "jpeg", 1, 6, False),
            (40, 40, 1.0, "gif", 2, 1, False),
            (64, 64, 1.0, "png", 1, 1, True),
        ]
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"text named .jpg", "not_an_image"),
        (make_images.encoded(make_images.noise(), "JPEG")[:900], "truncated"),
        (make_images.png_bomb(), "too_many_pixels"),
        (make_images.text_bomb(), "metadata_bomb"),
    ],
)
def test_images_that_cannot_be_decoded_are_unusable(data: bytes, reason: str) -> None:
    with pytest.raises(Reject) as caught:
        Inspect().prepare(Sample(data, decode))
    assert caught.value.reason == reason


def test_every_image_is_decoded_up_to_max_pixels() -> None:
    decoded: list[int] = []

    def spy(data: bytes, max_pixels: int) -> Image.Image:
        decoded.append(max_pixels)
        return decode(data, max_pixels=max_pixels)

    assert Inspect(max_pixels=1).prepare(Sample(TINY, spy)).width == 1 and decoded == [1]
    with pytest.raises(Reject, match="too_many_pixels: 96 x 48; at most 4607"):
        Inspect(max_pixels=96 * 48 - 1).prepare(Sample(PNG, spy))
    assert decoded == [1], "rejected by the header, before decoding"
    assert Inspect(max_pixels=96 * 48).prepare(Sample(PNG, spy)).width == 96


def test_threads_do_not_enter_the_fingerprint() -> None:
    assert Inspect(threads=7).parameters() == Inspect().parameters()
    assert pickle.loads(pickle.dumps(Inspect(max_pixels=3))) == Inspect(max_pixels=3)
    assert all(info.description for info in Inspect.model_fields.values())
