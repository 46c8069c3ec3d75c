from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from curate.codec.images import decode
from curate.core.contracts import Child, Sample
from curate.core.errors import Reject
from curate.core.recipe.registry import resolve
from curate.image.frames import Frames
from tests.codec import make_images
from tests.codec.test_frames import movie, noises

GIF = movie("GIF", noises(5), duration=100)
STILL = make_images.encoded(make_images.noise(), "JPEG")


def children(data: bytes, **parameters: Any) -> list[Child]:
    def never(data: bytes, max_pixels: int) -> Image.Image:
        raise AssertionError("decoded")

    return list(Frames(namespace="frames", **parameters).children(Sample(data, never, {"key": "0" * 32})))


def test_frames_of_an_animation() -> None:
    found = children(GIF)
    assert [child.span for child in found] == [
        {"frame": n, "start": round(n / 10, 6), "stop": round((n + 1) / 10, 6)} for n in range(5)
    ]
    assert {(child.ext, child.meta["frames"]) for child in found} == {("png", 5)}
    assert len({child.data for child in found}) == 5
    assert found == children(GIF)


def test_pages_of_a_tiff() -> None:
    found = children(movie("TIFF", noises(3)))
    assert [child.span for child in found] == [{"page": 0}, {"page": 1}, {"page": 2}]
    assert [decode(child.data).tobytes() for child in found] == [image.tobytes() for image in noises(3)]


@pytest.mark.parametrize(
    ("parameters", "numbers"),
    [
        ({"every": 2}, [0, 2, 4]),
        ({"most": 2}, [0, 2]),
        ({"every": 2, "most": 1}, [0]),
        ({"every": 9}, [0]),
        ({"most": 99}, [0, 1, 2, 3, 4]),
    ],
)
def test_every_and_most_select_frames(parameters: dict[str, int], numbers: list[int]) -> None:
    everything = children(GIF)
    assert children(GIF, **parameters) == [everything[number] for number in numbers]


def test_stills_are_kept_or_skipped() -> None:
    assert children(STILL) == [Child({"frame": 0}, STILL, "jpg", {"frames": 1})]
    assert children(STILL, stills="skip") == []
    assert len(children(GIF, stills="skip")) == 5


@pytest.mark.parametrize(
    ("data", "parameters", "reason"),
    [
        (b"", {}, "empty"),
        (b"text named .gif", {}, "not_an_image"),
        (GIF[:1000], {}, "truncated"),
        (GIF, {"max_pixels": 255}, "too_many_pixels"),
        (STILL, {"max_pixels": 255}, "too_many_pixels"),
        (GIF, {"most_pixels": 1279}, "frame_bomb"),
        (make_images.png_bomb(), {}, "too_many_pixels"),
    ],
)
def test_a_parent_that_cannot_be_split_is_rejected(data: bytes, parameters: dict[str, int], reason: str) -> None:
    with pytest.raises(Reject) as caught:
        children(data, **parameters)
    assert caught.value.reason == reason


def test_a_bad_frame_in_the_middle_rejects_the_parent() -> None:
    data = bytearray(movie("PNG", noises(6)))
    data[len(data) // 2 - 100 : len(data) // 2 + 100] = bytes(200)
    frames = Frames(namespace="frames").children(Sample(bytes(data), decode))
    assert next(frames).span["frame"] == 0
    with pytest.raises(Reject, match="corrupt"):
        list(frames)


def test_children_are_images() -> None:
    for child in children(movie("WEBP", noises(3), duration=40)):
        assert Image.open(io.BytesIO(child.data)).format == "PNG"


def test_parameters() -> None:
    stage = Frames(namespace="frames", every=2)
    assert resolve("image.frames") is Frames
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert all(info.description for name, info in Frames.model_fields.items() if name != "namespace")
    with pytest.raises(ValidationError, match="it names a folder"):
        Frames(namespace="a/b")
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Frames(namespace="frames", every=0)
