"""Pins: named artifacts and datasets that outlive their run. A port `tree: pin:NAME` takes that artifact even if the
pool has grown, so that new rows are assigned to the same tree."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from curate.core.contracts import PLAIN_NAME
from curate.core.errors import AlreadyExistsError, InputError, PinnedError, RecipeError, StorageError
from curate.core.nouns.manifest import Manifest
from curate.core.recipe.pipeline import PIN, Pipeline
from curate.core.store.storage import Storage
from curate.engine.record.runs import RunRecord
from curate.engine.state import Built

FOLDER = "pins"
DATASET = "dataset"
"""Kind of a Pack's output. No port takes it: such a pin only keeps the dataset."""


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
                f"{storage.url_of(FOLDER)}/{file}: not a pin ({text}); remove it and pin again"
            ) from error
        found[pin.name] = pin
    return found


def create(storage: Storage, name: str, run: RunRecord, stage: str) -> Pin:
    """Pin the output of a stage. Repeating it has no effect; raises PinnedError if the name holds another artifact."""
    if not PLAIN_NAME.fullmatch(name):
        raise RecipeError(f"pin {name!r}: expected letters, digits, . - and _, and a letter or digit first")
    ops, outputs = run.ops(), run.outputs
    kinds = {step: kind for step, kind in run.kinds().items() if step in outputs}
    kinds |= {step: DATASET for step, output in outputs.items() if output["base"].startswith("datasets/")}
    if stage not in kinds:
        why = "built no artifact or dataset" if stage in ops else "is not a stage"
        raise InputError(
            f"pin {name}: {stage!r} {why} in run {run.run_id}; expected one of {', '.join(kinds) or 'none'}"
        )
    output = outputs[stage]
    made = Pin(
        name, kinds[stage], ops[stage], output["fingerprint"], output["base"], run.run_id, stage, round(time.time(), 3)
    )
    try:
        storage.create(f"{FOLDER}/{name}.json", json.dumps(asdict(made), indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        existing = pins(storage)[name]
        if (existing.op, existing.fingerprint) != (made.op, made.fingerprint):
            raise PinnedError(
                f"pin {name}: holds {existing.op} {existing.fingerprint} (run {existing.run}), "
                f"not {made.op} {made.fingerprint} "
                f"(run {made.run}); choose another name, or `curate unpin {name}` first"
            ) from None
        return existing
    return made


def remove(storage: Storage, name: str) -> Pin:
    """Remove a pin; its output stays until `curate gc` removes it."""
    existing = pins(storage)
    if name not in existing:
        raise InputError(f"pin {name!r}: {_missing(storage, existing)}")
    storage.remove(f"{FOLDER}/{name}.json")
    return existing[name]


def resolve(pipeline: Pipeline, storage: Storage) -> dict[str, Built]:
    """`pin:NAME` -> artifact, for every pin at a port of the pipeline. Raises RecipeError if one does not fit."""
    found: dict[str, Built] = {}
    if not any(node.pinned for node in pipeline.nodes.values()):
        return found
    existing = pins(storage)
    for node in pipeline.nodes.values():
        for port, value in node.pinned.items():
            name, wanted = value.removeprefix(PIN), node.stage.ports[port]
            if name not in existing:
                raise node.fail(f"{port}: {value}: {_missing(storage, existing)}")
            pin = existing[name]
            if pin.kind != wanted:
                raise node.fail(f"{port}: {value} is a {pin.kind} (of {pin.op}), expected a {wanted}; name another pin")
            manifest = Manifest.load(storage, pin.base)
            if manifest is None or manifest.fingerprint != pin.fingerprint:
                raise node.fail(
                    f"{port}: {value}: its artifact {pin.base} is missing; run `curate unpin {name}` and pin another"
                )
            content = manifest.content or pin.fingerprint
            found[value] = Built(pin.fingerprint, pin.base, manifest=manifest, reused=True, content=content)
    return found


def _missing(storage: Storage, existing: Iterable[str]) -> str:
    return f"not a pin of {storage.url}; expected one of {', '.join(existing) or 'none'} (see `curate pin --help`)"
