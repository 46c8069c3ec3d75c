"""Members of a tar -> samples, as the WebDataset convention has it.

Members that follow each other with the same stem are one sample; the stem is the path up to the first dot of its last
part, the suffix (in lower case) all that comes after that dot. Members without a suffix and `__name__` are no samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from curate.codec.tars import Member

TEXT_SUFFIXES = ("txt", "text", "caption")
_SKIPPED = re.compile(r"__[^/]*__($|/)")


@dataclass
class Group:
    """One sample's members by suffix; or, with an empty stem, what is wrong with the tar itself."""

    stem: str
    members: dict[str, Member] = field(default_factory=dict)
    reject: str | None = None
    detail: str = ""


def split_name(path: str) -> tuple[str, str] | None:
    """(stem, suffix) of a member; None for those that belong to no sample."""
    folder, slash, name = path.rpartition("/")
    base, dot, suffix = name.partition(".")
    if not base or not dot or _SKIPPED.match(path):
        return None
    return folder + slash + base, suffix.lower()


def group_members(members: Iterable[Member]) -> Iterator[Group]:
    """Samples in the tar's order. A second member of one suffix begins another sample of the same stem.

    Where the tar is cut, a sample that lacks kinds of members which the one before it had is rejected as
    truncated_tar; otherwise all samples are whole, and a Group without a stem says that the tar is cut.
    """
    current: Group | None = None
    usual: set[str] = set()
    for member in members:
        if not member.name:  # the mark of a cut or corrupt tar: always the last
            if current is not None and member.reject == "truncated_tar" and not usual <= set(current.members):
                current.reject, current.detail = member.reject, member.detail
            else:
                if current is not None:
                    yield current
                current = Group("", {}, member.reject, member.detail)
            break
        split = split_name(member.name)
        if split is None:
            continue
        stem, suffix = split
        if current is None or current.stem != stem or suffix in current.members:
            if current is not None:
                usual = set(current.members)
                yield current
            current = Group(stem)
        current.members[suffix] = member
        if member.reject and not current.reject:
            current.reject, current.detail = member.reject, member.detail
    if current is not None:
        yield current


def pick_image(group: Group, extensions: Iterable[str]) -> tuple[str, Member] | None:
    """(extension, member) of the picture: the first whose suffix is an image extension, else the first whose last part
    is one (`left.png`)."""
    wanted = set(extensions)
    for ending in (lambda suffix: suffix, lambda suffix: suffix.rpartition(".")[2]):
        for suffix, member in group.members.items():
            if ending(suffix) in wanted:
                return ending(suffix), member
    return None
