"""Reduces: states by shard that last, merged as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from curate.core.contracts import Reduce
from curate.core.contracts.stage import Artifact, Table
from curate.core.errors import CurateError
from curate.core.store.storage import open_storage
from curate.engine.run import run
from curate.engine.units import reduce
from tests.engine import toys, workspaces


class Order(Reduce):
    """Keys as they come, and how many states each merge was given."""

    op: ClassVar[str] = "toy.order"
    kind: ClassVar[str] = "toy_order"

    def partial(self, table: Table) -> Table:
        return pa.table({"key": table.column("key"), "merged": np.zeros(table.num_rows, np.int64)})

    def merge(self, states: Any) -> Table:
        held = list(states)
        whole = pa.concat_tables(held)
        return whole.set_column(1, "merged", pa.array(np.full(whole.num_rows, len(held))))

    def finish(self, state: Table) -> Artifact:
        return {"keys": state.column("key").to_pylist(), "merged": state.column("merged").to_pylist()[:1]}


@pytest.mark.parametrize("shards", [1, 3, 4, 10, 28])
def test_states_are_merged_in_order_a_few_at_a_time(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(reduce, "FAN_IN", 3)
    result = run(toys.chain(toys.Brightness(), Order(), rows=2 * shards, shard_rows=2), str(workspace))
    artifact = open_storage(result.outputs["stage_2"])
    pool = open_storage(str(workspace))
    shard_tables = open_storage(result.outputs["pool"]).read_table("shards.parquet").column("table").to_pylist()
    keys = [key for path in shard_tables for key in pool.read_table(path, ["key"]).column(0).to_pylist()]
    assert artifact.read_json("keys.json") == keys
    assert artifact.read_json("merged.json")[0] <= 3
    assert result.ledger["stage_2"].before == 2 * shards
    assert set(artifact.list("")) == {"keys.json", "merged.json", "manifest.json", "states.parquet"}


def test_a_failed_merge_is_resumed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States merged earlier are in the artifact's folder; the next run uses and then removes them."""
    monkeypatch.setattr(reduce, "FAN_IN", 3)
    whole = toys.chain(toys.Brightness(), Order(), rows=40, shard_rows=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Order, "finish", lambda self, state: (_ for _ in ()).throw(CurateError("toy.order: not now")))
        with pytest.raises(CurateError, match="not now"):
            run(whole, str(workspace))
    merged = {name: time for name, time in workspaces.times(workspace).items() if "work" in name.split("/")}
    assert len(merged) == 7 + 3
    made: list[Any] = []
    plain = Order.merge
    monkeypatch.setattr(Order, "merge", lambda self, states: made.append(1) or plain(self, states))
    run(whole, str(workspace))
    assert len(made) == 1 and not [name for name in workspaces.times(workspace) if "work" in name.split("/")]


def test_a_pool_that_grew_adds_the_states_of_its_new_shards(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(toys.chain(toys.Brightness(), Order(), rows=20), str(workspace))
    made: list[int] = []
    plain = Order.partial
    monkeypatch.setattr(Order, "partial", lambda self, table: made.append(table.num_rows) or plain(self, table))
    result = run(toys.chain(toys.Brightness(), Order(), rows=40), str(workspace))
    assert sum(made) == 20 and result.ledger["stage_2"].before == 40
