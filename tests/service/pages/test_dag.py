from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from curate.service.pages.dag import GAP_X, MOST_NODES, NODE_HEIGHT, NODE_WIDTH, isotonic, layout
from curate.service.pages.graph import cut, figures, stages_graph
from curate.service.runs.shapes import LaneShape
from curate.service.states import State
from tests.service.pages import examples


@st.composite
def dags(draw: st.DrawFn) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for place in range(draw(st.integers(1, 25))):
        made[f"s{place}"] = draw(st.lists(st.sampled_from(sorted(made)), max_size=3)) if made else []
    return made


@given(dags())
def test_nodes_lie_apart_edges_lead_down_and_both_stay(inputs: dict[str, list[str]]) -> None:
    found = layout(inputs)
    assert found is not None and found.places.keys() == inputs.keys()
    rows: dict[int, list[int]] = {}
    for x, y in found.places.values():
        assert 0 <= x <= found.width - NODE_WIDTH and 0 <= y <= found.height - NODE_HEIGHT
        rows.setdefault(y, []).append(x)
    for places in rows.values():
        ordered = sorted(places)
        steps = [after - before for before, after in pairwise(ordered)]
        assert all(step >= NODE_WIDTH + GAP_X - 1 for step in steps)
    assert {(edge.source, edge.target) for edge in found.edges} == {
        (up, node) for node, ups in inputs.items() for up in ups
    }
    for edge in found.edges:
        (x, y), (x2, y2) = found.places[edge.source], found.places[edge.target]
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", edge.path)]
        assert y2 > y and numbers[:2] == [numbers[0], y + NODE_HEIGHT] and numbers[-1] == y2
        assert abs(numbers[0] - x - NODE_WIDTH / 2) <= 1 and x2 >= 0
    assert layout(dict(inputs)) == found


def test_a_chain_is_straight() -> None:
    found = layout({"a": [], "b": ["a"], "c": ["b"]})
    assert found is not None
    assert {x for x, _ in found.places.values()} == {6}
    assert all("C" not in edge.path for edge in found.edges)


def test_crossings_that_can_be_avoided_are() -> None:
    found = layout({"a": [], "b": [], "of_b": ["b"], "of_a": ["a"]})
    assert found is not None
    assert all("C" not in edge.path for edge in found.edges)


def test_too_large_a_graph_is_not_laid_out() -> None:
    assert layout({f"s{place}": [] for place in range(MOST_NODES)}) is not None
    assert layout({f"s{place}": [] for place in range(MOST_NODES + 1)}) is None
    assert layout({f"s{place}": [f"s{up}" for up in range(place)] for place in range(60)}) is None
    assert layout({"a": ["b"], "b": ["a"]}) is None
    assert layout({}) is None


def test_unknown_inputs_are_left_out() -> None:
    found = layout({"a": ["gone", "a"], "b": ["a"]})
    assert found is not None and [edge.source for edge in found.edges] == ["a"]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12))
def test_isotonic_values_rise_and_sorted_ones_stay(values: list[float]) -> None:
    found = isotonic(values, [1.0] * len(values))
    assert all(before <= after + 1e-9 for before, after in pairwise(found))
    assert isotonic(sorted(values), [1.0] * len(values)) == sorted(values)
    assert abs(sum(found) - sum(values)) < 1e-6


def test_a_node_tells_rows_rate_lanes_and_time_left() -> None:
    graph = stages_graph(examples.stages(State.RUNNING))
    assert graph is not None
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["embed"].lines == ["image.embed", "9,120 of 28.1 k · 412/s · gpu 94 %"]
    assert nodes["embed"].left == "46 s left" and nodes["embed"].share == round((NODE_WIDTH - 2) * 9_120 / 28_104)
    assert nodes["inspect"].lines[1] == "28.1 k rows · reused" and nodes["tree"].lines[1] == "waiting"
    assert [edge.port for edge in graph.edges].count(True) == 4
    failed = stages_graph(examples.stages(State.FAILED))
    assert failed is not None
    assert [(node.name, node.icon) for node in failed.nodes if node.tone == "bad"] == [("embed", "failed")]


def test_work_that_is_not_counted_in_rows_has_words() -> None:
    one = examples.stage("tree", "cluster.fit", (), {}, "running", rows=0, total=None, text="40 %, level 2 of 3")
    assert figures(one) == "40 %, level 2 of 3"
    lane = LaneShape(lane="gpu", rows=3, rows_per_s=0.5, bytes_per_s=0, busy=None)
    assert figures(one.model_copy(update={"rows": 3, "lanes": [lane]})) == "3 rows · 0.50/s"
    assert cut("abcdef", 4) == "abc…" and cut("abcd", 4) == "abcd"
