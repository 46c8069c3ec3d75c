"""What the SVG of a run's stages, or of a dataset's lineage, shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from curate.html.numbers import percent
from curate.service.datasets.datasets import Lineage, LineageNode
from curate.service.pages.dag import NODE_WIDTH, Layout, layout
from curate.service.pages.kit import TONES, duration, part, short
from curate.service.runs.shapes import StageShape

NAME_LETTERS, SHORT_NAME_LETTERS, LINE_LETTERS = 25, 16, 38
"""What fits into a node; a name beside the time left is shorter."""
MOST_LETTERS = 25_000
"""A graph with more text would make its page too large."""


@dataclass(frozen=True)
class Node:
    x: int
    y: int
    name: str
    title: str
    """What did not fit; "" if all did."""
    lines: list[str]
    """At most two."""
    tone: str
    icon: str
    href: str
    share: int | None = None
    """Width of the progress bar; None: there is none."""
    chosen: bool = False
    left: str = ""
    """Time left."""


@dataclass(frozen=True)
class Line:
    path: str
    port: bool
    """Whether it carries an artifact instead of rows."""


@dataclass(frozen=True)
class Graph:
    width: int
    height: int
    nodes: list[Node]
    edges: list[Line]

    @property
    def icons(self) -> list[str]:
        return sorted({node.icon for node in self.nodes if node.icon})


def stages_graph(stages: Sequence[StageShape], href: str = "") -> Graph | None:
    """None if there are too many stages to draw. `href`: where nodes lead to; "": to their lines in the table."""
    made = _layout(tuple((one.stage, (*one.inputs, *one.ports.values())) for one in stages))
    if made is None:
        return None
    rows = {one.stage: frozenset(one.inputs) for one in stages}
    nodes = [_stage(one, *made.places[one.stage], href or f"#s-{part(one.stage)}") for one in stages]
    if sum(map(_letters, nodes)) > MOST_LETTERS:
        return None
    edges = [Line(edge.path, edge.source not in rows[edge.target]) for edge in made.edges]
    return Graph(made.width, made.height, nodes, edges)


@lru_cache(maxsize=256)
def _layout(inputs: tuple[tuple[str, tuple[str, ...]], ...]) -> Layout | None:
    """Runs of one recipe have the same, at every reload."""
    return layout(dict(inputs))


def _stage(one: StageShape, x: int, y: int, href: str) -> Node:
    failed = bool(one.remedy)
    under_way = one.state in ("running", "unfinished") and bool(one.total)
    share = round((NODE_WIDTH - 2) * min(1.0, one.rows / one.total)) if under_way and one.total else None
    left = "" if one.left_seconds is None or one.state != "running" else f"{duration(one.left_seconds)} left"
    name = cut(one.stage, SHORT_NAME_LETTERS if left else NAME_LETTERS)
    texts = [one.op, figures(one)]
    lines = [cut(text, LINE_LETTERS) for text in texts]
    title = "" if [name, *lines] == [one.stage, *texts] else " · ".join([one.stage, *texts])
    tone, icon = ("bad", "failed") if failed else (TONES.get(one.state, "idle"), one.state)
    return Node(x, y, name, title, [line for line in lines if line], tone, icon, href, share, left=left)


def _letters(node: Node) -> int:
    return sum(map(len, (node.name, node.title, node.left, node.href, *node.lines)))


def figures(one: StageShape) -> str:
    """Rows, rate and lanes of a stage in one line."""
    if one.state == "waiting":
        return one.text or "waiting"
    if not one.rows and not one.total and one.text:
        return one.text
    whole = one.total is not None and one.total != one.rows
    parts = [f"{short(one.rows)} of {short(one.total or 0)}" if whole else f"{short(one.rows)} rows"]
    if one.state == "running":
        rate = sum(lane.rows_per_s for lane in one.lanes)
        parts += [f"{short(rate)}/s"] if rate else []
        parts += [f"{lane.lane} {percent(lane.busy, 1)}" for lane in one.lanes if lane.busy is not None]
    elif one.state != "done":
        parts.append(one.state)
    return " · ".join(parts)


def lineage_graph(lineage: Lineage, chosen: str, hrefs: Mapping[str, str]) -> Graph | None:
    """`chosen`: id of the node that the page is about; `hrefs`: id -> the page of those nodes that have one."""
    made = layout({node.id: node.up for node in lineage.nodes})
    if made is None:
        return None
    nodes = [_output(node, *made.places[node.id], node.id == chosen, hrefs) for node in lineage.nodes]
    return Graph(made.width, made.height, nodes, [Line(edge.path, False) for edge in made.edges])


def _output(node: LineageNode, x: int, y: int, chosen: bool, hrefs: Mapping[str, str]) -> Node:
    rows = "" if node.rows is None else f"{short(node.rows)} rows"
    lines = [cut(f"{node.noun} · {node.op}" if node.op else node.noun, LINE_LETTERS), rows]
    title = f"{node.stage} ({node.op}): {node.noun} {node.id} {rows}".strip()
    href = hrefs.get(node.id, "#lineage")
    return Node(
        x, y, cut(node.stage or node.id, NAME_LETTERS), title, [line for line in lines if line], "", "", href,
        chosen=chosen,
    )  # fmt: skip


def cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
