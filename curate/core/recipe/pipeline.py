"""A pipeline is a DAG of named stages. A recipe is the same thing as YAML; both are checked before anything runs.

    pipeline = Pipeline()
    pipeline.add("pool", AcquireFolder(namespace="mine", path="photos"))
    pipeline.add("inspect", Inspect(), from_="pool")
    pipeline.add("size", ImageFilter(min_side=64), from_="inspect")

`from` names the stages whose rows and columns a stage works on: its own rows are those that nothing upstream along
`from` has rejected. Named ports bring artifacts: `tree: fit` that of a stage, `tree: pin:NAME` one that the workspace
keeps. A Map or a Filter whose `from` holds a Select works on selected rows. Behind a Derive, rows are its children.
`keep_null: true` at a Map lets its unusable rows and its rows in error go on, with nulls.
A Report's `from` may name artifacts too: it shows them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from curate.core.contracts import Derive, Filter, Map, Pack, Report, Select, Source, Stage, kind_of
from curate.core.errors import CurateError, RecipeError
from curate.core.items import family_of, per_item
from curate.core.nouns import POOL_SCHEMA
from curate.core.recipe import registry
from curate.core.rows import POOL_COLUMNS

RESERVED = ("op", "from", "keep_null")
PIN = "pin:"
"""How a port begins that names a pinned artifact instead of a stage."""


@dataclass(frozen=True)
class Node:
    """A stage with its place in the DAG. `place` says where it was written, for messages."""

    name: str
    stage: Stage
    inputs: tuple[str, ...] = ()
    ports: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    keep_null: bool = False

    @property
    def upstream(self) -> tuple[str, ...]:
        """Stages that it needs. A pinned artifact needs none."""
        return (*self.inputs, *(name for name in self.ports.values() if not name.startswith(PIN)))

    @property
    def pinned(self) -> dict[str, str]:
        """Ports that name a pin -> `pin:NAME`."""
        return {port: name for port, name in self.ports.items() if name.startswith(PIN)}

    def fail(self, text: str) -> RecipeError:
        return RecipeError(f"{self.place or 'pipeline'}: {self.name}: {text}")

    def placed(self, error: CurateError) -> CurateError:
        """What the stage says of itself, with its place in front."""
        return type(error)(f"{self.place or 'pipeline'}: {self.name}: {error}")


class Pipeline:
    """Named stages; `nodes` is in topological order once `check` has passed."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.source: dict[str, Any] = {}
        """The recipe this was read from, for the run's record."""

    def add(
        self,
        name: str,
        stage: Stage,
        from_: str | Iterable[str] = (),
        *,
        place: str = "",
        keep_null: bool = False,
        **ports: str,
    ) -> Pipeline:
        if name in self.nodes:
            raise RecipeError(f"{place or 'pipeline'}: {name}: a stage of this name exists; choose another name")
        inputs = (from_,) if isinstance(from_, str) else tuple(from_)
        self.nodes[name] = Node(name, stage, inputs, ports, place, keep_null)
        return self

    # --- walking ---

    def along(self, name: str) -> list[Node]:
        """The stage's `from` ancestors over its own pool, in topological order, without itself."""
        wanted: set[str] = set()
        todo = list(self.nodes[name].inputs)
        while todo:
            step = todo.pop()
            if step not in wanted:
                wanted.add(step)
                if not isinstance(self.nodes[step].stage, Derive):
                    todo.extend(self.nodes[step].inputs)
        return [node for node in self.nodes.values() if node.name in wanted]

    def reaches(self, name: str) -> list[Node]:
        """Everything upstream, through `from` and through ports, in topological order: what a Report looks at. Stages
        over another pool (a reference set's, a derived pool's parents) stay outside: their rows are others."""
        wanted: set[str] = set()
        pool = self.pool_of(name)
        todo = list(self.nodes[name].upstream)
        while todo:
            step = todo.pop()
            if step not in wanted and self.pool_of(step) == pool:
                wanted.add(step)
                todo.extend(self.nodes[step].upstream)
        return [node for node in self.nodes.values() if node.name in wanted]

    def pool_of(self, name: str) -> str:
        """Name of the one Source or Derive that makes the rows of a stage."""
        if isinstance(self.nodes[name].stage, (Source, Derive)):
            return name
        return self.pool_upstream(name)

    def pool_upstream(self, name: str) -> str:
        """Name of the Source or Derive whose rows reach a stage: for a Derive, its parents'."""
        if isinstance(self.nodes[name].stage, Source):
            return name
        return next(node.name for node in self.along(name) if isinstance(node.stage, (Source, Derive)))

    # --- columns ---

    def columns_of(self, name: str) -> list[str]:
        """Names of the columns that a stage writes."""
        stage = self.nodes[name].stage
        return list(stage.schema().names) if isinstance(stage, Map) else []

    def maker(self, name: str, column: str) -> str | None:
        """The stage upstream that writes a column which a stage reads; None where it is the pool's."""
        return next((up.name for up in self.along(name) if column in self.columns_of(up.name)), None)

    def fields(self, name: str) -> dict[str, pa.Field]:
        """Columns that reach a stage: the pool's and those of the Maps upstream."""
        found = {field.name: field for field in POOL_SCHEMA if field.name in POOL_COLUMNS}
        for up in self.along(name):
            if isinstance(up.stage, Map):
                found |= {field.name: field for field in up.stage.schema()}
        return found

    def families(self, name: str) -> dict[str, str]:
        """Per-item column -> the column that made its items, of all that reach a stage."""
        fields = self.fields(name)
        return {column: family_of(column, fields) for column, field in fields.items() if per_item(field)}

    # --- checking ---

    def check(self) -> Pipeline:
        """Refuse what cannot run: a missing input, a cycle, wrong wiring, a column nobody writes. Orders the nodes."""
        if not self.nodes:
            raise RecipeError("pipeline: no stages; add at least a source")
        for node in self.nodes.values():
            for name in node.upstream:
                if name not in self.nodes:
                    raise node.fail(f"input {name!r} is no stage of this pipeline; {_nearest(name, self.nodes)}")
        self._order()
        for node in self.nodes.values():
            self._check_inputs(node)
            self._check_ports(node)
            self._check_columns(node)
        self._check_targets()
        return self

    def _order(self) -> None:
        """As written, but never before what a stage needs."""
        graph = {node.name: node.upstream for node in self.nodes.values()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle = error.args[1]
            node = self.nodes[cycle[0]]
            raise node.fail(f"cycle {' <- '.join(cycle)}; a stage cannot be its own input") from None
        given = {name: i for i, name in enumerate(self.nodes)}
        done: dict[str, Node] = {}

        def visit(name: str) -> None:
            if name not in done:
                for up in sorted(self.nodes[name].upstream, key=given.__getitem__):
                    visit(up)
                done[name] = self.nodes[name]

        for name in self.nodes:
            visit(name)
        self.nodes = done

    def _check_inputs(self, node: Node) -> None:
        stage = node.stage
        if isinstance(stage, Source):
            if node.inputs:
                raise node.fail(f"`from` given, but {stage.op} is a source and reads no stage; remove it")
            return
        if not node.inputs:
            raise node.fail("`from` is missing; name the stage (or stages) whose rows it works on")
        for name in node.inputs:
            made = self.nodes[name].stage
            if isinstance(made, Report) or (hasattr(made, "kind") and not isinstance(stage, Report)):
                raise node.fail(f"from {name!r}: {made.op} makes an artifact; name a stage with rows")
            if isinstance(self.nodes[name].stage, Pack) and not isinstance(stage, Report):
                raise node.fail(f"from {name!r}: a dataset is read by reports and by training, not by {stage.op}")
        sources = [up.name for up in self.along(node.name) if isinstance(up.stage, (Source, Derive))]
        if len(sources) != 1:
            raise node.fail(f"rows come from {len(sources)} pools ({', '.join(sources)}); they must come from one")
        selects = [up.name for up in self.along(node.name) if isinstance(up.stage, Select)]
        if isinstance(stage, Pack) and len(selects) != 1:
            raise node.fail(f"{stage.op} needs exactly one selection upstream, found {len(selects)}; add `select.all`")
        if isinstance(stage, Report):
            selects = [up.name for up in self.reaches(node.name) if isinstance(up.stage, Select)]
        if len(selects) > 1:
            raise node.fail(f"rows come from {len(selects)} selections ({', '.join(selects)}); they must come from one")

    def _check_ports(self, node: Node) -> None:
        for port, kind in node.stage.ports.items():
            if port not in node.ports and port not in node.stage.optional_ports:
                raise node.fail(f"port {port!r} is missing; name the stage that makes the {kind}, or pin:NAME")
        for port, name in node.ports.items():
            wanted = node.stage.ports.get(port)
            if wanted is None:
                raise node.fail(f"{port!r} is neither a parameter nor a port of {node.stage.op}")
            if name.startswith(PIN):  # whether there is one of this kind, the workspace knows
                continue
            maker = self.nodes[name].stage
            if getattr(maker, "kind", "") != wanted:
                raise node.fail(f"{port}: {name!r} ({maker.op}) makes no {wanted}; name a stage that does")

    def _check_columns(self, node: Node) -> None:
        reads = getattr(node.stage, "reads", None)
        if reads is None and not isinstance(node.stage, Report):
            return
        if node.keep_null and not isinstance(node.stage, Map):
            raise node.fail(
                f"keep_null is for stages that compute facts, and {node.stage.op} is a filter or later; remove it"
            )
        makers: dict[str, str] = {}
        ways = [*self.along(node.name), node] if reads else self.reaches(node.name)
        for up in ways:
            for column in self.columns_of(up.name):
                if column in makers:
                    raise node.fail(f"column {column!r} is written by {makers[column]!r} and {up.name!r}; rename one")
                makers[column] = up.name
        for column in reads() if reads else ():
            if makers.get(column, node.name) == node.name and column not in POOL_COLUMNS:
                writer = next((n for n in self.nodes if column in self.columns_of(n) and n != node.name), None)
                near = difflib.get_close_matches(column, [*makers, *POOL_COLUMNS], n=1)
                hint = f"did you mean {near[0]!r}?" if near else "add a stage that writes it"
                hint = f"add {writer!r} to `from`" if writer else hint
                raise node.fail(f"column {column!r} is missing upstream; {hint}")
        if isinstance(node.stage, Filter):
            self._check_filter(node, node.stage)

    def _check_filter(self, node: Node, stage: Filter) -> None:
        """A filter's own look at the columns; and whether what it judges has items."""
        fields = self.fields(node.name)
        try:
            stage.check(pa.schema(list(fields.values())))
        except CurateError as error:
            raise node.placed(error) from None
        places = stage.places()
        if places is not None and not per_item(fields[places]) and not pa.types.is_list(fields[places].type):
            raise node.fail(
                f"column {places!r} holds one value a row, not a list with a value for each item; name a list"
            )

    def _check_targets(self) -> None:
        for node in self.nodes.values():
            if isinstance(node.stage, Select):
                target = node.stage.target_rows()
                if target is not None and target < 1:
                    raise node.fail(f"target {target}: must be at least 1")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"stages are {', '.join(known)}"


def build_stage(op: str, values: Mapping[str, Any], fail: Any) -> tuple[Stage, dict[str, str]]:
    """Class and parameters -> stage and ports; `fail(field, text)` makes the error for a field."""
    cls = registry.resolve(op)
    fields = cls.model_fields
    ports = {name: value for name, value in values.items() if name in cls.ports}
    parameters = {name: value for name, value in values.items() if name not in ports}
    for name in parameters:
        if name not in cls.model_fields:
            raise fail(name, f"no parameter of {op}; {_nearest_parameter(name, cls)}")
    for name, value in ports.items():
        if not isinstance(value, str):
            raise fail(name, f"{value!r} is no stage's name; give the name of the stage that makes it")
    try:
        return cls(**parameters), ports
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise fail(where, f"missing, and {op} cannot do without it; `curate ops {op}` describes it") from None
        message = first["msg"].removeprefix("Value error, ")
        if not where:  # a rule about several parameters, which begins with the one to blame
            blamed, _, text = message.partition(": ")
            raise fail(*(blamed, text) if blamed in cls.model_fields else ("", message)) from None
        secret = first["type"] == "secret_reference" or (where in fields and kind_of(fields[where]) == "secret")
        given = "" if secret else f"{first['input']!r}: "  # what is given for a secret may be the secret itself
        raise fail(where, f"{given}{message[0].lower()}{message[1:]}") from None


def _nearest_parameter(name: str, cls: type[Stage]) -> str:
    known = [*cls.model_fields, *cls.ports]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
