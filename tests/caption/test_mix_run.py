"""Several texts per image, from a folder through the engine and the dataset to a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curate.acquire.folder import AcquireFolder
from curate.caption.mix import Mix
from curate.core.errors import CurateError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import run
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from curate.text.clean.clean import Clean
from curate.text.hashtags.tags import Tags
from distill.commands.train import train
from distill.recipe import DataRecipe, SourceRecipe, parse_recipe
from distill.samples.sources.mixture import open_mixture
from distill.samples.texts import missing_texts
from tests.distill.conftest import recipe_values
from tests.e2e.texts import write_images
from tests.pack.test_webdataset import samples

KINDS = {"original": "caption", "clean": "text", "tags": "tags"}


def pipeline(images: Path, **pack: Any) -> Pipeline:
    made = Pipeline().add("pool", AcquireFolder(path=str(images), namespace="mix", shard_rows=8))
    made.add("text", Clean(), "pool").add("tags", Tags(caption=None), "text")
    made.add("mix", Mix(texts=KINDS), "tags").add("all", SelectAll(), "mix")
    return made.add("dataset", PackWebDataset(name="mixed", shard_rows=10, **pack), "all").check()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("mix")
    images = write_images(place / "images", 24)
    made = pipeline(images, texts="texts", text="texts.clean", carry={"mixed": "texts"})
    return run(made, str(place / "workspace")).outputs["dataset"]


def test_all_texts_of_a_sample_are_in_the_dataset(dataset: str) -> None:
    found = [sample for tar in sorted(Path(dataset).glob("*.tar")) for sample in samples(tar)]
    texts = [json.loads(sample["json"])["texts"] for sample in found]
    assert len(texts) == 24 and {len(item) for item in texts} == {2, 3}  # a few have no tags
    for sample, item in zip(found, texts, strict=True):
        assert sample["txt"].decode() == item["clean"] != ""
        assert item["clean"] == item["original"].replace("#", "") and item.get("tags") != ""
    index = {row["name"]: row for row in open_storage(dataset).read_table("index.parquet").to_pylist()}
    assert [index[sample["__key__"]]["mixed"] for sample in found] == [dict.fromkeys(KINDS) | item for item in texts]
    assert not any("texts" in row for row in index.values())  # only if it is carried
    source = SourceRecipe(dataset=dataset, texts=dict.fromkeys([*KINDS, "txt"], 1.0))
    assert missing_texts(open_mixture(DataRecipe(sources=[source]))) == []


def test_a_student_is_trained_on_a_pair_of_them(dataset: str, tmp_path: Path) -> None:
    values = recipe_values(dataset, str(tmp_path / "run"))
    values["data"]["sources"][0] |= {
        "texts": {"clean": 0.8, "original": 0.1, "tags": 0.1}, "text_pair": ["clean", "tags"], "single_sentence": 0.2
    }  # fmt: skip
    text = {"vocabulary": 300, "context": 8, "width": 16, "depth": 1, "heads": 2}
    values["student"] |= {"text": text, "embed": 16}
    values |= {"teachers": [], "contrastive": {}, "evaluate": {"tasks": ["retrieval"], "texts": ["clean"]}}
    done = train(parse_recipe(values, "test"), Console(quiet=True))
    losses = [json.loads(line)["contrastive"] for line in done.metrics.read_text().splitlines()]
    assert len(losses) == 4 and all(0 < loss < 10 for loss in losses)
    [held_out] = json.loads((done.path / "evaluation.json").read_text())["sets"]
    assert held_out["retrieval"]["from"] == ["clean"] and held_out["retrieval"]["texts"] > 1


def test_a_kind_that_the_mix_lacks_ends_the_run_with_one_line(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 4)
    with pytest.raises(CurateError, match=r"column 'texts' has no kind 'cleen'; did you mean 'clean'\?"):
        run(pipeline(images, text="texts.cleen"), str(tmp_path / "workspace"))
