"""Maps of a run: each row that was placed is a point, with the colour of its value; a region is a slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from curate.api import Polygon, Run, Slice
from curate.api.clusters import Clusters, clusters_of
from curate.api.maps import NONE, OTHER, _coloured, _legend
from curate.core.errors import InputError
from curate.engine.record.runs import RunRecord
from tests.mapped import ROWS, RUN, mapped_workspace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return mapped_workspace(tmp_path_factory.mktemp("mapped") / "workspace").run(RUN)


def test_every_row_that_was_placed_is_a_point_once(run: Run) -> None:
    table = run.workspace.table(RUN, "map", ["key", "map_x", "map_y", "clusters.cluster_1"]).table
    found = run.map(colour="clusters.cluster_1", alive="half")
    wanted = sorted(zip(table["map_x"].to_pylist(), table["map_y"].to_pylist(), strict=True))
    assert sorted(map(tuple, found.xy.tolist())) == wanted
    assert (found.stage, found.column, len(found.map), found.whole) == ("map", "map", 16, 6)
    assert int(found.alive.sum()) == ROWS // 2
    assert sum(line.points for line in found.legend) == table.num_rows
    counts = dict(zip(*np.unique(table["clusters.cluster_1"].to_numpy(), return_counts=True), strict=True))
    assert {line.label: line.points for line in found.legend} == {str(one): count for one, count in counts.items()}
    left, bottom, right, top = found.extent
    assert (found.xy > [left, bottom]).all() and (found.xy < [right, top]).all()
    assert not np.array_equal(found.xy[:, 0], table["map_x"].to_numpy())
    again = run.map(colour="clusters.cluster_1", alive="half")
    assert np.array_equal(found.xy, again.xy) and np.array_equal(found.category, again.category)


def test_every_colour_that_is_offered_works(run: Run) -> None:
    names = run.map_columns("map")
    assert "alone.cluster_1" in names and "clusters.cluster_1" in names and "cluster_1" not in names
    for name in names:
        assert run.map(colour=name).legend, name


def test_clusters_have_the_names_of_their_tree(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(record: RunRecord, stage: str | None = None) -> Clusters:
        found = clusters_of(record, stage)
        assert stage == "profile"
        table = found.table.drop_columns(["name"]) if "name" in found.table.column_names else found.table
        return replace(found, table=table.append_column("name", pa.array(["red"] * len(table))))

    monkeypatch.setattr("curate.api.maps.clusters_of", named)
    labels = [{line.label for line in run.map(colour=f"{stage}.cluster_1").legend} for stage in ("clusters", "alone")]
    assert labels == [{f"{number}: red" for number in range(4)}, {"0"}]


def test_a_point_knows_its_sample(run: Run) -> None:
    found = run.map("near")
    rows = {
        (row["shard"], row["row"]): row for row in run.slice(Slice("near"), ["near_x"], limit=ROWS).table.to_pylist()
    }
    for at, (x, _) in enumerate(found.xy.tolist()):
        assert rows[found.shards[found.shard[at]], int(found.row[at])]["near_x"] == x


def test_a_region_of_the_map_is_a_slice(run: Run) -> None:
    found = run.map()
    left, bottom, right, top = found.extent
    middle = float(np.median(found.xy[:, 0]))
    text = f"{left},{bottom} {middle},{bottom} {middle},{top} {left},{top}"
    page = run.slice(Slice("map", within=Polygon.parse(text, "map.map")), ["map_x"], limit=ROWS)
    assert sorted(page.table["map_x"].to_pylist()) == sorted(x for x in found.xy[:, 0].tolist() if x < middle)
    nothing = Polygon.parse(f"{right + 1},0 {right + 2},0 {right + 2},1", "map.map")
    assert run.slice(Slice("map", within=nothing)).table.num_rows == 0


@pytest.mark.parametrize("text", ["", "1,2 3,4", "1,2 3,4 x,5", "1,2 3,4 nan,5", "1 2 3", "0,0 " * 201])
def test_a_wrong_polygon_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^region: .*expected .*corners"):
        Polygon.parse(text, "map")


def test_what_a_map_cannot_show_is_one_line(run: Run) -> None:
    for query, message in (
        ({"stage": "embed"}, "stage 'embed': placed no rows"),
        ({"colour": "embedding"}, "embedding: holds"),
        ({"colour": "wdth"}, "did you mean 'width'"),
        ({"alive": "axes"}, "passes on no rows"),
    ):
        with pytest.raises(InputError, match=message):
            run.map(**query)


def test_colours() -> None:
    def lines(values: pa.Array, column: str = "x") -> dict[str, int]:
        category, legend = _legend(*_coloured(pa.chunked_array([values]), column, {}))
        assert np.bincount(category, minlength=len(legend)).tolist() == [line.points for line in legend]
        return {line.label: line.points for line in legend}

    many = lines(pa.array([f"label {one}" for one in range(100_000)] + ["common", "common", None]))
    assert many["common"] == 2 and many[OTHER] == 99_991 and many[NONE] == 1 and len(many) == 12
    assert lines(pa.array([True, False, True])) == {"True": 2, "False": 1}
    scores = lines(pa.array(np.arange(800.0)))
    assert list(scores.values()) == [100] * 8 and next(iter(scores)) == "0 to 99.88"
    assert lines(pa.array([float("nan")] * 20 + [float("inf")])) == {"nan": 20, "inf": 1}
    wild = lines(pa.array([*map(float, range(16)), float("nan"), None]))
    assert wild[NONE] == 2 and sum(wild.values()) == 18
    assert len(lines(pa.array(list(range(40))), "cluster_1")) == 11
    for kind in (pa.int64(), pa.uint64()):
        assert sum(lines(pa.array([2**62 + one for one in range(40)], kind)).values()) == 40
    assert sum(lines(pa.array([], pa.float64())).values()) == 0
