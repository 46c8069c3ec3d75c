"""`video.inspect`: what is known of a video before it is decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest

from curate.core.contracts import Batch, Sample
from curate.core.errors import Undecodable
from curate.core.reader import as_reader
from curate.text.clean.clean import Clean
from curate.video.facts import SCHEMA as OF_LOOK
from curate.video.inspect import SCHEMA, Inspect
from tests.codec.video.make_videos import turned, video
from tests.codec.video.test_subtitles import mov, titled


def facts(data: bytes, **parameters: object) -> dict[str, object]:
    stage = Inspect(**parameters)  # type: ignore[arg-type]
    prepared = stage.prepare(Sample(data, lambda encoded, **_: as_reader(encoded)))
    columns = stage.process(Batch(pa.table({"key": ["a"]}), [prepared]))
    assert list(columns) == SCHEMA.names
    (row,) = pa.table(columns, SCHEMA).to_pylist()
    return row  # type: ignore[no-any-return]


def test_facts_of_the_header() -> None:
    assert facts(video("mp4 h264")) == {
        "format": "mp4", "codec": "h264", "pixels": "yuv420p", "rotation": 0, "aspect": 1.5, "fps": 25.0,
        "has_audio": True, "subtitles": None,
    }  # fmt: skip
    side = facts(turned(video("mp4 h264"), 90))
    assert side["aspect"] == pytest.approx(2 / 3) and side["rotation"] in (90, 270)
    assert facts(video("webm vp9"))["has_audio"] is False


def test_subtitles_are_a_column_of_text() -> None:
    tracks = [("mov_text", lang, [mov(f"<b>{line}</b> &amp; more")]) for lang, line in (("eng", "Hi"), ("deu", "Tag"))]
    data = titled("mp4", *tracks)
    assert facts(data)["subtitles"] == "<b>Hi</b> &amp; more"
    assert facts(data, languages=("deu", "ger"))["subtitles"] == "<b>Tag</b> &amp; more"
    assert facts(data, languages=("fra",))["subtitles"] is facts(data, subtitles=False)["subtitles"] is None
    assert facts(data, max_text=5)["subtitles"] == "<b>Hi"
    clean = Clean(column="subtitles", output="said")
    batch = Batch(pa.table({"key": ["a"], "subtitles": [facts(data)["subtitles"]]}))
    assert clean.process(batch)["said"].to_pylist() == ["Hi & more"]


def test_a_file_that_is_not_a_video_has_a_reason() -> None:
    for data, reason in ((b"", "empty"), (b"text" * 99, "not_a_video")):
        with pytest.raises(Undecodable) as caught:
            facts(data)
        assert caught.value.reason == reason


def test_a_look_writes_other_columns() -> None:
    assert not set(SCHEMA.names) & set(OF_LOOK.names)
