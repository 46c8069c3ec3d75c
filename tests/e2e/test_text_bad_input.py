"""Every bad text that a pool can hold, through all text stages: rejects with their reasons, or one clear line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.e2e.commands import CommandResult, curate
from tests.e2e.image_files import good
from tests.e2e.texts import chain
from tests.engine.contract import CLIP
from tests.text.wordnet.wordnets import write_wordnet

pytestmark = [pytest.mark.long, pytest.mark.drawn]

MEGABYTE = 1_000_000
CAPTIONS: dict[str, tuple[Any, str | None]] = {
    "good": ("This is a picture of the dog. He runs to the sofa.", None),
    "empty": ("", "captioned: missing_caption"),
    "null": (None, "captioned: missing_caption"),
    "spaces": (" \t\n\u3000", "captioned: missing_caption"),
    "number": (12.5, "english: language"),
    "list": (["a dog", "on a sofa"], None),
    "emojis": ("😀😃👍🏽", "captioned: missing_caption"),
    "nested": ("&" + "amp;" * 50_000 + "lt;dog", "language: language"),
    "signs": ("!!!???...", "english: no_language"),
    "german": ("Ein kleines Haus mit einem Garten", "english: language"),
    "megabyte": ("This is a dog on the sofa. " * (MEGABYTE // 27), None),
    "right_to_left": ("\u202eThis is\u202c \u200fa dog on a sofa", None),
    "nul": ("There is a dog\0 and a\0 man on the sofa", None),
    "surrogate": ("There is a dog \ud800 and a goose here", None),
    "tag": ("There is a man with a dog #" + "x" * 300, None),
    "html": ("<b>" * 30_000 + "There is a dog and a crane" + "</b>" * 30_000, None),
    "zalgo": ("This is t\u0335\u0336h\u0337\u0338e hot dog " + "\u0f72\u0f71" * 50_000 + " of a man", None),
    "copy": ("this is a picture of the DOG.  He runs to the sofa", None),
}
"""Name of an image -> its caption, and the stage and reason of its reject, if any."""
KEYWORDS = ["dogs", "y" * 300, "", "#", "\ud800x", None, 3, ["z"], "hot\0dog"]


@pytest.fixture(autouse=True)
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WordNet of two dozen synsets."""
    folder = write_wordnet(tmp_path / "words")
    for name in ("index.adj", "index.adv"):
        (folder / name).touch()
    monkeypatch.setenv("CURATE_WORDNET", str(folder))
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CURATE_WORKSPACE", str(tmp_path / "workspace"))
    return folder


def ran(folder: Path, stages: dict[str, dict[str, Any]], *words: str | Path) -> CommandResult:
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return curate("run", folder / "recipe.yaml", "--engine", "local", "--quiet", *words)


