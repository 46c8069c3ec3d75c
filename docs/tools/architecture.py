"""Draw which folder imports which, from the code: `python -m docs.tools.architecture FILE.svg`.

A node is a folder or a top-level module of `curate` or `distill`, or all of `pipelines`. The rows of `curate` are the
layers of the import-linter contract in pyproject.toml. An arrow points from the importing folder to the imported one.
Arrows that follow from others are left out, and folders with the same arrows share a box.
"""

from __future__ import annotations

import html
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grimp
import igraph
import networkx as nx
import numpy as np
from scipy.optimize import linprog

ROOT = Path(__file__).parents[2]
PACKAGES = ("curate", "distill", "pipelines")
COLOURS = {"curate": ("#e3eefb", "#3b73b9"), "distill": ("#e5f4e3", "#4b8f45"), "pipelines": ("#f6efdc", "#a8842c")}
LETTER, LINE, PADDING, SPACE, GAP, MARGIN, TIP = 9.3, 22, 12, 22, 60, 20, 12
"""Pixels: width of a letter, height of a line, padding of a box, space between boxes and between rows, margin, and how
far an arrow is vertical before its tip."""

Box = tuple[str, ...]
"""Folders that are drawn together, as `package.folder`."""


def imports() -> nx.DiGraph:
    """A graph with an edge a -> b if folder a imports folder b."""
    modules = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    graph = nx.DiGraph()
    for module in modules.modules - set(PACKAGES):
        graph.add_node(folder(module))
        for imported in modules.find_modules_directly_imported_by(module) - set(PACKAGES):
            if folder(imported) != folder(module):
                graph.add_edge(folder(module), folder(imported))
    return graph


def folder(module: str) -> str:
    return ".".join(module.split(".")[: 1 if module.startswith("pipelines.") else 2])


def layers() -> list[set[str]]:
    """The layers of `curate` in the contract in pyproject.toml, lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [item for item in contracts if item["type"] == "layers" and item["containers"] == ["curate"]]
    return [{f"curate.{name}" for name in re.findall(r"\w+", layer)} for layer in reversed(contract["layers"])]


def reduced(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph as boxes, without the arrows that follow from others. Folders in a cycle share a box."""
    whole = nx.condensation(graph)
    names = {node: tuple(sorted(members)) for node, members in whole.nodes(data="members")}
    return nx.relabel_nodes(nx.transitive_reduction(whole), names)


def levels(graph: nx.DiGraph) -> dict[Box, int]:
    """The row of each box, 0 at the bottom: above everything it imports, and not below its layer."""
    order = layers()
    out: dict[Box, int] = {}
    for box in reversed(list(nx.topological_sort(graph))):
        layer = next((level for level, names in enumerate(order) if names & set(box)), 0)
        out[box] = max([layer, *(out[below] + 1 for below in graph[box])])
    return out


def joined(graph: nx.DiGraph, level: dict[Box, int]) -> tuple[nx.DiGraph, dict[Box, int]]:
    """Merge boxes of one package and row that have the same arrows."""
    alike: dict[object, list[Box]] = defaultdict(list)
    for box in graph:
        arrows = frozenset(graph.predecessors(box)), frozenset(graph[box])
        alike[box[0].split(".")[0], level[box], arrows].append(box)
    names = {box: tuple(sorted(name for one in boxes for name in one)) for boxes in alike.values() for box in boxes}
    return nx.relabel_nodes(graph, names), {names[box]: level[box] for box in level}


@dataclass
class Node:
    """A box; without names, the bend of an arrow that passes through a row."""

    names: Box
    row: int
    x: float
    """The middle."""

    @property
    def lines(self) -> list[str]:
        return [name.rpartition(".")[2] for name in self.names]

    @property
    def width(self) -> float:
        return max((len(line) * LETTER for line in self.lines), default=-PADDING) + 2 * PADDING

    @property
    def height(self) -> float:
        return LINE * len(self.names) + PADDING


def arranged(graph: nx.DiGraph, level: dict[Box, int]) -> tuple[list[Node], list[list[int]]]:
    """Boxes and bends with their positions, and for each arrow the nodes it passes."""
    boxes = sorted(graph)
    edges = [(boxes.index(above), boxes.index(below)) for above, below in sorted(graph.edges)]
    rows = [max(level.values()) - level[box] for box in boxes]
    layout = igraph.Graph(edges, n=len(boxes), directed=True).layout_sugiyama(layers=rows, maxiter=5000)
    nodes = [Node(box, row, x) for box, row, (x, _) in zip(boxes, rows, layout, strict=True)]
    ways = []
    for (above, below), passed in zip(edges, layout.edge_routing, strict=True):
        nodes += [Node((), rows[above] + number, x) for number, (x, _) in enumerate(passed, start=1)]
        ways.append([above, *range(len(nodes) - len(passed), len(nodes)), below])
    straighten(nodes, [pair for way in ways for pair in pairwise(way)])
    return nodes, ways


