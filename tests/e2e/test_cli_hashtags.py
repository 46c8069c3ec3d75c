"""A run over tagged images, and its hashtag map: printed, edited, used as `edits`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.commands import curate
from tests.e2e.image_files import good
from tests.text.wordnet.wordnets import write_wordnet

TAGS = [["#Dogs", "sofa"], ["dog", "qqq"], ["hotDog", "dog"], []]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images with keywords, up to a selection by canonical tags, on a WordNet of a dozen synsets."""
    words = write_wordnet(tmp_path / "words")
    for name in ("index.adj", "index.adv"):
        (words / name).touch()
    monkeypatch.setenv("CURATE_WORDNET", str(words))
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CURATE_WORKSPACE", str(tmp_path / "workspace"))
    images = tmp_path / "images"
    images.mkdir()
    lines = []
    for number, tags in enumerate(TAGS):
        (images / f"{number}.png").write_bytes(good(3 * number))
        lines.append(json.dumps({"file_name": f"{number}.png", "caption": f"picture {number}", "keywords": tags}))
    (images / "metadata.jsonl").write_text("\n".join(lines))
    stages = {
        "pool": {"op": "acquire.folder", "path": str(images), "namespace": "tagged"},
        "tags": {"op": "text.tags", "from": "pool"},
        "map": {"op": "text.hashtag_map", "from": "tags"},
        "hashtags": {"op": "text.hashtags", "from": "tags", "map": "map"},
        "counts": {"op": "text.counts", "from": "hashtags", "columns": ["hashtags"]},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return path


def rows(printed: str) -> dict[str, list[str]]:
    return {line.split("\t")[0]: line.split("\t")[1:5] for line in printed.splitlines()}


def test_a_map_is_printed_changed_and_given_back(recipe: Path, tmp_path: Path) -> None:
    assert curate("run", recipe, "--engine", "local").code == 0
    printed = curate("text", "map")
    assert (printed.code, printed.err) == (0, "")
    assert rows(printed.out) == {
        "tag": ["canonical", "kind", "count", "how"],
        "dog": ["dog", "noun", "2", "word"],
        "dogs": ["dog", "noun", "1", "synset"],
        "sofa": ["sofa", "noun", "1", "word"],
        "hotdog": ["hot dog", "noun", "1", "synset"],
        "qqq": ["", "unmapped", "1", "unknown"],
    }
    edited = tmp_path / "map.tsv"
    edited.write_text(printed.out.replace("qqq\t\tunmapped", "qqq\tgame\tnoun").replace("sofa\tsofa\tnoun", "sofa\t\t"))
    assert curate("run", recipe, "--engine", "local", "--set", f"map.edits={edited}").code == 0
    found = rows(curate("text", "map", "--stage", "map").out)
    assert (found["qqq"], found["sofa"]) == (["game", "noun", "1", "edit"], ["", "unmapped", "1", "edit"])
    assert found["dogs"] == ["dog", "noun", "1", "synset"]


def test_what_has_no_map(recipe: Path) -> None:
    assert "not a workspace; check the path" in curate("text", "map").error
    stages = yaml.safe_load(recipe.read_text())["stages"]
    recipe.write_text(yaml.safe_dump({"stages": {name: stages[name] for name in ("pool", "tags")}}, sort_keys=False))
    assert curate("run", recipe, "--engine", "local").code == 0
    assert "no hashtag map; name a run whose recipe has `text.hashtag_map`" in curate("text", "map").error
    assert "--stage tags: built no hashtag map in run" in curate("text", "map", "--stage", "tags").error


def test_edits_that_cannot_be_read_stop_a_run_before_it_begins(recipe: Path, tmp_path: Path) -> None:
    (edits := tmp_path / "edits.tsv").write_text("dog cat\n")
    printed = curate("run", recipe, "--engine", "local", "--set", f"map.edits={edits}")
    assert "line 1: expected tag, TAB, canonical tag" in printed.err
    assert printed.code == 1 and not (tmp_path / "workspace" / "pools").exists()
