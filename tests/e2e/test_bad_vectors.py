"""Vectors that cannot be clustered, and trees that cannot be: one clear line or a reject, on either engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from curate.core.errors import CurateError
from curate.core.ledger import Entry
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.load import load
from curate.core.store.storage import open_storage
from curate.core.vectors import to_binary
from curate.engine.run import run
from curate.engine.tasks import running as tasks
from tests.e2e.commands import CommandResult, curate
from tests.e2e.vectors import Vectors, stages, write_recipe

RAW = {"tree": {"unit_norm": False}, "clusters": {"unit_norm": False}}
BY_CELLS = {"tree": {"cells": 3}}
ROWS = 60

pytestmark = [
    pytest.mark.long,
    pytest.mark.drawn,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("error::RuntimeWarning"),
]


@dataclass(frozen=True)
class Done:
    printed: CommandResult
    workspace: Path
    result: dict[str, Any]

    @property
    def ledger(self) -> dict[str, Entry]:
        return {name: Entry.from_json(value) for name, value in self.result["ledger"].items()}

    def tree(self) -> StoredArtifact:
        return StoredArtifact(open_storage(self.result["outputs"]["tree"]), "")

    def column(self, name: str) -> pa.ChunkedArray:
        """Of `cluster.assign`."""
        files = sorted(self.workspace.glob("facts/cluster.assign/*/*/*/0*.parquet"))
        return pa.concat_tables([pq.read_table(file, columns=[name]) for file in files])[name]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt follows at once."""
    monkeypatch.setattr(tasks, "BACKOFF_SECONDS", 0.0)


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., Done]:
    """Run the stages of `tests.e2e.vectors`, changed as the call says."""

    def run_stages(**changes: Any) -> Done:
        recipe = write_recipe(tmp_path / "recipe.yaml", stages(**changes))
        result = tmp_path / "result.json"
        printed = curate("run", recipe, "-w", tmp_path / "work", "--quiet", "--json", result)
        return Done(printed, tmp_path / "work", json.loads(result.read_text()) if printed.code == 0 else {})

    return run_stages


