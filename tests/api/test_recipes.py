"""A run's recipe with a filter more: who reads it, where it stands, and that the YAML is the same recipe."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from curate.api.recipes import as_yaml, free_name, with_parameter, with_stage
from curate.core.errors import InputError
from curate.core.store.storage import Storage
from curate.engine.record.runs import RunRecord

STAGES: dict[str, Any] = {
    "pool": {"op": "acquire.folder", "path": "images"},
    "clusters": {"op": "cluster.assign", "from": "pool", "tree": "tree"},
    "map": {"op": "project.place", "from": "pool", "projection": "axes"},
    "sample": {"op": "select.uniform", "from": ["map", "clusters"], "count": 5},
    "all": {"op": "select.all", "from": "map"},
    "dataset": {"op": "pack.webdataset", "from": "sample"},
}


@pytest.fixture
def record(tmp_path: Any) -> RunRecord:
    about = {"run_id": "one", "recipe": {"vars": {"n": 1}, "stages": STAGES}, "stages": {name: {} for name in STAGES}}
    return RunRecord(Storage(str(tmp_path)), about, None)


def filter_of(*inputs: str) -> dict[str, Any]:
    return {
        "op": "project.region",
        "from": inputs[0] if len(inputs) == 1 else list(inputs),
        "polygon": [[0, 1], [2, 3]],
    }


def test_one_reader_reads_the_filter_instead_of_what_it_reads(record: RunRecord) -> None:
    stage = filter_of("map", "clusters")
    made = with_stage(record, "region", stage, ["sample"])
    stages = made["stages"]
    assert list(stages) == ["pool", "clusters", "map", "region", "sample", "all", "dataset"] and made["vars"] == {
        "n": 1
    }
    assert stages["region"] == stage and stages["sample"] == STAGES["sample"] | {"from": "region"}
    assert stages["all"] == STAGES["all"] and yaml.safe_load(as_yaml(made)) == made


def test_without_names_all_readers_do(record: RunRecord) -> None:
    stages = with_stage(record, "kept", filter_of("map"))["stages"]
    assert stages["sample"]["from"] == ["kept", "clusters"] and stages["all"]["from"] == "kept"
    assert list(stages).index("kept") == list(stages).index("sample") - 1
    assert with_stage(record, "kept", filter_of("clusters"))["stages"]["sample"]["from"] == ["map", "kept"]


def test_a_filter_without_readers_is_the_last_stage(record: RunRecord) -> None:
    stages = with_stage(record, "kept", filter_of("dataset"))["stages"]
    assert stages == STAGES | {"kept": filter_of("dataset")} and list(stages)[-1] == "kept"


def test_lists_are_on_one_line(record: RunRecord) -> None:
    assert "polygon: [[0, 1], [2, 3]]" in as_yaml({"region": filter_of("map")})


def test_names_are_not_taken_twice(record: RunRecord) -> None:
    assert [free_name(record, name) for name in ("region", "map")] == ["region", "map_2"]


def test_the_record_is_not_changed(record: RunRecord) -> None:
    before = yaml.safe_dump(record.record)
    assert with_parameter(record, "sample", "count", 6)["stages"]["sample"]["count"] == 6
    with_stage(record, "region", filter_of("map"))
    assert yaml.safe_dump(record.record) == before


def test_a_stage_that_the_record_lacks_is_one_line(record: RunRecord) -> None:
    for call in (
        lambda: with_parameter(record, "nothing", "count", 6),
        lambda: with_stage(record, "region", filter_of("nothing")),
        lambda: with_stage(record, "region", filter_of("map"), ["nothing"]),
    ):
        with pytest.raises(InputError, match="nothing: the record of run one has no recipe with this stage"):
            call()
