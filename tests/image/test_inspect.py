from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pydantic import ValidationError

from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.errors import Reject
from curate.image.inspect import Inspect
from tests.codec import pictures


def inspected(stage: Inspect, *data: bytes) -> pa.Table:
    prepared = [stage.prepare(Sample(item, decode)) for item in data]
    batch = Batch(pa.table({"key": [f"{i:032x}" for i in range(len(data))]}), prepared)
    schema = stage.schema().append(pa.field("reject", pa.string()))
    return pa.table(stage.process(batch), schema=schema)


def verdict(data: bytes, **parameters: Any) -> str | None:
    return inspected(Inspect(**parameters), data).column("reject")[0].as_py()


PNG = pictures.encoded(pictures.gradient(96, 48), "PNG")
TINY = pictures.encoded(Image.new("RGB", (1, 1)), "PNG")
GIF = pictures.encoded(
    Image.new("RGB", (40, 40), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (40, 40), "blue")]
)


def test_facts() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = pictures.encoded(pictures.gradient(96, 48), "JPEG", exif=exif)
    rgba = pictures.encoded(Image.new("RGBA", (64, 64)), "PNG")
    table = inspected(Inspect(), PNG, jpeg, GIF, rgba)
    assert table.drop_columns(["reject"]).schema.equals(Inspect().schema())
    assert table.drop_columns(["mode"]).to_pylist() == [
        dict(zip(table.drop_columns(["mode"]).column_names, row, strict=True))
        for row in [
            (96, 48, 2.0, "png", 1, 1, False, None),
            (48, 96, 0.5, "jpeg", 1, 6, False, None),
            (40, 40, 1.0, "gif", 2, 1, False, None),
            (64, 64, 1.0, "png", 1, 1, True, None),
        ]
    ]


@pytest.mark.parametrize(
    ("data", "parameters", "reason"),
    [
        (TINY, {}, "too_small"),
        (TINY, {"min_side": 1}, None),
        (PNG, {"min_side": 48}, None),
        (PNG, {"min_side": 49}, "too_small"),
        (PNG, {"max_side": 95}, "too_large"),
        (PNG, {"max_side": 96}, None),
        (PNG, {"max_aspect": 1.9}, "aspect"),
        (PNG, {"max_aspect": 2.0}, None),
        (GIF, {}, None),
        (GIF, {"animated": "reject"}, "animated"),
        (PNG, {"formats": ["jpeg"]}, "format"),
        (PNG, {"formats": ["jpeg", "png"]}, None),
    ],
)
def test_rules(data: bytes, parameters: dict[str, Any], reason: str | None) -> None:
    assert verdict(data, **parameters) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"text named .jpg", "not_an_image"),
        (pictures.encoded(pictures.noise(), "JPEG")[:900], "truncated"),
        (pictures.png_bomb(), "too_many_pixels"),
        (pictures.text_bomb(), "metadata_bomb"),
    ],
)
def test_what_cannot_be_decoded_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Reject) as caught:
        Inspect(min_side=1).prepare(Sample(data, decode))
    assert caught.value.reason == reason


def test_a_refused_picture_is_not_decoded() -> None:
    def never(data: bytes, max_pixels: int) -> Image.Image:
        raise AssertionError("decoded")

    found, reason = Inspect().prepare(Sample(TINY, never))
    assert (found.width, reason) == (1, "too_small")


def test_formats_are_checked_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match="'jpg' is not decoded here; choose from jpeg, png"):
        Inspect(formats=["jpg"])


def test_threads_do_not_enter_the_fingerprint() -> None:
    assert Inspect(threads=7).parameters() == Inspect().parameters()
    assert pickle.loads(pickle.dumps(Inspect(min_side=3))) == Inspect(min_side=3)
    assert all(info.description for info in Inspect.model_fields.values())
