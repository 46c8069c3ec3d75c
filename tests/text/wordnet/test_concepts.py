"""The stage on columns of one text and of several texts per row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.core.items import family_of
from curate.text.wordnet.concepts import Concepts, lists_of
from tests.text.wordnet.wordnets import tiny, write_wordnet  # noqa: F401  (a fixture)


def ran(column: list[Any], **parameters: Any) -> tuple[dict[str, Any], Batch]:
    stage = Concepts(**parameters)
    assert stage.preflight() == []
    stage.setup({})
    kind = pa.list_(pa.string()) if any(isinstance(row, list) for row in column) else pa.string()
    batch = Batch(pa.table({"text": pa.array(column, kind)}))
    out = stage.process(batch)
    for field in stage.schema():
        assert out[field.name].type == field.type
    return {name: value.to_pylist() if isinstance(value, pa.Array) else value for name, value in out.items()}, batch


def test_a_text_per_row(tiny: Path) -> None:  # noqa: F811
    out, batch = ran(["a sofa, a couch and running dogs", None, "", "😀", "run"])
    assert out == {
        "concepts": [[["dog.n.01", "sofa.n.01"]], None, [[]], [[]], [[]]],
        "actions": [[["run.v.01"]], None, [[]], [[]], [["run.v.01"]]],
    }
    assert batch.counters == {"matched": 2, "unmatched": 2}


def test_missing_texts_keep_their_places(tiny: Path) -> None:  # noqa: F811
    out, _ = ran([["dogs", None, "run"], [], None, [None]])
    assert out["concepts"] == [[["dog.n.01"], None, []], [], None, [None]]
    assert out["actions"] == [[[], None, ["run.v.01"]], [], None, [None]]


def test_places_are_those_of_the_texts() -> None:
    for column in ("text", "sentences"):
        fields = {field.name: field for field in Concepts(column=column).schema()}
        assert [family_of(name, fields) for name in ("concepts", "actions")] == [column, column]


def test_no_texts(tiny: Path) -> None:  # noqa: F811
    assert ran([])[0] == {"concepts": [], "actions": []}
    assert ran(["nothing here"], nouns=(), verbs=())[0] == {"concepts": [[[]]], "actions": [[[]]]}


def test_a_megabyte_and_a_tag_of_300_characters(tiny: Path) -> None:  # noqa: F811
    out, _ = ran(["dog " * 2**18, "#" + "dog" * 100, "\u202edog\u202c\0run"])
    assert out["concepts"] == [[["dog.n.01"]], [[]], [["dog.n.01"]]]


def test_wordnet_is_part_of_the_identity(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    before = Concepts().identity()
    other = write_wordnet(tiny.parent / "other")
    (other / "verb.exc").write_text("")
    monkeypatch.setenv("CURATE_WORDNET", str(other))
    assert Concepts().identity() != before


def test_wrong_files_are_named() -> None:
    with pytest.raises(ValidationError, match=r"'animals' is not a lexicographer file of WordNet; choose from Tops,"):
        Concepts(nouns=("animals",))
    assert Concepts(verbs=("motion", "body", "motion")).verbs == ("body", "motion")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), max_size=20))
def test_lists_are_sets_by_text(pairs: list[tuple[int, int]]) -> None:
    names = ["a", "b", "c", "d"]
    texts, ids = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    expected = [sorted({names[i] for t, i in pairs if t == text and i >= 0}) for text in range(5)]
    assert lists_of(texts, ids, 5, pa.array(names)).to_pylist() == expected
