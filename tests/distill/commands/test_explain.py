"""`distill explain` reports each sample as the reader gives it to training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from distill.commands.explain import explain
from distill.context import StageContext
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.images.reader import Skipped
from distill.samples.sources.mixture import open_mixture
from tests.distill.clips import clip, write_clips
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.training.test_steps import STEPS, run_of


@pytest.mark.parametrize("cropped", [False, True])
def test_samples_are_as_the_reader_gives_them(tmp_path: Path, cropped: bool) -> None:
    """Clips, and images of two sizes of which some have no text."""
    texts = [None if number % 5 == 0 else f"image {number}".encode() for number in range(30)]
    images = write_dataset(tmp_path / "images", drawn_items(30), texts=texts)
    clips = write_clips(tmp_path / "clips", [clip(number, 2 + number % 3) for number in range(12)], texts=["a"] * 12)
    values = recipe_values(str(images), str(tmp_path / "run"))
    values["data"]["sources"] = [
        {"dataset": str(images), "max_tokens": {4: 1, 16: 1}, "texts": {"txt": 1}},
        {"dataset": str(clips), "max_tokens": 12, "frames": 3, "modality": "video", "texts": {"txt": 1}},
    ]
    if cropped:
        values["data"]["augment"] = {"crop": [0.2, 0.9], "aspect": 2.0, "flip": True, "colour": 0.3}
    values["student"] |= {"text": {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}, "embed": 8}
    values |= {"contrastive": {"weight": 0.5}}
    values["train"]["steps"] = STEPS
    run, _ = run_of(values, tmp_path / "made", 0, plan=True)
    recipe = parse_recipe(values, "test").staged()[0]
    mixture = open_mixture(recipe.data)
    reader = StageContext.of(recipe, mixture, World(0, 1, torch.device("cpu"))).reader
    rows = {mixture.key(row): row for row in range(len(mixture))}
    skipped = set()
    for step in (1, 2, STEPS):
        for sample in explain(str(run.path), step, None, Console(quiet=True))["samples"]:
            read = reader.get(rows[sample["key"]], sample["epoch"])
            if isinstance(read, Skipped):
                assert "left it out" in sample["unreadable"]
                skipped.add(read.reason)
                continue
            assert sample["texts"] == [read.text] and "unreadable" not in sample
            assert sample["seen"] == [side * recipe.student.patch for side in reversed(read.grid)]
            assert (sample["frames"], sample["tokens"]) == (read.frames, len(read.patches))
    assert skipped == {"no_text"}
