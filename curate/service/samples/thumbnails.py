"""Thumbnails of samples, and their original bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from curate.api import RunRecord, SampleFile, small_images
from curate.core.errors import CorruptError, CurateError, InputError, Reject
from curate.core.hashing import digest
from curate.core.nouns.tombstones import Tombstones, load
from curate.core.reader import Reader
from curate.core.store.storage import Storage
from curate.service.auth.roles import Principal
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.samples.looking import Looked, check_pixels, looked
from curate.service.samples.samples import get_sample
from curate.service.service import Service

SIDES = (160, 320, 960)
"""Pixels of the longer side."""
FRAMES = 6
"""Frames of a film."""
VERSION = 1
"""Increased when the same bytes make another thumbnail."""


_UNSAFE = re.compile(r"[^a-z0-9]")


@dataclass(frozen=True)
class Small:
    """`data`: WebP; empty if there is none, for a `reason` in some words. `tag` changes with the data."""

    tag: str
    data: bytes
    reason: str = ""


def get_thumbnail(
    service: Service, who: Principal, run: str, shard: str, row: int, *, side: int, film: bool, workspace: str | None
) -> Small:
    """Raises ForbiddenProblem for those who may not see pixels, and NotFoundProblem for an unknown sample."""
    if side not in SIDES:
        raise InvalidProblem(f"side: {side}: expected {', '.join(map(str, SIDES))} pixels")
    file = _file(service, who, run, shard, row, workspace)
    tag = _tag(file, side, film)
    known = _tombstones(service, who, file.storage)
    gone = file.tombstoned(known)
    if gone:
        service.thumbnails.drop(tag)
    data = None if gone else service.thumbnails.get(tag)
    if data is None:
        made = file.thumbnail(side, FRAMES if film else 1)
        if made.reason:
            return Small("", b"", made.reason)
        if not gone:
            service.thumbnails.put(tag, made.data)
        data = made.data
    return Small(tag, data)


def make_ahead(service: Service, seen: Looked, rows: Sequence[tuple[str, int]]) -> None:
    """Begin to make the thumbnails of these rows (shard, row), because a page that shows them is about to be sent."""
    try:
        record = _record(service, seen)
        files = {_tag(file, SIDES[0], False): file for file in (SampleFile.of(record, *row) for row in rows)}
        known = _tombstones(service, seen.one.who, record.storage)
    except CurateError:
        return  # the requests say why
    names = [tag for tag, file in files.items() if not file.tombstoned(known)]
    service.thumbnails.ahead(names, lambda some: small_images([files[tag] for tag in some], SIDES[0]))


def _tag(file: SampleFile, side: int, film: bool) -> str:
    return digest([file.digest, side, film, VERSION])[:32]


def _tombstones(service: Service, who: Principal, storage: Storage) -> Tombstones:
    return service.kept.get(who, ("tombstones", storage.url), lambda: load(storage), "tombstones", seconds=30.0)


def _record(service: Service, seen: Looked) -> RunRecord:
    kept = ("record", seen.one.place.id, seen.one.attempt_id)
    return service.kept.get(seen.one.who, kept, lambda: seen.run.record, f"record of run {seen.one.id}", seconds=30.0)


def get_file(service: Service, who: Principal, run: str, key: str, workspace: str | None) -> tuple[str, Reader]:
    """(a name without anything that headers or file systems mind, bytes). Raises ForbiddenProblem, NotFoundProblem."""
    check_pixels(looked(service, who, run, workspace))
    sample = get_sample(service, who, run, key, workspace)
    file = _file(service, who, run, sample.shard, sample.row, workspace)
    data = file.read()
    if isinstance(data, Reject):
        raise NotFoundProblem(f"{sample.key}: {data.reason}: {data.detail}")
    return f"{sample.key}.{_UNSAFE.sub('', file.about['ext'] or '') or 'bin'}", data


def _file(service: Service, who: Principal, run: str, shard: str, row: int, workspace: str | None) -> SampleFile:
    seen = looked(service, who, run, workspace)
    check_pixels(seen)
    try:
        return SampleFile.of(_record(service, seen), shard, row)
    except (InputError, CorruptError) as error:  # its shard is gone
        raise NotFoundProblem(str(error)) from None
