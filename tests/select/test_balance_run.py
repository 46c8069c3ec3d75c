"""Balance by entries through the engine: the selection, the report's counts and the dataset agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from curate.core.errors import TargetError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import run
from curate.pack.webdataset import PackWebDataset
from curate.report.html import ReportHtml
from curate.select.frequency import SelectFrequency
from curate.select.metaclip import SelectMetaClip
from curate.text.counts import TextCounts
from tests.engine.mixed import Mixed
from tests.engine.output import Output
from tests.text.entries import Words


def pipeline(columns: tuple[str, ...] = ("said",)) -> Pipeline:
    made = Pipeline().add("pool", Mixed(namespace="contract")).add("said", Words(), "pool")
    made.add("counts", TextCounts(columns=columns), "said")
    made.add("sample", SelectFrequency(columns=columns, share=1.5, no_entry="reject"), "said", counts="counts")
    made.add("dataset", PackWebDataset(name="balanced", carry={"says": "said"}), "sample")
    return made.add("report", ReportHtml(), "dataset").check()


def test_from_texts_to_a_balanced_dataset(tmp_path: Path) -> None:
    result = run(pipeline(), str(tmp_path))
    output = Output(str(tmp_path), result)
    rows = output.selection("sample")
    said = {}
    for shard, table in output.facts("said"):
        keys = output.keys(shard)
        said |= {keys[line["_row"]]: line["said"] or [] for line in table.to_pylist()}
    texts = {(row["key"], row["item"]): said[row["key"]][int(row["item"]) :][:1] for row in rows}
    assert all((row["reject"] == "no_text") == (texts[row["key"], row["item"]] in ([], [None])) for row in rows)
    assert all((row["unit"] > 0) == bool(texts[row["key"], row["item"]] and row["expected"]) for row in rows)
    quotas = output.storage.read_table(f"{output.bases['sample']}/quotas.parquet").to_pylist()
    units = Counter(row["unit"] for row in rows if row["reject"] != "no_text")
    assert [quota["count"] for quota in quotas] == [units[unit] for unit in range(len(quotas))]
    index = open_storage(result.outputs["dataset"]).read_table("index.parquet").to_pylist()
    made = Counter((row["key"], row["item"]) for row in index)
    pools = [output.storage.read_table(shard.table).to_pylist() for shard in output.shards]
    empty = {row["key"] for pool in pools for row in pool if not row["size"]}
    wanted = Counter({(row["key"], row["item"]): row["copies"] for row in rows if row["key"] not in empty})
    assert made == +wanted and max(made.values()) > 1
    assert all(row["says"] == said[row["key"]][int(row["item"])] for row in index)
    page = Path(result.outputs["report"], "index.html").read_text("utf-8")
    assert 'id="entries"' in page and f"{sum(row['copies'] for row in rows)} were drawn" in page


@pytest.mark.parametrize("stage", [SelectFrequency(columns=("said",)), SelectMetaClip(columns=("said",))])
def test_a_pool_in_which_nothing_matches_is_one_line(tmp_path: Path, stage: SelectFrequency | SelectMetaClip) -> None:
    made = Pipeline().add("pool", Mixed(namespace="contract", alive=False)).add("said", Words(), "pool")
    made.add("counts", TextCounts(columns=("said",)), "said").add("sample", stage, "said", counts="counts")
    with pytest.raises(TargetError, match=f"{stage.op}: no text with an entry in said; check the stages that write"):
        run(made.check(), str(tmp_path))
