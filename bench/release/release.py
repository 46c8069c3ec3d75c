"""`curate release` of a downloaded dataset, against Polars reading the same tables and writing the same columns.

Both have one core. Polars joins the pool's tables with the dataset's index; it judges no URL, takes no field out of
`meta`, counts nothing for a card, and computes no checksum.

python -m bench.release.release [ROWS]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.kit.measure import REPEATS, line

ROWS, SHARD_ROWS = 2_000_000, 10_000
AIM = 200_000
"""Rows per second."""
WORDS = 5000
WAYS = ("ours", "polars")
POOL, SELECTION, DATASET = "pools/web/versions/one", "selections/select.all/one", "datasets/photos/one"


def make(folder: Path, rows: int, seed: int = 0) -> None:
    """A workspace with the records of a run whose dataset has every second row of a pool like LAION's."""
    import pyarrow as pa

    from curate.core.hashing import keys_of_words
    from curate.core.nouns.manifest import Manifest
    from curate.core.nouns.pools import POOL_SCHEMA, Shard, lines_of
    from curate.core.store.storage import open_workspace

    storage, rng = open_workspace(str(folder)), np.random.default_rng(seed)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), n)) for n in rng.integers(2, 11, WORDS)])
    shards, keys, places = [], [], []
    for number in range(2 * rows // SHARD_ROWS):
        count = SHARD_ROWS
        key = keys_of_words(rng.integers(0, 1 << 63, (count, 2), np.uint64))
        path = words[rng.integers(0, WORDS, (count, 4))]
        digest = keys_of_words(rng.integers(0, 1 << 63, (count * 2, 2), np.uint64))
        table = pa.table({
            "key": key, "source_id": key, "name": key, "offset": rng.integers(0, 1 << 30, count),
            "size": rng.integers(1000, 100_000, count), "ext": ["jpg"] * count,
            "caption": [" ".join(some) for some in words[rng.integers(0, WORDS, (count, 10))]],
            "url": [f"https://cdn.{one[0]}{number}.example/{'/'.join(one)}/{i:08d}.jpg" for i, one in enumerate(path)],
            "width": pa.array(rng.integers(100, 3000, count), pa.int32()),
            "height": pa.array(rng.integers(100, 3000, count), pa.int32()), "format": ["jpeg"] * count,
            "sha256": [a + b for a, b in zip(digest[::2], digest[1::2], strict=True)],
            "meta": ['{"NSFW":"UNLIKELY","license":"cc-by","similarity":0.31,"source":"agency"}'] * count,
        })  # fmt: skip
        for field in POOL_SCHEMA:
            if field.name not in table.column_names and field.name not in ("source", *POOL_SCHEMA.names[-6:]):
                table = table.append_column(field, pa.nulls(count, field.type))
        shard = Shard(
            f"{number:032x}", count, f"pools/web/shards/{number}.tar", 0, f"pools/web/shards/{number}.parquet"
        )
        storage.publish_table(shard.table, table)
        shards.append(shard)
        keys.append(np.array(key)[::2])
        places.append({"id": shard.id, "file": "", "group": 0, "start": 0, "rows": count, "copies": count // 2})
    chosen = np.concatenate(keys)
    rng.shuffle(chosen)
    index = {"key": chosen.tolist(), "item": ["0"] * len(chosen), "copy": pa.array([0] * len(chosen), pa.int32())}
    storage.publish_table(f"{DATASET}/index.parquet", pa.table(index))
    storage.publish_table(f"{SELECTION}/quotas.parquet", pa.table({"count": [2 * rows], "quota": [rows]}))
    Manifest("pool", "acquire.download", 1, "one").commit(storage, POOL, lines_of(shards))
    Manifest("selection", "select.all", 1, "one").commit(storage, SELECTION, places)
    Manifest("dataset", "pack.webdataset", 2, "one", rows=rows, extra={"committed": 1.8e9}).commit(storage, DATASET)
    stages = {
        "pool": {"op": "acquire.download", "from": [], "parameters": {"namespace": "web"}, "derives": True},
        "sample": {"op": "select.all", "from": ["pool"], "parameters": {}},
        "dataset": {"op": "pack.webdataset", "from": ["sample"], "parameters": {"name": "photos"}},
    }
    bases = {"pool": POOL, "sample": SELECTION, "dataset": DATASET}
    outputs = {name: {"base": base, "path": "", "fingerprint": "one", "mask": ""} for name, base in bases.items()}
    run = {"run_id": "first", "started": 1.0, "engine": "local", "options": {}, "owner": ""}
    storage.create_json("runs/first/run.json", run | {"stages": {n: one | {"ports": {}} for n, one in stages.items()}})
    result = {"error": None, "seconds": 1.0, "ended": 2.0, "reused": {}, "ledger": {}, "counts": {}, "outputs": outputs}
    storage.create_json("runs/first/result.json", result)


def ours(folder: Path, out: Path) -> None:
    from curate.api import Workspace

    Workspace(str(folder)).release("photos", str(out))


def polars(folder: Path, out: Path) -> None:
    import polars as pl

    columns = ("key", "url", "sha256", "width", "height", "caption", "meta")
    index = pl.scan_parquet(folder / DATASET / "index.parquet").select("key")
    rows = pl.scan_parquet(folder / "pools" / "web" / "shards" / "*.parquet").select(columns)
    rows.join(index, on="key", how="semi").sink_parquet(out)


def timed(way: str, folder: Path, out: Path) -> dict[str, float]:
    """One way in this process, on one core, the imports before it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import curate.api  # noqa: F401

    began, before = time.perf_counter(), time.process_time()
    {"ours": ours, "polars": polars}[way](folder, out)
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - before}


def main(rows: int = ROWS) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, taken = Path(place), dict[str, list[dict[str, float]]]()
        make(folder / "workspace", rows)
        for repeat in range(REPEATS):
            for way in WAYS:
                command = [
                    sys.executable,
                    "-m",
                    __spec__.name,
                    way,
                    str(folder / "workspace"),
                    str(folder / f"{way}{repeat}"),
                ]
                one = os.environ | {"POLARS_MAX_THREADS": "1"}
                done = subprocess.run(command, env=one, check=True, capture_output=True)
                taken.setdefault(way, []).append(json.loads(done.stdout))
    for way in WAYS:
        rate, cpu = (statistics.median(rows / one[of] for one in taken[way]) for of in ("seconds", "cpu"))
        line(f"{way}: {rows:,} of {2 * rows:,} rows", f"{rate:,.0f} rows/s", f"{cpu:,.0f} per second of a core")
    for name, of in (("rate", "seconds"), ("work on a core", "cpu")):
        pairs = zip(taken["ours"], taken["polars"], strict=True)
        line(f"{name}, ours to Polars'", f"{statistics.median(theirs[of] / mine[of] for mine, theirs in pairs):.2f}")
    line("aim", f"{AIM:,} rows/s")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(timed(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("rows", nargs="?", type=int, default=ROWS)
        main(parser.parse_args().rows)
