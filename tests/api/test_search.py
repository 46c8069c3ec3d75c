"""`Run.search` and `curate search`: rows by a text, an image or a sample, with filters, without tombstoned ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate import encoders
from curate.api import Pipeline, Run, Workspace, make_stage
from curate.core.errors import InputError
from curate.engine.run import run
from tests.e2e.commands import curate
from tests.engine import toys

ROWS = 60


def recipe() -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS, shard_rows=6, broken=7))
    made.add("inspect", make_stage("image.inspect"), "pool").add("bright", toys.Brightness(), "inspect")
    made.add("embed", make_stage("image.embed", encoder="tiny"), "bright")
    made.add("index", make_stage("search.fit"), "embed")
    made.add("tree", make_stage("cluster.fit", levels=[8], rounds=0), "embed")
    made.add("clusters", make_stage("cluster.assign", levels=1), "embed", tree="tree")
    made.add("by_leaf", make_stage("search.fit", cluster="cluster_1"), "clusters", tree="tree")
    return made.check()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("search") / "workspace"
    run(recipe(), str(folder), run_id="one")
    return Workspace(str(folder)).run("one")


def vectors(done: Run) -> dict[str, np.ndarray]:
    """Key -> its vector, in halves."""
    table = done.workspace.table("one", "embed", ["key", "embedding"]).table
    return dict(zip(table["key"].to_pylist(), np.array(table["embedding"].to_pylist(), np.float64), strict=True))


def nearest(found: dict[str, np.ndarray], query: np.ndarray) -> list[tuple[str, float]]:
    unit = query / np.linalg.norm(query)
    scores = {key: float(vector @ unit / np.linalg.norm(vector)) for key, vector in found.items()}
    return sorted(scores.items(), key=lambda one: (-round(one[1], 6), one[0]))


@pytest.mark.parametrize("stage", ["index", "by_leaf"])
def test_a_text_finds_the_rows_of_largest_cosine(done: Run, stage: str) -> None:
    answer = done.search("a red bicycle", limit=5, stage=stage, columns=["width", "brightness"])
    expected = nearest(vectors(done), encoders.load("tiny").encode_text(["a red bicycle"])[0].astype(np.float64))
    assert [hit.score for hit in answer.hits] == pytest.approx([score for _, score in expected[:5]], abs=1e-5)
    assert (answer.stage, answer.rows) == (stage, len(vectors(done)))
    for hit in answer.hits:
        story = {told.stage: told.facts for told in done.sample(hit.key).stages}
        assert (hit.caption, hit.url, hit.shard) == tuple(story["pool"][name] for name in ("caption", "url", "shard"))
        assert hit.columns["width"] == story["inspect"]["width"]
        assert hit.columns["brightness"] == pytest.approx(story["bright"]["brightness"])


def test_a_sample_finds_others_and_its_image_finds_itself(done: Run) -> None:
    key, vector = next(iter(vectors(done).items()))
    others = done.search(key=key[:12], limit=4, stage="index").hits
    expected = [(other, score) for other, score in nearest(vectors(done), vector) if other != key]
    assert [hit.score for hit in others] == pytest.approx([score for _, score in expected[:4]], abs=1e-5)
    assert key not in {hit.key for hit in others}
    assert done.search(image=_bytes(done, key), limit=1, stage="index").hits[0].score == pytest.approx(1, abs=1e-3)


def _bytes(done: Run, key: str) -> bytes:
    """The member of a sample in its tar."""
    facts = dict(done.sample(key).stages[0].facts)
    (tar,) = Path(done.workspace.root).rglob(f"{facts['shard']}*.tar")
    return tar.read_bytes()[facts["offset"] : facts["offset"] + facts["size"]]


def test_a_filter_gives_the_nearest_rows_that_pass(done: Run) -> None:
    whole = done.search("light", limit=ROWS, stage="index", columns=["brightness"]).hits
    some = done.search("light", limit=ROWS, stage="index", where="brightness > 125.5 and width > 0")
    assert [hit.key for hit in some.hits] == [hit.key for hit in whole if hit.columns["brightness"] > 125.5]
    assert some.judged == some.rows and 0 < len(some.hits) < len(whole)
    with pytest.raises(InputError, match="--where: nonsense: no stage over the rows"):
        done.search("light", stage="index", where="nonsense > 1")


def test_tombstoned_samples_and_their_children_are_not_shown(tmp_path: Path) -> None:
    run(recipe(), str(tmp_path / "workspace"), run_id="one")
    found = Workspace(str(tmp_path / "workspace")).run("one")
    first, second = found.search("a dog", limit=2, stage="index").hits
    found.workspace.add_tombstones([first.key], "asked for it")
    assert found.search("a dog", limit=1, stage="index").hits == [second]
    assert first.key not in {hit.key for hit in found.search("a dog", limit=ROWS, stage="index").hits}
    found.workspace.remove_tombstones([first.key], "a mistake")
    assert found.search("a dog", limit=1, stage="index").hits == [first]
    shutil.rmtree(tmp_path / "workspace" / "artifacts" / "search.fit")  # as a takedown does
    with pytest.raises(InputError, match="run one: the index of index was removed; run the recipe again"):
        found.search("a dog", stage="index")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"text": "a"}, r"run one: several indexes \(index, by_leaf\); choose one with --stage"),
        ({"text": "a", "stage": "tree"}, "--stage tree: built no index in run one; stages that did: index, by_leaf"),
        ({"text": "", "stage": "index"}, "expected one of a text, an image and a key"),
        ({"text": "a", "key": "b", "stage": "index"}, "expected one of a text, an image and a key"),
        ({"text": "a", "limit": 0, "stage": "index"}, "--limit 0: expected 1 to 1000"),
        ({"image": b"GIF", "stage": "index"}, "the image cannot be decoded"),
        ({"key": "0" * 32, "stage": "index"}, "no sample of run one has this key"),
        ({"text": "a", "columns": ["x"], "stage": "index"}, "x: no stage over the rows of pool writes this column"),
        (
            {"text": "a", "encoder": "descriptor", "stage": "index"},
            "'descriptor' has no text tower; use an image-text model: 'tiny'",
        ),
    ],
)
def test_every_mistake_is_one_line(done: Run, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as failed:
        done.search(**asked)
    assert "\n" not in str(failed.value)


def test_an_image_that_was_not_embedded_has_no_neighbours(done: Run) -> None:
    keys = done.workspace.table("one", "pool", ["key"]).table["key"].to_pylist()
    broken = next(key for key in keys if key not in vectors(done))
    with pytest.raises(InputError, match=r"has no 'embed\.embedding' in pool"):
        done.search(key=broken, stage="index")


def test_vectors_without_texts_or_of_another_encoder_are_named(tmp_path: Path) -> None:
    """And before there are any vectors, so is the stage that is missing."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=12, shard_rows=6))
    place = Workspace(str(tmp_path / "workspace"))
    run(made, place.url, run_id="none")
    with pytest.raises(InputError, match="run none: no vectors to search yet; add a stage `search"):
        place.run("none").search("a dog")
    made.add("embed", make_stage("image.embed", encoder="descriptor"), "pool")
    run(made.add("index", make_stage("search.fit"), "embed"), place.url, run_id="described")
    found = place.run("described")
    with pytest.raises(InputError, match="'descriptor' has no text tower; use an image-text model"):
        found.search("a dog")
    with pytest.raises(InputError, match="--encoder: encoder tiny, but the vectors are of descriptor"):
        found.search("a dog", encoder="tiny")
    assert len(found.search(key=found.search(image=_bytes(found, _key(found))).hits[0].key).hits) == 10


