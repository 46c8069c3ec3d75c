"""The recipes of texts on a small folder: counts add up, and the dataset holds the items that were chosen."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.core.nouns import facts
from curate.core.nouns.masks import fate_of
from curate.core.recipe.load import parse
from curate.core.recipe.pipeline import Pipeline
from curate.core.rows import mask_files
from curate.core.store.storage import open_storage
from curate.engine.run import Result, run
from tests.conftest import ROOT
from tests.core.store.object_store import new_bucket
from tests.e2e.commands import curate
from tests.e2e.texts import over, recipe, write_images
from tests.engine.contract import CLIP
from tests.engine.output import Output
from tests.engine.workspaces import assert_same, times
from tests.text.wordnet.wordnets import write_wordnet

COUNT = 60
SETTINGS = {
    "vise": ["target=70"],
    "vise_unigrams": ["target=70"],
    "uru": ["target=50"],
    "metaclip": ["vocabulary.unigrams=3", "vocabulary.bigrams={count: 3, pmi: 0}"],
    "datacomp_basic": ["report.label=meta.category"],
}
ITEMS = {"vise": "sentences", "vise_unigrams": "sentences", "uru": "hashtags"}
TEXTS = {**ITEMS, "metaclip": "text", "datacomp_basic": "text"}
"""Columns of a recipe's texts; for columns with a value per item, the dataset has the item's value."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("texts") / "images", COUNT)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordNet of two dozen synsets, so that counts do not depend on which one this machine has."""
    folder = tmp_path_factory.mktemp("words")
    write_wordnet(folder / "wordnet")
    for name in ("index.adj", "index.adv"):
        (folder / "wordnet" / name).touch()
    return folder


