"""Places the stages of a run for an SVG: layers from top to bottom, few crossings, the same result every time.

The layered method of Sugiyama, Tagawa and Toda (1981): a stage's layer is its longest path from a source; an edge over
several layers gets a bend in each of them; barycentres order each layer; and every layer is then moved as close to its
neighbours as its order and widths allow, which is isotonic regression. Units: SVG user units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

NODE_WIDTH, NODE_HEIGHT = 224, 58
GAP_X, GAP_Y = 22, 30
MARGIN = 6
MOST_NODES, MOST_EDGES = 200, 800
SWEEPS = 8


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    path: str
    """As the attribute `d` of an SVG path has it."""


@dataclass(frozen=True)
class Layout:
    width: int
    height: int
    places: dict[str, tuple[int, int]]
    """Top left corner of each node."""
    edges: list[Edge]


def layout(inputs: Mapping[str, Sequence[str]]) -> Layout | None:
    """`inputs`: node -> the nodes that it reads, in the order of the recipe. Unknown names are left out.

    None if there are more nodes or edges than a reader could follow, or if they form a cycle.
    """
    known = {node: sorted({up for up in ups if up in inputs and up != node}) for node, ups in inputs.items()}
    if not known or len(known) > MOST_NODES or sum(map(len, known.values())) > MOST_EDGES:
        return None
    layer_of = _layers(known)
    if layer_of is None:
        return None
    layers, ups, chains = _with_bends(known, layer_of)
    _order(layers, ups)
    middles = _middles(layers, ups, set(known))
    left = min(middles[node] for node in known) - NODE_WIDTH / 2 - MARGIN
    left = min(left, min(middles.values()) - MARGIN)
    middles = {node: round(x - left, 1) for node, x in middles.items()}
    right = max(x + (NODE_WIDTH / 2 if node in known else 0) for node, x in middles.items())
    places = {node: (round(middles[node] - NODE_WIDTH / 2), _top(layer_of[node])) for node in known}
    edges = [
        Edge(source, target, _path([middles[one] for one in (source, *bends, target)], layer_of[source]))
        for (source, target), bends in chains.items()
    ]
    height = _top(max(layer_of.values())) + NODE_HEIGHT + MARGIN
    return Layout(round(right) + MARGIN, height, places, edges)


def _top(layer: int) -> int:
    return MARGIN + layer * (NODE_HEIGHT + GAP_Y)


def _layers(inputs: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
    """Length of the longest path to each node; None for a cycle."""
    found: dict[str, int] = {}
    waiting = list(inputs)
    while waiting:
        ready = [node for node in waiting if all(up in found for up in inputs[node])]
        if not ready:
            return None
        found |= {node: max((found[up] + 1 for up in inputs[node]), default=0) for node in ready}
        waiting = [node for node in waiting if node not in found]
    return found


Chains = dict[tuple[str, str], list[str]]


def _with_bends(
    inputs: Mapping[str, Sequence[str]], layer_of: Mapping[str, int]
) -> tuple[list[list[str]], dict[str, list[str]], Chains]:
    """Layers of nodes and bends, what each reads from the layer above, and the bends of each edge."""
    layers: list[list[str]] = [[] for _ in range(max(layer_of.values()) + 1)]
    ups: dict[str, list[str]] = {}
    chains: Chains = {}
    for node, layer in layer_of.items():
        layers[layer].append(node)
    for node, sources in inputs.items():
        ups[node] = []
        for source in sources:
            last, bends = source, []
            for layer in range(layer_of[source] + 1, layer_of[node]):
                bend = f"\0{source}\0{node}\0{layer}"
                layers[layer].append(bend)
                ups[bend] = [last]
                bends.append(bend)
                last = bend
            ups[node].append(last)
            chains[source, node] = bends
    return layers, ups, chains


def _downs(ups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {node: [] for node in ups}
    for node, sources in ups.items():
        for source in sources:
            found[source].append(node)
    return found


def _order(layers: list[list[str]], ups: Mapping[str, Sequence[str]]) -> None:
    """Sorts each layer by the mean place of its neighbours, downwards and upwards; keeps the order with the fewest
    crossings."""
    downs = _downs(ups)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, ups)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        pairs = pairwise(layers) if down else pairwise(layers[::-1])
        for fixed, moved in pairs:
            place = {node: at for at, node in enumerate(fixed)}
            _sort(moved, place, ups if down else downs)
        now = _crossings(layers, ups)
        if now < fewest:
            best, fewest = [list(layer) for layer in layers], now
    layers[:] = best


def _sort(layer: list[str], place: Mapping[str, int], neighbours: Mapping[str, Sequence[str]]) -> None:
    before = {node: at for at, node in enumerate(layer)}

    def key(node: str) -> tuple[float, int]:
        found = [place[one] for one in neighbours[node]]
        return (sum(found) / len(found) if found else float(before[node]), before[node])

    layer.sort(key=key)


def _crossings(layers: Sequence[Sequence[str]], ups: Mapping[str, Sequence[str]]) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        place = {node: at for at, node in enumerate(upper)}
        ends = [at for node in lower for at in sorted(place[up] for up in ups[node])]
        total += sum(ends[one] > ends[two] for one in range(len(ends)) for two in range(one + 1, len(ends)))
    return total


def _middles(layers: Sequence[Sequence[str]], ups: Mapping[str, Sequence[str]], nodes: set[str]) -> dict[str, float]:
    """Horizontal middle of each node and bend."""
    downs = _downs(ups)
    steps = {id(layer): _steps(layer, nodes) for layer in layers}
    middles: dict[str, float] = {}
    for layer in layers:
        middles |= zip(layer, _cumulated(steps[id(layer)]), strict=True)
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        neighbours = ups if down else downs
        for layer in layers[1:] if down else layers[-2::-1]:
            wanted, weights = [], []
            for node in layer:
                around = neighbours[node]
                bend = node not in nodes
                wanted.append(sum(middles[one] for one in around) / len(around) if around else middles[node])
                weights.append((8.0 if bend else 1.0) if around else 0.1)
            offsets = _cumulated(steps[id(layer)])
            fitted = isotonic([want - offset for want, offset in zip(wanted, offsets, strict=True)], weights)
            middles |= {node: x + offset for node, x, offset in zip(layer, fitted, offsets, strict=True)}
    return middles


def _steps(layer: Sequence[str], nodes: set[str]) -> list[float]:
    """Least distance of each one's middle from that of the one before it."""
    half = [NODE_WIDTH / 2 if node in nodes else 4 for node in layer]
    return [0.0, *(one + GAP_X + two for one, two in pairwise(half))]


def _cumulated(steps: Iterable[float]) -> list[float]:
    found, total = [], 0.0
    for step in steps:
        total += step
        found.append(total)
    return found


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing values with the least weighted squared distance (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, other_total, other_count = blocks.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total, count = total + other_total, count + other_count
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


def _path(middles: Sequence[float], layer: int) -> str:
    """A curve between layers, and a straight line past a layer's nodes, from the bottom of the first to the top of the
    last one."""
    y = _top(layer) + NODE_HEIGHT
    parts = [f"M{middles[0]:g} {y}"]
    for place, (before, after) in enumerate(pairwise(middles), 1):
        parts.append(f"V{y + GAP_Y}" if before == after else _curve(before, after, y))
        y += GAP_Y
        if place < len(middles) - 1:
            y += NODE_HEIGHT
            parts.append(f"V{y}")
    return "".join(parts)


def _curve(before: float, after: float, y: int) -> str:
    half = y + GAP_Y // 2
    return f"C{before:g} {half} {after:g} {half} {after:g} {y + GAP_Y}"
