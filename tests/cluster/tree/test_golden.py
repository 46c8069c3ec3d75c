"""Digests of the stages' outputs for a small pool. If a digest changes, increase the `version` of the op."""

import numpy as np
import pyarrow as pa

from curate.cluster.assign import Assign
from curate.cluster.fit import FitTree
from curate.core.contracts import Batch
from curate.core.group import MemoryGroup
from curate.core.hashing import digest, make_key
from curate.core.vectors import to_binary
from curate.select.hierarchical import SelectHierarchical


def rounded(array: np.ndarray) -> list[list[int]]:
    """Round to 1/256, because the last bits of a product differ between classes of machines."""
    return np.rint(array * 256).astype(int).tolist()


def test_outputs_match_their_version() -> None:
    """Groups of 30, 20, 10, 5 and 2 points, too far apart for rounding to matter."""
    centres = np.array([[40, 0], [40, 9], [-40, 3], [-40, -7], [3, 60]])
    group = np.repeat(np.arange(5), [30, 20, 10, 5, 2])
    offsets = np.stack([np.arange(67) * 7 % 11, np.arange(67) * 3 % 13], axis=1) / 16
    column, norms = to_binary((centres[group] + offsets).astype(np.float32))
    keys = [make_key("golden", str(row)) for row in range(67)]
    table = pa.table({"key": keys, "embedding": column, "embedding_norm": norms})

    fit = FitTree(levels=[5, 3], rounds=2, resample=[2, 1], unit_norm=False, seed=1)
    tree = fit.fit(MemoryGroup([fit.load(table)]))
    assign = Assign(levels=2, unit_norm=False)
    assign.setup({"tree": tree})
    clusters = pa.table(assign.process(Batch(table)), schema=assign.schema())
    select = SelectHierarchical(target=30, multiplier=2, seed=4)
    select.setup({"tree": tree})
    counts = np.bincount(clusters["cluster_1"].to_numpy())
    quotas = select.plan(counts)
    columns = {name: clusters[name] for name in select.reads()}
    lines = select.deal(pa.table({"key": table.column("key")} | columns))
    outputs = {
        "cluster.fit": [rounded(tree["centroids_1"]), rounded(tree["centroids_2"]), tree["parents_1"].tolist()],
        "cluster.assign": [clusters["cluster_1"].to_pylist(), clusters["cluster_2"].to_pylist()],
        "select.hierarchical": [quotas.tolist(), select.pick(lines, counts, quotas)["copies"].tolist()],
    }
    stages = (fit, assign, select)
    assert {stage.op: (stage.version, digest(outputs[stage.op])) for stage in stages} == {
        "cluster.fit": (2, "adbea3929e3a1ff6f4df38e08aa9b76a"),
        "cluster.assign": (2, "ca09eaf7deed463af527e56943b06cba"),
        "select.hierarchical": (1, "367907999fb297216a89536efe1d1c10"),
    }
    # 30 distributed over the pair of 50 rows, the pair of 15 rows and the 2 rows, which are taken twice: 13, 13 and 4
    assert sorted(quotas.tolist()) == [4, 6, 6, 7, 7]