@pytest.fixture
def small(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_WORDNET", str(words / "wordnet"))
    monkeypatch.setenv("CURATE_CACHE", str(words / "cache"))


@dataclass(frozen=True)
class Made:
    workspace: str
    result: Result
    output: Output
    again: Callable[[], Result]

    def rows(self, stage: str) -> dict[str, dict[str, Any]]:
        """Key -> columns of the pool and of a Map, for the rows that are done."""
        found: dict[str, dict[str, Any]] = {}
        for shard, table in self.output.facts(stage):
            pool = self.output.storage.read_table(shard.table).to_pylist()
            rows = [row for row in table.to_pylist() if row[facts.STATUS_COLUMN] == facts.DONE]
            found |= {pool[row[facts.ROW]]["key"]: {**pool[row[facts.ROW]], **row} for row in rows}
        return found

    def kept_items(self, behind: str) -> set[tuple[str, str]]:
        """(key, place) of sentences that are alive where the ways end, in the mask that a filter is part of."""
        storage, sentences = self.output.storage, self.rows("sentences")
        [point] = self.output.manifest(behind).extra["points"]
        files, kept = mask_files(storage.url, self.output.bases[behind]), set()
        for shard in self.output.shards:
            fate = fate_of(storage.read_table(files[shard.id]), point, self.output.order)
            for row, key in enumerate(self.output.keys(shard)):
                if fate.alive[row]:
                    reasons = fate.items["sentences"][row] or [None] * len(sentences[key]["sentences"])
                    kept |= {(key, str(place)) for place, reason in enumerate(reasons) if reason is None}
        return kept

    def index(self) -> list[dict[str, Any]]:
        return open_storage(self.result.outputs["dataset"]).read_table("index.parquet").to_pylist()

    def text(self, row: dict[str, Any]) -> str | None:
        if row["text_offset"] < 0:
            return None
        name = f"{self.output.manifest('dataset').parameters['name']}-{row['shard']:06d}.tar"
        with open_storage(self.result.outputs["dataset"]).open(name) as tar:
            tar.seek(row["text_offset"])
            return tar.read(row["text_size"]).decode()

    def page(self) -> str:
        return Path(self.result.outputs["report"], "index.html").read_text("utf-8")


def make(workspace: Path, name: str, images: Path, *settings: str) -> Made:
    pipeline = recipe(name, images, *settings)
    result = run(pipeline, str(workspace))
    again = lambda: run(recipe(name, images, *settings), str(workspace))  # noqa: E731
    return Made(str(workspace), result, Output(str(workspace), result), again)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_recipe(name: str, images: Path, tmp_path: Path) -> None:
    made = make(tmp_path, name, images, *SETTINGS[name])
    for stage, entry in made.result.ledger.items():
        entry.check(stage)
    _the_dataset_is_what_was_chosen(made, name)
    _the_report_shows_the_balance(made, name)
    before = times(tmp_path)
    assert set(made.again().reused.values()) == {True}
    assert times(tmp_path) == before


def _the_dataset_is_what_was_chosen(made: Made, name: str) -> None:
    stage = "all" if name == "datacomp_basic" else "sample"
    wanted = Counter({(row["key"], row["item"]): row["copies"] for row in made.output.selection(stage)})
    index = made.index()
    assert Counter((row["key"], row["item"]) for row in index) == +wanted
    ledger = made.result.ledger
    assert len(index) == ledger["dataset"].copies == ledger[stage].copies > 0
    texts = made.rows(TEXTS[name])
    for row in index:
        printed = texts[row["key"]][TEXTS[name]]
        printed = printed[int(row["item"])] if name in ITEMS else printed
        assert made.text(row) == printed


def _the_report_shows_the_balance(made: Made, name: str) -> None:
    page = made.page()
    assert ('id="entries"' in page) == (name != "datacomp_basic")
    if name == "vise":
        assert "hot_dog.n.01" in page


@pytest.mark.usefixtures("small")
def test_vise_evens_out(images: Path, tmp_path: Path) -> None:
    made = make(tmp_path, "vise", images, "target=70")
    concepts = made.rows("concepts")
    texts = {
        (key, str(place)): found for key, row in concepts.items() for place, found in enumerate(row["concepts"] or ())
    }
    before = Counter(entry for found in texts.values() for entry in found or ())
    after = Counter(entry for row in made.index() for entry in texts[row["key"], row["item"]])
    counts = made.output.value("counts", made_stage("text.counts"))
    assert dict(zip(counts["counts"][0], counts["counts"][2], strict=True)) == before
    assert set(after) == set(before)
    rare, common = min(before, key=before.__getitem__), max(before, key=before.__getitem__)
    assert after[rare] / before[rare] > after[common] / before[common]
    assert abs(made.result.ledger["dataset"].copies - 70) < 25
    assert made.result.ledger["english"].rejected["language"] == COUNT // 10


def made_stage(op: str) -> Any:
    from curate.core.recipe import registry

    return registry.resolve(op)()


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_vise_above_a_similarity(images: Path, tmp_path: Path) -> None:
    """An encoder of random weights: cosines mean nothing, and are compared all the same."""
    settings = [f"encoder={CLIP}", "order=before", "target=40", "sample.multiplier=20"]
    shared = run(_of_the_best(images, 0.3, *settings), str(tmp_path))
    output = Output(str(tmp_path), shared)
    told = output.value("cut", made_stage("align.threshold"))["threshold"]
    kept = shared.ledger["similar"].of_items["sentences"]
    assert kept.after == round(told["share_realised"] * told["items"]) >= 0.3 * told["items"] > 0
    assert kept.rejected == {"dissimilar": kept.before - kept.after} and kept.before == told["items"]
    made = make(tmp_path, "vise_similarity", images, *settings, f"similarity={told['value']!r}")
    assert not any(made.result.counts[stage].computed for stage in ("sentences", "embed", "scores"))
    assert made.result.ledger["similar"] == shared.ledger["similar"]
    sentences, kept_items = made.rows("sentences"), made.kept_items("similar")
    assert len(kept_items) == kept.after
    assert {(row["key"], row["item"]) for row in made.index()} <= kept_items
    assert all(made.text(row) == sentences[row["key"]]["sentences"][int(row["item"])] for row in made.index())
    assert made.result.ledger["similar"].rejected["dissimilar"] > 0


@pytest.mark.usefixtures("small")
def test_vise_is_filtered_after_it_is_resampled(images: Path, tmp_path: Path) -> None:
    """Copies of a pair stay or leave together, and only sentences of rows that were drawn get a cosine."""
    made = make(tmp_path, "vise_similarity", images, f"encoder={CLIP}", "target=70", "similarity=0")
    drawn = {(row["key"], row["item"]): row["copies"] for row in made.output.selection("sample") if row["copies"]}
    scores = made.rows("scores")
    scored = {(key, str(n)): cosine for key, row in scores.items() for n, cosine in enumerate(row["similarity"] or [])}
    assert set(scores) == {key for key, _ in drawn}
    wanted = {pair: copies for pair, copies in drawn.items() if scored[pair] >= 0}
    assert Counter((row["key"], row["item"]) for row in made.index()) == wanted
    assert 0 < len(wanted) < len(drawn) and max(wanted.values()) > 1
    assert f"{sum(wanted.values())} were drawn" in made.page()
    ledger = made.result.ledger
    assert ledger["similar"].of_items["sentences"].before == len(drawn)
    assert ledger["dataset"].copies == len(made.index())


def _of_the_best(images: Path, share: float, *settings: str) -> Pipeline:
    """The recipe with DataComp's top share in place of a value."""
    text = yaml.safe_load((ROOT / "pipelines/vise_similarity.yaml").read_text())
    stages = {}
    for name, stage in text["stages"].items():
        if name == "similar":
            stages["cut"] = {"op": "align.threshold", "from": "scores", "share": share}
            stages["margin"] = {"op": "align.margin", "from": "scores", "threshold": "cut"}
            stage = {**stage, "from": "margin", "score": "similarity_margin", "threshold": 0}
        stages[name] = stage
    text["stages"] = stages
    text["vars"].pop("similarity")
    return parse(yaml.safe_dump(text, sort_keys=False), [*over(images), *settings])


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_vise_is_the_same_on_ray(images: Path, tmp_path: Path, on_ray: Any) -> None:
    pipeline = recipe("vise", images, "target=70")
    here = run(pipeline, str(tmp_path / "local"))
    there = run(pipeline, str(tmp_path / "ray"), engine=on_ray)
    for report in tmp_path.glob("*/artifacts/report.html"):
        shutil.rmtree(report)
    assert_same(tmp_path / "local", tmp_path / "ray")
    assert {name: entry.to_json() for name, entry in here.ledger.items()} == {
        name: entry.to_json() for name, entry in there.ledger.items()
    }


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_uru_is_the_same_on_an_object_store(images: Path, object_store: Any, tmp_path: Path) -> None:
    pipeline = recipe("uru", images, "target=50", "pool.shard_rows=60")
    here = run(pipeline, str(tmp_path))
    there = run(pipeline, f"s3://{new_bucket(object_store)}/deep")
    one, other = (open_storage(made.outputs["dataset"]) for made in (here, there))
    assert here.ledger == there.ledger and set(one.list("")) == set(other.list(""))
    names = [name for name in one.list("") if name != "manifest.json"]
    assert names and all(one.read(name) == other.read(name) for name in names)


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_a_tombstone_removes_all_items_of_a_row(images: Path, tmp_path: Path) -> None:
    made = make(tmp_path, "vise", images, "target=70")
    key = next(row["key"] for row in made.index() if row["item"] == "1")
    assert curate("tombstone", "add", key, "--why", "asked for", "-w", tmp_path).code == 0
    after = make(tmp_path, "vise", images, "target=70")
    assert all(row["key"] != key for row in after.index())
    assert after.result.ledger["sample"].rejected["tombstone"] == 1
    assert "rejected tombstone" in curate("explain", key, "-w", tmp_path).words
    diff = curate("diff", made.result.run_id, after.result.run_id, "-w", tmp_path)
    assert (diff.code, diff.err) == (0, "") and "1 removed" in diff.words


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_shards_do_not_matter(images: Path, tmp_path: Path) -> None:
    made = [make(tmp_path, "vise", images, "target=70", f"pool.shard_rows={rows}") for rows in (16, 7)]
    one, other = ([(row["name"], row["text_size"]) for row in each.index()] for each in made)
    assert one == other
