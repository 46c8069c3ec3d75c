"""Pinned artifacts: a pool grows, and only what is new is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import InputError, PinnedError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage
from curate.engine.backends.local import LocalBackend
from curate.engine.plan.lines import EXACT
from curate.engine.plan.planner import plan
from curate.engine.preflight import preflight
from curate.engine.record import pins
from curate.engine.record.claims import exclusive
from curate.engine.record.gc import collect, unreachable
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler
from tests.engine import toys, workspaces


class Shown(toys.Page):
    """Says what it finds pinned."""

    op = "toy.shown"

    def render(self, view: Any) -> dict[str, bytes]:
        said = [f"{name} {m.op} {view.artifact(name)['mean'][0]:.3f}" for name, m in view.pinned.items()]
        return {"index.html": "\n".join([*said, *view.stages]).encode()}


def growing(rows: int, total: str, **pool: Any) -> Pipeline:
    """Images brighter than the mean of the pool (`total: total`), or of an earlier pool (`total: pin:…`)."""
    made = Pipeline().add("pool", toys.Numbers(**{"namespace": "toys", "rows": rows, "shard_rows": 8} | pool))
    made.add("bright", toys.Brightness(), "pool")
    if not total.startswith("pin:"):
        made.add("total", toys.Total(), "bright")
    made.add("brighter", toys.Brighter(), "bright", total=total)
    return made.add("contrasty", toys.Contrasty(share=0.9), "brighter")


@pytest.fixture
def storage(workspace: Path) -> Storage:
    return open_storage(str(workspace))


@pytest.fixture
def first(workspace: Path, storage: Storage) -> Result:
    """A run over 16 rows whose mean is pinned as `mean`."""
    result = run(growing(16, "total"), str(workspace), run_id="first")
    pins.create(storage, "mean", RunRecord.load(storage, "first"), "total")
    return result


def test_only_new_shards_are_computed(workspace: Path, storage: Storage, first: Result) -> None:
    times = workspaces.times(workspace)
    second = run(growing(40, "pin:mean"), str(workspace))
    now = workspaces.times(workspace)
    assert {name: now[name] for name in times} == times
    tables = [n for n in now if n.startswith("facts/toy.brighter/") and n.endswith("/000001.parquet")]
    assert len(tables) == 5 and len({name.split("/")[2] for name in tables}) == 1
    assert not [name for name in set(now) - set(times) if name.startswith("artifacts/")]
    assert second.outputs["brighter"] != first.outputs["brighter"] and second.ledger["brighter"].before == 40
    assert second.counts["brighter"].computed == 24
    pin = pins.pins(storage)["mean"]
    found = storage.read_json(f"runs/{second.run_id}/result.json")["pins"]
    assert found == {"pin:mean": {"base": pin.base, "fingerprint": pin.fingerprint}}
    again = run(growing(40, "pin:mean"), str(workspace))
    assert all(again.reused.values()) and set(again.outputs) == {"pool", "bright", "brighter", "contrasty"}


def test_another_pin_is_another_output(workspace: Path, storage: Storage, first: Result) -> None:
    run(growing(40, "total"), str(workspace), run_id="second")
    pins.create(storage, "later", RunRecord.load(storage, "second"), "total")
    one, two = (run(growing(40, f"pin:{name}"), str(workspace)) for name in ("mean", "later"))
    assert one.outputs["brighter"] != two.outputs["brighter"]
    assert [pin.run for pin in pins.pins(storage).values()] == ["second", "first"]


def test_gc_keeps_what_is_pinned(workspace: Path, storage: Storage, first: Result) -> None:
    base = pins.pins(storage)["mean"].base
    assert unreachable(storage, keep=0) == ({}, [])  # the run too
    with exclusive(storage):
        collect(storage, *unreachable(storage, drop=["first"]))
    assert storage.exists(f"{base}/manifest.json") and not storage.list("runs") and not storage.list("facts")
    result = run(growing(24, "pin:mean"), str(workspace))
    assert result.ledger["brighter"].before == 24
    assert pins.remove(storage, "mean").base == base
    with exclusive(storage):
        collect(storage, *unreachable(storage, keep=0))
    assert not storage.list("artifacts")


def test_a_report_sees_it(workspace: Path, storage: Storage, first: Result) -> None:
    result = run(growing(24, "pin:mean").add("page", Shown(), "contrasty"), str(workspace))
    [pinned, *stages] = open_storage(result.outputs["page"]).read("index.html").decode().splitlines()
    assert pinned.startswith("pin:mean toy.total 12")
    assert stages == ["pool", "bright", "brighter", "contrasty"]


def test_a_plan_uses_a_pin(workspace: Path, storage: Storage, first: Result) -> None:
    made = growing(16, "pin:mean").check()
    steps = plan(made, storage, Options(), Scheduler(LocalBackend()), preflight(made, storage, Options()))
    found = {step.stage: (step.kind, step.needed, step.compute, step.certainty) for step in steps}
    assert found["brighter"] == ("pass", 16, 0, EXACT)


def test_a_canary_uses_a_pin(workspace: Path, first: Result) -> None:
    result = run(growing(64, "pin:mean"), str(workspace), options=Options(sample=0.5))
    assert 0 < result.ledger["brighter"].before < 64


def test_the_same_again_is_fine_another_is_not(workspace: Path, storage: Storage, first: Result) -> None:
    there = pins.pins(storage)["mean"]
    assert pins.create(storage, "mean", RunRecord.load(storage, "first"), "total") == there
    run(growing(40, "total"), str(workspace), run_id="second")
    with pytest.raises(PinnedError) as refused:
        pins.create(storage, "mean", RunRecord.load(storage, "second"), "total")
    other = RunRecord.load(storage, "second").outputs["total"]["fingerprint"]
    assert f"pin mean: holds toy.total {there.fingerprint} (run first), not toy.total {other}" in str(refused.value)
    assert pins.pins(storage)["mean"] == there


def test_what_cannot_be_pinned(storage: Storage, first: Result) -> None:
    made = RunRecord.load(storage, "first")
    for stage, why in (("bright", "built no artifact or dataset"), ("nobody", "is not a stage")):
        with pytest.raises(InputError, match=f"pin x: '{stage}' {why} in run first; expected one of total"):
            pins.create(storage, "x", made, stage)
    with pytest.raises(RecipeError, match=r"pin '../x': expected letters"):
        pins.create(storage, "../x", made, "total")
    with pytest.raises(InputError, match=r"pin 'x': not a pin of .*; expected one of mean"):
        pins.remove(storage, "x")


def test_ports_are_checked_before_anything_runs(workspace: Path, storage: Storage, first: Result) -> None:
    before = workspaces.times(workspace)
    with pytest.raises(RecipeError, match=r"brighter: total: pin:men: not a pin of .*; expected one of mean"):
        run(growing(40, "pin:men"), str(workspace))
    storage.create_json("pins/tree.json", {**vars(pins.pins(storage)["mean"]), "name": "tree", "kind": "cluster_tree"})
    with pytest.raises(
        RecipeError, match=r"brighter: total: pin:tree is a cluster_tree \(of toy.total\), expected a toy_t"
    ):
        run(growing(40, "pin:tree"), str(workspace))
    storage.remove(pins.pins(storage)["mean"].base)
    with pytest.raises(RecipeError, match=r"brighter: total: pin:mean: its artifact artifacts/toy.total/.* is missing"):
        run(growing(40, "pin:mean"), str(workspace))
    now = workspaces.times(workspace)
    assert set(now) - set(before) == {"pins/tree.json"}
