import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch.body import MOST_LAYERS, MOST_MEMBERS, decode
from curate.acquire.fetch.codes import Failure


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS = {"gzip": gzip.compress, "X-GZIP": gzip.compress, "deflate": zlib.compress, " Deflate": raw_deflate}


@given(st.binary(max_size=300), st.sampled_from(sorted(ENCODERS)))
def test_round_trip(data: bytes, encoding: str) -> None:
    assert decode(ENCODERS[encoding](data), encoding, 300) == data


def test_several_encodings_and_none() -> None:
    assert decode(gzip.compress(zlib.compress(b"abc")), "deflate, identity, gzip", 100) == b"abc"
    assert decode(b"abc", "identity", 10) == b"abc"


def test_members_and_padding_of_gzip() -> None:
    assert decode(gzip.compress(b"abc", mtime=0) + gzip.compress(b"def") + bytes(8), "gzip", 6) == b"abcdef"


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_a_bomb_is_not_expanded(encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(2**24))
    assert len(decode(bomb, encoding, 2**24)) == 2**24
    with pytest.raises(Failure, match=r"encoding: .*expands to more than 1000 bytes"):
        decode(bomb, encoding, 1000)


def test_layers_and_members_without_end() -> None:
    """Each costs as much as the whole body."""
    data = b"abc"
    for _ in range(MOST_LAYERS):
        data = gzip.compress(data)
    assert decode(data, ", ".join(["gzip"] * MOST_LAYERS), 100) == b"abc"
    with pytest.raises(Failure, match=f"encoding: {MOST_LAYERS + 1} encodings; at most {MOST_LAYERS} are undone"):
        decode(gzip.compress(data), ", ".join(["gzip"] * (MOST_LAYERS + 1)), 1000)
    assert decode(gzip.compress(b"") * MOST_MEMBERS, "gzip", 100) == b""
    with pytest.raises(Failure, match=f"encoding: gzip: more than {MOST_MEMBERS} members"):
        decode(gzip.compress(b"") * 50_000, "gzip", 100)


def test_a_bomb_of_members() -> None:
    with pytest.raises(Failure, match="expands to more than 100 bytes"):
        decode(gzip.compress(bytes(60)) * 2, "gzip", 100)


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (b"abc", "gzip", "encoding: gzip: "),
        (b"\xff\xffabc", "deflate", "encoding: deflate: "),
        (gzip.compress(b"a" * 1000, mtime=0)[:-10], "gzip", "encoding: the gzip stream ends too early"),
        (b"abc", "br", "encoding: 'br' is not supported"),
        (b"abc", "gzip, zstd", "encoding: 'gzip, zstd' is not supported"),
    ],
)
def test_what_cannot_be_decoded(data: bytes, encoding: str, message: str) -> None:
    with pytest.raises(Failure, match=message):
        decode(data, encoding, 10_000)
