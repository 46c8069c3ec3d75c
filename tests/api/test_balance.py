"""`curate plan --labels`: what a selection would do to the balance of labels, before it runs."""

from __future__ import annotations

import csv
import io
import re
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
    table = workspace.table(run.run_id, "clusters", ["key", "source_id"]).table
    return {key: name.split("/")[0] for key, name in zip(*table.to_pydict().values(), strict=True)}


def test_all_labels_or_a_few_say_before_a_run_that_it_balances(place: Path) -> None:
    every = labels_of(place)
    few = dict(np.random.default_rng(1).permutation(list(every.items()))[:100].tolist())
    for labels, count in (("meta.label", sum(SIZES.values())), (written(place, few), 100)):
        said = curate("plan", place / "recipe.yaml", "-w", place / "workspace", "--labels", labels).words
        line = said[said.index("sample: better") :]
        assert line.startswith("sample: better than a random sample: labels' entropy 1."), line
        assert f"from {count} labelled rows in the clusters of run" in line and "select.uniform" not in line


def test_the_estimate_is_what_the_run_selects(place: Path) -> None:
    workspace = Workspace(str(place / "workspace"))
    (one,) = workspace.expected_balance(load_recipe(str(place / "recipe.yaml")), "meta.label")
    (run,) = workspace.runs()
    names = workspace.table(run.run_id, "sample", ["source_id"]).table["source_id"].to_pylist()
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
    assert one.text().startswith("sample: worse than a random sample: labels' entropy ")
    assert one.text().endswith("take a random sample instead: select.uniform")


def test_what_is_unknown_is_reported(place: Path) -> None:
    workspace, recipe = Workspace(str(place / "workspace")), load_recipe(str(place / "recipe.yaml"))
    every = labels_of(place)
    for labels, why in (
        (dict.fromkeys(every, "all"), "all 220 labelled rows have one label"),
        (dict(list(every.items())[:19]), "19 labelled rows are too few, label at least 20"),
    ):
        (one,) = workspace.expected_balance(recipe, str(written(place, labels)))
        assert one.text() == f"sample: balance against random: unknown; {why}"
    with pytest.raises(
        InputError, match=r"labels\.csv: none of the 220 rows .* its first key is '000\w*', a key of the run"
    ):
        workspace.expected_balance(recipe, str(written(place, {"0" * 32: "a"})))
    with pytest.raises(TargetError, match="sample: target: 1000 rows, but the pool can give at most 220"):
        workspace.expected_balance(load_recipe(str(place / "recipe.yaml"), ["target=1000"]), "meta.label")
    with pytest.raises(InputError, match=r"--labels colour: .*no stage over the rows of clusters writes this column"):
        workspace.expected_balance(recipe, "colour")
    with pytest.raises(InputError, match=r"--labels embedding: the column holds .*; give one of texts or numbers"):
        workspace.expected_balance(recipe, "embedding")
    for column in ("key", "cluster_1", "cluster_2"):
        assert workspace.expected_balance(recipe, column)[0].labelled == 220
    covers = load_recipe(str(place / "recipe.yaml"), ["sample.strategy=cover"])
    assert "unknown; it looks at what images show" in workspace.expected_balance(covers, "meta.label")[0].text()


def test_clusters_of_other_settings_or_of_a_sample_say_nothing(place: Path) -> None:
    workspace = Workspace(str(place / "workspace"))
    for change in ("tree.levels=[10, 3]", "embed.encoder=tiny", "pool.namespace=other"):
        (one,) = workspace.expected_balance(load_recipe(str(place / "recipe.yaml"), [change]), "meta.label")
        assert one.figure is None and one.why.endswith("`curate run --to clusters` does"), change
    (one,) = workspace.expected_balance(load_recipe(str(place / "recipe.yaml"), ["target=50"]), "meta.label")
    assert one.figure is not None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"name,kind\na,b\n", "no column key and label, only 'name', 'kind'"),
        (b"key;label\na;b\n", "no column key and label, only 'key;label'"),
        (b"key,label\na,b\na,c\n", "key 'a' has the labels 'b' and 'c'; keep one"),
        (b"\x00\xff\xfe\x1b[31m,\n\x80\n", "cannot be read as csv|no column key and label"),
        (b"", "cannot be read as csv"),
    ],
)
def test_bad_files_of_labels(place: Path, content: bytes | None, said: str) -> None:
    path = place / "bad.csv"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    plan = curate("plan", place / "recipe.yaml", "-w", place / "workspace", "--labels", path)
    assert plan.code == 1 and re.match(rf"curate: labels {path}: ({said})", plan.error), plan.error
    assert plan.error.isprintable()
