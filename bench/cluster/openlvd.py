"""OpenLVD's tree at a thousandth: 2.3 million simulated vectors, levels of 20,000, 500, 50 and 20 clusters.

python -m bench.cluster.openlvd [--dim 256] [--scale 0.001] [--whole] [--schedule published]

The steps of pipelines/openlvd.yaml from `subsample` to `sample`, without the engine: a uniform subsample of 1 million,
the tree fitted on it, clusters of all 2.3 million, 200,000 sampled. Vectors are of unit length in half precision, as
`image.embed` writes them, in groups of a long tail. Level 1 is fitted by the square root of its clusters in cells, as
20 million leaves are; `--whole` fits it in one piece. Memory is the peak of the process, less that before the step.
Rates are of rows per processor second.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.kit.measure import line, machine
from bench.kit.pools import THREADS
from curate.cluster.divide.level import default_cells
from curate.cluster.divide.probe import PROBE, LeafIndex, nearest_leaf
from curate.cluster.tree.levels import LEAVES, Tree, fit_tree, level_settings
from curate.core.group import MemoryGroup, part_rows_for
from curate.core.hashing import keys_of_words
from curate.kernels.evenness import evenness
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import vectors_of
from curate.select.clusters import copies_of
from curate.select.sampling import leaf_quotas
from curate.select.uniform import SelectUniform

POOL, FITTED, LEVELS, SAMPLED = 2_300_000_000, 1_000_000_000, (20_000_000, 500_000, 50_000, 20_000), 200_000_000
GROUPS_PER_LEAF = 0.5
BLOCK = 1 << 16
T = TypeVar("T")


def simulated(rows: int, dim: int, groups: int, seed: int = 0) -> NDArray[np.float16]:
    """Unit vectors (rows, dim) in groups whose sizes fall as rank ** -1.1 and whose widths differ by a factor of 4."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, groups + 1) ** -1.1
    group = rng.choice(groups, rows, p=share / share.sum())
    centres = rng.standard_normal((groups, dim), dtype=np.float32)
    widths = rng.uniform(0.25, 1.0, groups).astype(np.float32)
    found = np.empty((rows, dim), np.float16)
    for start in range(0, rows, BLOCK):
        own = group[start : start + BLOCK]
        block = centres[own] + widths[own, None] * rng.standard_normal((len(own), dim), dtype=np.float32)
        found[start : start + BLOCK] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return found


def measured(name: str, rows: int, work: Callable[[], T]) -> T:
    before, wall, spent = _peak(), time.perf_counter(), time.process_time()
    found = work()
    wall, spent = time.perf_counter() - wall, time.process_time() - spent
    line(name, f"{spent:.0f} s", f"CPU, {wall:.0f} s of wall time; {rows / max(spent, 1e-9):,.0f} rows/s; "
         f"+{(_peak() - before) / 2**20:,.0f} MiB")  # fmt: skip
    return found


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def subsample(rows: int, count: int) -> NDArray[np.int64]:
    """Rows that `select.uniform` takes, of rows with random keys."""
    stage = SelectUniform(count=count)
    words = np.random.default_rng(1).integers(0, 2**64, (rows, 2), dtype=np.uint64)
    lines = stage.deal(pa.table({"key": keys_of_words(words)}))
    counts = np.bincount(lines.column("unit").to_numpy())
    return np.flatnonzero(stage.pick(lines, counts, stage.plan(counts))["copies"])


def fit(vectors: NDArray[np.float16], levels: list[int], whole: bool, published: bool) -> tuple[MemoryGroup, Tree]:
    parts = np.array_split(vectors, max(1, len(vectors) // part_rows_for(len(vectors))))
    group = MemoryGroup([{"vectors": part} for part in parts], THREADS)
    settings = level_settings(levels, unit_norm=True, published=published)
    return group, fit_tree(group, settings, [1 if whole else default_cells(levels[0])])


def assign(vectors: NDArray[np.float16], group: MemoryGroup, tree: Tree) -> NDArray[np.int64]:
    """Leaves (n,), in blocks as `cluster.assign` gets them."""
    blocks = range(0, len(vectors), BLOCK)
    whole = tree.centroids[0]
    if whole is not None:
        return np.concatenate(
            [nearest(vectors[at : at + BLOCK].astype(np.float32), whole, THREADS)[0] for at in blocks]
        )
    stored = group._stored[LEAVES]
    cells = [vectors_of(stored[cell])[:] for cell in range(len(tree.divided["cells"]))]
    index = LeafIndex(tree.divided["cells"], tree.divided["offsets"], cells.__getitem__)
    found = [nearest_leaf(vectors[at : at + BLOCK].astype(np.float32), index, PROBE, THREADS)[0] for at in blocks]
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--scale", type=float, default=0.001, help="factor of all counts, from 2.3 billion images on")
    parser.add_argument("--whole", action="store_true", help="fit level 1 in one piece")
    parser.add_argument("--schedule", choices=["short", "published"], default="short")
    given = parser.parse_args()
    rows, fitted, target, *levels = (round(number * given.scale) for number in (POOL, FITTED, SAMPLED, *LEVELS))
    print(f"{rows:,} vectors of {given.dim} dimensions, {fitted:,} to fit on, levels {levels}, {target:,} sampled")
    vectors = simulated(rows, given.dim, max(2, int(GROUPS_PER_LEAF * levels[0])))
    line("vectors", f"{vectors.nbytes / 2**20:,.0f} MiB", f"the process has {_peak() / 2**20:,.0f} MiB")
    chosen = measured("uniform subsample", rows, lambda: subsample(rows, fitted))
    group, tree = measured(
        f"tree, schedule {given.schedule}", fitted,
        lambda: fit(vectors[chosen], levels, given.whole, given.schedule == "published"),
    )  # fmt: skip
    for number, level in enumerate(tree.levels, 1):
        note = f"{level['empty']} empty, evenness of sizes {level['entropy']:.3f}, largest {level['largest']:,}"
        line(f"  level {number}: {level['clusters']:,} clusters", f"{level['inertia']:,.0f}", f"inertia; {note}")
    leaves = measured("clusters of all", rows, lambda: assign(vectors, group, tree))
    sizes = np.bincount(leaves, minlength=levels[0])

    def sample() -> NDArray[np.int64]:
        quotas = leaf_quotas(sizes, tree.parents, target)
        rank = np.random.default_rng(2).integers(0, 2**63, rows).astype(np.uint64)
        return np.flatnonzero(copies_of(leaves, quotas, rank))

    taken = measured("hierarchical sample", rows, sample)
    held = np.bincount(leaves[taken], minlength=levels[0])
    note = f"sample of {len(taken):,}; pool: {evenness(sizes):.3f}"
    line("evenness of leaf sizes", f"{evenness(held):.3f}", note)


if __name__ == "__main__":
    print(machine())
    main()
