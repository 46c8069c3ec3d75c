"""A Map can read the shard of each row, also in a batch of several shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts import Batch, Map
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.engine.mixed import Mixed
from tests.engine.output import Output


class TellsShard(Map):
    """Writes the shard of each row."""

    op: ClassVar[str] = "tests.tells_shard"
    by_shard: ClassVar[bool] = True

    def schema(self) -> pa.Schema:
        return pa.schema([("told", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"told": batch.column("shard")}


def test_each_row_comes_with_its_shard(workspace: Path) -> None:
    pipeline = Pipeline().add("pool", Mixed(namespace="shards")).add("tells", TellsShard(), "pool").check()
    output = Output(str(workspace), run(pipeline, str(workspace)))
    found = {shard.id: table.column("told").to_pylist() for shard, table in output.facts("tells") if table.num_rows}
    assert len(found) == 3
    assert all(set(told) == {shard} for shard, told in found.items())
