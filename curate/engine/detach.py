"""Runs that a cluster carries out by itself: `curate run --detach` leaves a submission and starts a Ray job.

    runs/<id>/submission.json    recipe and options, created before the job
    runs/<id>/refused.json       why the job could not begin the run

The job's command line names the submission and holds nothing else of the user's; from then on the run is one like any
other, and every machine that sees the workspace can watch and stop it.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import yaml

from curate.core.contracts import PLAIN_NAME
from curate.core.errors import AlreadyExistsError, CurateError, RecipeError, RunExistsError
from curate.core.recipe import load as recipe
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.recipe.secrets import redacted
from curate.core.store.storage import Storage
from curate.engine.backends.jobs import Jobs
from curate.engine.context import Options
from curate.engine.record import stop
from curate.engine.record.status import Status

STOP_SECONDS = 60
"""What Ray gives a job that it stops before it kills it; without a word, 3."""


def submit(storage: Storage, pipeline: Pipeline, options: Options, run_id: str, address: str | None) -> None:
    """Write the submission down and start its job on the cluster at `address` (auto, host:port, or its dashboard's
    http://…). Raises CurateError where that cannot be."""
    if not PLAIN_NAME.fullmatch(run_id):
        raise RecipeError(f"--run-id {run_id!r}: expected letters, digits, . - and _, and a letter or digit first")
    written = {"run_id": run_id, "submitted": time.time(), "host": socket.gethostname(), "address": address}
    written |= {"recipe": _text(pipeline), "options": asdict(options)}
    if _has(storage, run_id, "run") or _has(storage, run_id, "submission"):
        raise _exists(storage, run_id)
    jobs = Jobs(address)
    if jobs.known(run_id):  # Ray itself answers a second job of a name with an error of its own
        raise RunExistsError(f"--run-id {run_id}: the cluster has a job of this name; choose another id")
    try:
        storage.create(f"runs/{run_id}/submission.json", json.dumps(written, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        raise _exists(storage, run_id) from None
    try:
        jobs.submit(run_id, entrypoint(storage, run_id), {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)})
    except BaseException:  # Ctrl-C too: nothing may stay of a run that no job will begin
        storage.remove(f"runs/{run_id}")
        raise


def entrypoint(storage: Storage, run_id: str) -> str:
    """What the job runs, for a shell."""
    words = ["curate", "run", "--submission", run_id, "--workspace", storage.url, "--engine", "ray"]
    return shlex.join([*words, "--address", "auto"])


def read(storage: Storage, run_id: str) -> tuple[Pipeline, Options]:
    """What was submitted. Raises CurateError where there is no such submission."""
    try:
        found = storage.read_json(f"runs/{run_id}/submission.json")
    except FileNotFoundError:
        raise CurateError(
            f"--submission {run_id}: not in {storage.url}; does this machine see the workspace?"
        ) from None
    retry = {stage: tuple(reasons) for stage, reasons in found["options"].pop("retry", {}).items()}
    return recipe.parse(found["recipe"], file=f"runs/{run_id}/submission"), Options(**found["options"], retry=retry)


@contextlib.contextmanager
def refusals(storage: Storage, run_id: str) -> Iterator[None]:
    """Write down why a submitted run could not begin. Once it has a record, that tells of it."""
    try:
        yield
    except Exception as error:  # whatever stops a run from beginning is written down for whoever asks
        if not storage.exists(f"runs/{run_id}/run.json"):
            text = str(redacted(error)) if isinstance(error, CurateError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(AlreadyExistsError):
                storage.create_json(f"runs/{run_id}/refused.json", {"time": time.time(), "error": text})
        raise


def is_submitted(storage: Storage, run_id: str) -> bool:
    """Whether a run was submitted and has no record yet."""
    return not _has(storage, run_id, "run") and _has(storage, run_id, "submission")


def submissions(storage: Storage) -> list[str]:
    """Runs that were submitted and have no record yet, in the order of their names."""
    files = storage.list("runs")
    names = sorted(file.split("/")[0] for file in files if file.endswith("/submission.json"))
    return [name for name in names if f"{name}/run.json" not in files]


def status(storage: Storage, run_id: str, ask: bool = False) -> Status | None:
    """Of a run that was submitted and has no record yet; None of any other. With `ask`, the cluster is asked whether
    its job has ended before it could begin the run, as one does that finds no `curate` or no workspace."""
    if not is_submitted(storage, run_id):
        return None
    try:
        refused = storage.read_json(f"runs/{run_id}/refused.json")["error"]
    except FileNotFoundError:
        refused = _job_failed(storage, run_id) if ask else ""
    if refused and is_submitted(storage, run_id):  # its record may have come meanwhile
        return Status(run_id, "failed", error=refused)
    return Status(run_id, "submitted", stop=stop.asked(storage, run_id))


def _job_failed(storage: Storage, run_id: str) -> str:
    """Why the job of a submission has ended; "" while it has not, or where its cluster cannot be asked from here."""
    with contextlib.suppress(CurateError):
        address = storage.read_json(f"runs/{run_id}/submission.json")["address"]
        why = Jobs(address).ended(run_id)
        return "" if why is None else f"its job ended before the run began: {why}"
    return ""


def _has(storage: Storage, run_id: str, what: str) -> bool:
    return bool(PLAIN_NAME.fullmatch(run_id)) and storage.exists(f"runs/{run_id}/{what}.json")


def _exists(storage: Storage, run_id: str) -> RunExistsError:
    return RunExistsError(f"--run-id {run_id}: this run exists in {storage.url}; choose another id")


# --- a pipeline as a recipe -------------------------------------------------------------------------------------------


def _text(pipeline: Pipeline) -> str:
    """The recipe that a pipeline was read from, with its variables put in; or one made out of its stages."""
    stages = pipeline.source.get("stages", {})
    if set(stages) != set(pipeline.nodes):
        stages = {node.name: _stage(node) for node in pipeline.nodes.values()}
    return yaml.safe_dump({"stages": stages}, sort_keys=False, allow_unicode=True)


def _stage(node: Node) -> dict[str, Any]:
    cls = type(node.stage)
    op = node.stage.op if node.stage.op in registry.OPS else f"{cls.__module__}:{cls.__qualname__}"
    if op.startswith("__main__:"):
        raise RecipeError(f"{node.name}: its class is defined in a script; move it to a module that the cluster has")
    values = node.stage.model_dump(mode="json", exclude_defaults=True)
    about = {"keep_null": True} if node.keep_null else {}
    return {"op": op, **({"from": list(node.inputs)} if node.inputs else {}), **node.ports, **about, **values}