def results(folder: Path, stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    printed = ran(folder, stages, "--json", folder / "result.json")
    assert (printed.code, printed.err) == (0, ""), printed
    return json.loads((folder / "result.json").read_text())


def _folder(root: Path) -> Path:
    root.mkdir()
    lines = []
    for number, (name, (caption, _)) in enumerate(CAPTIONS.items()):
        (root / f"{name}.png").write_bytes(good(3 * number))
        lines.append(json.dumps({"file_name": f"{name}.png", "caption": caption, "keywords": KEYWORDS}))
    (root / "metadata.jsonl").write_text("\n".join(lines))
    (root / "latin.png").write_bytes(good(300))
    (root / "latin.txt").write_bytes("déjà vu".encode("latin-1"))
    return root


def test_bad_captions_of_a_folder(tmp_path: Path) -> None:
    root = _folder(tmp_path / "images")
    result = results(tmp_path, chain({"op": "acquire.folder", "path": str(root)}))
    refused = Counter(
        tuple(reason.split(": ")) for _, reason in CAPTIONS.values() if reason and reason.startswith("captioned")
    )
    assert result["ledger"]["captioned"]["rejected"] == {reason: count for (_, reason), count in refused.items()}
    assert result["ledger"]["pool"]["rejected"] == {"caption_not_utf8": 1}
    assert result["ledger"]["unique"]["rejected"] == {"text_duplicate": 1}
    assert result["ledger"]["tags"]["counters"]["tags_too_long"] >= 1
    for name in ("good", "megabyte", "surrogate", "zalgo"):
        explained = curate("explain", f"{name}.png")
        assert (explained.code, explained.err) == (0, "") and len(explained.out) < 100_000
    assert "rejected missing_caption" in curate("explain", "emojis.png").words


def _of_parquet(folder: Path, captions: pa.Array) -> dict[str, Any]:
    folder.mkdir()
    pictures = pa.array([good(3 * number) for number in range(len(captions))], pa.binary())
    names = [str(number) for number in range(len(captions))]
    pq.write_table(pa.table({"id": names, "image": pictures, "caption": captions}), folder / "0.parquet")
    return {"op": "acquire.parquet", "path": str(folder), "caption": "caption"}


@pytest.mark.parametrize("kind", ["binary", "broken strings"])
def test_bad_captions_of_parquet(tmp_path: Path, kind: str) -> None:
    values = [b"This is a picture of the dog", b"d\xe9j\xe0 vu", b"\xed\xa0\x80 dog", b"a\0 man and his dog", None, b""]
    captions = pa.array(values, pa.binary())
    if kind != "binary":
        captions = pa.StringArray.from_buffers(len(values), *captions.buffers()[1:], captions.buffers()[0])
    stages = chain(_of_parquet(tmp_path / "tables", captions))
    stages["sample"]["target"] = 2
    ledger = results(tmp_path, stages)["ledger"]
    assert ledger["pool"]["rejected"] == {"caption_not_utf8": 2}
    assert ledger["captioned"]["rejected"] == {"missing_caption": 2}
    assert ledger["dataset"]["copies"] > 0


# --- one clear line ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Eight images with captions and keywords, cleaned."""
    (root := tmp_path / "images").mkdir()
    lines = []
    for number in range(8):
        (root / f"{number}.png").write_bytes(good(3 * number))
        caption = f"This is a picture of the {('dog', 'sofa')[number % 2]}. Number {number}."
        lines.append(json.dumps({"file_name": f"{number}.png", "caption": caption, "keywords": ["dogs"]}))
    (root / "metadata.jsonl").write_text("\n".join(lines))
    source = {"op": "acquire.folder", "path": str(root), "namespace": "bad"}
    return {"pool": source, "text": {"op": "text.clean", "from": "pool"}}


def stage(op: str, upstream: Any = "text", **parameters: Any) -> dict[str, Any]:
    return {"op": op, "from": upstream, **parameters}


CONCEPTS = {"concepts": stage("text.concepts")}
SENTENCES = {"sentences": stage("text.sentences")}
COUNTS = {**CONCEPTS, "counts": stage("text.counts", "concepts")}
SCORES = {
    "embed": stage("image.embed", encoder=CLIP),
    "scores": stage("align.similarity", "embed", encoder=CLIP),
}
PLAIN = ("text.language", "text.duplicates", "text.boilerplate", "text.sentences")
ANY = ("text.concepts", "text.vocabulary")
LINES: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "no such column": (
        {**CONCEPTS, "counts": stage("text.counts", "concepts", columns=["nope"])},
        "column 'nope' is missing upstream; add a stage that writes it",
    ),
    "no entries": (
        {"counts": stage("text.counts", columns=["text"])},
        "column 'text' is string; give a column of entries, a list of strings per item",
    ),
    "no such group": (
        {**CONCEPTS, "counts": stage("text.counts", "concepts", by="language")},
        "column 'language' is missing upstream",
    ),
    "numbers as groups": (
        {**CONCEPTS, "counts": stage("text.counts", "concepts", by="width")},
        "column 'width' is int32; give a column of one word per row",
    ),
    "other groups": (
        {**CONCEPTS, "counts": stage("text.counts", "concepts", by="ext")}
        | {"sample": stage("select.metaclip", "concepts", counts="counts")},
        "by None, but its `counts` are by 'ext'; give both stages the same column",
    ),
    "too many samples": (
        {**COUNTS, "sample": stage("select.frequency", "concepts", counts="counts", target=1000)},
        "expected 1,000 samples, but the 8 texts with an entry can give 0 to 40",
    ),
    "two targets": (
        {**COUNTS, "sample": stage("select.frequency", "concepts", counts="counts", target=3, share=1)},
        "give `target`, or `share`, or the counts",
    ),
    "copies without end": (
        {**COUNTS, "sample": stage("select.frequency", "concepts", counts="counts", multiplier=10**30)},
        "should be less than or equal to 1000000",
    ),
    **{
        f"lists to {op}": (
            {**SENTENCES, "other": stage(op, "sentences", column="sentences")},
            f"{op}.column: 'sentences' holds list",
        )
        for op in PLAIN[:3]
    },
    **{
        f"numbers to {op}": ({"other": stage(op, column="width")}, f"{op}.column: 'width' holds int32")
        for op in (*PLAIN, *ANY)
    },
    **{
        f"entries to {op}": (
            {**CONCEPTS, "again": stage(op, "concepts", column="concepts")},
            "'concepts' holds list<",
        )
        for op in ("text.vocabulary",)
    },
    "numbers to text.strip": (
        {"other": stage("text.strip", column="width", also=["a b"])},
        "text.strip.column: 'width' holds int32, expected one text per row",
    ),
    "nothing to strip": ({"other": stage("text.strip")}, "no phrases to remove; set `boilerplate` to a stage, or"),
    "numbers as caption of tags": (
        {"tags": stage("text.tags", caption="width")},
        "text.tags.caption: 'width' holds int32, expected one text per row",
    ),
    "numbers as tags": ({"tags": stage("text.tags", fields=["width"])}, "text.tags.fields: 'width' holds int32; give"),
    "numbers as words of tags": (
        {"tags": stage("text.tags"), "map": stage("text.hashtag_map", "tags", words="width")},
        "text.hashtag_map.words: 'width' holds int32",
    ),
    "similarity without embedding": (
        {"scores": stage("align.similarity", encoder=CLIP)},
        "column 'embedding' is missing upstream",
    ),
    "similarity to a text": (
        {"scores": stage("align.similarity", encoder=CLIP, embedding="caption")},
        "column 'caption': expected fixed_size_binary of 2 bytes per dimension, not string",
    ),
    "threshold of nothing": ({"cut": stage("align.threshold")}, "column 'similarity' is missing upstream"),
    "threshold of texts": (
        {"cut": stage("align.threshold", column="caption")},
        "align.threshold.column: 'caption' holds string; name a column of numbers",
    ),
    "no score at all": (
        {**SCORES, "kept": stage("align.filter", "scores", threshold=2), "cut": stage("align.threshold", "kept")},
        "no score in 'similarity' (0 null, NaN or infinite); loosen the filters upstream",
    ),
    "no threshold": (
        {**SCORES, "kept": stage("align.filter", "scores")},
        "kept.threshold: missing; `curate ops align.filter` describes it",
    ),
    "no code of a language": (
        {"language": stage("text.language")}
        | {"english": stage("text.language_filter", "language", languages=["english"])},
        "'english' is not a language code; did you mean 'en'?",
    ),
    "no such rule": ({"other": stage("text.clean", "pool", rules=["nope"])}, "unknown rule 'nope'; choose"),
    "more copies than are named": (
        {
            "sets": stage("text.duplicates"),
            "copies": stage("text.copies", sets="sets"),
            "unique": stage("text.drop_duplicates", "copies", copies=4),
        },
        "4, but the sets list 1 rows per text; set `keepers: 4` of text.duplicates",
    ),
}
"""Stages after `text`, and what the one line says."""