def merged(*changes: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for change in changes:
        for name, value in change.items():
            out[name] = value if value is None else {**out.get(name, {}), **value}
    return out


# --- vectors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, RAW, BY_CELLS], ids=["unit", "raw", "cells"])
@pytest.mark.parametrize("how", ["nan", "infinite", "zero", "null"])
def test_a_fit_names_what_has_no_direction(go: Callable[..., Done], how: str, more: dict[str, Any]) -> None:
    printed = go(**merged(more, {"embed": {"bad": {how: [3, 25]}}})).printed
    assert (
        "tree: cluster.fit.embedding: 1 rows of 'embedding' are null, zero, NaN or infinite (first key" in printed.error
    )
    assert "reject them in the stage that writes the column" in printed.error


def test_semantic_duplicates_name_them_too(go: Callable[..., Done]) -> None:
    bad = {"op": Vectors.op, "from": "pool", "bad": {"nan": [3], "zero": [4]}}
    printed = go(bad=bad, meanings={"from": "bad"}).printed
    assert (
        "meanings: duplicates.semantic.embedding: 2 rows of 'embedding' are null, zero, NaN or infinite"
        in printed.error
    )


@pytest.mark.parametrize("more", [{}, RAW, BY_CELLS], ids=["unit", "raw", "cells"])
def test_assignment_rejects_them(go: Callable[..., Done], more: dict[str, Any]) -> None:
    kinds = {"nan": [1], "infinite": [2], "zero": [3], "null": [4, 40]}
    bad = {"op": Vectors.op, "from": "pool", "bad": kinds}
    done = go(**merged(more, {"bad": bad, "clusters": {"from": "bad"}, "meanings": None}))
    rejected = {number for numbers in kinds.values() for number in numbers}
    assert done.ledger["clusters"].unusable == {"bad_embedding": len(rejected)}
    found = done.column("cluster_1")
    assert found.null_count == len(rejected) == done.column("centroid_distance").null_count
    assert np.isfinite(done.column("centroid_distance").drop_null().to_numpy()).all()


def test_raw_vectors_without_a_norm(go: Callable[..., Done]) -> None:
    bad = {"bad": {"none": [5]}}
    assert "1 rows of 'embedding' are null, zero" in go(**RAW, embed=bad).printed.error
    assert go(embed=bad, meanings=None).printed.code == 0  # directions need none


@pytest.mark.parametrize("scale", [1e16, 1e30, 1e300])
def test_too_long_for_squares(go: Callable[..., Done], scale: float) -> None:
    printed = go(**RAW, embed={"scale": scale}).printed
    assert "tree: cluster.fit.embedding: 20 rows of 'embedding' are " in printed.error
    if scale < 1e300:
        assert "longer than 1e+15" in printed.error and "set unit_norm: true" in printed.error
        assert go(embed={"scale": scale}, meanings=None).printed.code == 0


def test_too_long_for_a_tree_of_others(go: Callable[..., Done]) -> None:
    long = {"op": Vectors.op, "from": "pool", "scale": 1e30}
    done = go(**merged(RAW, {"long": long, "clusters": {"from": "long"}, "meanings": None}))
    assert done.ledger["clusters"].unusable == {"bad_embedding": ROWS}


@pytest.mark.parametrize("scale", [1e-25, 1e-40])
def test_too_short_for_squares(go: Callable[..., Done], scale: float) -> None:
    printed = go(**RAW, embed={"scale": scale}).printed
    assert "shorter than 1e-15: their squares vanish in float32; write unit_norm: true" in printed.error
    assert go(embed={"scale": scale}, meanings=None).printed.code == 0


@pytest.mark.parametrize("scale", [1e-10, 1e12])
def test_far_from_one_is_the_same_tree(go: Callable[..., Done], scale: float) -> None:
    sizes = [np.array(go(**RAW, embed={"scale": s}).tree()["sizes_1"]).tolist() for s in (1.0, scale)]
    assert sizes[0] == sizes[1]


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["clusters", "meanings"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dim": 9, "encoder": "one"}, "has 9 dimensions, but its `tree` has 8 dimensions"),
        ({"encoder": "two"}, "has encoder two, but its `tree` has encoder one"),
    ],
)
def test_a_tree_of_another_encoder(go: Callable[..., Done], stage: str, other: dict[str, Any], words: str) -> None:
    changes: dict[str, Any] = {"embed": {"encoder": "one"}, "other": {"op": Vectors.op, "from": "pool", **other}}
    left_out = {"clusters", "meanings"} - {stage}
    printed = go(**changes, **{stage: {"from": "other"}}, **dict.fromkeys(left_out)).printed
    assert (
        f"embedding: 'embedding' {words}; " in printed.error
        and "the encoder that the tree was fitted on" in printed.error
    )


def test_the_tree_records_what_it_was_fitted_on(go: Callable[..., Done]) -> None:
    done = go(embed={"encoder": "one"}, meanings=None)
    assert done.tree()["levels"]["encoder"]["encoder"] == "one"
    assert set(done.tree()["levels"]["encoder"]) == {"encoder", "weights"}


