"""Indexes one tar of any WebDataset: a row per sample, with the columns of a packed dataset's index.

One pass reads the headers, the first bytes of images (for width and height) and a digest of the other members. A key is
derived from the image's stem, size and first bytes, so it does not depend on the name or place of the tar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from curate.codec.groups import MemberGroup, group_members, split_name
from curate.codec.images import probe
from curate.codec.listing import open_file
from curate.codec.tars import Member, members
from curate.core.errors import Undecodable
from curate.core.hashing import make_key
from curate.core.store.storage import Storage
from distill.samples.sources.clips import frame_number

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "avif", "bmp", "tif", "tiff", "jp2", "jpe", "jfif", "j2k", "img")
"""Extensions of a sample's image, in order of preference. The choice of a sample's image enters its key."""
CLASS = "cls"
"""Extension of a member with the sample's class; its text becomes a column of this name."""

_HEAD_BYTES = 32 << 10
_KEY_BYTES = 4 << 10
_CLASS_BYTES = 1 << 10
_DIGEST_BYTES = 64 << 10
_COMPRESSION = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip",
}  # fmt: skip


@dataclass
class TarIndex:
    rows: list[dict[str, Any]] = field(default_factory=list)
    without_image: int = 0
    """Samples without a member of an extension in IMAGES."""
    error: str = ""
    """Why the rest of the tar cannot be read, or ""; `rows` are the samples before that place."""


@dataclass(frozen=True)
class _Facts:
    """Properties of a member's bytes."""

    digest: bytes
    text: str | None = None
    """Content of a CLASS member."""
    start: str = ""
    """Digest of an image's first bytes; it enters the key."""
    size: tuple[int, int] | None = None
    """(width, height) of an image; None if they cannot be read."""


def index_tar(storage: Storage, name: str) -> TarIndex:
    """Raises OSError if the tar cannot be read at all."""
    found = TarIndex()
    with open_file(storage, name) as file:
        found.error = _compression(file)
        facts: dict[int, _Facts] = {}
        row = None
        for group in group_members(_members(file, found, facts)) if not found.error else ():
            row = _row(group, {suffix: facts.pop(member.offset) for suffix, member in group.members.items()})
            if row is None:
                found.without_image += 1
            else:
                found.rows.append({"row": len(found.rows), **row})
        if found.error and row is not None and frame_number(row["ext"], IMAGES) is not None:
            found.rows.pop()
            found.error = f"{found.error}, perhaps within the frames of {row['name']}"
    return found


def _compression(file: IO[bytes]) -> str:
    start = file.read(8)
    kind = next((name for magic, name in _COMPRESSION.items() if start.startswith(magic)), "")
    return f"it is compressed with {kind}, but samples are read at random positions: decompress it" if kind else ""


def _members(file: IO[bytes], found: TarIndex, facts: dict[int, _Facts]) -> Iterator[Member]:
    """Intact members that belong to a sample. Adds their facts by offset before it goes to the next header, so that a
    remote tar is read forward only."""
    for member in members(file):
        if member.reject in ("truncated_tar", "corrupt_tar"):
            found.error = member.detail or member.reject
        split = split_name(member.name)
        if member.reject is None and split is not None:
            facts[member.offset] = _facts(file, split[1], member)
            yield member


def _facts(file: IO[bytes], suffix: str, member: Member) -> _Facts:
    if _extension(suffix) not in IMAGES:
        data = _read(file, member.offset, min(member.size, _DIGEST_BYTES))
        is_class = suffix == CLASS and member.size <= _CLASS_BYTES
        text = data.decode("utf-8", "replace").strip() if is_class else None
        return _Facts(hashlib.blake2b(data, digest_size=8).digest(), text)
    head = _read(file, member.offset, min(member.size, _HEAD_BYTES))
    size = _size(head) or _size(head + _read(file, member.offset + len(head), member.size - len(head)))
    start = hashlib.blake2b(head[:_KEY_BYTES], digest_size=16)
    return _Facts(start.digest(), None, start.hexdigest(), size)


def _extension(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        found = probe(data)
    except Undecodable:
        return None
    return found.width, found.height


def _row(group: MemberGroup, facts: dict[str, _Facts]) -> dict[str, Any] | None:
    """A row of the index without its shard; None for a sample without an image."""
    suffix = _image_suffix(group)
    if suffix is None:
        return None
    frames = _frames(group) if "." in suffix else []
    suffix = frames[0] if frames else suffix
    member, start = group.members[suffix], facts[suffix].start
    width, height = facts[suffix].size or (None, None)
    row = {
        "name": group.stem, "key": make_key("webdataset", f"{group.stem}/{member.size}/{start}"),
        "ext": suffix, "offset": member.offset, "size": member.size, "width": width, "height": height,
    }  # fmt: skip
    if frames:
        last = group.members[frames[-1]]
        row |= {"frames": len(frames), "size": last.offset + last.size - member.offset}
    rest = hashlib.blake2b(digest_size=8)
    for other, place in group.members.items():
        if other != suffix:
            if other not in frames:
                prefix = "text" if other == "txt" else other
                row |= {f"{prefix}_offset": place.offset, f"{prefix}_size": place.size}
            rest.update(f"{other}/{place.size}/".encode() + facts[other].digest)
    row["members"] = int.from_bytes(rest.digest(), "little", signed=True)
    label = facts[CLASS].text if CLASS in facts else None
    return row if label is None else row | {CLASS: label}


def _frames(group: MemberGroup) -> list[str]:
    """Suffixes of a clip's frames, in tar order; empty without two or more that lie next to each other."""
    found = [place for place, suffix in enumerate(group.members) if frame_number(suffix, IMAGES) is not None]
    together = len(found) > 1 and found[-1] - found[0] == len(found) - 1
    return list(group.members)[found[0] : found[-1] + 1] if together else []


def _image_suffix(group: MemberGroup) -> str | None:
    """Suffix of the image; one such as `left.jpg` only if there is no plain one."""
    for plain in (True, False):
        known = [suffix for suffix in group.members if _extension(suffix) in IMAGES and plain == ("." not in suffix)]
        if known:
            return min(known, key=lambda suffix: IMAGES.index(_extension(suffix)))
    return None
