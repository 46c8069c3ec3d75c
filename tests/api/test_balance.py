"""`curate plan --labels`: what a selection would do to the balance of labels, before it runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curate.api import Workspace, load_recipe
from curate.core.errors import InputError, TargetError
from tests.e2e.commands import curate

SIZES = {"red": 160, "green": 40, "blue": 20}
RECIPE = """
vars: {{ target: 60 }}
stages:
  pool: {{ op: acquire.folder, path: {images}, namespace: mine, label: -1 }}
  embed: {{ op: image.embed, from: pool, encoder: descriptor }}
  tree: {{ op: cluster.fit, from: embed, levels: [12, 3], rounds: 0 }}
  clusters: {{ op: cluster.assign, from: embed, tree: tree, levels: 2 }}
  sample: {{ op: select.hierarchical, from: clusters, tree: tree, target: "${{target}}" }}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per colour, a recipe, and a workspace in which it has run."""
    folder = tmp_path_factory.mktemp("balance")
    rng = np.random.default_rng(0)
    for channel, (colour, count) in enumerate(SIZES.items()):
        (folder / "images" / colour).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[..., channel] += 180
            Image.fromarray(pixels).save(folder / "images" / colour / f"{number}.png")
    (folder / "recipe.yaml").write_text(RECIPE.format(images=folder / "images"))
    curate("run", folder / "recipe.yaml", "-w", folder / "workspace", "--quiet")
    return folder


def written(place: Path, labels: dict[str, str]) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([("key", "label"), *labels.items()])
    (place / "labels.csv").write_text(text.getvalue())
    return place / "labels.csv"


def labels_of(place: Path) -> dict[str, str]:
    workspace = Workspace(str(place / "workspace"))
    (run,) = workspace.runs()
    table = workspace.table(run.run_id, "clusters", ["key", "source_id"]).read_all()
    return {key: name.split("/")[0] for key, name in zip(*table.to_pydict().values(), strict=True)}


def test_all_labels_or_a_few_say_before_a_run_that_it_balances(place: Path) -> None:
    every = labels_of(place)
    few = dict(np.random.default_rng(1).permutation(list(every.items()))[:100].tolist())
    for labels, count in (("meta.label", sum(SIZES.values())), (written(place, few), 100)):
        said = curate("plan", place / "recipe.yaml", "-w", place / "workspace", "--labels", labels).words
        line = said[said.index("sample: against") :]
        assert line.startswith("sample: against a random sample: better balanced (label entropy 1."), line
        assert f"from {count} labelled rows in the clusters of run" in line and "select.uniform" not in line


def test_the_estimate_is_what_the_run_selects(place: Path) -> None:
    workspace = Workspace(str(place / "workspace"))
    (one,) = workspace.expected_balance(load_recipe(str(place / "recipe.yaml")), "meta.label")
    (run,) = workspace.runs()
    names = workspace.table(run.run_id, "sample", ["source_id"]).read_all()["source_id"].to_pylist()
    share = np.unique([name.split("/")[0] for name in names], return_counts=True)[1] / len(names)
    assert one.figure is not None
    assert one.figure.selection == pytest.approx(-(share * np.log2(share)).sum(), abs=0.15)


def test_a_selection_that_would_be_worse_is_advised_against(place: Path) -> None:
    """As many labelled rows of each class: evening out the clusters makes them uneven."""
    every = labels_of(place)
    even = {key: label for name in SIZES for key, label in [one for one in every.items() if one[1] == name][:20]}
    (one,) = Workspace(str(place / "workspace")).expected_balance(
        load_recipe(str(place / "recipe.yaml")), str(written(place, even))
    )
    assert one.text().startswith("sample: against a random sample: worse balanced (label entropy ")
    assert one.text().endswith("take a random sample instead: select.uniform")


def test_what_is_unknown_is_reported(place: Path) -> None:
    workspace, recipe = Workspace(str(place / "workspace")), load_recipe(str(place / "recipe.yaml"))
    one_label = dict.fromkeys(labels_of(place), "all")
    (one,) = workspace.expected_balance(recipe, str(written(place, one_label)))
    assert one.text().startswith("sample: balance against random: unknown from 220 labelled rows")
    with pytest.raises(InputError, match=r"labels\.csv: none of the 220 rows of run .* has a label in it"):
        workspace.expected_balance(recipe, str(written(place, {"0" * 32: "a"})))
    with pytest.raises(
        InputError, match=r"nowhere\.csv: .*; give a \.csv or \.parquet file with columns key and label"
    ):
        workspace.expected_balance(recipe, str(place / "nowhere.csv"))
    with pytest.raises(TargetError, match="target: 1000 rows, but the pool can give at most 220"):
        workspace.expected_balance(load_recipe(str(place / "recipe.yaml"), ["target=1000"]), "meta.label")
    with pytest.raises(InputError, match="no stage over the rows of clusters writes this column"):
        workspace.expected_balance(recipe, "colour")