def straighten(nodes: list[Node], pairs: list[tuple[int, int]]) -> None:
    """Set `x` to make arrows as vertical as the order within the rows allows, by a linear program."""
    weights = [0.0] * len(nodes) + [4.0 if not nodes[a].names and not nodes[b].names else 1.0 for a, b in pairs]
    rules: list[tuple[dict[int, float], float]] = []
    """Coefficients by variable, and the upper bound of their sum."""
    for slope, (a, b) in enumerate(pairs, start=len(nodes)):  # |x_a - x_b| <= slope, which is minimised
        rules += [({a: 1, b: -1, slope: -1}, 0), ({a: -1, b: 1, slope: -1}, 0)]
    for row in {node.row for node in nodes}:
        order = sorted((i for i, node in enumerate(nodes) if node.row == row), key=lambda i: nodes[i].x)
        for a, b in pairwise(order):
            rules.append(({a: 1, b: -1}, -SPACE - (nodes[a].width + nodes[b].width) / 2))
    table = np.zeros((len(rules), len(weights)))
    for line, (coefficients, _) in zip(table, rules, strict=True):
        line[list(coefficients)] = list(coefficients.values())
    found = linprog(weights, A_ub=table, b_ub=[bound for _, bound in rules], bounds=(0, None))
    for node, x in zip(nodes, found.x, strict=False):
        node.x = x


def svg() -> str:
    """The diagram."""
    graph = reduced(imports())
    nodes, ways = arranged(*joined(graph, levels(graph)))
    left = min(node.x - node.width / 2 for node in nodes) - MARGIN
    for node in nodes:
        node.x -= left
    width = max(node.x + node.width / 2 for node in nodes) + MARGIN
    tops, height = [], float(MARGIN + 2 * LINE)
    for row in range(max(node.row for node in nodes) + 1):
        tall = max(node.height for node in nodes if node.row == row)
        tops.append((height, height + tall))
        height += tall + GAP
    leaving = ports(nodes, [(way[0], way[1]) for way in ways])
    arriving = ports(nodes, [(way[-1], way[-2]) for way in ways])
    out = [drawn(node, tops) for node in nodes if node.names]
    for way, start, end in zip(ways, leaving, arriving, strict=True):
        out.append(arrow([nodes[i] for i in way], start, end, tops))
    x = float(MARGIN)
    for package in PACKAGES:
        fill, line = COLOURS[package]
        out.append(f'<rect x="{x}" y="{MARGIN}" width="14" height="14" rx="3" fill="{fill}" stroke="{line}"/>')
        out.append(f'<text x="{x + 20}" y="{MARGIN + 12}">{package}</text>')
        x += 20 + LETTER * (len(package) + 2)
    return HEAD.format(size=f"{width:.0f} {height - GAP + MARGIN:.0f}", body="\n".join(out))


def ports(nodes: list[Node], ends: list[tuple[int, int]]) -> list[float]:
    """The x of each arrow at its box: side by side, in the order of the nodes at the other ends."""
    out = [0.0] * len(ends)
    for box in {box for box, _ in ends}:
        mine = sorted((i for i, end in enumerate(ends) if end[0] == box), key=lambda i: nodes[ends[i][1]].x)
        apart = min(16.0, (nodes[box].width - 2 * PADDING) / len(mine))
        for number, i in enumerate(mine):
            out[i] = nodes[box].x + apart * (number - (len(mine) - 1) / 2)
    return out


HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="monospace" font-size="15">
<title>Which folder imports which</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>
<rect width="100%" height="100%" rx="8" fill="white"/>
{body}
</svg>
"""


def drawn(node: Node, tops: list[tuple[float, float]]) -> str:
    fill, line = COLOURS[node.names[0].split(".")[0]]
    top = sum(tops[node.row]) / 2 - node.height / 2
    out = [
        f'<rect x="{node.x - node.width / 2:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" '
        f'rx="6" fill="{fill}" stroke="{line}"/>'
    ]
    for number, text in enumerate(node.lines):
        y = top + PADDING / 2 + LINE * (number + 0.72)
        out.append(f'<text x="{node.x:.1f}" y="{y:.1f}" text-anchor="middle">{html.escape(text)}</text>')
    return "\n".join(out)


def arrow(way: list[Node], start: float, end: float, tops: list[tuple[float, float]]) -> str:
    """From the lower edge of the first node, through the rows between, to the upper edge of the last one."""
    first, last = way[0], way[-1]
    points = [(start, sum(tops[first.row]) / 2 + first.height / 2), (start, tops[first.row][1])]
    for node in way[1:-1]:
        points += [(node.x, y) for y in tops[node.row]]
    points += [(end, tops[last.row][0] - TIP), (end, sum(tops[last.row]) / 2 - last.height / 2)]
    path = "M{:.1f} {:.1f}".format(*points[0])
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        bent = f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        path += f"V{to_y:.1f}" if x == to_x else bent
    return f'<path d="{path}" fill="none" stroke="#777" stroke-width="1.4" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(svg())
