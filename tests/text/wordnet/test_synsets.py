"""Forms and their synsets: in a tiny WordNet by hand, in the real one against nltk."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from bench.kit.texts import alt_texts
from curate.core.store.cache import cache_folder
from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import SUFFIXES, Sense, senses
from curate.text.phrases import normalised
from curate.text.wordnet import synsets
from curate.text.wordnet.concepts import VISUAL_NOUNS, VISUAL_VERBS
from curate.text.wordnet.synsets import Rules, Synsets, as_thing, compiled, most_often, table
from tests.text.wordnet.wordnets import for_nltk, real, tiny  # noqa: F401  (fixtures)

FILES = ("animal", "artifact", "food", "group", "location", "object", "person")
NOUNS = tuple(f"noun.{name}" for name in FILES)
VERBS = ("verb.contact", "verb.motion")


def found(text: str, **rules: Any) -> tuple[list[str], list[str]]:
    """Nouns and verbs of a text, in order."""
    made = Synsets(Rules(**({"nouns": NOUNS, "verbs": VERBS} | rules)))
    _, nouns, verbs = made.find([text])
    return [made.nouns[i] for i in nouns if i >= 0], [made.verbs[i] for i in verbs if i >= 0]


@pytest.mark.parametrize(
    ("text", "nouns", "verbs"),
    [
        ("Dogs!", ["dog.n.01"], []),
        ("a couch, a sofa and two SOFAS", ["sofa.n.01", "sofa.n.01", "sofa.n.01"], []),
        ("hot dogs and red-hots", ["hot_dog.n.01", "hot_dog.n.01"], []),
        ("geese ran", ["goose.n.01"], ["run.v.01"]),
        ("running men, mens and men's runs", ["man.n.01", "man.n.01", "man.n.01"], ["run.v.01", "run.v.01"]),
        ("Smith's crane in Paris in the sun", ["crane.n.02", "sun.n.01"], []),
        ("a black market of 10 T-shirts", ["t-shirt.n.01"], []),
        ("white", [], []),
        ("he runs, runes", [], ["run.v.01"]),
        ("hot, dog", ["dog.n.01"], []),
    ],
)
def test_the_synset_of_a_form(tiny: Path, text: str, nouns: list[str], verbs: list[str]) -> None:  # noqa: F811
    assert found(text) == (nouns, verbs)


def test_rules(tiny: Path) -> None:  # noqa: F811
    assert found("Paris and Stephen Crane", instances=True)[0] == ["paris.n.01", "crane.n.01"]
    assert found("dog", nouns=("noun.person",)) == ([], [])
    assert found("dog", nouns=("noun.person",), sense="first_visual") == (["dog.n.02"], [])
    assert found("run", ambiguous="noun", sense="first_visual") == (["run.n.02"], [])
    assert found("run couch", ambiguous="both", sense="first_visual") == (
        ["run.n.02", "sofa.n.01"],
        ["run.v.01", "couch.v.01"],
    )
    assert found("run couch white", ambiguous="verb") == (["white.n.01"], ["run.v.01", "couch.v.01"])


def sense(file: str, count: int, named: bool = False) -> Sense:
    return Sense("a.n.01", file, count, not named, named)


@pytest.mark.parametrize(
    ("form", "noun", "verb", "other", "part"),
    [
        ("bear", sense("noun.animal", 1), sense("verb.stative", 23), 0, "n"),
        ("come", sense("noun.body", 0), sense("verb.motion", 276), 0, "v"),
        ("love", sense("noun.feeling", 42), sense("verb.emotion", 43), 0, "v"),
        ("swimming", sense("noun.act", 1), sense("verb.motion", 0), 0, "v"),
        ("wedding", sense("noun.act", 1), None, 0, "n"),
        ("hug", sense("noun.act", 1), sense("verb.contact", 1), 0, "n"),
        ("cook", sense("noun.person", 1), sense("verb.creation", 2), 0, "v"),
        ("tours", sense("noun.location", 0, named=True), sense("verb.motion", 3), 0, "v"),
        ("orange", sense("noun.food", 4), None, 7, "n"),
        ("simple", sense("noun.plant", 0), None, 56, ""),
        ("white", sense("noun.person", 2), None, 60, ""),
        ("eat", None, sense("verb.consumption", 0), 0, "v"),
        ("fast", None, sense("verb.consumption", 1), 3, ""),
    ],
)
def test_things_first(form: str, noun: Sense | None, verb: Sense | None, other: int, part: str) -> None:
    assert as_thing(form, noun, verb, other) == part


def test_a_gerund_is_the_verb_of_its_noun(real: Path) -> None:  # noqa: F811
    made = Synsets(Rules(("noun.act",), ("verb.body", "verb.competition", "verb.creation", "verb.motion")))
    readings = {word: made.lookup(word)[1] for word in ("racing", "race", "sitting", "swimming", "cycling", "dancing")}
    assert readings == {
        "racing": "race.v.02", "race": "rush.v.01", "sitting": None, "swimming": "swim.v.01",
        "cycling": "bicycle.v.01", "dancing": "dance.v.02",
    }  # fmt: skip


def test_the_most_frequent_part_of_speech() -> None:
    assert most_often(sense("noun.animal", 1), sense("verb.stative", 23), 0) == "v"
    assert most_often(sense("noun.animal", 0), sense("verb.stative", 0), 0) == "n"
    assert most_often(sense("noun.animal", 0), None, 1) == ""
    assert most_often(None, sense("verb.stative", 0), 0) == "v"


def test_lookup_of_a_word(tiny: Path) -> None:  # noqa: F811
    made = Synsets(Rules(NOUNS, VERBS))
    assert made.lookup("Runs") == (None, "run.v.01")
    assert made.lookup("couch") == ("sofa.n.01", "couch.v.01")
    assert made.lookup("hot_dogs") == made.lookup("HOT-DOG") == ("hot_dog.n.01", None)
    assert made.lookup("") == made.lookup("no such word") == made.lookup("a") == (None, None)


def test_the_table_is_compiled_once_per_wordnet(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    first = table()
    with monkeypatch.context() as patch:
        patch.setattr(synsets, "compiled", lambda read: pytest.fail("compiled again"))
        assert table().equals(first)
    (tiny / "noun.exc").write_text("geese goose\nmooses goose\n")
    assert "mooses" in table().column("form").to_pylist()
    kept = sorted(path.suffix for path in cache_folder("synsets").iterdir())
    assert kept == ["", ".arrow", ".arrow"]


def test_the_newest_tables_stay(tiny: Path) -> None:  # noqa: F811
    first = table()
    folder = cache_folder("synsets")
    [file] = folder.glob("*.arrow")
    for age in range(1, synsets.TABLES + 1):
        (folder / f"{age}.arrow").touch()
        os.utime(folder / f"{age}.arrow", ns=(0, file.stat().st_mtime_ns - age * 10**9))
    (tiny / "noun.exc").write_text("geese goose\nmooses goose\n")
    table()
    kept = {path.name for path in folder.glob("*.arrow")}
    assert len(kept) == synsets.TABLES and {file.name, "1.arrow", "2.arrow"} < kept
    assert first.column("form").to_pylist()[0]


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0 and then nothing"])
def test_a_corrupt_file_in_the_cache_is_rebuilt(tiny: Path, content: bytes) -> None:  # noqa: F811
    first = compiled(database.read)
    assert table().equals(first)
    (file,) = cache_folder("synsets").glob("*.arrow")
    file.unlink()  # the old file may be mapped
    file.write_bytes(content)
    assert table().equals(first)
    assert file.stat().st_size > len(content)


def test_a_cache_that_is_not_writable_is_skipped(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    first = table()
    monkeypatch.setenv("CURATE_CACHE", str(tiny / "noun.exc"))  # not a folder
    assert table().equals(first)


# --- the real one -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    """nltk's own reader over the same files."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    root = tmp_path_factory.mktemp("nltk")
    nltk.data.path.insert(0, str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing languages
        yield WordNetCorpusReader(str(for_nltk(real, root)), None)
    nltk.data.path.pop(0)


@pytest.mark.long
def test_lemmas_and_senses_are_nltks(reader: Any) -> None:
    assert reader.get_version() == "3.0"
    words = {word for text in alt_texts()[:500] for word in normalised(text).split()}
    draw = random.Random(0)
    for part in SUFFIXES:
        assert list(SUFFIXES[part]) == reader.MORPHOLOGICAL_SUBSTITUTIONS[part]
        known = senses(part, database.read)
        forms = known.forms()
        chosen = words | set(draw.sample(sorted(forms), 2000)) | set(draw.sample(sorted(known.irregular), 500))
        for form in chosen | {f"{form}{end}" for form in words for end in ("s", "es", "ing")}:
            expected = reader._morphy(form, part)
            assert known.lemmas_of(form) == expected, form
            assert form in forms or not expected or (part == "v" and form == f"{expected[0]}es")
        for lemma in draw.sample(sorted(known.of), 100):
            told = [(s.synset, s.lexname, s.uses) for s in known.of[lemma]]
            theirs = reader.synsets(lemma, part)[: len(told)]
            assert told == [(s.name(), s.lexname(), count_of(s, lemma)) for s in theirs]


def count_of(synset: Any, lemma: str) -> int:
    return max(found.count() for found in synset.lemmas() if found.name().lower() == lemma)


def test_known_words(real: Path) -> None:  # noqa: F811
    files = tuple(name for name in database.LEXNAMES if name.startswith("noun."))
    made = Synsets(Rules(files, ("verb.motion", "verb.creation")))
    for word, noun in {
        "sofa": "sofa.n.01",
        "couches": "sofa.n.01",
        "men": "man.n.01",
        "womens": "woman.n.01",
        "eyes": "eye.n.01",
        "arms": "arm.n.01",
        "a line": None,
        "has been": None,
        "glasses": "spectacles.n.01",
        "bikini": "bikini.n.02",
        "smith": None,
        "sun": "sun.n.01",
        "paris": None,
        "ice creams": "ice_cream.n.01",
        "T-shirt": "jersey.n.03",
        "St. Bernard": "saint_bernard.n.01",
    }.items():
        assert made.lookup(word)[0] == noun, word
    assert made.lookup("running")[1] == "run.v.01"
    assert made.lookup("painting")[1] == "paint.v.01"


def test_things_and_actions(real: Path) -> None:  # noqa: F811
    """Words whose meaning in captions differs from the most frequent one in WordNet's texts."""
    nouns, verbs = (f"noun.{name}" for name in VISUAL_NOUNS), (f"verb.{name}" for name in VISUAL_VERBS)
    made = Synsets(Rules(tuple(nouns), tuple(verbs)))
    expected = {
        (True, False): "bear duck building painting rose pants watch lace trail bat drink pin orange home set leaves",
        (False, True): "swimming running come stand eating sitting smiling run open",
        (False, False): "simple nice white young",
    }
    words = [(word, parts) for parts, listed in expected.items() for word in listed.split()]
    rows, noun, verb = made.find([word for word, _ in words])
    said = {row: (n >= 0, v >= 0) for row, n, v in zip(rows.tolist(), noun.tolist(), verb.tolist(), strict=True)}
    told = {word: said.get(row, (False, False)) for row, (word, _) in enumerate(words)}
    assert told == dict(words)
