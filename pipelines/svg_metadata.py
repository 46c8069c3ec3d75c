"""Reads title, description and keywords from the RDF of an SVG, which is untrusted input.

The module drives expat directly, so that nothing is fetched and an entity that refers to another ("billion laughs") is
an error at its declaration. Parsing stops at the end of the first `Work`, so errors after it are ignored. Names are
compared without namespace prefixes, since many of these files do not declare them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

MAX_ENTITY_CHARACTERS = 256
"""Illustrator abbreviates namespace URLs with entities of some 50 characters."""
MAX_TEXT_CHARACTERS = 1 << 20


@dataclass
class Work:
    """The artist's description of the image, not stripped or cleaned."""

    title: str = ""
    description: str = ""
    keywords: list[str] = field(default_factory=list)


class UnreadableSvgError(ValueError):
    """The file is malformed or unsafe before the end of its metadata. Messages are few, so that they can be counted."""


class _DoneError(Exception):
    """Leaves the parser at the end of the first Work."""


def read_work(data: bytes) -> Work:
    """The first `cc:Work` of an SVG, or an empty one. Raises UnreadableSvgError."""
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except _DoneError:
        pass
    except expat.ExpatError as error:
        raise UnreadableSvgError(expat.ErrorString(error.code)) from None
    except (LookupError, UnicodeError) as error:  # the encoding that the file declares
        raise UnreadableSvgError("unknown encoding") from error
    return reader.work


class _Reader:
    def __init__(self) -> None:
        self.work = Work()
        self._path: list[str] = []
        self._text: list[str] = []
        self._characters = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data
        self.parser.EntityDeclHandler = self._entity

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name.rpartition(":")[2])
        self._text.clear()

    def _data(self, text: str) -> None:
        if "Work" not in self._path:
            return
        self._characters += len(text)
        if self._characters > MAX_TEXT_CHARACTERS:
            raise UnreadableSvgError("metadata too long")
        self._text.append(text)

    def _end(self, name: str) -> None:
        match self._path[-3:]:
            case [_, "Work", "title"]:
                self.work.title = "".join(self._text)
            case [_, "Work", "description"]:
                self.work.description = "".join(self._text)
            case ["subject", "Bag", "li"] if "Work" in self._path and (keyword := "".join(self._text)).strip():
                self.work.keywords.append(keyword)
            case [*_, "Work"]:
                raise _DoneError
        self._path.pop()
        self._text.clear()

    def _entity(
        self, name: str, is_parameter: bool, value: str | None, base: str | None, system: str | None, *_: str | None
    ) -> None:
        if is_parameter or value is None or "&" in value or len(value) > MAX_ENTITY_CHARACTERS:
            raise UnreadableSvgError("unsafe entity")