@pytest.mark.parametrize("name", LINES)
def test_what_cannot_run_is_one_line(tmp_path: Path, pool: dict[str, dict[str, Any]], name: str) -> None:
    stages, line = LINES[name]
    printed = ran(tmp_path, {**pool, **stages})
    assert printed.code == 1 and line in printed.err.splitlines()[-1], printed
    assert "Traceback" not in printed.err and printed.err.splitlines()[-1].startswith("curate: ")


FILES: dict[str, tuple[str, bytes, str]] = {
    "no list": ("a.json", b'{"dog": 1}', "holds a JSON dict; expected a list of strings"),
    "no JSON": ("a.json", b'["dog",', "is not a JSON list"),
    "nested without end": ("a.json", b"[" * 100_000, "is not a JSON list"),
    "numbers": ("a.json", b'["dog", 3]', "holds 3 at place 1; expected strings"),
    "empty list": ("a.json", b"[]", "no entries from"),
    "no words": ("a.json", b'["", " ", "!!"]', "no entries from"),
    "empty file": ("a.json", b"", "is not a JSON list"),
    "no line": ("a.txt", b"", "no entries from"),
    "latin": ("a.txt", b"d\xe9j\xe0", "is not a UTF-8 text with one entry per line"),
    "no match": ("a.txt", b"zebra\n", "none of the 8 texts has an entry in entries"),
}
"""File of a vocabulary, and what the one line says."""


def _matched(path: Path) -> dict[str, dict[str, Any]]:
    given = stage("text.vocabulary", wordnet=False, unigrams=None, bigrams=None, entries=str(path))
    return {
        "vocabulary": given,
        "entries": stage("text.match", vocabulary="vocabulary"),
        "counts": stage("text.counts", "entries", columns=["entries"]),
        "sample": stage("select.metaclip", "entries", columns=["entries"], counts="counts"),
    }


