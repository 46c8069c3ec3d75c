"""The classes of an objective on labels: their names in order, fitted on training images or given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from curate.core.errors import InputError


class ClassIndex:
    """Class numbers of labels."""

    def __init__(self, names: Sequence[str], column: str, *, ignore: bool) -> None:
        """ignore: leave out labels that are not among the names, instead of raising InputError."""
        self.names, self.column, self.ignore = list(names), column, ignore
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def numbers(self, value: Any) -> list[int]:
        """The classes of a sample, each once, in order; value: what its column holds."""
        found = set[int]()
        for label in labels_of(value):
            number = self._numbers.get(label)
            if number is not None:
                found.add(number)
            elif not self.ignore:
                raise InputError(
                    f"labels/{self.column}: {label!r} is not one of the {len(self.names)} classes in classes.json; "
                    f"set outside: ignore, or train another run with it among the classes"
                )
        return sorted(found)


def labels_of(value: Any) -> list[str]:
    """The labels that a column holds: a string, a number, or a list of them."""
    items = value if isinstance(value, list) else [value]
    plain = (item for item in items if isinstance(item, str | int) and not isinstance(item, bool))
    return [text for item in plain if (text := str(item).strip())]


def classes_of(counts: Counter[str], classes: int | Sequence[str], column: str, *, ignore: bool) -> list[str]:
    """The names of classes: those given, or of a number of them, the most frequent first, then by name.

    counts: images by label. Raises InputError for images without any of the classes, for fewer labels than a number of
    classes, and for more if they are not to be ignored."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    if not (counts.keys() if isinstance(classes, int) else counts.keys() & set(classes)):
        found = (
            f"they have labels such as {', '.join(map(repr, names[:3]))}"
            if names
            else "expected words or integers, or lists of them"
        )
        raise InputError(f"labels/{column}: the training images have no label that is among the classes; {found}")
    if not isinstance(classes, int):
        return list(classes)
    if len(names) < classes or (len(names) > classes and not ignore):
        more = " or set outside: ignore" if len(names) > classes else ""
        raise InputError(
            f"labels/{column}: classes {classes}, but the training images have {len(names)} different labels; "
            f"set classes: {len(names)}{more}"
        )
    return names[:classes]
