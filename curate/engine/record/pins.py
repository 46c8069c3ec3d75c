"""Pins: artifacts and datasets by name, kept beyond the run that made them. A port that says `tree: pin:NAME` takes
that artifact whatever the pool has become, so that a growing pool is assigned to the tree it was assigned to before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from curate.core.contracts import PLAIN_NAME
from curate.core.errors import AlreadyExistsError, InputError, PinnedError, RecipeError, StorageError
from curate.core.nouns import Manifest
from curate.core.recipe.pipeline import PIN, Pipeline
from curate.core.store.storage import Storage
from curate.engine.context import Built
from curate.engine.record.runs import Run

FOLDER = "pins"
DATASET = "dataset"
"""Kind of what a Pack makes. No port takes it: such a pin only keeps the dataset."""


@dataclass(frozen=True)
class Pin:
    name: str
    kind: str
    op: str
    fingerprint: str
    base: str
    run: str
    stage: str
    created: float
    """Seconds since the epoch."""


def pins(storage: Storage) -> dict[str, Pin]:
    found = {}
    for file in sorted(storage.list(FOLDER)):
        try:
            pin = Pin(**storage.read_json(f"{FOLDER}/{file}"))
        except (ValueError, TypeError) as error:
            text = " ".join(str(error).split())
            raise StorageError(
                f"{storage.url_of(FOLDER)}/{file}: is no pin ({text}); remove it and pin again"
            ) from error
        found[pin.name] = pin
    return found


def create(storage: Storage, name: str, run: Run, stage: str) -> Pin:
    """Pin what a stage of a run has made. The same again is fine; another artifact under the name is a PinnedError."""
    if not PLAIN_NAME.fullmatch(name):
        raise RecipeError(f"pin {name!r}: expected letters, digits, . - and _, and a letter or digit first")
    ops, outputs = run.ops(), run.outputs
    kinds = {step: kind for step, kind in run.kinds().items() if step in outputs}
    kinds |= {step: DATASET for step, output in outputs.items() if output["base"].startswith("datasets/")}
    if stage not in kinds:
        why = "has made no artifact or dataset" if stage in ops else "is none of its stages"
        raise InputError(
            f"pin {name}: {stage!r} {why} in run {run.run_id}; stages that have are {', '.join(kinds) or 'none'}"
        )
    output = outputs[stage]
    made = Pin(
        name, kinds[stage], ops[stage], output["fingerprint"], output["base"], run.run_id, stage, round(time.time(), 3)
    )
    try:
        storage.create(f"{FOLDER}/{name}.json", json.dumps(asdict(made), indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        there = pins(storage)[name]
        if (there.op, there.fingerprint) != (made.op, made.fingerprint):
            raise PinnedError(
                f"pin {name}: holds {there.op} {there.fingerprint} (run {there.run}), not {made.op} {made.fingerprint} "
                f"(run {made.run}); choose another name, or `curate unpin {name}` first"
            ) from None
        return there
    return made


def remove(storage: Storage, name: str) -> Pin:
    """Forget a pin; what it held stays until `curate gc` finds nobody who needs it."""
    there = pins(storage)
    if name not in there:
        raise InputError(f"pin {name!r}: {_those(storage, there)}")
    storage.remove(f"{FOLDER}/{name}.json")
    return there[name]


def resolve(pipeline: Pipeline, storage: Storage) -> dict[str, Built]:
    """What the ports of a pipeline name as `pin:NAME`, by that. Raises RecipeError at the stage that cannot have it."""
    found: dict[str, Built] = {}
    if not any(node.pinned for node in pipeline.nodes.values()):
        return found
    there = pins(storage)
    for node in pipeline.nodes.values():
        for port, value in node.pinned.items():
            name, wanted = value.removeprefix(PIN), node.stage.ports[port]
            if name not in there:
                raise node.fail(f"{port}: {value}: {_those(storage, there)}")
            pin = there[name]
            if pin.kind != wanted:
                raise node.fail(f"{port}: {value} is a {pin.kind} (of {pin.op}), expected a {wanted}; name another pin")
            manifest = Manifest.load(storage, pin.base)
            if manifest is None or manifest.fingerprint != pin.fingerprint:
                raise node.fail(f"{port}: {value}: its artifact {pin.base} is gone; `curate unpin {name}`, pin another")
            content = manifest.content or pin.fingerprint
            found[value] = Built(pin.fingerprint, pin.base, manifest=manifest, reused=True, content=content)
    return found


def _those(storage: Storage, there: Iterable[str]) -> str:
    return f"no such pin in {storage.url}; there are {', '.join(there) or 'none'} (see `curate pin --help`)"
