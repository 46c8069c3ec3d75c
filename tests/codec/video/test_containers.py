from __future__ import annotations

import pytest

from curate.codec import formats
from curate.codec.video.containers import CODECS, CONTAINERS, REASONS, is_cut, sniff
from curate.core.reader import Reader
from tests.codec.make_images import encoded, noise
from tests.codec.video.make_videos import KINDS, video

NAMES = {
    "mp4": "mp4", "mov": "mp4", "mkv": "matroska", "webm": "matroska", "avi": "avi", "ts": "mpegts", "ps": "mpegps",
    "flv": "flv", "asf": "asf", "ogg": "ogg",
}  # fmt: skip
HOSTILE = {
    "sdp": b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video 5004 RTP/AVP 96\r\n",
    "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period/></MPD>',
    "image2": b"/tmp/%03d.png",
    "asf playlist": b"[Reference]\r\nRef1=http://127.0.0.1/x.asf\r\n",
    "quicktime text": b"SMILtext<smil/>",
    "text": b"hello" * 99,
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_tell_the_container(kind: str) -> None:
    data = video(kind)[: formats.SNIFF_BYTES]
    assert sniff(data) == NAMES[kind.split()[0]]
    assert formats.sniff(data) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_have_other_files_opened_is_not_a_video(name: str) -> None:
    assert sniff(HOSTILE[name]) is None


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "JPEG2000"])
def test_an_image_is_not_a_video(name: str) -> None:
    assert sniff(encoded(noise(16, 16), name)) is None


def test_a_camera_writes_times_before_its_transport_packets() -> None:
    ts = video("ts h264")
    camera = b"".join(bytes(4) + ts[at : at + 188] for at in range(0, 188 * 20, 188))
    assert sniff(camera) == "mpegts"


@pytest.mark.parametrize("kind", ["mp4 h264", "mov prores", "avi mpeg4"])
def test_a_part_that_ends_after_the_file_is_truncated(kind: str) -> None:
    data = video(kind)
    assert not is_cut(NAMES[kind.split()[0]], Reader(data))
    assert is_cut(NAMES[kind.split()[0]], Reader(data[: len(data) * 2 // 3]))


def test_what_follows_a_complete_mp4_does_not_belong_to_it() -> None:
    assert not is_cut("mp4", Reader(video("mp4 h264") + b"this is something else"))


def test_an_avi_written_to_a_pipe_does_not_know_its_size() -> None:
    data = video("avi mpeg4")
    assert not is_cut("avi", Reader(data[:4] + b"\xff" * 4 + data[8:]))


@pytest.mark.parametrize(
    ("part", "cut"),
    [
        (b"\0\0\0\0mdat", False),  # up to the end of the file
        (b"\0\0\0\7mdat", False),
        (b"\0\0\0\1mdat" + bytes(8), False),
        (b"\0\0\0\1mdat" + b"\xff" * 8, True),
        (b"\xff\xff\xff\xffmdat", True),
    ],
)
def test_sizes_that_lie_end(part: bytes, cut: bool) -> None:
    """No part is smaller than its name and size, so that each step leads on."""
    data = video("mp4 h264")
    head = data[: int.from_bytes(data[:4])]
    assert head[4:8] == b"ftyp" and is_cut("mp4", Reader(head + part + bytes(50))) == cut


def test_names_are_distinct() -> None:
    assert len(set(CODECS)) == len(CODECS)
    assert set(CONTAINERS) == set(NAMES.values())
    assert all(REASONS.values())
