from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from curate.core.errors import InputError
from curate.text.hashtags.edits import COLUMNS, read_edits, to_tsv
from curate.text.hashtags.map import MAP
from curate.text.hashtags.rules import Edit

ROWS = [
    {
        "tag": "dogs",
        "words": "dogs",
        "canonical": "dog",
        "kind": "noun",
        "synset": "dog.n.01",
        "count": 7,
        "how": "word",
    },
    {"tag": "xyz", "words": "xyz", "canonical": None, "kind": "unmapped", "synset": None, "count": 1, "how": "unknown"},
]


def edits_of(path: Path, text: str | bytes) -> dict[str, Edit]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_edits(path)


def test_a_map_as_lines_can_be_read_back(tmp_path: Path) -> None:
    lines = list(to_tsv(pa.Table.from_pylist(ROWS, MAP)))
    assert lines[0].split("\t") == list(COLUMNS)
    assert edits_of(tmp_path / "map.tsv", "\n".join(lines)) == {
        "dogs": Edit("dog", "noun"),
        "xyz": Edit(None, "unmapped"),
    }


def test_lines_written_by_hand(tmp_path: Path) -> None:
    text = "\ufeff#GoldenRetriever\tgolden  retriever\n\nswimming\tswim\taction\r\nsvg\t\nNew-York\ta city\tunmapped\n"
    assert edits_of(tmp_path / "map.tsv", text) == {
        "goldenretriever": Edit("golden retriever", None),
        "swimming": Edit("swim", "action"),
        "svg": Edit(None, "unmapped"),
        "new york": Edit(None, "unmapped"),
    }
    assert edits_of(tmp_path / "other.tsv", "tag\tcanonical\twords\tkind\na\tb\tx\taction\n") == {
        "a": Edit("b", "action")
    }
    assert edits_of(tmp_path / "empty.tsv", "") == {} == read_edits(None)


def test_json(tmp_path: Path) -> None:
    text = '{"Dogs": "dog", "svg": null, "swim": {"canonical": "swim", "kind": "action"}, "x": "\\ud800"}'
    assert edits_of(tmp_path / "map.json", text) == {
        "dogs": Edit("dog", None),
        "svg": Edit(None, "unmapped"),
        "swim": Edit("swim", "action"),
        "x": Edit("?", None),
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"dog cat\n", "line 1: expected tag, TAB, canonical tag, not 'dog cat'"),
        ("a.tsv", b"dog\tdog\tverb\n", "line 1: unknown kind 'verb'; choose from noun, action, unmapped"),
        ("a.tsv", b"dog\tdog\n#Dog\tcat\n", "line 2: 'dog' has another canonical tag above"),
        ("a.tsv", b"!!\tdog\n", "line 1: '!!' is not a tag; expected letters or digits"),
        ("a.tsv", b"\xff\xfe", "is not UTF-8"),
        ("a.tsv", None, "cannot read .*; give a .tsv or .json file"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b"[1]", "holds a JSON list; expected an object"),
        ("a.json", b'{"dog": 7}', "tag 'dog': expected a canonical tag, null"),
        ("a.json", b'{"dog": {"canonical": "dog", "kind": "verb"}}', "tag 'dog': unknown kind 'verb'"),
    ],
)
def test_files_of_other_formats(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match=message) as raised:
        read_edits(path) if content is None else edits_of(path, content)
    assert "\n" not in str(raised.value)
