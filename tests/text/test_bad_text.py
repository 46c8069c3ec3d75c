"""A megabyte of worst cases through every text stage: linear work, or the time-out fails the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.core.contracts import Batch
from curate.core.recipe.registry import resolve
from tests.text.wordnet.wordnets import write_wordnet

pytestmark = pytest.mark.long

MEGABYTE = 1_000_000
PIECES = ["\u0f72\u0f71", "a-", ". ", "&amp;<a #"]
"""Marks out of order (quadratic for `unicodedata.normalize`), and the separators of rules, words and sentences."""
VOCABULARY = pa.table({"entry": ["a", "a a", "amp", "hot dog"]})
MAPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text.clean": ({}, {}),
    "text.sentences": ({}, {}),
    "text.language": ({}, {}),
    "text.concepts": ({}, {}),
    "text.strip": ({"also": ("a", "hot dog", "amp")}, {}),
    "text.match": ({}, {"vocabulary": {"entries": VOCABULARY}}),
    "text.tags": ({"fields": (), "caption": "text", "longest": MEGABYTE}, {}),
}
REDUCES: dict[str, dict[str, Any]] = {
    "text.duplicates": {},
    "text.boilerplate": {},
    "text.vocabulary": {"wordnet": False},
    "text.hashtag_map": {"words": "text"},
}


@pytest.fixture(autouse=True, scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("words")
    write_wordnet(folder / "wordnet")
    for name in ("index.adj", "index.adv"):
        (folder / "wordnet" / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_WORDNET", str(folder / "wordnet"))
        patch.setenv("CURATE_CACHE", str(folder / "cache"))
        yield Path(folder)


def table(piece: str) -> pa.Table:
    text = piece * (MEGABYTE // len(piece.encode()))
    kinds = {"key": pa.string(), "text": pa.string(), "caption": pa.string(), "tags": pa.list_(pa.string())}
    values = {"key": ["0" * 32], "text": [text], "caption": [text], "tags": [[text]]}
    return pa.table(values, pa.schema(kinds))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("op", MAPS)
def test_maps(op: str, piece: str) -> None:
    parameters, artifacts = MAPS[op]
    stage = resolve(op)(**parameters)
    stage.setup(artifacts)  # type: ignore[attr-defined]
    made = stage.process(Batch(table(piece)))  # type: ignore[attr-defined]
    assert all(len(values) == 1 for values in made.values())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("op", REDUCES)
def test_reduces(op: str, piece: str) -> None:
    stage: Any = resolve(op)(**REDUCES[op])
    if op == "text.duplicates":
        assert len(stage.load(table(piece))["key"]) <= 1
    else:
        assert stage.partial(table(piece)).num_rows >= 0
