"""Thumbnails of samples, and their original bytes."""

from __future__ import annotations

from dataclasses import dataclass

from curate.api import SampleFile
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.service.auth.roles import Principal
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.samples.looking import check_pixels, looked
from curate.service.service import Service

SIDES = (160, 320, 960)
"""Pixels of the longer side."""
FRAMES = 6
"""Of a video, in a film."""
VERSION = 1
"""Increased when the same bytes make another thumbnail."""


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
    tag = digest([file.digest, side, film, VERSION])[:32]
    data = service.thumbnails.get(tag)
    if data is None:
        made = file.thumbnail(side, FRAMES if film else 1)
        if made.reason:
            return Small("", b"", made.reason)
        service.thumbnails.put(tag, made.data)
        data = made.data
    return Small(tag, data)


def _file(service: Service, who: Principal, run: str, shard: str, row: int, workspace: str | None) -> SampleFile:
    seen = looked(service, who, run, workspace)
    check_pixels(seen)
    one = seen.one
    kept = ("record", one.place.id, one.attempt_id)
    record = service.kept.get(kept, lambda: seen.run.record, f"record of run {run}", seconds=30.0)
    try:
        return SampleFile.of(record, shard, row)
    except InputError as error:
        raise NotFoundProblem(str(error)) from None
