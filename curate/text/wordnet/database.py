"""WordNet's data files: where they are, or how they get here, and what they are (a digest).

Looked for in this order; none of it needs nltk to be imported, which takes seconds:

1. the folder that CURATE_WORDNET names (dict files as WordNet 3.x ships them);
2. nltk's own data (`corpora/wordnet`, a folder or a zip);
3. what was fetched before: `wordnet/corpora/wordnet` in the cache ($CURATE_CACHE, or ~/.cache/curate);
4. Debian's package `wordnet-base`, if it is installed;
5. the same package, downloaded and unpacked into the cache, without installing it;
6. `nltk.download`, into the cache.

What is fetched is laid out as nltk wants it, with `lexnames` and an empty `index.sense`, which Debian's package lacks:
nltk reads it as version 3.0 once the folder `wordnet` in the cache is in its path.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from curate.core.errors import InputError
from curate.core.hashing import digest_bytes
from curate.core.store.cache import cache_folder
from curate.kernels.debian import unpacked

_NOUNS_AND_VERBS = ("index.noun", "data.noun", "noun.exc", "index.verb", "data.verb", "verb.exc", "cntlist.rev")
FILES = (*_NOUNS_AND_VERBS, "index.adj", "index.adv")
"""What is read: concepts are made of all but the last two, which tags and vocabularies need as well."""
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
_PARTS = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
_INSTALLED = Path("/usr/share/wordnet")
REMEDY = (
    "put WordNet 3.0's dict files into a folder and name it in CURATE_WORDNET, or run "
    "`python -m nltk.downloader wordnet` where there is a network"
)


def nltk_root() -> Path:
    """The folder for `nltk.data.path` under which fetched files lie."""
    return cache_folder("wordnet")


def place() -> Path:
    """A folder of dict files, or nltk's zip of them; fetched when there is none. Raises InputError, with the remedy."""
    found = _found()
    if found is None:
        _fetch(nltk_root())
        found = _found()
    if found is None:
        raise InputError(f"WordNet: fetched files are incomplete; {REMEDY}")
    return found


def read(name: str) -> bytes:
    """One of FILES, without the lines of its licence."""
    data = _read(place(), name)
    start = 0
    while data.startswith(b"  ", start):
        start = data.index(b"\n", start) + 1
    return data[start:]


@contextmanager
def well_formed() -> Iterator[None]:
    """Around what parses FILES: raises InputError, with the remedy, for files that were cut or are something else."""
    try:
        yield
    except (ValueError, LookupError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"WordNet: files in {place()} are not as WordNet 3.x has them ({what}); {REMEDY}") from error


def identity() -> str:
    """Digest of what FILES say. Line ends and licences do not count: Debian's 3.0 and nltk's are the same."""
    return _digest(*_state(place()))


def problems() -> list[str]:
    """A line if WordNet is neither here nor can be had, or one of FILES cannot be read."""
    try:
        identity()
    except InputError as error:
        return [str(error)]
    return []


def _state(found: Path) -> tuple[Path, tuple[tuple[int, int], ...]]:
    """What changes when files do."""
    stats = [path.stat() for path in ([found] if found.is_file() else [found / name for name in FILES])]
    return found, tuple((info.st_size, info.st_mtime_ns) for info in stats)


@lru_cache(maxsize=4)
def _digest(found: Path, state: tuple[tuple[int, int], ...]) -> str:
    return digest_bytes(part for name in FILES for part in (name.encode(), _stripped(read(name))))


def _stripped(data: bytes) -> bytes:
    return data.replace(b"\r", b"").replace(b" \n", b"\n").replace(b" \n", b"\n")


def _read(found: Path, name: str) -> bytes:
    try:
        if found.suffix == ".zip":
            with zipfile.ZipFile(found) as file:
                return file.read(f"wordnet/{name}")
        return (found / name).read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"WordNet: cannot read {name} in {found} ({error}); {REMEDY}") from error


def _found() -> Path | None:
    named = os.environ.get("CURATE_WORDNET")
    if named:
        lacking = [name for name in FILES if not (Path(named) / name).is_file()]
        if lacking:
            raise InputError(f"CURATE_WORDNET: {named!r} has no {lacking[0]}; name a folder of WordNet's dict files")
        return Path(named)
    return next((path for path in _candidates() if _complete(path)), None)


def _candidates() -> Iterator[Path]:
    for root in _nltk_paths():
        yield root / "corpora/wordnet"
        yield root / "corpora/wordnet.zip"
    yield nltk_root() / "corpora/wordnet"
    yield nltk_root() / "corpora/wordnet.zip"
    yield _INSTALLED


def _complete(path: Path) -> bool:
    return path.is_file() if path.suffix == ".zip" else all((path / name).is_file() for name in FILES)


def _nltk_paths() -> list[Path]:
    """Where nltk looks for data, as its documentation says."""
    named = [Path(part) for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    own = [Path.home() / "nltk_data", *(Path(sys.prefix) / part for part in ("nltk_data", "share/nltk_data"))]
    shared = [Path(root) / "nltk_data" for root in ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib")]
    return [*named, *own, Path(sys.prefix) / "lib/nltk_data", *shared]


def _fetch(root: Path) -> None:
    """Debian's package, else nltk's: into `root`, whole or not at all, by one process at a time."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with (root.parent / "wordnet.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _found() is not None:  # another process was quicker
                return
            with tempfile.TemporaryDirectory(prefix="wordnet-", dir=root.parent) as aside:
                made = Path(aside, "made")
                sys.stderr.write(f"wordnet: not on this machine, fetching it into {root} (6 MB, once)\n")
                try:
                    _from_debian(Path(aside), made)
                except InputError as error:
                    _from_nltk(made, str(error))
                _replace(root / "corpora", made / "corpora", Path(aside))
    except OSError as error:
        raise InputError(f"WordNet: cannot write to {root.parent} ({error}); set CURATE_CACHE, or {REMEDY}") from error


def _replace(corpora: Path, made: Path, aside: Path) -> None:
    """WordNet in nltk's folder of corpora, and nothing else there, by the one made; what is there is incomplete, or it
    would have been found."""
    corpora.mkdir(parents=True, exist_ok=True)
    for name in ("wordnet", "wordnet.zip"):
        if (corpora / name).exists():
            (corpora / name).rename(aside / f"old-{name}")
    for path in made.glob("wordnet*"):
        path.rename(corpora / path.name)


def _from_debian(aside: Path, made: Path) -> None:
    work = aside / "debian"
    work.mkdir()
    root = unpacked(["wordnet-base"], work, what="WordNet", instead=f"or {REMEDY}", say=lambda line: None)
    folder = made / "corpora/wordnet"
    shutil.copytree(root / "usr/share/wordnet", folder)
    lines = [f"{n:02d}\t{name}\t{_PARTS[name.split('.')[0]]}\n" for n, name in enumerate(LEXNAMES)]
    (folder / "lexnames").write_text("".join(lines))
    (folder / "index.sense").touch()
    if not _complete(folder):
        raise InputError("Debian's wordnet-base is not as expected")


def _from_nltk(made: Path, before: str) -> None:
    """Raises InputError with what has failed `before`."""
    import nltk  # type: ignore[import-untyped]

    try:
        done = nltk.download("wordnet", download_dir=str(made), quiet=True, print_error_to=io.StringIO())
    except (OSError, ValueError):  # no network, or an answer that is no index
        done = False
    if not done or not any(_complete(made / "corpora" / name) for name in ("wordnet", "wordnet.zip")):
        raise InputError(f"WordNet is not here ({before.split(';')[0]}; nltk.download failed too); {REMEDY}")
