"""Groups the members of a tar into samples, by the WebDataset convention.

Consecutive members with the same stem are one sample. The stem is the path up to the first dot of the file name, the
suffix (in lower case) everything after that dot. Members without a suffix and `__name__` members belong to no sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from curate.codec.tars import Member

TEXT_SUFFIXES = ("txt", "text", "caption")
_SKIPPED = re.compile(r"__[^/]*__($|/)")


@dataclass
class MemberGroup:
    """One sample's members by suffix; or, with an empty stem, an error of the tar itself."""

    stem: str
    members: dict[str, Member] = field(default_factory=dict)
    reject: str | None = None
    detail: str = ""


SKIPPED = {
    "no_sample": "a member whose name has no extension, or begins with two underscores",
    "other_member": "a member of a sample that is neither the one that is read nor its text",
}
"""Why a member is not looked at, with the meaning."""


def split_name(path: str, *, last_dot: bool = False) -> tuple[str, str] | None:
    """(stem, suffix) of a member; None if it belongs to no sample. last_dot: the stem ends there, not at the first."""
    folder, slash, name = path.rpartition("/")
    base, dot, suffix = name.rpartition(".") if last_dot else name.partition(".")
    if not base or not dot or name.startswith(".") or _SKIPPED.match(path):
        return None
    return folder + slash + base, suffix.lower()


def group_members(
    members: Iterable[Member], skip: Callable[[str, str], None] = lambda *_: None, *, last_dot: bool = False
) -> Iterator[MemberGroup]:
    """Samples in tar order. A second member with the same suffix starts another sample of the same stem. `skip` gets
    the reason and the name of each member of no sample.

    The last sample of a truncated tar is rejected as truncated_tar if it lacks a suffix that the sample before it has.
    Otherwise all samples are complete, and a MemberGroup without a stem reports the truncation.
    """
    current: MemberGroup | None = None
    usual: set[str] = set()
    for member in members:
        if not member.name:  # reports a truncated or corrupt tar: always the last member
            if current is not None and member.reject == "truncated_tar" and not usual <= set(current.members):
                current.reject, current.detail = member.reject, member.detail
            else:
                if current is not None:
                    yield current
                current = MemberGroup("", {}, member.reject, member.detail)
            break
        split = split_name(member.name, last_dot=last_dot)
        if split is None:
            skip("no_sample", member.name)
            continue
        stem, suffix = split
        if current is None or current.stem != stem or suffix in current.members:
            if current is not None:
                usual = set(current.members)
                yield current
            current = MemberGroup(stem)
        current.members[suffix] = member
        if member.reject and not current.reject:
            current.reject, current.detail = member.reject, member.detail
    if current is not None:
        yield current


def pick_member(group: MemberGroup, extensions: Collection[str]) -> tuple[str, Member] | None:
    """(extension, member) of the sample: the first member whose suffix is one of the extensions, otherwise the first
    whose suffix ends in one (`left.png`)."""
    for suffix, member in group.members.items():
        if suffix in extensions:
            return suffix, member
    for suffix, member in group.members.items():
        last = suffix.rpartition(".")[2]
        if last in extensions:
            return last, member
    return None
