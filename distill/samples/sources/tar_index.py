"""What is in one tar of a WebDataset that others wrote: a row per sample, as an index of ours has it.

Members that follow each other with the same stem (the path up to the first dot of its last part) are a sample. One pass
over the headers; of pictures, the first bytes are read too, for width and height, and of other members for a digest. A
key is made of the picture's stem, size and first bytes, so it is the same wherever the tars lie and however they are
called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from curate.codec.images import probe
from curate.codec.tars import Member, members
from curate.core.errors import Undecodable
from curate.core.hashing import make_key
from curate.core.store.storage import Storage

PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "avif", "bmp", "tif", "tiff", "jp2", "jpe", "jfif", "j2k", "img")
"""Extensions of the picture of a sample; of several, the first in this order."""
CLASS = "cls"
"""Extension of a member that holds the sample's class: its text becomes a column of this name."""

_HEAD = 32 << 10
_KEY_BYTES = 4 << 10
_LONGEST_CLASS = 1 << 10
_MEMBER_BYTES = 64 << 10
_BLOCK = 8 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_SKIPPED = re.compile(r"__[^/]*__($|/)")


@dataclass
class TarIndex:
    rows: list[dict[str, Any]] = field(default_factory=list)
    without_picture: int = 0
    """Samples that have no member with an extension of PICTURES."""
    broken: str = ""
    """What is wrong with the tar, "" for nothing; what lies before that place is in `rows`."""


@dataclass
class _Sample:
    stem: str
    members: dict[str, Member] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By extension: what the bytes of a member say."""


def index_tar(storage: Storage, name: str) -> TarIndex:
    """Raises OSError where the tar cannot be read at all."""
    found = TarIndex()
    with _opened(storage, name) as file:
        found.broken = _packed(file)
        for sample in _samples(file, found) if not found.broken else ():
            row = _row(sample)
            if row is None:
                found.without_picture += 1
            else:
                found.rows.append({"row": len(found.rows), **row})
    return found


def _opened(storage: Storage, name: str) -> IO[bytes]:
    path = storage.path(name)
    if storage.local:
        return open(path, "rb")
    return storage.fs.open(path, "rb", block_size=_BLOCK, cache_type="readahead")


def _packed(file: IO[bytes]) -> str:
    start = file.read(8)
    kind = next((name for magic, name in _PACKED.items() if start.startswith(magic)), "")
    return f"it is packed by {kind}, and samples are read out of the middle: unpack it" if kind else ""


def _samples(file: IO[bytes], found: TarIndex) -> Iterator[_Sample]:
    """Samples in order; the one in which a tar breaks is dropped unless its picture is whole."""
    current = _Sample("")
    for member in members(file):
        if member.reject in ("truncated_tar", "corrupt_tar"):
            found.broken = f"{member.detail or member.reject}"
        split = _split(member.name)
        if member.reject or split is None:
            continue
        stem, extension = split
        if stem != current.stem or extension in current.members:
            if current.members:
                yield current
            current = _Sample(stem)
        current.members[extension] = member
        current.facts[extension] = _facts(file, extension, member)
    if current.members:
        yield current


def _split(path: str) -> tuple[str, str] | None:
    """(stem, extension) of a member; None for those that belong to no sample."""
    folder, slash, name = path.rpartition("/")
    base, dot, extension = name.partition(".")
    if not base or not dot or _SKIPPED.match(path):
        return None
    return folder + slash + base, extension.lower()


def _facts(file: IO[bytes], extension: str, member: Member) -> dict[str, Any]:
    """Read while the file stands there, so that a remote tar is read forward only."""
    if extension.rpartition(".")[2] not in PICTURES:
        data = _span(file, member.offset, min(member.size, _MEMBER_BYTES))
        facts: dict[str, Any] = {"digest": hashlib.blake2b(data, digest_size=8).digest()}
        if extension == CLASS and member.size <= _LONGEST_CLASS:
            facts[CLASS] = data.decode("utf-8", "replace").strip()
        return facts
    head = _span(file, member.offset, min(member.size, _HEAD))
    width, height = _size(head) or _size(head + _span(file, member.offset + len(head), member.size - len(head))) or (
        None, None,
    )  # fmt: skip
    start = hashlib.blake2b(head[:_KEY_BYTES], digest_size=16).hexdigest()
    return {"width": width, "height": height, "start": start, "digest": bytes.fromhex(start)}


def _span(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        found = probe(data)
    except Undecodable:
        return None
    return found.width, found.height


def _row(sample: _Sample) -> dict[str, Any] | None:
    """A row of the index without its shard; None for a sample without a picture."""
    extension = _picture(sample)
    if extension is None:
        return None
    member, facts = sample.members[extension], sample.facts[extension]
    row = {
        "name": sample.stem, "key": make_key("webdataset", f"{sample.stem}/{member.size}/{facts['start']}"),
        "ext": extension, "offset": member.offset, "size": member.size,
        "width": facts["width"], "height": facts["height"],
    }  # fmt: skip
    rest = hashlib.blake2b(digest_size=8)
    for other, place in sample.members.items():
        if other != extension:
            prefix = "text" if other == "txt" else other
            row |= {f"{prefix}_offset": place.offset, f"{prefix}_size": place.size}
            rest.update(f"{other}/{place.size}/".encode() + sample.facts[other]["digest"])
    row["members"] = int.from_bytes(rest.digest(), "little", signed=True)
    named = sample.facts.get(CLASS, {})
    return row | ({CLASS: named[CLASS]} if CLASS in named else {})


def _picture(sample: _Sample) -> str | None:
    """Extension of the picture; `left.jpg` and the like count where there is no plain one."""
    for plain in (True, False):
        known = [item for item in sample.members if item.rpartition(".")[2] in PICTURES and plain == ("." not in item)]
        if known:
            return min(known, key=lambda item: PICTURES.index(item.rpartition(".")[2]))
    return None
