"""`select.hierarchical` over many rows by each strategy, on both engines: seconds, memory, and whether bytes are equal.

    python -m bench.select.cover [--rows 1000000] [--clusters 1000] [--dim 192] [--share 0.1] [--engines local ray]

The pool has images of one pixel; vectors are directions around a centre for each cluster. Each engine builds vectors
first and then a selection by each strategy, in one workspace; memory is the peak of PSS of all processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bench.engine import simulated
from bench.kit.measure import PeakMemory, line, machine
from curate.core.contracts import Artifact, Batch, Fit, Map, Table
from curate.core.group import Group
from curate.core.hashing import key_words, ranks_of_words
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.core.vectors import to_binary, vector_type
from curate.engine.run import run
from curate.select.hierarchical import SelectHierarchical

SHARD_ROWS = 10_000
STRATEGIES = ("random", "cover", "fast_cover")


class Vectors(Map):
    """A cluster by hash, and a direction near its centre."""

    op: ClassVar[str] = "bench.vectors"
    clusters: int
    dim: int

    def schema(self) -> pa.Schema:
        numbers = [pa.field("cluster_1", pa.int64()), pa.field("centroid_distance", pa.float32())]
        return pa.schema([pa.field("embedding", vector_type(self.dim)), *numbers])

    def process(self, batch: Batch) -> dict[str, Any]:
        words = key_words(batch.column("key"))
        cluster = (words[:, 0] % np.uint64(self.clusters)).astype(np.int64)
        centres = np.random.default_rng(0).standard_normal((self.clusters, self.dim))
        moved = np.empty((len(words), self.dim))
        for column in range(self.dim):
            moved[:, column] = ranks_of_words(0, words, column) / 2.0**63 - 1
        vectors = centres[cluster] + moved
        distance = (moved**2).sum(axis=1).astype(np.float32)
        return {"embedding": to_binary(vectors)[0], "cluster_1": cluster, "centroid_distance": distance}


class OneLevel(Fit):
    """A tree of one level."""

    op: ClassVar[str] = "bench.one_level"
    kind: ClassVar[str] = "cluster_tree"
    clusters: int

    def reads(self) -> tuple[str, ...]:
        return ("cluster_1",)

    def load(self, table: Table) -> dict[str, Any]:
        return {"rows": np.zeros(table.num_rows, np.int8)}

    def fit(self, group: Group) -> Artifact:
        return {"levels": {"levels": [{"clusters": self.clusters}]}}


def pipeline(options: argparse.Namespace, upto: str) -> Pipeline:
    made = Pipeline()
    made.add("pool", simulated.Pool(namespace="bench", shards=options.rows // SHARD_ROWS, shard_rows=SHARD_ROWS))
    made.add("vectors", Vectors(clusters=options.clusters, dim=options.dim), "pool")
    made.add("tree", OneLevel(clusters=options.clusters), "vectors")
    for strategy in STRATEGIES if upto == "all" else [upto] if upto else []:
        made.add(strategy, SelectHierarchical(share=options.share, strategy=strategy), "vectors", tree="tree")
    return made.check()


def one_engine(options: argparse.Namespace) -> None:
    workspace = str(options.folder / options.engine)
    found: dict[str, Any] = {}
    run(pipeline(options, ""), workspace, engine=options.engine)
    for strategy in STRATEGIES:
        began = time.perf_counter()
        result = run(pipeline(options, strategy), workspace, engine=options.engine)
        seconds = time.perf_counter() - began
        rows = open_storage(result.outputs[strategy])
        digest = hashlib.sha256()
        for name in sorted(rows.list("rows")):
            digest.update(rows.read(f"rows/{name}"))
        found[strategy] = {"seconds": seconds, "copies": result.ledger[strategy].copies, "bytes": digest.hexdigest()}
    (options.folder / f"{options.engine}.json").write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--engines", nargs="*", default=["local", "ray"])
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        one_engine(options)
        return
    print(f"{machine()}; {options.rows:,} rows of {options.dim} dimensions, {options.clusters:,} clusters")
    with tempfile.TemporaryDirectory() as name:
        found = {}
        for engine in options.engines:
            command = [sys.executable, "-m", "bench.select.cover", *sys.argv[1:], "--folder", name, "--engine", engine]
            peak = PeakMemory(subprocess.Popen(command))
            line(f"{engine}: memory of all processes", f"{peak.wait() / 2**20:,.0f} MiB")
            found[engine] = json.loads((Path(name) / f"{engine}.json").read_text())
            for strategy, one in found[engine].items():
                line(f"{engine}: {strategy}, {one['copies']:,} rows", f"{one['seconds']:.1f} s")
    for strategy in STRATEGIES:
        same = len({one[strategy]["bytes"] for one in found.values()}) == 1
        line(f"{strategy}: the same bytes on {' and '.join(found)}", "yes" if same else "NO")


if __name__ == "__main__":
    main()
