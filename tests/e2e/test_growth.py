"""A pool grows under a pinned tree: what is new is assigned to it, and drift says when it no longer fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from curate.cluster.assign import Assign
from curate.cluster.fit import FitTree
from curate.cluster.profile.drift import Drift
from curate.cluster.profile.profile import Profile
from curate.core.contracts import Artifact, Batch, Incoming, Map, Portion, Source
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.core.vectors import to_binary
from curate.engine.record import pins
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from tests.e2e.commands import curate

MODES, DIM, SHARD_ROWS = 8, 16, 400
COMMON = tuple(range(1, MODES + 1))
"""How often each mode occurs among the rows that the tree is fitted on."""
KINDS = {"old": (*COMMON, 0), "same": (*COMMON, 0), "shares": (*reversed(COMMON), 0), "mode": (*COMMON, 9)}


class Points(Source):
    """Rows without images, labelled with their mode; `shards` names the kinds of the shards so far."""

    op: ClassVar[str] = "test.points"
    unique_keys: ClassVar[bool] = True
    shards: tuple[str, ...]

    def plan(self) -> list[Portion]:
        return [Portion({"number": n, "kind": kind}, SHARD_ROWS) for n, kind in enumerate(self.shards)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        number, weights = portion.content["number"], np.array(KINDS[portion.content["kind"]])
        modes = np.random.default_rng(number).choice(MODES + 1, SHARD_ROWS, p=weights / weights.sum())
        for row, mode in enumerate(modes.tolist()):
            meta = {"mode": mode, "seed": number * SHARD_ROWS + row, "place": f"camera {mode % 3}"}
            yield Incoming(f"{number}/{row}", data=b"-", caption=f"mode{chr(97 + mode)} of the day", meta=meta)


class Embedded(Map):
    """A direction near that of the row's mode."""

    op: ClassVar[str] = "test.embedded"

    def reads(self) -> tuple[str, ...]:
        return ("meta",)

    def schema(self) -> pa.Schema:
        return pa.schema([("embedding", pa.binary(2 * DIM)), ("embedding_norm", pa.float32())])

    def process(self, batch: Batch) -> dict[str, Any]:
        centres = np.random.default_rng(0).normal(size=(MODES + 1, DIM))
        facts = [json.loads(text) for text in batch.column("meta")]
        noise = [np.random.default_rng(1 + fact["seed"]).normal(size=DIM) for fact in facts]
        vectors = centres[[fact["mode"] for fact in facts]] + 0.35 * np.array(noise).reshape(-1, DIM)
        column, norms = to_binary(vectors)
        return {"embedding": column, "embedding_norm": norms}


def pipeline(shards: list[str], tree: str) -> Pipeline:
    made = Pipeline().add("pool", Points(namespace="grown", shards=tuple(shards))).add("points", Embedded(), "pool")
    if tree == "tree":
        made.add("tree", FitTree(levels=[48, 6], rounds=2), "points")
    made.add("clusters", Assign(levels=2), "points", tree=tree)
    made.add("look", Profile(source="meta.place"), "clusters", tree=tree)
    return made.add("drift", Drift(), "clusters", tree=tree).check()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Five shards, a tree fitted on them and pinned as `then`."""
    folder = tmp_path_factory.mktemp("growth") / "workspace"
    result = run(pipeline(["old"] * 5, "tree"), str(folder), run_id="fitted")
    storage = open_storage(str(folder))
    pins.create(storage, "then", RunRecord.load(storage, "fitted"), "tree")
    return folder, result


def grown(folder: Path, *kinds: str) -> Artifact:
    result = run(pipeline(["old"] * 5 + list(kinds), "pin:then"), str(folder))
    return StoredArtifact(open_storage(result.outputs["drift"]), "")


def test_the_pool_that_was_fitted_has_not_grown(fitted: tuple[Path, Result]) -> None:
    folder, result = fitted
    told = StoredArtifact(open_storage(result.outputs["drift"]), "")["drift"]
    assert (told["due"], told["new_rows"], told["fitted_rows"]) == (False, 0, 2000)
    words = curate("cluster", "show", "fitted", "-w", folder).words
    assert "48 2,000" in words and "drift: 0 new rows" in words


def test_clusters_of_modes_are_named_after_them(fitted: tuple[Path, Result]) -> None:
    table = StoredArtifact(open_storage(fitted[1].outputs["look"]), "")["clusters"]
    leaves = table.slice(0, 48).to_pylist()
    big = [leaf for leaf in leaves if leaf["rows"] >= 20]
    assert len(big) > 20 and all(leaf["explained"] > 0.4 for leaf in big)
    assert sum(leaf["name"].startswith("mode") for leaf in big) > 0.9 * len(big)
    assert sum("single_source" in leaf["flags"] for leaf in big) > 0.9 * len(big)


def test_more_of_the_same_needs_no_refit(fitted: tuple[Path, Result]) -> None:
    told = grown(fitted[0], "same", "same")["drift"]
    assert (told["due"], told["new_rows"], told["rows"]) == (False, 800, 2800), told["reasons"]


def test_a_new_mode_is_far_from_every_centroid(fitted: tuple[Path, Result]) -> None:
    told = grown(fitted[0], "mode", "mode")["drift"]
    assert told["due"] and "farther from every centroid" in told["reasons"][0]
    assert told["far"]["share"] > 0.1


def test_other_shares_are_a_shift(fitted: tuple[Path, Result]) -> None:
    told = grown(fitted[0], "shares", "shares")["drift"]
    assert told["due"] and sum("another way" in reason for reason in told["reasons"]) == 2, told["reasons"]
    assert told["far"]["share"] < 0.1
