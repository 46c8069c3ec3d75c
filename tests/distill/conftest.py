from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
import torch

from distill.recipe import Recipe, parse_recipe
from distill.samples.sources.dataset import Dataset, open_dataset
from tests.distill.datasets import Item, drawn_items, write_dataset


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 drawn images of 4 classes in 6 tars."""
    return write_dataset(tmp_path_factory.mktemp("datasets") / "toy", drawn_items(60))


@pytest.fixture(scope="session")
def dataset(folder: Path) -> Dataset:
    return open_dataset(str(folder))


@pytest.fixture
def s3_folder(tmp_path: Path, object_store: Any) -> tuple[str, list[Item]]:
    """A dataset of 20 images in 2 tars on moto's server: its URL and its items."""
    object_store.create_bucket(Bucket="distill")
    items = drawn_items(20)
    local = write_dataset(tmp_path / "to-upload", items)
    store = s3fs.S3FileSystem()
    for path in local.iterdir():
        store.pipe_file(f"distill/datasets/toy/{path.name}", path.read_bytes())
    return "s3://distill/datasets/toy", items


def recipe_values(dataset: str, run: str) -> dict[str, Any]:
    return {
        "name": "toy",
        "run": {
            "folder": run,
            "device": "cpu",
            "log_every": 1,
            "checkpoint_every": 2,
            "workers": 2,
            "tensorboard": False,
        },
        "data": {
            "sources": [{"dataset": dataset, "max_tokens": 16}],
            "sequence_tokens": 64,
            "lookahead": 32,
            "test_fraction": 0.3,
        },
        "student": {"patch": 8, "width": 16, "depth": 2, "heads": 2, "registers": 2, "head_hidden": 16},
        "teachers": [{"encoder": "descriptor", "standardise": "scale"}],
        "train": {"steps": 4, "sequences": 3, "warmup_steps": 1, "standardise_samples": 16},
        "evaluate": {"k": 3},
    }


@pytest.fixture
def values(folder: Path, tmp_path: Path) -> dict[str, Any]:
    """A recipe's values, for tests to change before they parse them."""
    return recipe_values(str(folder), str(tmp_path / "run"))


@pytest.fixture
def recipe(values: dict[str, Any]) -> Recipe:
    return parse_recipe(values, "test")
