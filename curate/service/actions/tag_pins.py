"""A tagged dataset is pinned in its workspace, so that every gc keeps it, also one without the service."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from curate.api import Workspace
from curate.core.errors import InputError
from curate.service.problems import ConflictProblem

PREFIX = "tag."


def pin_name(name: str, tag: str, base: str) -> str:
    """Differs between datasets, so that the pin of the next one exists before that of the last one is removed."""
    digest = hashlib.sha256(f"{name}@{tag} {base}".encode()).hexdigest()
    return f"{_prefix(name, tag)}{digest[:8]}"


def _prefix(name: str, tag: str) -> str:
    owner = hashlib.sha256(f"{name}@{tag}".encode()).hexdigest()  # a.b@c and a@b.c are not the same
    return f"{PREFIX}{name[:40]}.{tag[:24]}.{owner[:8]}."


def add(workspace: Workspace, name: str, tag: str, base: str, runs: Sequence[str]) -> None:
    """Pin a dataset. `runs`: runs that may have built it. Raises ConflictProblem if none of them did."""
    for run_id in runs:
        try:
            outputs = workspace.run(run_id).record.outputs
        except InputError:  # gc has removed its record
            continue
        stage = next((stage for stage, output in outputs.items() if output["base"] == base), None)
        if stage is not None:
            workspace.pin(pin_name(name, tag, base), run_id, stage)
            return
    raise ConflictProblem(
        f"{base}: the record of the run that built it is gone, so it cannot be pinned; run its recipe again"
    )


def follow(workspace: Workspace, name: str, tag: str, base: str | None, runs: Sequence[str]) -> bool:
    """Pin the dataset of a tag unless it is pinned, and remove all other pins of the tag. Returns whether any pin
    changed."""
    wanted = pin_name(name, tag, base) if base else ""
    mine = {pin for pin in workspace.pins if pin.startswith(_prefix(name, tag))}
    if base and wanted not in mine:
        add(workspace, name, tag, base, runs)
    for pin in mine - {wanted}:
        try:
            workspace.unpin(pin)
        except InputError:  # another request has removed it
            continue
    return bool(mine ^ ({wanted} - {""}))
