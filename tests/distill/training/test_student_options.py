"""Trainings of students with the options of CLIP and PE, and with other text towers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import distill
from curate.core.errors import CurateError, InputError, RecipeError, Reject
from curate.encoders import load
from distill.commands.train import train
from distill.context import StageContext
from distill.export import export
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.mixture import as_mixture, open_mixture
from distill.samples.text_vectors import TextVectors
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.ranks import take_steps

ALONE = World(0, 1, torch.device("cpu"))
PE = {
    "norm": "layer", "mlp": "gelu", "mlp_ratio": 4.0, "bias": True, "qk_norm": False, "pre_norm": True,
    "positions": "absolute + axial", "position_grid": 4, "pool": "attention", "pool_heads": 2, "layer_scale": 0.1,
    "drop_path": 0.5, "pixel_mean": [0.4, 0.5, 0.6],
}  # fmt: skip
CLIP = {"tower": "clip", "vocabulary": 49408, "context": 12, "width": 8, "depth": 1, "heads": 1}
WIDTH = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images with a text each, and all except the first with a vector of it."""
    items, random = drawn_items(40), np.random.default_rng(0)
    for number, item in enumerate(items):
        vector = random.normal(size=WIDTH).astype(np.float32)
        item.columns |= {
            "vector": vector.tolist() if number else None,
            "halves": vector.astype("<f2").tobytes() if number else None,
            "side": 2.0,
        }
    captions = [f"number {number}".encode() for number in range(len(items))]
    return write_dataset(tmp_path_factory.mktemp("options") / "toy", items, texts=captions)


def options(dataset: Path, run: Path, text: dict[str, Any], **student: Any) -> dict[str, Any]:
    values = recipe_values(str(dataset), str(run))
    values["run"]["threads"] = 1
    values["student"] |= {"text": text, "embed": 8, **student}
    values["teachers"], values["contrastive"] = [], {}
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    values["evaluate"] = {"tasks": ["retrieval"], "texts": ["txt"]}
    return values


def trained(values: dict[str, Any], console: Console | None = None) -> Path:
    return train(parse_recipe(values, "test"), console or Console(quiet=True)).path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return distill.load(export(run, run / "weights")).student.state_dict()


