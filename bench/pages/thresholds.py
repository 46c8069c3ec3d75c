"""The threshold page's first answer from a sample, and the exact one, on 10 million and on 100 million simulated rows;
and the page of a sample by its key.

python -m bench.pages.thresholds [FOLDER [MILLIONS ...]]    FOLDER keeps the tables; a build that was ended is resumed

Each shard of 10,000 rows has separate tables of facts and masks. Pool tables are links to one, which the engine
made. Shards differ: the mean of the score moves from shard to shard by a sixth of its standard deviation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.engine import simulated
from bench.engine.takedown import write_pool
from bench.kit.measure import load
from curate.api import Pipeline, Workspace, make_stage
from curate.api.thresholds.distribution import counted, sampled
from curate.api.thresholds.rules import rules
from curate.core.hashing import digest, key_words
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.store.storage import Storage
from curate.engine.run import run

SHARD_ROWS = 10_000
ROW = 5
"""Row of the explained sample in its shard."""
AIMS = {10: (1.0, 10.0), 100: (3.0, None)}
"""Millions of rows -> seconds of the first and of the exact answer at most."""
KEEP = "score >= 0.5 and unit_of < 60"


def build(folder: Path, shards: int) -> None:
    """A run `one` whose shards are like the first one, which the engine made, with other scores."""
    if (folder / "built").exists():
        return
    if not (folder / "runs/one/result.json").exists():
        made = Pipeline().add("pool", simulated.Pool(namespace="bench", shards=1, shard_rows=SHARD_ROWS))
        made.add("score", simulated.Cheap(), "pool")
        run(
            made.add("kept", make_stage("filter.where", keep=KEEP, reason="low"), "score").check(),
            str(folder),
            run_id="one",
        )
    outputs = Workspace(str(folder)).run("one").record.outputs
    lists = [folder / outputs[name]["base"] / "shards.parquet" for name in ("pool", "score", "kept")]
    pool, facts, mask = (pq.read_table(place).slice(0, 1).to_pylist()[0] for place in lists)
    path = folder / outputs["score"]["path"]
    first = pq.read_table(path / facts["id"] / "000001.parquet")
    lines: list[list[dict[str, object]]] = [[pool], [facts], [mask]]
    for number in range(1, shards):
        name = digest(["shard", number])
        places = [f"pools/bench/shards/{name}.parquet", f"{mask['file'].rpartition('/')[0]}/{name}.parquet"]
        lines[0].append(pool | {"id": name, "table": places[0]})
        lines[1].append(facts | {"id": name})
        lines[2].append(mask | {"id": name, "file": places[1]})
        if (folder / places[1]).exists():  # written last
            continue
        rng = np.random.default_rng(number)
        score = 1 / (1 + np.exp(-rng.normal(rng.normal(0, 1 / 6), 1, SHARD_ROWS)))
        unit = rng.integers(0, 64, SHARD_ROWS)
        table = first.set_column(first.schema.get_field_index("score"), "score", pa.array(score))
        table = table.set_column(table.schema.get_field_index("unit_of"), "unit_of", pa.array(unit))
        (path / name).mkdir(exist_ok=True)
        pq.write_table(table, path / name / "000001.parquet", compression="zstd")
        if not (folder / places[0]).exists():
            os.link(folder / pool["table"], folder / places[0])
        lost = pa.array((score < 0.5) | (unit >= 60))
        fates = {f"kept.{part}": pc.if_else(lost, word, None) for part, word in (("stage", "kept"), ("reason", "low"))}
        pq.write_table(pa.table(fates), folder / f"{places[1]}.part", compression="zstd")
        (folder / f"{places[1]}.part").rename(folder / places[1])
    for place, all_lines in zip(lists, lines, strict=True):
        pq.write_table(pa.Table.from_pylist(all_lines, pq.read_schema(place)), place)
    index_keys(folder / outputs["pool"]["base"] / "manifest.json", Storage(str(folder)), shards, folder / pool["table"])
    (folder / "built").touch()


def index_keys(manifest: Path, storage: Storage, shards: int, table: Path) -> None:
    """The pool's index of keys: random ones, and in the middle of the pool one of the table that all shards share."""
    rng, place = np.random.default_rng(0), shards // 2 * SHARD_ROWS + ROW
    words = rng.integers(0, 1 << 63, (shards * SHARD_ROWS, 2), dtype=np.uint64) << np.uint64(1)
    words[place] = key_words([pq.read_table(table, columns=["key"])["key"][ROW].as_py()])[0]
    found = json.loads(manifest.read_text())
    found["extra"]["keys"] = write_pool(storage, "pools/bench/keys/all", words)
    manifest.write_text(json.dumps(found))


def measure(folder: Path, millions: int) -> None:
    """In a process that has read nothing of the run."""
    record = Workspace(str(folder)).run("one").record
    rule = next(one for one in rules(record) if one.column == "score")
    began = time.perf_counter()
    first = sampled(record, rule)
    bands = [first.band("alive", at) for at in first.edges]
    seconds = time.perf_counter() - began
    aim, exact_aim = AIMS[millions]
    wide = max((one.high - one.low) / 2 / first.all_rows for one in bands)
    print(
        f"{millions} M rows: first answer {seconds:.2f} s (at most {aim:g}), {len(first.rows)} of {first.shards:,} "
        f"shards, ± {100 * wide:.2f} % of the rows at most; {load()}",
        flush=True,
    )
    began = time.perf_counter()
    found = counted(record, first)
    seconds = time.perf_counter() - began
    held = [band.low <= found.band("alive", at).rows <= band.high for band, at in zip(bands, first.edges, strict=True)]
    aimed = f" (at most {exact_aim:g})" if exact_aim else ""
    print(f"    exact {seconds:.1f} s{aimed}; the interval holds {sum(held)} of {len(held)} thresholds", flush=True)
    explain(folder)


def explain(folder: Path) -> None:
    """The page of a sample by its key."""
    run = Workspace(str(folder)).run("one")
    storage, outputs = run.record.storage, run.record.outputs
    shards = read_shards(storage, outputs["pool"]["base"])
    middle = shards[len(shards) // 2]
    key = read_pool(storage, middle.table, ["key"])["key"][ROW].as_py()
    began = time.perf_counter()
    told = {one.stage: one.facts for one in Workspace(str(folder)).run("one").sample(key).stages}
    seconds = time.perf_counter() - began
    table = pq.read_table(folder / outputs["score"]["path"] / middle.id / "000001.parquet", columns=["score"])
    assert told["score"]["score"] == table["score"][ROW].as_py()
    print(f"    one sample explained by its key in {seconds:.2f} s (at most 1)", flush=True)


def main(folder: str = "", *millions: str) -> None:
    place = Path(folder or tempfile.mkdtemp())
    try:
        for count in map(int, millions or ("10",)):
            own = place / f"{count}m"
            own.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            build(own, count * 1_000_000 // SHARD_ROWS)
            print(f"{count} M rows built in {time.perf_counter() - began:.0f} s", flush=True)
            subprocess.run([sys.executable, "-m", "bench.pages.thresholds", "--measure", own, str(count)], check=True)
    finally:
        if not folder:
            shutil.rmtree(place)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
