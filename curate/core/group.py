"""Groups: rows that workers hold in parts, for computations that pass over the same data many times.

A stage of the `Fit` contract gets a Group and runs steps over it. The division into parts depends on the data alone,
never on the number of workers, and results come back in part order, so that sums are computed in the same order
everywhere. A step is a module-level function of one part and of values shared with all parts.

`MemoryGroup` is a group in one process, for tests, benchmarks and fits within a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # name -> (n, ...), all of the same n

LEAST_PART_ROWS, MOST_PART_ROWS = 1 << 14, 1 << 20
PARTS = 64


def part_rows_for(rows: int) -> int:
    """Least rows of a part of a group of `rows`: a function of the data alone."""
    return min(MOST_PART_ROWS, max(LEAST_PART_ROWS, rows // PARTS))


@dataclass
class Part:
    """The rows that one worker holds. `arrays` are read-only and may be memory-mapped."""

    index: int
    arrays: Arrays
    store: Callable[[str, Arrays], None]
    """store(name, arrays): save arrays in files of the artifact, for `Group.stored(name)` and for later stages."""
    stored: Callable[[str, int], Arrays]
    """stored(name, index): arrays that part `index` of a group of this fit stored under `name` in an earlier call."""
    threads: int = 1
    """Cores that a step may use. Results must not depend on it."""
    memo: dict[str, Any] = field(default_factory=dict)
    """Cache kept between steps while the worker lives. A step must be able to recompute its content."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))


PartFunction: TypeAlias = Callable[[Part, Mapping[str, Any]], Any]


class Group(Protocol):
    threads: int
    """Cores of a part's worker, and for the fit outside of steps."""

    @property
    def rows(self) -> Sequence[int]:
        """Rows of each part, in part order."""
        ...

    @property
    def provenance(self) -> Mapping[str, str]:
        """Provenance of the columns, equal for all shards (`Fit.provenance`)."""
        ...

    @property
    def shards(self) -> Sequence[str]:
        """Ids of the pool's shards that the fit reads; empty if it does not read a pool."""
        ...

    def each(self, step: PartFunction, **shared: Any) -> Iterator[Any]:
        """Run step(part, shared) for every part, on the worker that holds it; yields the results in part order.
        `shared` (arrays, numbers, strings) is sent to each worker once per call. Arrays are read-only on both sides.
        Nothing runs before the first result is requested."""
        ...

    def partition(self, name: str, step: PartFunction, cells: int, **shared: Any) -> Group:
        """Regroup rows: step(part, shared) -> (cell (m,) in 0 .. cells - 1, arrays of m rows). Part c of the new group
        has the rows of cell c, ordered by their old part and position. A row may go to several cells or to none."""
        ...

    def scatter(self, name: str, arrays: Arrays) -> Group:
        """A new group over arrays of the fit itself, in parts of `part_rows_for` rows."""
        ...

    def stored(self, name: str) -> Group:
        """The group whose part i has the arrays that part i stored under `name`."""
        ...

    def save(self, state: Mapping[str, Any]) -> None:
        """Checkpoint: arrays and JSON-able values by name; replaces the previous one. A nested fit saves all that the
        whole fit needs to resume."""
        ...

    def restored(self) -> dict[str, Any] | None:
        """The last checkpoint of an interrupted build of the same artifact, or None."""
        ...

    def progress(self, done: float, text: str) -> None:
        """Report the estimated share done (0 .. 1) and the current work."""
        ...


def frozen(value: Any) -> Any:
    """The value with its arrays read-only, like those that come from another process."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
        return value
    if isinstance(value, dict):
        return {name: frozen(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(frozen(item) for item in value)
    return value


@dataclass
class MemoryGroup:
    """A group in this process. Nothing is written to files; a checkpoint lives as long as the object."""

    parts: Sequence[Arrays]
    threads: int = 1
    shards: Sequence[str] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    _stored: dict[str, dict[int, Arrays]] = field(default_factory=dict)
    _held: dict[int, Part] = field(default_factory=dict)
    _state: dict[str, Any] | None = None

    @property
    def rows(self) -> Sequence[int]:
        return [len(next(iter(part.values()))) for part in self.parts]

    def each(self, step: PartFunction, **shared: Any) -> Iterator[Any]:
        for index in range(len(self.parts)):
            yield frozen(step(self._part(index), frozen(shared)))

    def partition(self, name: str, step: PartFunction, cells: int, **shared: Any) -> MemoryGroup:
        moved: list[list[Arrays]] = [[] for _ in range(cells)]
        for cell, arrays in self.each(step, **shared):
            order = np.argsort(cell, kind="stable")
            edges = np.searchsorted(cell[order], np.arange(cells + 1))
            for number in range(cells):
                mine = order[edges[number] : edges[number + 1]]
                moved[number].append({key: value[mine] for key, value in arrays.items()})
        joined = [{key: np.concatenate([a[key] for a in arrays]) for key in arrays[0]} for arrays in moved]
        return MemoryGroup(joined, self.threads, _stored=self._stored)

    def scatter(self, name: str, arrays: Arrays) -> MemoryGroup:
        return MemoryGroup(cut(arrays), self.threads, _stored=self._stored)

    def stored(self, name: str) -> MemoryGroup:
        kept = self._stored[name]
        return MemoryGroup([kept[index] for index in range(len(self.parts))], self.threads, _stored=self._stored)

    def save(self, state: Mapping[str, Any]) -> None:
        self._state = dict(state)

    def restored(self) -> dict[str, Any] | None:
        return self._state

    def progress(self, done: float, text: str) -> None:
        pass

    def _part(self, index: int) -> Part:
        if index not in self._held:

            def store(name: str, arrays: Arrays) -> None:
                self._stored.setdefault(name, {})[index] = arrays

            def stored(name: str, index: int) -> Arrays:
                return self._stored[name][index]

            self._held[index] = Part(index, frozen(dict(self.parts[index])), store, stored, self.threads)
        return self._held[index]


def cut(arrays: Arrays) -> list[Arrays]:
    """Split arrays of n rows into parts of near-equal size; at least one, which may be empty."""
    rows = len(next(iter(arrays.values())))
    count = max(1, rows // part_rows_for(rows))
    edges = [rows * i // count for i in range(count + 1)]
    return [{name: value[a:b] for name, value in arrays.items()} for a, b in pairwise(edges)]


def shard_ranges(rows: Sequence[int], least: int) -> list[tuple[int, int]]:
    """Ranges (first, stop) of consecutive shards with these rows, each of at least `least` rows except the last."""
    ranges, first, held = [], 0, 0
    for number, count in enumerate(rows, 1):
        held += count
        if held >= least:
            ranges.append((first, number))
            first, held = number, 0
    return [*ranges, (first, len(rows))] if first < len(rows) else ranges
