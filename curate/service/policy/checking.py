"""Checks and plans a recipe, inside of a limited process. Orders and answers are JSON."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from curate.api import Pipeline, PlanLine, Workspace, ops
from curate.core.contracts import Location
from curate.core.errors import CurateError, RecipeError
from curate.core.recipe import load, registry
from curate.core.recipe.catalog import contract_of
from curate.core.recipe.document import Document, RecipeLoader
from curate.core.recipe.pipeline import Node
from curate.service.policy import bounds
from curate.service.policy.admission import Admission, kind_of
from curate.service.policy.rules import Rules
from curate.service.policy.sandbox import Outcome
from curate.service.problems import PolicyProblem
from curate.service.settings import Limits

CODES = ("recipe", "policy", "too_large", "timeout")
"""Codes of mistakes; all others are of what the recipe reads: input."""
LONGEST = 2000
"""Characters of a message; a value that is quoted in one may be long."""
_PLACE = re.compile(rf"{bounds.FILE}(?::(\d+))?: ")
_OPTION = re.compile(r"--set\b")
_STAGE = re.compile(r"([\w-]+)[.:]")


@dataclass(frozen=True)
class Order:
    text: str
    sets: tuple[str, ...]
    rules: Rules
    limits: Limits
    plan: bool = False


def warm() -> None:
    """Import what orders need, so that forked processes share it."""
    for op in registry.names():
        with contextlib.suppress(CurateError):  # a package that is not installed; recipes with it fail
            registry.resolve(op)


def answered(data: bytes, _: object) -> bytes:
    """An order as the sandbox sends it."""
    order = json.loads(data)
    if order["want"] == "ops":
        return json.dumps(described()).encode()
    rules, limits = Rules(**order["rules"]), Limits(**order["limits"])
    done = carried_out(Order(order["text"], tuple(order["sets"]), rules, limits, order["want"] == "plan"))
    return json.dumps(asdict(done)).encode()


def carried_out(order: Order) -> Outcome:
    """Never raises CurateError: mistakes are the answer."""
    outcome = Outcome()
    names: set[str] = set()
    try:
        document = _document(order)
        names = set(document.values["stages"])
        resolved = _resolved(order, document)
        admission = Admission(order.rules, lambda stage, path: document.line(("stages", stage, *path)))
        stages = admission.stages(resolved["stages"])
        pipeline, problems = load.attempted(document, resolved | {"stages": stages}, admission.rejected)
        if admission.problems or problems:
            outcome.mistakes = [_mistake(problem, names) for problem in (*admission.problems, *problems)]
            return outcome
        _describe(outcome, pipeline, document, stages)
        if order.plan:
            lines = Workspace(order.rules.url).plan(pipeline, on_workers=False)
            outcome.plan = [_plan_stage(line) for line in lines]
    except CurateError as error:
        outcome.mistakes = [_mistake(error, names)]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the code of a stage or a library may raise anything for an odd value
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        outcome.mistakes = [_mistake(RecipeError(f"the recipe cannot be checked ({said})"), names)]
    return outcome


def _document(order: Order) -> Document:
    bounds.check_text(order.text, order.sets, order.limits)
    document = Document.parse(order.text, bounds.FILE)
    load.override(document, order.sets)
    return document


def _resolved(order: Order, document: Document) -> dict[str, Any]:
    """The values that stages are built from. The section `workspace` must be the one that it is submitted to."""
    bounds.check_values(document.values, order.limits)
    resolved = load.resolve(document)
    bounds.check_resolved(resolved, order.limits)
    given, rules = resolved["workspace"], order.rules
    if given not in (None, "", rules.workspace, rules.url):
        raise PolicyProblem(
            f"{document.line(('workspace',))}: workspace: {given!r} is not {rules.workspace}, to which the recipe was "
            "sent; remove the line"
        )
    return resolved


def _describe(outcome: Outcome, pipeline: Pipeline, document: Document, stages: dict[str, Any]) -> None:
    outcome.stages = [_stage(node) for node in pipeline.nodes.values()]
    most = max(outcome.stages, key=lambda stage: float(stage["gpus"]))
    outcome.needs = {"gpus": most["gpus"], "stage": most["stage"]} if most["gpus"] else {"gpus": 0}
    about = document.values.get("description")
    values = {"description": about} if isinstance(about, str) else {}
    outcome.resolved = yaml.dump(values | {"stages": stages}, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _stage(node: Node) -> dict[str, Any]:
    return {
        "stage": node.name,
        "op": node.stage.op,
        "contract": contract_of(type(node.stage)),
        "inputs": list(node.inputs),
        "ports": dict(node.ports),
        "gpus": node.stage.resources().gpus,
    }


def _plan_stage(line: PlanLine) -> dict[str, Any]:
    values = asdict(line)
    del values["gains"], values["losses"]
    gpus = values.pop("gpus")
    hours = line.seconds * gpus / 3600 if line.seconds is not None and gpus else None
    return values | {"gpu_hours": hours}


def _mistake(error: CurateError, stages: set[str]) -> dict[str, Any]:
    """Without the file's name, since there is only one, and with the order's `set` for the option of commands."""
    text = str(error).encode("utf-8", "replace").decode()  # YAML's escapes can make half a character
    text = _OPTION.sub("`set`", text)
    place = _PLACE.match(text)
    text = text[place.end() :] if place else text
    stage = _STAGE.match(text)
    return {
        "code": error.code if error.code in CODES else "input",
        "text": text if len(text) <= LONGEST else f"{text[:LONGEST]}…",
        "stage": stage[1] if stage and stage[1] in stages else "",
        "line": int(place[1]) if place and place[1] else None,
    }


class _Dumper(yaml.SafeDumper):
    """Writes what the recipe's loader reads back as the same values: it quotes texts that look like its numbers."""

    yaml_implicit_resolvers = RecipeLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


# --- descriptions -----------------------------------------------------------------------------------------------------


def described() -> list[dict[str, Any]]:
    """All ops with their parameters, for editors. `leads_to`: kind of the registrations that a value may name."""
    found = []
    for op in ops():
        cls = registry.resolve(op.name)
        parameters = []
        for one in op.parameters:
            info = cls.model_fields.get(one.name)
            kind = kind_of(info.annotation, info.metadata) if info else None
            leads_to = kind.kind if isinstance(kind, Location) else "secret" if kind else ""
            parameters.append(asdict(one) | {"leads_to": leads_to})
        found.append(
            {"name": op.name, "contract": op.contract, "summary": op.summary, "doc": op.doc, "parameters": parameters}
        )
    return found
