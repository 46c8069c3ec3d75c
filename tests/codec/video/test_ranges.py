"""A long video on a server that only answers ranges."""

from __future__ import annotations

import json

import pytest

from curate.codec.readers import FileReader
from curate.codec.video import limited
from curate.core.child import Limits
from curate.core.store.storage import open_storage
from tests.codec.test_readers import served
from tests.codec.video.make_videos import Kind, number_of, repeated

FRAMES, GROUPS, SHARE = 12, 2400, 0.05


@pytest.mark.long
def test_little_of_a_long_video_is_read() -> None:
    options = {"g": "12", "qp": "0", "preset": "ultrafast", "bf": "0"}
    data = repeated(Kind("mp4", "libx264", options=options, size=(320, 240)), FRAMES, GROUPS)
    assert len(data) > 80 << 20
    with served(len(data), head=data) as (url, sent):
        reader = FileReader(open_storage(url), "long.mp4")
        assert limited.probe(reader).frames == FRAMES * GROUPS
        places = [FRAMES * GROUPS * (2 * part + 1) // 16 for part in range(8)]
        found = list(limited.frames(reader, [40 * place for place in places]))
        order = {"times_ms": [40 * place for place in places], "side": None}
        payload = json.dumps({"function": f"{limited.CHILD}:frames", "order": order}).encode()
        once = sum(sent)
        ended = limited._warm.call(f"{limited.CHILD}:answers", payload, Limits(60, limited.MEMORY_BYTES), reader)
    assert [number_of(frame.rgb) for frame in found] == [place % FRAMES for place in places]
    assert ended.answer == b"" and ended.peak_bytes < 200 << 20
    assert once < SHARE * len(data), f"{once:,} of {len(data):,} bytes"
