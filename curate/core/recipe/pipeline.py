"""A pipeline is a DAG of named stages. A recipe is the same thing as YAML; both are checked before anything runs.

    pipeline = Pipeline()
    pipeline.add("pool", AcquireFolder(namespace="mine", path="photos"))
    pipeline.add("inspect", Inspect(), from_="pool")
    pipeline.add("size", ImageFilter(min_side=64), from_="inspect")

`from` names the stages whose rows and columns a stage reads: the rows that no stage upstream along `from` has rejected.
Named ports bring artifacts: `tree: fit` the artifact of a stage, `tree: pin:NAME` one pinned in the workspace. With a
Select in `from`, a Map or Filter works on selected rows. Downstream of a Derive, the rows are its children.
`keep_null: true` at a Map keeps its unusable rows and its rows in error, with nulls.
The `from` of a Report may also name artifacts to show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from curate.core.contracts import (
    Collect,
    Derive,
    Filter,
    Map,
    Pack,
    Report,
    Select,
    Source,
    Stage,
    kind_of,
    media_of,
    trait,
)
from curate.core.errors import CurateError, RecipeError, did_you_mean
from curate.core.items import family_of, per_item
from curate.core.nouns.pools import POOL_SCHEMA
from curate.core.recipe import registry
from curate.core.recipe.document import first_problem, message
from curate.core.rows import CHILDREN, IMAGE_COLUMNS, PARENT, POOL_COLUMNS

RESERVED = ("op", "from", "keep_null")
LONGEST_NAME = 200
PIN = "pin:"
"""Prefix of a port that names a pinned artifact instead of a stage."""


@dataclass(frozen=True)
class Node:
    """A stage in the DAG. `place` is its file and line, for messages."""

    name: str
    stage: Stage
    inputs: tuple[str, ...] = ()
    ports: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    keep_null: bool = False

    @property
    def upstream(self) -> tuple[str, ...]:
        """The stages that it depends on, which pinned artifacts are not."""
        return (*self.inputs, *(name for name in self.ports.values() if not name.startswith(PIN)))

    @property
    def pinned(self) -> dict[str, str]:
        """Ports that name a pin -> `pin:NAME`."""
        return {port: name for port, name in self.ports.items() if name.startswith(PIN)}

    @property
    def artifacts(self) -> dict[str, str]:
        """Ports that bring artifacts, which that of children does not."""
        return {port: name for port, name in self.ports.items() if port != CHILDREN}

    def fail(self, text: str) -> RecipeError:
        return RecipeError(f"{self.place or 'pipeline'}: {self.name}: {text}")

    def located(self, error: CurateError) -> CurateError:
        """A stage's own error, with the stage's place in front."""
        return type(error)(f"{self.place or 'pipeline'}: {self.name}: {error}")


class Pipeline:
    """Named stages; `nodes` is in topological order once `check` has passed."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.source: dict[str, Any] = {}
        """The recipe that it was read from, for the run's record."""

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
        if len(name) > LONGEST_NAME:
            short = f"{name[:20]}…: a stage's name of {len(name)} characters"
            raise RecipeError(f"{place or 'pipeline'}: {short}; at most {LONGEST_NAME}, since folders have it")
        inputs = (from_,) if isinstance(from_, str) else tuple(from_)
        self.nodes[name] = Node(name, stage, inputs, ports, place, keep_null)
        return self

    # --- walking ---

    def along(self, name: str) -> list[Node]:
        """The stage's `from` ancestors over its own pool, in topological order, without itself."""
        found: set[str] = set()
        todo = list(self.nodes[name].inputs)
        while todo:
            current = todo.pop()
            if current not in found:
                found.add(current)
                if not isinstance(self.nodes[current].stage, Derive):
                    todo.extend(self.nodes[current].inputs)
        return [node for node in self.nodes.values() if node.name in found]

    def upto(self, name: str) -> Pipeline:
        """A stage and all stages that it depends on. Raises RecipeError for an unknown one."""
        if name not in self.nodes:
            hint = did_you_mean(name, self.nodes, f"stages are {', '.join(self.nodes)}")
            raise RecipeError(f"--to {name}: not a stage of the recipe; {hint}")
        needed: set[str] = set()
        todo = [name]
        while todo:
            current = todo.pop()
            if current not in needed:
                needed.add(current)
                todo.extend(self.nodes[current].upstream)
        made = Pipeline()
        made.source, made.nodes = self.source, {each: node for each, node in self.nodes.items() if each in needed}
        return made

    def reaches(self, name: str) -> list[Node]:
        """Everything upstream, through `from` and ports, in topological order: what a Report covers. Stages over
        another pool (a reference set, or the parents of a derived pool) are excluded, because their rows differ."""
        found: set[str] = set()
        pool = self.pool_of(name)
        todo = list(self.nodes[name].upstream)
        while todo:
            current = todo.pop()
            if current not in found and self.pool_of(current) == pool:
                found.add(current)
                todo.extend(self.nodes[current].upstream)
        return [node for node in self.nodes.values() if node.name in found]

    def pool_of(self, name: str) -> str:
        """Name of the Source or Derive that makes the rows of a stage; "" for a Collect, which has no pool."""
        if isinstance(self.nodes[name].stage, Collect):
            return ""
        return name if self.makes_pool(name) else self.pool_upstream(name)

    def pool_upstream(self, name: str) -> str:
        """Name of the Source or Derive whose rows reach a stage: for a Derive, its parents'."""
        if isinstance(self.nodes[name].stage, Source):
            return name
        return next(node.name for node in self.along(name) if self.makes_pool(node.name))

    def media_made(self, pool: str) -> tuple[str, ...]:
        """Media of the pool that a Source or Derive makes."""
        stage = self.nodes[pool].stage
        assert isinstance(stage, (Source, Derive))
        return media_of(stage)

    def media_upstream(self, name: str) -> tuple[str, ...]:
        """Media of the pool whose rows reach a stage."""
        return self.media_made(self.pool_upstream(name))

    def media_seen(self, name: str) -> tuple[str, ...]:
        """Those of them that the stage sees."""
        return tuple(medium for medium in self.media_upstream(name) if medium in trait(self.nodes[name].stage, "sees"))

    def makes_pool(self, name: str) -> bool:
        """Whether a stage makes the rows that the stages after it see."""
        return isinstance(self.nodes[name].stage, (Source, Derive))

    def selection(self, name: str) -> str | None:
        """The Select upstream of a stage, or the stage itself if it is one."""
        ways = [*self.along(name), self.nodes[name]]
        return next((up.name for up in ways if isinstance(up.stage, Select)), None)

    # --- columns ---

    def columns_of(self, name: str) -> list[str]:
        """Names of the columns that a stage writes."""
        return list(self.nodes[name].stage.schema().names)

    def maker(self, name: str, column: str) -> str | None:
        """The stage upstream that writes a column; None if it is a column of the pool."""
        return next((up.name for up in self.along(name) if column in self.columns_of(up.name)), None)

    def pool_columns(self, pool: str) -> tuple[str, ...]:
        """Columns of the pool that a Source or a Derive makes."""
        return IMAGE_COLUMNS if self.media_made(pool) == ("image",) else POOL_COLUMNS

    def fields(self, name: str) -> dict[str, pa.Field]:
        """Columns that reach a stage: those of the pool and of the Maps upstream; for children also `parent.` and a
        column that reached the stage that made them; with a port of children, `children.` and a column of these."""
        pool = self.pool_upstream(name)
        found = {column: POOL_SCHEMA.field(column) for column in self.pool_columns(pool)}
        if isinstance(self.nodes[pool].stage, Derive):
            above = self.fields(pool).values()  # a parent's items are not those of the row
            found |= {PARENT + one.name: one.with_name(PARENT + one.name).remove_metadata() for one in above}
        for up in self.along(name):
            found |= {field.name: field for field in up.stage.schema()}
        if child := self.nodes[name].ports.get(CHILDREN):
            below = {column: POOL_SCHEMA.field(column) for column in self.pool_columns(self.pool_of(child))}
            below |= {} if self.makes_pool(child) else self.fields(child)
            below |= {field.name: field for field in self.nodes[child].stage.schema()}
            lists = [pa.field(f"{CHILDREN}.{column}", pa.list_(field.type)) for column, field in below.items()]
            found |= {
                one.name: one
                for one in lists
                if not one.name.startswith((f"{CHILDREN}.{PARENT}", f"{CHILDREN}.{CHILDREN}."))
            }
        return found

    def passes_errors(self, name: str) -> bool:
        """Whether a stage upstream, perhaps over the parents' pool, passes rows in error."""
        pool = self.pool_upstream(name)
        made = isinstance(self.nodes[pool].stage, Derive)
        return any(up.keep_null for up in self.along(name)) or (made and self.passes_errors(pool))

    def families(self, name: str) -> dict[str, str]:
        """Per-item column -> the column that made its items, for all columns that reach a stage."""
        fields = self.fields(name)
        return {column: family_of(column, fields) for column, field in fields.items() if per_item(field)}

    # --- checking ---

    def check(self) -> Pipeline:
        """Reject a missing input, a cycle, wrong wiring or a column that no stage writes. Orders the nodes."""
        for problem in self.problems():
            raise problem
        return self

    def problems(self, unbuilt: Collection[str] = ()) -> Iterator[CurateError]:
        """Everything that `check` would reject. Stages downstream of a wrong one are left out, as are those downstream
        of `unbuilt`: stages of the recipe that are not in the pipeline."""
        known, wrong = [*self.nodes, *unbuilt], set(unbuilt)
        if not known:
            yield RecipeError("pipeline: no stages; add at least a source")
        for node in self.nodes.values():
            for name in node.upstream:
                if name not in known:
                    wrong.add(node.name)
                    hint = did_you_mean(name, known, f"stages are {', '.join(known)}")
                    yield node.fail(f"unknown input {name!r}; {hint}")
        while later := [n.name for n in self.nodes.values() if n.name in wrong or wrong.intersection(n.upstream)]:
            wrong.update(later)
            self.nodes = {name: node for name, node in self.nodes.items() if name not in wrong}
        try:
            self._order()
        except RecipeError as problem:
            yield problem
            return
        for node in self.nodes.values():
            try:
                if not wrong.intersection(node.upstream):
                    self._check_inputs(node)
                    self._check_ports(node)
                    self._check_media(node)
                    self._check_columns(node)
                    self._check_target(node)
                    continue
            except CurateError as problem:
                yield problem
            wrong.add(node.name)

    def _order(self) -> None:
        """Order the nodes as written, but each after those that it depends on."""
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
        if isinstance(stage, (Collect, Source)):
            if node.inputs:
                raise node.fail(f"`from` does not apply to {stage.op}, which is a source; remove it")
            return
        if not node.inputs:
            raise node.fail("`from` is missing; give the stage (or stages) whose rows it reads")
        for name in node.inputs:
            source = self.nodes[name].stage
            if isinstance(source, Report) or (trait(source, "kind") and not isinstance(stage, Report)):
                raise node.fail(f"from {name!r}: {source.op} makes an artifact; give a stage with rows")
            if isinstance(source, Pack) and not isinstance(stage, Report):
                raise node.fail(f"from {name!r}: {stage.op} cannot read a dataset; only reports and training can")
        sources = [up.name for up in self.along(node.name) if self.makes_pool(up.name)]
        if len(sources) != 1:
            raise node.fail(f"rows come from {len(sources)} pools ({', '.join(sources)}); they must come from one")
        selects = [up.name for up in self.along(node.name) if isinstance(up.stage, Select)]
        if isinstance(stage, Pack) and len(selects) != 1:
            raise node.fail(f"{stage.op} needs exactly one selection upstream, found {len(selects)}; add `select.all`")
        if len(selects) > 1:
            raise node.fail(f"rows come from {len(selects)} selections ({', '.join(selects)}); they must come from one")

    def _check_ports(self, node: Node) -> None:
        for port, kind in node.stage.ports.items():
            if port not in node.ports and port not in node.stage.optional_ports:
                hint = "after which they count" if port == CHILDREN else f"that makes the {kind}, or pin:NAME"
                raise node.fail(f"port {port!r} is missing; give the stage {hint}")
        for port, name in node.ports.items():
            expected = node.stage.ports.get(port)
            if expected is None:
                raise node.fail(f"{port!r} is neither a parameter nor a port of {node.stage.op}")
            if port == CHILDREN:
                self._check_children(node, name)
                continue
            if name.startswith(PIN):  # the run checks whether it exists, and its kind
                continue
            maker = self.nodes[name].stage
            if trait(maker, "kind") != expected:
                raise node.fail(f"{port}: {name!r} ({maker.op}) does not make a {expected}; give a stage that does")
        try:
            node.stage.check_ports(node.ports)
        except CurateError as error:
            raise node.located(error) from None

    def _check_media(self, node: Node) -> None:
        """A stage that opens samples sees a medium of its pool."""
        stage = node.stage
        if not (trait(stage, "pixels") or isinstance(stage, (Derive, Pack))) or self.media_seen(node.name):
            return
        sees, media = trait(stage, "sees"), self.media_upstream(node.name)
        makers = [
            op
            for op, cls in registry.classes()
            if issubclass(cls, Derive) and set(cls.sees).intersection(media) and set(cls.media).intersection(sees)
        ]
        samples, made = f"{' or '.join(sees)} samples", " or ".join(makers)
        hint = f"put {made} before it, which makes {samples} of them" if made else f"give it a pool of {samples}"
        pool = self.pool_upstream(node.name)
        raise node.fail(f"{stage.op} reads {samples}, but those of {pool!r} are {' and '.join(media)}; {hint}")

    def _check_children(self, node: Node, name: str) -> None:
        """The rows of the stage at the port of children must be children of the node's rows."""
        advice = "give a stage after a Derive, such as image.frames, of its rows"
        if name.startswith(PIN) or not isinstance(self.nodes[name].stage, (Map, Filter, Derive)):
            raise node.fail(f"{CHILDREN}: {name!r} computes and filters no rows; {advice}")
        pool, mine = self.nodes[self.pool_of(name)], self.pool_upstream(node.name)
        if not isinstance(pool.stage, Derive) or self.pool_upstream(pool.name) != mine:
            raise node.fail(f"{CHILDREN}: the rows of {name!r} are not made of those of {mine!r}; {advice}")

    def _check_columns(self, node: Node) -> None:
        if isinstance(node.stage, (Collect, Source)):
            return
        if node.keep_null and not isinstance(node.stage, Map):
            raise node.fail(f"keep_null does not apply to {node.stage.op}, but to stages that compute facts; remove it")
        if isinstance(node.stage, Map) and not node.stage.schema().names:
            raise node.fail(f"{node.stage.op} writes no column; a Map without facts is of no use")
        for column in self.columns_of(node.name):
            if column == "key" or column.startswith((PARENT, f"{CHILDREN}.")):
                raise node.fail(f"column {column!r}: the engine uses this name; choose another")
        makers: dict[str, str] = {}
        reads, fields = node.stage.reads(), self.fields(node.name)
        whole = isinstance(node.stage, Report) and not reads
        ways = self.reaches(node.name) if whole else [*self.along(node.name), node]
        for up in ways:
            for column in self.columns_of(up.name):
                if column in makers:
                    raise node.fail(f"column {column!r} is written by {makers[column]!r} and {up.name!r}; rename one")
                makers[column] = up.name
        for column in reads:
            if column not in fields:
                pool = self.pool_upstream(node.name)
                if column.startswith(PARENT) and not isinstance(self.nodes[pool].stage, Derive):
                    raise node.fail(f"column {column!r}: rows of {pool!r} have no parents; leave {PARENT!r} out")
                writer = next((n for n in self.nodes if column in self.columns_of(n) and n != node.name), None)
                hint = did_you_mean(column, [*makers, *fields], "add a stage that writes it")
                above = min((one for one in fields if one.replace(PARENT, "") == column), key=len, default=None)
                hint = f"give {above!r}" if above else f"add {writer!r} to `from`" if writer else hint
                use = node.stage.use_of(column) if isinstance(node.stage, Map) else ""
                raise node.fail(f"column {column!r}{f' ({use})' if use else ''} is missing upstream; {hint}")
        try:
            node.stage.check_columns(pa.schema(list(fields.values())))
        except CurateError as error:
            raise node.located(error) from None
        places = node.stage.places()
        if places is not None and not per_item(fields[places]) and not pa.types.is_list(fields[places].type):
            raise node.fail(
                f"column {places!r} has one value per row, not a list with a value per item; give a list column"
            )

    def cautions(self, name: str) -> list[str]:
        """What is probably a mistake in a stage that can run, a line each."""
        drawn = self._draw(name)
        earlier = list(self.nodes)[: list(self.nodes).index(name)]
        same = [other for other in earlier if drawn[1] and self._draw(other) == drawn]
        why = "the larger sample contains the smaller one; give another seed for independent samples"
        found = [f"{drawn[1]}, as {', '.join(same)}: {why}"] if same else []
        return [*found, "leads nowhere: no stage reads it; name it in the `from` of one"] if self._idle(name) else found

    def _idle(self, name: str) -> bool:
        """Whether a stage decides about rows for nothing: no dataset and no report is made of what it passes on. What
        Maps, Fits and Reduces write is on pages even if no stage reads it."""
        ends = any(isinstance(node.stage, (Pack, Report)) for node in self.nodes.values())
        decides = isinstance(self.nodes[name].stage, (Source, Derive, Filter, Select))
        return ends and decides and not any(name in node.upstream for node in self.nodes.values())

    def _draw(self, name: str) -> tuple[str, str]:
        """A stage's pool and what its sample depends on; both empty for other stages."""
        stage = self.nodes[name].stage
        drawn = stage.draw() if isinstance(stage, Select) else ""
        return (self.pool_of(name), drawn) if drawn else ("", "")

    def _check_target(self, node: Node) -> None:
        target = node.stage.target_rows()
        if isinstance(node.stage, Select) and target is not None and target < 1:
            raise node.fail(f"{node.stage.target_name} {target}: must be at least 1")


