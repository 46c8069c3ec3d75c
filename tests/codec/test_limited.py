from __future__ import annotations

import io
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from curate.codec import images, limited
from curate.core.child import Ended, Limits, Reader, Warm
from curate.core.errors import Reject, StorageError, Undecodable
from tests.codec import hostile, make_images

PHOTO = make_images.encoded(make_images.gradient(640, 480), "JPEG")


@dataclass
class Bytes:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_at(self, offset: int, size: int, /) -> bytes:
        return self.data[offset : offset + size]


@pytest.mark.parametrize("source", [PHOTO, Bytes(PHOTO)], ids=["bytes", "reader"])
def test_a_thumbnail_is_small(source: bytes | Reader) -> None:
    small = limited.thumbnail(source, 96)
    assert isinstance(small, bytes)
    image = Image.open(io.BytesIO(small))
    assert (image.format, image.size) == ("WEBP", (96, 72))
    assert image.convert("RGB").getpixel((95, 0))[0] > 200  # type: ignore[index]


@pytest.mark.parametrize("name", hostile.FORMATS)
def test_every_format_is_decoded_without_files(name: str) -> None:
    data = make_images.encoded(make_images.noise(48, 40), name)
    assert isinstance(limited.thumbnail(data, 96), bytes)
    assert limited.probe(data) == images.probe(data)


def test_hostile_files_give_a_thumbnail_or_the_reason_of_the_decoder() -> None:
    for number, data in enumerate(hostile.files(48)):
        found = limited.thumbnail(data, 96, 60.0)
        assert (found.reason if isinstance(found, Reject) else "") == _reason(data), number


def _reason(data: bytes) -> str:
    try:
        images.decode(data)
    except Undecodable as error:
        return error.reason
    return ""


@pytest.mark.parametrize(("decoder", "reason"), [("crash", "decoder_died"), ("sleep", "decoder_timeout")])
def test_a_crash_and_a_deadline_are_reasons(monkeypatch: pytest.MonkeyPatch, decoder: str, reason: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(limited, "CHILD", f"tests.core.bad_children:{decoder}")
    with closing(Warm("tests.core.bad_children")) as warm:
        monkeypatch.setattr(limited, "_warm", warm)
        found = limited.thumbnail(PHOTO, 96, 0.5)
    assert isinstance(found, Reject)
    assert found.reason == reason


@pytest.mark.parametrize("answer", [b"", b"done", b"reject\nodd\nx", b"reject\n\xff", b"other\n", b'done\n{"a": NaN}'])
def test_what_a_hostile_decoder_answers_is_checked(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    def call(_: object, __: str, ___: bytes, ____: Limits, _____: object) -> Ended:
        return Ended(answer)

    monkeypatch.setattr(limited.Warm, "call", call)
    found = limited.probe(PHOTO)
    assert isinstance(found, Reject)
    assert found.reason == "decoder_died"


NEGATIVE = b'{"width":1,"height":-1,"format":"jpeg","frames":1,"orientation":1,"mode":"RGB","alpha":false}'


@pytest.mark.parametrize("said", [b"[" * 100_000, b'{"width": "x"}', NEGATIVE], ids=["nested", "types", "negative"])
def test_an_answer_that_makes_no_sense_is_a_reason(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited._warm, "call", lambda *_: Ended(b"done\n" + said))
    assert [limited.probe(b"x"), limited.thumbnail(b"x", 96)] == [limited.NO_SENSE] * 2


def test_a_slow_store_is_not_a_reason_against_an_image() -> None:
    class Slow(Bytes):
        def read_at(self, offset: int, size: int, /) -> bytes:
            time.sleep(1.5)
            return super().read_at(offset, size)

    with pytest.raises(StorageError, match=r"^reading an image took 1.5 s of 1 s; expected"):
        limited.thumbnail(Slow(PHOTO), 96, 1.0)
