"""A WordNet of two dozen synsets in the format of wndb(5WN), for tests that do not need the real one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from curate.core.errors import InputError
from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import PARTS

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by  \n  2 Princeton University.  \n"

SYNSETS = {
    "n": [
        ("animal", ["dog", "domestic_dog"], False),
        ("person", ["dog"], False),
        ("food", ["hot_dog", "red_hot"], False),
        ("artifact", ["sofa", "couch"], False),
        ("person", ["man", "adult_male"], False),
        ("group", ["work_force", "men"], False),
        ("person", ["Crane", "Stephen_Crane"], True),
        ("artifact", ["crane"], False),
        ("person", ["Smith", "Adam_Smith"], True),
        ("person", ["Smith", "Joseph_Smith"], True),
        ("person", ["smith"], False),
        ("location", ["Paris"], True),
        ("object", ["sun", "Sun"], True),
        ("cognition", ["black_market"], False),
        ("artifact", ["t-shirt"], False),
        ("location", ["a"], False),
        ("quantity", ["10"], False),
        ("artifact", ["men's"], False),
        ("person", ["white"], False),
        ("animal", ["goose"], False),
        ("act", ["run"], False),
        ("artifact", ["run"], False),
        ("cognition", ["form", "pattern"], False),
        ("artifact", ["stripe", "streak"], False),
        ("possession", ["bargain", "buy"], False),
        ("group", ["family"], False),
    ],
    "v": [
        ("motion", ["run"], False),
        ("contact", ["couch"], False),
        ("stative", ["dog"], False),
        ("perception", ["see"], False),
        ("possession", ["buy"], False),
        ("contact", ["stripe"], False),
    ],
}
"""Lexicographer file, words, whether it is an instance: in the order of their lemmas' senses."""
COUNTS = {
    "dog%1:05": 42,
    "man%1:18": 749,
    "men%1:14": 35,
    "run%2:38": 106,
    "run%1:04": 3,
    "white%1:18": 2,
    "see%2:39": 613,
}
COUNTS |= {"buy%2:40": 102, "stripe%2:35": 9}
ADJECTIVES = ["white%3:00:00:: 1 60", "white%5:00:01:pale:00 2 7"]
IRREGULAR = {"n": "geese goose\n", "v": "ran run\nrunning run\n"}


def write_wordnet(folder: Path) -> Path:
    """The dict files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = list(ADJECTIVES)
    for part, synsets in SYNSETS.items():
        data, offsets, number = LICENCE, {}, {"n": 1, "v": 2}[part]
        for file, words, instance in synsets:
            code = database.LEXNAMES.index(f"{PARTS[part]}.{file}")
            place = f"{len(data):08d}"
            lex_ids = [len(offsets.get(word.lower(), [])) for word in words]
            told = " ".join(f"{word} {lex_id:x}" for word, lex_id in zip(words, lex_ids, strict=True))
            pointer = f"001 {'@i' if instance else '@'} 00000000 {part} 0000"
            data += f'{place} {code:02d} {part} {len(words):02x} {told} {pointer} | what it is; "an example"  \n'
            for lex_id, word in zip(lex_ids, words, strict=True):
                listed = offsets.setdefault(word.lower(), [])
                listed += [] if place in listed else [place]
                count = COUNTS.get(f"{word.lower()}%{number}:{code:02d}")
                counts += [f"{word.lower()}%{number}:{code:02d}:{lex_id:02d}:: 1 {count}"] if count else []
        rows = [f"{w} {part} {len(o)} 1 @ {len(o)} 0 {' '.join(o)}  \n" for w, o in sorted(offsets.items())]
        (folder / f"data.{PARTS[part]}").write_text(data)
        (folder / f"index.{PARTS[part]}").write_text(LICENCE + "".join(rows))
        (folder / f"{PARTS[part]}.exc").write_text(IRREGULAR[part])
    (folder / "cntlist.rev").write_text("\n".join(sorted(counts)) + "\n")
    (folder / "index.adj").write_text("white a 1 0 1 1 00000000\n")
    (folder / "index.adv").touch()
    return folder


def for_nltk(place: Path, root: Path) -> Path:
    """A copy below `root`, a folder for `nltk.data.path`, with the other files that nltk's reader needs."""
    folder = root / "corpora/wordnet"
    shutil.copytree(place, folder)
    numbers = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
    lines = [f"{n:02d}\t{name}\t{numbers[name.partition('.')[0]]}\n" for n, name in enumerate(database.LEXNAMES)]
    (folder / "lexnames").write_text("".join(lines))
    (folder / "index.sense").touch()  # nltk takes it for version 3.0
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny WordNet instead of the real one, with a separate cache."""
    folder = write_wordnet(tmp_path / "tiny")
    monkeypatch.setenv("CURATE_WORDNET", str(folder))
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture(scope="session")
def real() -> Path:
    """The real WordNet, downloaded to the cache if it is missing."""
    try:
        place = database.place()
    except InputError as error:
        pytest.skip(str(error))
    if database.identity() != WORDNET_30:
        pytest.skip(f"{place} is not WordNet 3.0")
    return place


WORDNET_30 = "cd3c1c8b127c06c4ddd96b5d3a4f43c7"
"""The digest of Debian's files."""