@pytest.fixture(scope="module")
def pe(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of PE's options with CLIP's text tower."""
    values = options(dataset, tmp_path_factory.mktemp("pe") / "run", CLIP, **PE)
    return trained(values | {"run": values["run"] | {"keep_checkpoints": 9}})


@pytest.mark.long
def test_a_resumed_run_gives_the_same_bits(pe, dataset, tmp_path):
    shutil.copytree(pe, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000004")
    (tmp_path / "run" / "finished.json").unlink()
    again = trained(options(dataset, tmp_path / "run", CLIP, **PE))
    expected, found = weights(pe), weights(again)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    results = [json.loads((run / "evaluation.json").read_text()) for run in (pe, again)]
    assert results[0]["sets"] == results[1]["sets"]


def test_an_export_embeds_images_and_texts(pe, tmp_path):
    folder = export(pe, tmp_path / "model")
    model, encoder = distill.load(folder), load(f"distill:{folder}", device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 3), dtype=np.uint8)
    images = encoder.encode([pixels]).summary
    assert np.allclose(images, model([pixels]).embedding.detach().numpy(), atol=1e-6)
    texts = encoder.encode_text(["number 3!", "number 3"])
    assert texts.shape == (2, 8) and not np.allclose(texts[0], texts[1])
    assert not (folder / "tokenizer.json").exists()
    held = json.loads((folder / "config.json").read_text())
    assert held["preprocessing"]["mean"] == held["student"]["pixel_mean"] == [0.4, 0.5, 0.6]


def test_micro_batches_equal_the_whole_batch(dataset, tmp_path, monkeypatch):
    """The same branches are skipped for an image, also in the second forward pass of a micro-batch."""
    values = options(
        dataset, tmp_path / "run", {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}, **PE
    )
    values["train"] |= {"precision": "float64", "epsilon": 1e-6}
    whole = take_steps(values, ALONE)
    parts = take_steps(values | {"run": values["run"] | {"micro_sequences": 1}}, ALONE)
    for one, two in zip(whole["steps"], parts["steps"], strict=True):
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-10)
        for name, grad in one["grads"].items():
            assert torch.allclose(two["grads"][name], grad, rtol=1e-9, atol=1e-13), name
    kept = take_steps(values | {"student": values["student"] | {"drop_path": 0.0}}, ALONE)
    assert kept["steps"][0]["sums"]["loss"] != pytest.approx(whole["steps"][0]["sums"]["loss"], rel=1e-6)


def test_an_image_skips_other_branches_in_another_epoch(dataset, tmp_path):
    recipe = parse_recipe(options(dataset, tmp_path / "run", CLIP, **PE), "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    read = ([context.reader.get(row, epoch) for row in range(1, 6)] for epoch in (0, 0, 1))
    first, again, later = (context.reader.draws(images) for images in read)
    assert np.array_equal(first, again) and not (first == later).any()


@pytest.mark.long
def test_texts_may_be_vectors_of_a_column(dataset, tmp_path):
    """The sample without a vector is skipped; the export takes vectors too."""
    text = {"tower": "columns", "column": "vector", "width": WIDTH, "depth": 2}
    values = options(dataset, tmp_path / "run", text)
    del values["data"]["sources"][0]["texts"]
    values["train"]["steps"], values["data"]["max_bad_fraction"] = 20, 0.5
    run = trained(values)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["contrastive"] < lines[0]["contrastive"]
    assert {line["skipped"] for line in lines} <= {0, 1}
    model = distill.load(export(run, tmp_path / "model"))
    assert model.student.text(torch.zeros(3, WIDTH)).shape == (3, 8)
    assert model([np.zeros((8, 8, 3), np.uint8)]).embedding.shape == (1, 8)
    with pytest.raises(CurateError, match="compares images with vectors of the column 'vector', not with texts"):
        model.encode_text(["a cat"])


def read(vectors: TextVectors, row: int) -> np.ndarray:
    """NaN for a sample without a vector."""
    try:
        return vectors.of_row(row)
    except Reject:
        return np.full(WIDTH, np.nan)


def test_vectors_are_lists_or_the_halves_of_text_embed(dataset):
    mixture = as_mixture(open_dataset(str(dataset)))
    lists, halves = (TextVectors(mixture, name, WIDTH) for name in ("vector", "halves"))
    found = [[read(vectors, row) for row in range(40)] for vectors in (lists, halves)]
    assert np.allclose(*found, atol=1e-2, equal_nan=True)
    assert np.isnan(found[0]).any(1).sum() == 1


@pytest.mark.parametrize(
    ("column", "width", "message"),
    [
        ("vectors", WIDTH, r"data\.sources\.0: .* has no column 'vectors', which student\.text\.column names; add it"),
        ("vector", 16, "'vector' has vectors of 8 numbers, but student.text.width is 16; set it to that"),
        ("halves", 16, "'halves' has vectors of 8 numbers, but student.text.width is 16; set it to that"),
        ("side", WIDTH, "'side' is of type double; expected vectors of `text.embed`, or lists of numbers"),
    ],
)
def test_columns_without_vectors_are_one_line(dataset, tmp_path, column, width, message):
    text = {"tower": "columns", "column": column, "width": width}
    with pytest.raises(InputError, match=message) as caught:
        trained(options(dataset, tmp_path / "run", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"positions": "axial", "head_dim": 6}, "positions: 'axial' rotates pairs by row and .* width 6 is not a"),
        ({"positions": "absolute"}, "positions: absolute requires position_grid, the side of its grid, and the"),
        ({"position_grid": 7}, "positions: absolute requires position_grid"),
        ({"class_token": False}, "pool: 'cls' requires class_token: true; choose pool: attention or mean"),
        ({"pool": "attention", "pool_heads": 3}, "width 16 is not a multiple of pool_heads .3."),
        ({"mlp": "gelu", "moe": {"experts": 4, "active": 2}}, "mlp: 'gelu', but the experts of moe are SwiGLU"),
        ({"moe": {"experts": 4, "active": 2, "hidden": 8, "shared": 2}}, "shared_active 0 of 2 shared experts"),
        ({"pixel_std": [0.5, 0, 0.5]}, r"pixel_std: .0.5, 0.0, 0.5.: expected values above 0"),
        ({"drop_path": 1.0}, "student.drop_path: 1.0: input should be less than 1"),
        ({"text": CLIP | {"vocabulary": 300}}, "vocabulary 300, but CLIP's tokenizer has 49408; set that"),
        ({"text": {"tower": "columns"}}, "tower: columns requires `column`, the name of the vectors' column"),
        ({"text": {"column": "vector"}}, "tower: columns requires `column`"),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other_are_one_line(values, student, message):
    values["student"] |= student
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(values, "r")
    assert "\n" not in str(caught.value)


def test_options_at_their_defaults_are_not_in_the_fingerprint(values):
    recipe = parse_recipe(values, "test")
    assert set(recipe.semantic()["student"]) == {
        "patch", "width", "depth", "heads", "head_dim", "mlp_ratio", "moe", "registers", "head_hidden", "text", "embed",
    }  # fmt: skip
    assert "init_from" not in recipe.semantic()
