"""Counts of a pool are kept: other limits do not read rows again. Files are read once per run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from curate.align.threshold import Threshold
from curate.core.contracts import Reduce
from curate.core.errors import InputError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from curate.text.boilerplate.find import Boilerplate
from curate.text.hashtags.map import HashtagMap
from curate.text.hashtags.tags import Tags
from curate.text.vocabulary.build import BuildVocabulary
from tests.engine import workspaces
from tests.engine.mixed import Mixed
from tests.engine.output import Output
from tests.text.wordnet.wordnets import tiny  # noqa: F401  (a fixture)

POOL = {"column": "caption", "wordnet": False, "unigrams": 1}
CASES: list[tuple[type[Reduce], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (BuildVocabulary, POOL, {"unigrams": 2, "bigrams": {"count": 1, "pmi": -9.0}}, {"stop_words": True}),
    (Boilerplate, {"column": "caption"}, {"least_count": 2, "least_neighbours": 1, "whole": True}, {"sample": 3}),
    (Threshold, {"column": "size"}, {"share": 0.9}, {"column": "width"}),
    (HashtagMap, {}, {"edits": "edits.tsv", "least_count": 2}, {"words": None}),
]


def built(workspace: Path, stage: Reduce) -> Any:
    """The artifact of a run on real shards."""
    made = Pipeline().add("pool", Mixed(namespace="contract"))
    made.add("tags", Tags(fields=("caption",)), "pool").add("facts", stage, "tags")
    output = Output(str(workspace), run(made.check(), str(workspace)))
    return output.value("facts", stage)


def states(workspace: Path) -> dict[str, int]:
    return {name: time for name, time in workspaces.times(workspace).items() if "/partials/" in name}


@pytest.fixture
def words(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The tiny WordNet, with adjectives and adverbs, and a line for a tag of the pool."""
    monkeypatch.chdir(tiny)
    (tiny / "edits.tsv").write_text("a pattern\tpattern\n")
    (tiny / "index.adj").write_text("white a 1 0 1 1 00000000\n")
    (tiny / "index.adv").write_text("")


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(("cls", "given", "limits", "counted"), CASES)
def test_other_limits_count_nothing_again(
    tmp_path: Path, cls: type[Reduce], given: dict[str, Any], limits: dict[str, Any], counted: dict[str, Any]
) -> None:
    first = built(tmp_path / "kept", cls(**given))
    before = states(tmp_path / "kept")
    second = built(tmp_path / "kept", cls(**given | limits))
    assert before and states(tmp_path / "kept") == before
    assert second == built(tmp_path / "fresh", cls(**given | limits)) != first
    third = built(tmp_path / "kept", cls(**given | counted))
    assert len(states(tmp_path / "kept")) == 2 * len(before)
    assert third == built(tmp_path / "anew", cls(**given | counted))


def test_a_file_that_is_saved_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An artifact of the new lines must not get the identity of the old lines."""
    file, workspace = tmp_path / "entries.txt", tmp_path / "workspace"
    file.write_text("old")
    stage = BuildVocabulary(**POOL | {"unigrams": None}, bigrams=None, entries=file)
    finish = BuildVocabulary.finish

    def saved(self: BuildVocabulary, state: Any) -> Any:
        file.write_text("new")
        return finish(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(BuildVocabulary, "finish", saved)
        with pytest.raises(InputError, match=r"text.vocabulary: entries changed during the build; run again$"):
            built(workspace, stage)
    assert not [name for name in workspaces.times(workspace) if re.match(r"artifacts/.*/manifest.json", name)]
    for line in ("old", "new"):
        file.write_text(line)
        assert line in str(built(workspace, stage)["entries"])
