"""Verdicts of people over the pairs of a blind page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from curate.caption.compare.statistics import Interval, Wins
from curate.caption.compare.tally import KEY, Tally, Verdicts, read_key, read_verdicts, tally
from curate.core.errors import InputError
from curate.core.store.storage import open_storage

__all__ = ["Interval", "Tally", "Wins", "tally_of"]


def tally_of(folder: str, files: Sequence[str]) -> Tally:
    """`folder`: path or URL of the page's folder, which has its key; `files`: downloaded verdicts, one file per person.
    Raises InputError."""
    place = folder.removesuffix("/index.html").removesuffix("/judge.html")
    try:
        key = read_key(open_storage(place).read(KEY), f"{place}/{KEY}")
    except OSError:
        raise InputError(f"{place}: no {KEY}; give the folder that caption.compare wrote") from None
    found: list[tuple[str, Verdicts]] = []
    people: dict[str, str] = {}
    for file in files:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise InputError(f"{file}: cannot read the verdicts ({error.strerror})") from None
        verdicts = read_verdicts(data, file, key)
        person = verdicts.name or file
        if person in people:
            raise InputError(f"{people[person]}, {file}: both are by {person}; give the last file of each person")
        people[person] = file
        found.append((Path(file).stem, verdicts))
    return tally(key, found)
