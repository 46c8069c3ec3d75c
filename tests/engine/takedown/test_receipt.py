"""A receipt knows the bytes of all its samples, or names those whose bytes are unknown."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from curate.core.recipe.load import parse
from curate.core.store.storage import Storage
from curate.engine.run import run
from curate.engine.takedown.bytes import mark_of
from curate.engine.takedown.find import _known_marks, entries_of, find, source_files
from curate.engine.takedown.takedown import Receipt

MARKS = {name: mark_of(name.encode() * 50) for name in ("first", "resized", "second")}
MARKED = {"a": [MARKS["first"].sha256, MARKS["resized"].sha256], "b": [MARKS["second"].sha256]}


def found(**changed: Any) -> dict[str, Any]:
    marks = [asdict(mark) for mark in MARKS.values()]
    return {"keys": ["a", "b"], "releases": [], "pools": [], "marks": marks, "marked": MARKED} | changed


def row(key: str, sha256: str | None, offset: int | None = 0) -> dict[str, Any]:
    return {"rows": [{"key": key, "sha256": sha256, "offset": offset}]}


@pytest.mark.parametrize(
    ("changed", "unmarked"),
    [
        ({}, []),
        ({"keys": ["a", "c"]}, ["c"]),
        ({"keys": ["a", "c"], "pools": [row("c", MARKS["second"].sha256)]}, []),
        ({"keys": ["a", "c"], "pools": [row("c", None, None)]}, []),  # a download that failed
        ({"keys": ["c"], "pools": [row("c", None, None)], "marks": [], "marked": {}}, ["c"]),
        ({"keys": ["a", "c", "d"], "unstored": {"c": None, "d": "a"}}, []),
        ({"keys": ["c"], "marks": [], "marked": {}, "unstored": {"c": None}}, []),
        ({"keys": ["a", "c"], "pools": [row("c", None, None), row("c", "0" * 64)], "unstored": {}}, ["c"]),
        ({"marked": None}, []),  # of an older version
        ({"marked": None, "marks": []}, ["a", "b"]),
    ],
)
def test_keys_without_a_mark(changed: dict[str, Any], unmarked: list[str]) -> None:
    receipt = {"workspace": "w", "erased": True, "datasets": {}, "found": found(**changed)}
    assert Receipt.model_validate(receipt).unmarked() == unmarked


def test_marks_of_earlier_takedowns_are_those_of_the_same_samples(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.create_json("takedowns/000001/plan.json", {"found": found()})
    a, b = [("a", MARKS["first"]), ("a", MARKS["resized"])], [("b", MARKS["second"])]
    assert list(_known_marks(storage, {"a"}, set())) == a
    assert list(_known_marks(storage, {"c"}, {MARKS["second"].sha256})) == b
    assert list(_known_marks(storage, {"c"}, set())) == []
    storage.remove("takedowns/000001/plan.json")
    older = {name: value for name, value in found().items() if name != "marked"}
    storage.create_json("takedowns/000002/plan.json", {"found": older})
    assert [mark for _, mark in _known_marks(storage, {"a"}, set())] == list(MARKS.values())


def test_a_source_file_is_left_as_long_as_it_may_have_the_bytes(tmp_path: Path) -> None:
    """Files of any folder of the recipe; not those that are gone or have changed."""
    for name, colour in (("may/a.png", "red"), ("june/b.png", "blue")):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (9, 9), colour).save(tmp_path / name)
    folders = [str(tmp_path / "may"), str(tmp_path / "june")]
    recipe = {"stages": {"pool": {"op": "acquire.folder", "path": folders, "namespace": "mine"}}}
    workspace = str(tmp_path / "workspace")
    run(parse(yaml.safe_dump(recipe)), workspace, run_id="one")
    storage = Storage(workspace)
    every = find(storage, entries_of(storage, ["a.png", "june/b.png"]), [], [])
    assert source_files(storage, every) == [str(tmp_path / "june/b.png"), str(tmp_path / "may/a.png")]
    (tmp_path / "may/a.png").unlink()
    assert source_files(storage, every) == [str(tmp_path / "june/b.png")]
    (tmp_path / "june/b.png").write_bytes(b"another")
    assert source_files(storage, every) == []
    (tmp_path / "june").rename(tmp_path / "away")  # it cannot be read now
    assert source_files(storage, every) == [str(tmp_path / "june/b.png")]
