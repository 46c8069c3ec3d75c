"""Response headers by which a host says that its images are not for training.

X-Robots-Tag: de facto, with the directives noai and noimageai. tdm-reservation: TDM Reservation Protocol (W3C community
group, 2024), section 4.1. Content-Usage: IETF AIPREF (draft-ietf-aipref-attach), a dictionary (RFC 9651, 3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from email.message import Message

from curate.acquire.fetch.codes import Failure

_WITH_VALUE = {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
"""Directives that have a colon themselves; before any other colon stands the name of a bot."""
_NAMED = re.compile(r"\s*([A-Za-z0-9._*-]+)\s*:(.*)", re.S)
_STRING = re.compile(r'"(?:[^"\\]|\\.?)*("|\Z)', re.S)
"""A string, or one without an end, which reaches to the end of its line: so each character is read once."""
LONGEST_DETAIL = 200


class OptOut:
    def __init__(self, kinds: Iterable[str], directives: Iterable[str], product: str) -> None:
        """Raises ValueError for a kind that is not in KINDS."""
        self._directives = frozenset(directive.lower() for directive in directives)
        self._product = product.lower()
        known: dict[str, tuple[str, Callable[[Sequence[str]], bool]]] = {
            "x-robots-tag": ("opt_out_x_robots_tag", self._forbidden),
            "tdm-reservation": ("opt_out_tdm_reservation", is_reserved),
            "content-usage": ("opt_out_content_usage", forbids_training),
        }
        self._checks = []
        for kind in kinds:
            if kind not in known:
                raise ValueError(f"opt_out: {kind!r} is unknown; choose from {', '.join(known)}")
            self._checks.append((kind, *known[kind]))

    def check(self, headers: Message) -> None:
        """Raises Failure: opt_out_x_robots_tag, opt_out_tdm_reservation, opt_out_content_usage."""
        for name, code, says_no in self._checks:
            lines = headers.get_all(name, ())
            if says_no(lines):
                raise Failure(code, "; ".join(f"{name}: {line}" for line in lines)[:LONGEST_DETAIL])

    def _forbidden(self, lines: Sequence[str]) -> bool:
        return any(robots_directives(line, self._product) & self._directives for line in lines)


def robots_directives(line: str, product: str) -> set[str]:
    """The directives of a line of X-Robots-Tag that concern `product`: those without a bot's name, and those after ours
    or `*`. A name holds until the next one, or the end of its line. `none` means noindex and nofollow."""
    found: set[str] = set()
    concerns_us = True
    for part in line.lower().split(","):
        named = _NAMED.fullmatch(part)
        if named and named[1] not in _WITH_VALUE:
            concerns_us = named[1] in ("*", product)
            part = named[2]
        directive = part.strip()
        if concerns_us and directive:
            found |= {"noindex", "nofollow"} if directive == "none" else {directive}
    return found


def is_reserved(lines: Sequence[str]) -> bool:
    return any(part.strip() == "1" for line in lines for part in line.split(","))


def forbids_training(lines: Sequence[str]) -> bool:
    """Whether the dictionary in these lines has train-ai=n. If a key is repeated, its last value counts (RFC 9651,
    4.2.2). The rest of the field need not be valid: a string ends with its line."""
    answer = ""
    plain = [_STRING.sub(lambda found: '""' if found[1] else found[0], line) for line in lines]
    for member in ",".join(plain).split(","):
        key, _, rest = member.partition(";")[0].partition("=")
        if key.strip() == "train-ai":
            answer = rest.strip()
    return answer == "n"
