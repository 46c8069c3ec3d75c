"""A run's recipe with a change: the stages that come out, in the file that people wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.api.recipes import as_yaml, free_name, recipe_of, set_parameter, set_stage
from curate.core.errors import InputError
from curate.core.recipe.document import Document
from curate.core.recipe.load import override, parse, resolve
from curate.core.store.storage import Storage
from curate.engine.record.runs import RunRecord

TEXT = """\
vars: { most: 5 }
stages:
  pool: { op: acquire.folder, path: images, namespace: mine }
  # sides
  inspect: { op: image.inspect, from: pool }
  large: { op: image.filter, from: inspect, min_side: 9 }
  same: { op: image.filter, from: inspect, max_aspect: 2 }
  sample: { op: select.uniform, from: [large, same], count: "${most}" }
  all: { op: select.all, from: large }
"""


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    pipeline = parse(TEXT)
    stages = {name: {"op": node.stage.op, "from": list(node.inputs)} for name, node in pipeline.nodes.items()}
    about = {"run_id": "one", "recipe": pipeline.source, "stages": stages}
    return RunRecord(Storage(str(tmp_path)), about, None)


def filter_of(*inputs: str) -> dict[str, Any]:
    return {
        "op": "filter.where",
        "from": inputs[0] if len(inputs) == 1 else list(inputs),
        "keep": "width > 3",
        "reason": "thin",
    }


def stages(text: str, sets: list[str]) -> dict[str, Any]:
    document = Document.parse(text, "r.yaml")
    override(document, sets)
    found: dict[str, Any] = resolve(document)["stages"]
    return found


def inputs(text: str, sets: list[str]) -> dict[str, Any]:
    return {name: node.inputs for name, node in parse(text, sets).nodes.items()}


@pytest.mark.parametrize("filled", [False, True])
def test_one_reader_reads_the_filter_instead_of_what_it_reads(record: RunRecord, filled: bool) -> None:
    text = recipe_of(record) if filled else TEXT
    made = inputs(text, set_stage(record, "region", filter_of("same", "large", "pool"), ["sample"]))
    changed = {"region": ("same", "large", "pool"), "sample": ("region",)}
    assert made == inputs(TEXT, []) | changed


def test_without_names_all_readers_do(record: RunRecord) -> None:
    made = inputs(TEXT, set_stage(record, "kept", filter_of("large")))
    assert made == inputs(TEXT, []) | {"kept": ("large",), "sample": ("kept", "same"), "all": ("kept",)}
    assert inputs(TEXT, set_stage(record, "kept", filter_of("same")))["sample"] == ("large", "kept")


def test_values_arrive_as_they_are(record: RunRecord) -> None:
    values = {"keep": "caption != 'a \"b\": {c} é'", "reason": "no"}
    [filtered, *_] = set_stage(record, "kept", filter_of("all") | values)
    made = stages(TEXT, [filtered, *set_parameter("sample", "count", 7)])
    assert made["kept"] == filter_of("all") | values and made["sample"]["count"] == 7


def test_small_and_large_numbers_arrive(record: RunRecord) -> None:
    corners = [[1e-05, -2.5e-07], [1e16, 3], [0.1, 0]]
    region = {"op": "project.region", "from": "large", "polygon": corners, "column": "map"}
    lines = TEXT + "  " + as_yaml({"region": region}).replace("\n", "\n  ")
    for text, sets in ((TEXT, set_stage(record, "region", region, [])), (lines, [])):
        assert stages(text, sets)["region"] == region


def test_names_are_not_taken_twice(record: RunRecord) -> None:
    assert [free_name(record, name) for name in ("region", "same")] == ["region", "same_2"]


def test_a_record_without_a_recipe_is_one_line(record: RunRecord) -> None:
    with pytest.raises(InputError, match=r"^run one: its record has no recipe; "):
        recipe_of(RunRecord(record.storage, {**record.record, "recipe": None}, None))
