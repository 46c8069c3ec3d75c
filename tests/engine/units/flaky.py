"""A list of rows whose store fails for some of them, and pools of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.core.contracts import Stage
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import toys
from tests.engine.toys.lists import Fetched, Listed

ROWS = 24


def fails(site: Path, codes: dict[str, str]) -> None:
    (site / "store.json").write_text(json.dumps(codes))


def asked(site: Path) -> list[str]:
    """Names of the rows fetched since the last call."""
    log = site / "store.json.log"
    found = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def recipe(site: Path, *stages: Stage) -> Pipeline:
    made = Pipeline().add("list", Listed(folder=str(site / "lists")))
    made.add("pool", Fetched(store=str(site / "store.json")), list="list")
    made.add("bright", toys.Brightness(), "pool")
    return made


def build(site: Path, workspace: Path, engine: Any = "local", **retry: tuple[str, ...]) -> Result:
    return run(recipe(site), str(workspace), engine=engine, options=Options(retry=retry))


def pool(result: Result) -> tuple[Storage, str]:
    workspace, _, base = result.outputs["pool"].partition("/pools/")
    return open_storage(workspace), f"pools/{base}"


def table(result: Result) -> pa.Table:
    storage, base = pool(result)
    return pa.concat_tables([read_pool(storage, shard.table) for shard in read_shards(storage, base)])