def build_stage(
    op: str, values: Mapping[str, Any], fail: Callable[[str, str], RecipeError]
) -> tuple[Stage, dict[str, str]]:
    """The stage of an op with these parameters, and its ports; `fail(field, text)` makes the error for a field."""
    cls = registry.resolve(op)
    fields = cls.model_fields
    ports = {name: value for name, value in values.items() if name in cls.ports}
    parameters = {name: value for name, value in values.items() if name not in ports}
    for name in parameters:
        if name not in fields:
            known = [*fields, *cls.ports]
            hint = did_you_mean(name, known, f"it has {', '.join(known)}")
            raise fail(name, f"unknown parameter of {op}; {hint}")
    for name, value in ports.items():
        if not isinstance(value, str):
            raise fail(name, f"expected the name of the stage that makes it, not {value!r}")
    try:
        return cls(**parameters), ports
    except ValidationError as error:
        place, problem = first_problem(error, parameters)
        if problem["type"] == "missing":
            raise fail(".".join(map(str, place)), f"missing; `curate ops {op}` describes it") from None
        text = message(problem)
        if not place:  # a rule about several parameters, which begins with the one at fault
            name, _, rest = text.partition(": ")
            raise fail(*(name, rest) if name in fields else ("", text)) from None
        secret = problem["type"] == "secret_reference" or kind_of(fields[str(place[0])]) == "secret"
        named = text.startswith(f"{problem['input']}:")  # the value is the file in which the problem is
        given = "" if secret or named else f"{problem['input']!r}: "  # a secret's value may be the secret itself
        raise fail(".".join(map(str, place)), f"{given}{text}") from None