def test_an_index_is_searched_by_the_encoder_and_the_vectors_it_was_built_from(tmp_path: Path) -> None:
    """Others over the same rows may write a column of the same name."""
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=12, shard_rows=6))
    for name, encoder in (("shapes", "descriptor"), ("words", "tiny")):
        made.add(name, make_stage("image.embed", encoder=encoder), "pool")
        made.add(f"of_{name}", make_stage("search.fit"), name)
    place = Workspace(str(tmp_path / "workspace"))
    run(made.check(), place.url, run_id="both")
    done = place.run("both")
    assert len(done.search("a dog", stage="of_words").hits) == 10
    with pytest.raises(InputError, match="'descriptor' has no text tower"):
        done.search("a dog", stage="of_shapes")
    key = _key(done)
    for stage in ("of_words", "of_shapes"):
        assert key not in {hit.key for hit in done.search(key=key, stage=stage).hits}
        first = done.search(image=_bytes(done, key), stage=stage, limit=1).hits[0]
        assert (first.key, first.score) == (key, pytest.approx(1, abs=1e-3))


def _key(done: Run) -> str:
    return done.workspace.table(done.id, "pool", ["key"]).table["key"][0].as_py()


def test_the_command_tells_texts_files_and_samples_apart(done: Run, tmp_path: Path) -> None:
    options = ("-w", done.workspace.url, "--stage", "index", "--json")
    by_text = json.loads(curate("search", "a red bicycle", *options, "--limit", "2").out)
    expected = done.search("a red bicycle", limit=2, stage="index").hits
    assert [hit["key"] for hit in by_text["hits"]] == [hit.key for hit in expected]
    key = by_text["hits"][0]["key"]
    (file := tmp_path / "query.png").write_bytes(_bytes(done, key))
    assert json.loads(curate("search", str(file), *options).out)["hits"][0]["score"] > 0.99
    long = curate("search", "a red bicycle " * 100 + "\udcff", *options)  # not a path, and not all UTF-8
    assert len(json.loads(long.out)["hits"]) == 10
    assert curate("search", "a missing.jpg", *options).err.startswith("curate: a missing.jpg: no such file")
    assert curate("search", str(tmp_path), *options).err.startswith(f"curate: {tmp_path}: a folder; give")
    assert key not in {hit["key"] for hit in json.loads(curate("search", key, *options).out)["hits"]}
