"""The bytes of samples, and thumbnails of them, for pages: decoded in limited processes, since they are others'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import pyarrow as pa

from curate.codec import formats, limited, media
from curate.codec.members import member_columns, read_members
from curate.core.errors import CurateError, InputError, Reject
from curate.core.hashing import digest
from curate.core.nouns import tombstones
from curate.core.nouns.pools import Shard, read_pool, read_shards
from curate.core.reader import Reader
from curate.core.store.storage import Storage, open_storage
from curate.engine.record.runs import RunRecord
from curate.html.thumbnails import MISSING, Thumbnail

COLUMNS = ("key", "source_id", "name", "ext", "sha256", *tombstones.COLUMNS)

AHEAD_BYTES = 8 << 20
"""Larger images are decoded one at a time."""


@dataclass(frozen=True)
class SampleFile:
    """A sample of a shard, whose bytes are read when they are asked for."""

    storage: Storage
    shard: Shard
    row: int
    about: dict[str, Any]
    """COLUMNS of the pool, and those that `read_members` needs."""

    @classmethod
    def of(cls, run: RunRecord, shard: str, row: int) -> Self:
        """Raises InputError for a shard or a row that no pool of the run has."""
        pools = {output["base"] for output in run.outputs.values() if output["base"].startswith("pools/")}
        held = next((found for base in sorted(pools) if (found := _shards(run.storage.url, base).get(shard))), None)
        if held is None or not 0 <= row < held.rows:
            raise InputError(f"shard {shard[:80]!r}, row {row}: run {run.run_id} has no such sample")
        [about] = _table(run.storage.url, held.table, member_columns([held])).slice(row, 1).to_pylist()
        return cls(run.storage, held, row, about)

    @property
    def digest(self) -> str:
        """The same for the same bytes of a workspace. In others it differs: anyone can write a digest into a list, and
        would see what another workspace has."""
        return digest([self.storage.url, self.about["sha256"] or [self.shard.id, self.row]])

    def tombstoned(self, known: tombstones.Tombstones) -> bool:
        """Whether a takedown may have removed its bytes."""
        return bool(known.mask(pa.Table.from_pylist([self.about]))[0])

    def read(self) -> Reader | Reject:
        """Its bytes, or why there are none."""
        if self.about["offset"] is None and self.shard.tar:
            return Reject("no_bytes", MISSING.detail)
        rows = {name: [value] for name, value in self.about.items()}
        try:
            return next(iter(read_members(self.storage, self.shard, rows)))
        except (CurateError, OSError) as error:  # its shard is gone, or the store fails
            return error if isinstance(error, Reject) else Reject("gone", str(error))

    def thumbnail(self, side: int, frames: int = 1) -> Thumbnail:
        """A WebP of at most `side` pixels on the longer side, never enlarged; or why there is none. frames: of a
        video, side by side."""
        try:
            data = self.read()
            if isinstance(data, Reject):
                raise data
            medium = media.sniffed(data, tuple(media.MEDIA))
            frames = frames if medium.film is not None else 1
            small = _small(medium, data, side, frames)
        except Reject as error:
            return Thumbnail(reason=error.reason.replace("_", " "), detail=error.detail)
        width, height = formats.webp_size(small)
        return Thumbnail(small, width // frames, height, frames)


def small_images(files: Sequence[SampleFile], side: int) -> Iterator[bytes]:
    """A WebP of each image, decoded in one process; empty for a sample that has none, and for other media."""
    found = [file.read() for file in files]
    data = [one.bytes() if isinstance(one, Reader) and one.size <= AHEAD_BYTES else b"" for one in found]
    images = [one if media.DEFAULT.sniff(one[: formats.SNIFF_BYTES]) else b"" for one in data]
    made = limited.thumbnails([one for one in images if one], side)
    for one in images:
        small = next(made) if one else b""
        yield small if isinstance(small, bytes) else b""


def _small(medium: media.Medium, data: Reader, side: int, frames: int) -> bytes:
    if medium.film is not None and frames > 1:
        return medium.film(data, side, frames)
    if medium is not media.DEFAULT:
        return medium.thumbnail(data, side)
    if data.size > media.MOST_IMAGE_BYTES:
        raise Reject("too_many_bytes", f"{data.size:,} bytes; at most {media.MOST_IMAGE_BYTES:,} are read")
    small = limited.thumbnail(data.bytes(), side)
    if isinstance(small, Reject):
        raise small
    return small


@lru_cache(maxsize=8)
def _shards(url: str, base: str) -> dict[str, Shard]:
    return {shard.id: shard for shard in read_shards(open_storage(url), base)}


@lru_cache(maxsize=32)
def _table(url: str, path: str, columns: tuple[str, ...]) -> pa.Table:
    return read_pool(open_storage(url), path, list(dict.fromkeys((*COLUMNS, *columns))))
