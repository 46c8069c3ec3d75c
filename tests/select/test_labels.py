"""Selections that balance by labels that rows have: even to natural, and what is wrong with labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pydantic import ValidationError

from curate.acquire.folder import AcquireFolder
from curate.core.errors import CurateError, RecipeError, TargetError
from curate.core.hashing import make_key
from curate.core.recipe.pipeline import Pipeline
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.select.hierarchical import SelectHierarchical
from curate.select.top import SelectTop
from tests.engine.output import Output

PHOTOS = {"cat": 20, "dog": 8, "café/owl": 2, "": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    for label, count in PHOTOS.items():
        (place / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, len(label), 0)).save(place / label / f"{number}.png")
    return place


def selected(photos: Path, workspace: Path, **parameters: Any) -> Output:
    source = AcquireFolder(path=str(photos), namespace="labels", shard_rows=7)
    made = Pipeline().add("pool", source).add("sample", SelectHierarchical(**parameters), "pool")
    return Output(str(workspace), run(made.check(), str(workspace)))


@pytest.mark.parametrize(
    ("even", "expected"),
    [(1.0, {"cat": 4, "dog": 4, "café/owl": 2}), (0.0, {"cat": 10, "dog": 4, "café/owl": 1})],
)
def test_even_to_natural(photos: Path, tmp_path: Path, even: float, expected: dict[str, int]) -> None:
    output = selected(photos, tmp_path, by="meta.folder", target=sum(expected.values()), even=even)
    quotas = output.storage.read_table(f"{output.bases['sample']}/quotas.parquet").to_pylist()
    assert quotas == [{"label": name, "count": PHOTOS[name], "quota": expected[name]} for name in sorted(expected)]
    rows = output.selection("sample")
    names = {number: quota["label"] for number, quota in enumerate(quotas)}
    assert Counter(names.get(row["unit"]) for row in rows for _ in range(row["copies"])) == expected
    rejected = Counter(row["reject"] for row in rows)
    assert rejected == {None: sum(expected.values()), "not_sampled": 30 - sum(expected.values()), "no_label": 3}
    row = next(row for row in rows if names.get(row["unit"]) == "cat")
    told = {stage: about for stage, _, about in explain(latest(output.storage, output.result.run_id), row["key"])}
    assert told["sample"]["unit label"] == "cat"


def test_a_target_above_the_rows_repeats_rare_labels(photos: Path, tmp_path: Path) -> None:
    output = selected(photos, tmp_path, by="meta.folder", target=24, multiplier=4)
    assert [row["quota"] for row in output.storage.read_table(f"{output.bases['sample']}/quotas.parquet").to_pylist()]
    assert max(row["copies"] for row in output.selection("sample")) == 4


def test_a_label_with_one_value_is_a_warning(photos: Path, tmp_path: Path) -> None:
    output = selected(photos / "cat", tmp_path, by="format", target=5)
    said = [
        event["text"] for event in latest(output.storage, output.result.run_id).events if event["event"] == "warning"
    ]
    assert said == ["sample: all 20 rows have one value of format, so that this is a random sample; check `by`"]


def test_no_row_with_a_label_is_one_line(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no row that reaches it has a value of caption; give `by` another column"):
        selected(photos, tmp_path / "one", by="caption", target=5)
    with pytest.raises(
        RecipeError, match=r"none of the 33 rows of 'pool' has 'meta.foldr'; did you mean 'meta.folder'"
    ):
        selected(photos, tmp_path / "two", by="meta.foldr", target=5)


def test_labels_and_a_tree_exclude_each_other() -> None:
    source = AcquireFolder(path="photos", namespace="labels")
    for ports, parameters, message in (
        (
            {"tree": "pin:mine"},
            {"by": "meta.folder"},
            "sample: by: meta.folder with tree: pin:mine; give one of the two",
        ),
        ({}, {}, "sample: port 'tree' is missing; give the stage that makes the cluster_tree, or `by`: labels"),
        ({}, {"by": "aspect_ratio"}, "sample: column 'aspect_ratio' is missing upstream"),
        ({}, {"by": "fps"}, "sample: by: column 'fps' holds double; give a column with a word or whole number per row"),
    ):
        made = Pipeline().add("pool", source.model_copy(update={"media": ("image", "video")}))
        made.add("sample", SelectHierarchical(target=5, **parameters), "pool", **ports)
        with pytest.raises(CurateError) as raised:
            made.check()
        assert message in str(raised.value)
    with pytest.raises(ValidationError, match="level: 2 with by: source; labels have no levels, leave it out"):
        SelectHierarchical(target=5, by="source", level=2)


def test_the_best_of_each_label() -> None:
    stage = SelectTop(by="kind", score="score", count_per_cluster=1)
    stage.setup({})
    keys = [make_key("labels", str(number)) for number in range(5)]
    table = pa.table({"key": keys, "kind": [1, 1, 2, None, 2], "score": [0.1, 0.9, 0.4, 1.0, 0.3]})
    lines = stage.deal(table)
    assert lines.column("unit").to_pylist() == ["1", "1", "2", None, "2"]
    counts = np.array([2, 2])
    numbers = pa.array([0, 0, 1, None, 1], pa.int64())
    lines = lines.set_column(lines.schema.get_field_index("unit"), "unit", numbers)
    picked = stage.pick(lines, counts, stage.plan(counts))
    assert picked["copies"].tolist() == [0, 1, 1, 0, 0]
    assert picked["reject"].to_pylist() == ["not_sampled", None, None, "no_label", "not_sampled"]