def another_encoder(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("embedding")
    field = table.schema.field(place)
    metadata = {**field.metadata, b"encoder": b"two"}
    return table.set_column(place, field.with_metadata(metadata), table.column(place))


def another_dimension(table: pa.Table) -> pa.Table:
    vectors, _ = to_binary(np.ones((table.num_rows, 9)))
    return table.set_column(table.schema.get_field_index("embedding"), "embedding", vectors)


def no_column(table: pa.Table) -> pa.Table:
    return table.drop_columns(["embedding"])


SPOILT = [
    (another_encoder, "encoder of shard", "is 'one', but of"),
    (another_dimension, "holds float16 8 per row, but", "holds float16 9 per row: all rows must come from one encoder"),
    (no_column, "this table of facts is corrupt or missing", "and rerun the recipe"),
]


@pytest.mark.parametrize("op", ["cluster.fit", "duplicates.semantic"])
@pytest.mark.parametrize(("spoil", "first", "second"), SPOILT, ids=[case[0].__name__ for case in SPOILT])
def test_shards_that_differ(
    go: Callable[..., Done], op: str, spoil: Callable[[pa.Table], pa.Table], first: str, second: str
) -> None:
    """One shard's columns come from elsewhere, as after a restored backup."""
    changes: dict[str, Any] = {"embed": {"encoder": "one"}}
    last = "tree" if op == "cluster.fit" else "meanings"
    made = go(**changes, meanings=None)
    assert made.printed.code == 0
    spoil_last_shard(made.workspace, spoil)
    changes = merged(changes, {"tree": {"seed": 1}} if last == "tree" else {})
    printed = go(**changes).printed
    if last == "meanings" and spoil is not no_column:  # compared with the tree first
        first, second = "but its `tree` has", "compare with the encoder that the tree was fitted on"
    elif spoil is another_dimension:
        first, second = "9 per row", "8 per row"  # whichever shard comes first
    named = f"{Vectors.op}/" if spoil is no_column else f"{last}: "  # the facts that cannot be read, or who reads them
    assert named in printed.error and first in printed.error and second in printed.error, printed.error


def spoil_last_shard(workspace: Path, spoil: Callable[[pa.Table], pa.Table]) -> None:
    """Change the columns of the pool's last shard."""
    [base] = workspace.glob("pools/vectors/versions/*")
    last = pq.read_table(base / "shards.parquet").column("id").to_pylist()[-1]
    [file] = workspace.glob(f"facts/{Vectors.op}/*/*/{last}/000001.parquet")
    pq.write_table(spoil(pq.read_table(file)), file)


def test_a_column_that_is_not_a_vector(go: Callable[..., Done]) -> None:
    printed = go(tree={"embedding": "source_id"}).printed
    assert "column 'source_id': expected fixed_size_binary" in printed.error and "`image.embed`" in printed.error
    printed = go(clusters={"embedding": "nowhere"}).printed
    assert "nowhere" in printed.error


# --- trees ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"levels": [ROWS + 1, 2]}, "cluster.fit.levels: 61 clusters for 60 rows; lower `levels` to at most the rows"),
        ({"levels": [ROWS + 1, 2], "cells": 4}, "cluster.fit.levels: 61 clusters for 60 rows"),
        ({"levels": [6, 2], "sample": 0.05}, "tree.sample: unknown parameter of cluster.fit"),
        ({"levels": [2, 6]}, "[2, 6] must decrease strictly, finest first"),
        ({"levels": [6, 6]}, "[6, 6] must decrease strictly, finest first"),
        ({"levels": [6, 0]}, "levels"),
        ({"levels": []}, "levels"),
        ({"levels": [6, 2], "resample": [3]}, "resample: 1 values for 2 levels"),
        ({"levels": [6, 2], "cells": 0}, "cells: 0: expected a number of at least 1, or a list"),
        ({"levels": [6, 2], "cells": [2, "x"]}, "expected a number of at least 1"),
        ({"levels": [6, 2], "cells": [None, 3]}, "cells: 3 for 2 clusters"),
        ({"levels": [6, 2], "cells": [2, 2, 2]}, "cells: 3 values for 2 levels"),
        ({"levels": [6, 2], "cells": 7}, "cells: 7 for 6 clusters; give at most one cell per cluster"),
    ],
)
def test_trees_that_cannot_be(go: Callable[..., Done], tree: dict[str, Any], words: str) -> None:
    assert words in go(tree=tree).printed.error


def test_an_assignment_that_does_not_fit_its_tree(go: Callable[..., Done]) -> None:
    assert "levels: 3, but its `tree` was fitted with 2; write 2" in go(clusters={"levels": 3}).printed.error
    assert "unit_norm: False, but its `tree` was fitted with True" in go(clusters={"unit_norm": False}).printed.error


def test_everything_rejected(go: Callable[..., Done]) -> None:
    printed = go(embed={"refused": list(range(ROWS))}).printed
    assert "cluster.fit: no rows to fit on: every row was rejected upstream; `curate status RUN`" in printed.error