@pytest.mark.parametrize("name", FILES)
def test_bad_vocabularies(tmp_path: Path, pool: dict[str, dict[str, Any]], name: str) -> None:
    file, content, line = FILES[name]
    (tmp_path / file).write_bytes(content)
    assert line in ran(tmp_path, {**pool, **_matched(tmp_path / file)}).error


def test_a_missing_vocabulary(tmp_path: Path, pool: dict[str, dict[str, Any]]) -> None:
    printed = ran(tmp_path, {**pool, **_matched(tmp_path / "none.json")})
    assert "(No such file or directory); give a JSON list or a .txt file" in printed.error


def test_entries_that_are_empty_or_repeated_are_counted(tmp_path: Path, pool: dict[str, dict[str, Any]]) -> None:
    entries = ["dog", "DOG", "dog", "", "!!", " the  dog", "\ud800", "sofa\0bed", "w " * 500, "x" * 100_000]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    result = results(tmp_path, {**pool, **_matched(tmp_path / "a.json")})
    summary = json.loads(Path(result["outputs"]["vocabulary"], "summary.json").read_text())["sources"]["given"]
    told = {name: summary[name] for name in ("read", "duplicate", "merged", "empty", "too_long")}
    assert told == {"read": 10, "duplicate": 1, "merged": 1, "empty": 3, "too_long": 1}
    assert result["ledger"]["sample"]["rejected"] == {"no_entry": 4}


EDITS: dict[str, tuple[str, bytes, str]] = {
    "no tab": ("a.tsv", b"dog cat", "line 1: expected tag, TAB, canonical tag"),
    "no kind": ("a.tsv", b"dog\tcat\tfish", "line 1: unknown kind 'fish'; choose from noun, action, unmapped"),
    "twice": ("a.tsv", b"dog\tcat\ndog\thorse", "line 2: 'dog' has another canonical tag above"),
    "no tag": ("a.tsv", b"\tcat", "line 1: '' is not a tag"),
    "latin": ("a.tsv", b"d\xe9j\xe0\tvu", "is not UTF-8"),
    "no object": ("a.json", b"[]", "holds a JSON list; expected an object"),
    "no JSON": ("a.json", b"{", "is not JSON"),
    "nested without end": ("a.json", b"[" * 100_000, "is not JSON"),
    "numbers": ("a.json", b'{"dog": 3}', "expected a canonical tag, null, or an object of both"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_edits_of_a_map(tmp_path: Path, pool: dict[str, dict[str, Any]], name: str) -> None:
    file, content, line = EDITS[name]
    (tmp_path / file).write_bytes(content)
    stages = {"tags": stage("text.tags"), "map": stage("text.hashtag_map", "tags", edits=str(tmp_path / file))}
    assert line in ran(tmp_path, {**pool, **stages}).error


@pytest.mark.parametrize("op", ["text.concepts", "text.vocabulary", "text.hashtag_map"])
@pytest.mark.parametrize("how", ["cut", "noise"])
def test_files_that_are_not_a_wordnet(
    tmp_path: Path, pool: dict[str, dict[str, Any]], words: Path, op: str, how: str
) -> None:
    for path in words.iterdir():
        path.write_bytes(path.read_bytes()[:200].rstrip()[:-7] if how == "cut" else b"\xff\xfe noise\n" * 99)
    stages = {"tags": stage("text.tags"), "other": stage(op, "tags")}
    printed = ran(tmp_path, {**pool, **stages})
    if (op, how) != ("text.vocabulary", "cut"):  # a line truncated after its lemma is still complete
        assert "are corrupt or not WordNet 3.x" in printed.error


@pytest.mark.parametrize("select", ["select.frequency", "select.metaclip"])
def test_concepts_that_match_nothing(tmp_path: Path, pool: dict[str, dict[str, Any]], select: str) -> None:
    stages = {
        "concepts": stage("text.concepts", nouns=["time"]),
        "counts": stage("text.counts", "concepts"),
        "sample": stage(select, "concepts", counts="counts"),
    }
    printed = ran(tmp_path, {**pool, **stages})
    assert f"{select}: none of the 8 texts has an entry in concepts; check the stages" in printed.error


def test_no_text_is_left(tmp_path: Path, pool: dict[str, dict[str, Any]]) -> None:
    """Stages without a single live row: artifacts of nothing, until something needs a row."""
    pool["captioned"] = stage("text.filter", min_words=999)
    stages = chain({})
    del stages["vocabulary"], stages["entries"]
    stages["tags"]["from"] = "concepts"
    for name in ("counts", "sample"):
        stages[name]["columns"] = ["concepts"]
    printed = ran(tmp_path, {**stages, **pool})
    assert "select.frequency: no text with an entry in concepts" in printed.error