WHOLE = {
    "equal": {"embed": {"equal": True}},
    "as many clusters as rows": {"tree": {"levels": [ROWS, 2]}},
    "one cluster": {"tree": {"levels": [1]}, "clusters": {"levels": 1}},
    "one at the top": {"tree": {"levels": [6, 1]}},
    "one row": {"pool": {"rows": 1}, "tree": {"levels": [1]}, "clusters": {"levels": 1}},
    "r above sizes": {"tree": {"resample": [1000, 50]}},
    "r above sizes, no rounds": {"tree": {"resample": [1000, 50], "rounds": 0}},
    "fewer distinct than clusters": {"embed": {"dim": 1}, "tree": {"levels": [6, 3]}},
    "a shard without live rows": {"embed": {"refused": list(range(20))}},
    "the last without": {"embed": {"refused": list(range(40, 60))}},
    "shards of one row": {"pool": {"shard_rows": 1, "rows": 9}, "tree": {"levels": [3, 2]}},
    "a single row left": {
        "embed": {"refused": list(range(1, 60))},
        "tree": {"levels": [1]},
        "clusters": {"levels": 1},
    },
}


@pytest.mark.parametrize("more", [{}, RAW, {"tree": {"cells": 2}}], ids=["unit", "raw", "cells"])
@pytest.mark.parametrize("name", WHOLE)
def test_trees_of_odd_pools(go: Callable[..., Done], name: str, more: dict[str, Any]) -> None:
    """They are whole: members add up, parents exist, distances are numbers, and rows are assigned."""
    changes = merged(more, WHOLE[name])
    levels = changes.get("tree", {}).get("levels", [6, 2])
    if "cells" in changes.get("tree", {}):
        changes = merged(changes, {"tree": {"cells": min(levels[0], 2)}})
        changes = merged(changes, {"meanings": {"level": 2} if len(levels) > 1 else None})
    done = go(**changes)
    assert done.printed.code == 0, done.printed
    tree, alive = done.tree(), done.ledger["embed"].after
    for level, clusters in enumerate(levels, 1):
        assert len(tree[f"sizes_{level}"]) == clusters and tree[f"sizes_{level}"].sum() == alive
    for level, (below, above) in enumerate(pairwise(levels), 1):
        parents = tree[f"parents_{level}"]
        assert len(parents) == below and 0 <= parents.min() <= parents.max() < above
        up = np.bincount(parents, tree[f"sizes_{level}"], above)
        assert up.tolist() == np.asarray(tree[f"sizes_{level + 1}"]).tolist()
    assert np.isfinite(tree["distance_quantiles"]).all()
    json.dumps(tree["levels"], allow_nan=False)
    assert done.ledger["clusters"].lost == {}
    assert pc.max(done.column("cluster_1")).as_py() < levels[0]


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"embed": {"bad": {"nan": [3]}}}, "1 rows of 'embedding' are null, zero, NaN or infinite"),
        ({**RAW, "embed": {"scale": 1e30}}, "are longer than 1e+15"),
        ({"tree": {"levels": [61, 2]}}, "61 clusters for 60 rows"),
        (
            {"other": {"op": Vectors.op, "from": "pool", "dim": 9}, "clusters": {"from": "other"}},
            "has 9 dimensions, but its `tree` has 8",
        ),
    ],
    ids=["nan", "long", "k", "dimension"],
)
def test_under_ray(tmp_path: Path, on_ray: Any, changes: dict[str, Any], words: str) -> None:
    pipeline = load(write_recipe(tmp_path / "recipe.yaml", stages(**changes)))
    with pytest.raises(CurateError) as refused:
        run(pipeline, str(tmp_path / "work"), engine=on_ray)
    assert words in str(refused.value) and "\n" not in str(refused.value) and "Traceback" not in str(refused.value)


def test_mixed_encoders_under_ray(tmp_path: Path, on_ray: Any) -> None:
    changes: dict[str, Any] = {"embed": {"encoder": "one"}, "tree": None, "clusters": None, "meanings": None}
    run(load(write_recipe(tmp_path / "first.yaml", stages(**changes))), str(tmp_path / "work"), engine=on_ray)
    spoil_last_shard(tmp_path / "work", another_encoder)
    whole = load(write_recipe(tmp_path / "whole.yaml", stages(embed={"encoder": "one"})))
    with pytest.raises(CurateError, match=r"encoder of shard \w+ is '(one|two)', but of \w+ '(one|two)': all rows"):
        run(whole, str(tmp_path / "work"), engine=on_ray)
