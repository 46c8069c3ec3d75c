"""Submissions: runs that a job on a Ray cluster carries out, started by `curate run --detach` or by the service.

    runs/<id>/submission.json    recipe and options, created before the job
    runs/<id>/refused.json       why the job could not start the run

The job's command line only names the submission. Once started, the run is like any other: every machine that sees the
workspace can watch and stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from curate.core.contracts import PLAIN_NAME
from curate.core.errors import AlreadyExistsError, CurateError, RecipeError, RunExistsError, UnreachableError
from curate.core.recipe import load as recipe
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.secrets import redacted
from curate.core.store.storage import Storage
from curate.engine.jobs import ADVICE, ANSWER_SECONDS, JobServer, stop_environment
from curate.engine.record import stop
from curate.engine.record.status import Status
from curate.engine.state import Options

STOP_SECONDS = 60
"""Time that Ray gives a detached run between stopping and killing it."""
ASKED = ("recipe", "options", "submission", "address")
"""What makes two submissions the same."""


@dataclass(frozen=True)
class Submission:
    pipeline: Pipeline
    options: Options
    about: Mapping[str, str] = field(default_factory=dict)
    """From a service: run, attempt, user, service."""


def submit(storage: Storage, pipeline: Pipeline, options: Options, run_id: str, address: str | None) -> None:
    """Write the submission and start its job on the cluster at `address` (auto, host:port, or its dashboard's http://…).
    Raises CurateError on failure."""
    _check_name(run_id)
    text = _text(pipeline)
    if _has(storage, run_id, "run") or _has(storage, run_id, "submission"):
        raise _exists(storage, run_id)
    with contextlib.closing(job_server(address)) as jobs:
        if jobs.info(run_id) is not None:
            raise RunExistsError(f"--run-id {run_id}: the cluster has a job of this name; choose another id")
        if not _create(storage, run_id, {"recipe": text, "options": asdict(options), "address": address}):
            raise _exists(storage, run_id)
        try:
            jobs.submit(run_id, entrypoint(storage, run_id), stop_environment(STOP_SECONDS))
        except BaseException:  # Ctrl-C too: remove the submission, because no job will start it
            storage.remove(f"runs/{run_id}")
            raise


def prepare(
    storage: Storage, run_id: str, text: str, options: Mapping[str, Any], about: Mapping[str, str] | None = None
) -> None:
    """Write the submission of a recipe that was checked elsewhere, for a job that is started later. May be repeated.
    Raises RunExistsError if the run has another submission, or was started without one."""
    _check_name(run_id)
    asked = {"recipe": text, "options": asdict(options_of(options)), "submission": dict(about or {})}
    asked = json.loads(json.dumps(asked))  # as it is read
    if not _create(storage, run_id, asked):
        found = storage.read_json(f"runs/{run_id}/submission.json")
        found["options"] = json.loads(json.dumps(asdict(options_of(found["options"]))))  # of an older version, too
        if any(found.get(name) != asked.get(name) for name in ASKED):
            raise _exists(storage, run_id)


def options_of(given: Mapping[str, Any]) -> Options:
    """Options from JSON. Raises RecipeError for an unknown one."""
    unknown = sorted(given.keys() - {each.name for each in fields(Options)})
    if unknown:
        raise RecipeError(f"options: {', '.join(unknown)}: unknown; see `curate run --help`")
    retry = {stage: tuple(reasons) for stage, reasons in (given.get("retry") or {}).items()}
    return Options(**{**given, "retry": retry})


def entrypoint(storage: Storage, run_id: str) -> str:
    """Shell command of the job. Ray sets the address of the cluster in its environment."""
    words = ["curate", "run", "--submission", run_id, "--workspace", storage.url, "--engine", "ray"]
    return shlex.join(words)


def own_cluster() -> str:
    """Address of the cluster that runs this job. `auto` could find any Ray of this machine."""
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "auto":
        raise CurateError("--submission: RAY_ADDRESS is not set; only a job of a Ray cluster can run it, or --address")
    return address


def read(storage: Storage, run_id: str) -> Submission:
    """Raises CurateError if it does not exist."""
    try:
        found = storage.read_json(f"runs/{run_id}/submission.json")
    except FileNotFoundError:
        raise CurateError(
            f"--submission {run_id}: not found in {storage.url}; check that this machine sees the workspace"
        ) from None
    pipeline = recipe.parse(found["recipe"], file=f"runs/{run_id}/submission")
    return Submission(pipeline, options_of(found["options"]), found.get("submission") or {})


@contextlib.contextmanager
def recording_refusal(storage: Storage, run_id: str) -> Iterator[None]:
    """Record the error that kept a submitted run from starting; a run with a record keeps its error there."""
    try:
        yield
    except Exception as error:  # any error that prevents the start is recorded
        if not storage.exists(f"runs/{run_id}/run.json"):
            text = str(redacted(error)) if isinstance(error, CurateError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(AlreadyExistsError):
                storage.create_json(f"runs/{run_id}/refused.json", {"time": time.time(), "error": text})
        raise


def is_submitted(storage: Storage, run_id: str) -> bool:
    """Whether a run was submitted and has no record yet."""
    return not _has(storage, run_id, "run") and _has(storage, run_id, "submission")


def submissions(storage: Storage) -> list[str]:
    """Submitted runs without a record yet, ordered by name."""
    files = storage.list("runs")
    names = sorted(file.split("/")[0] for file in files if file.endswith("/submission.json"))
    return [name for name in names if f"{name}/run.json" not in files]


def status(storage: Storage, run_id: str, ask: bool = False) -> Status | None:
    """Status of a submitted run without a record; None for any other run. With `ask`, query the cluster whether the job
    ended before it could start the run, for example because the node has no `curate` or no workspace."""
    if not is_submitted(storage, run_id):
        return None
    try:
        refused = storage.read_json(f"runs/{run_id}/refused.json")["error"]
    except FileNotFoundError:
        refused = _job_failed(storage, run_id) if ask else ""
    if refused and is_submitted(storage, run_id):  # its record may have been written meanwhile
        return Status(run_id, "failed", error=refused)
    return Status(run_id, "submitted", stop=stop.requested(storage, run_id))


def _job_failed(storage: Storage, run_id: str) -> str:
    """Why the job of a submission ended; "" while it runs, or if the cluster cannot be queried from here."""
    submission = storage.read_json(f"runs/{run_id}/submission.json")
    if "address" not in submission:  # a service watches it
        return ""
    with contextlib.suppress(CurateError), contextlib.closing(job_server(submission["address"])) as jobs:
        job = jobs.info(run_id)
        if job is None:
            return "its job ended before the run began: the cluster does not know this job"
        if job.ended:
            last = f" ({job.last_line})" if job.last_line else ""
            return f"its job ended before the run began: {job.status}{last}"
    return ""


def _check_name(run_id: str) -> None:
    if not PLAIN_NAME.fullmatch(run_id):
        raise RecipeError(f"--run-id {run_id!r}: expected letters, digits, . - and _, and a letter or digit first")


def _create(storage: Storage, run_id: str, asked: Mapping[str, Any]) -> bool:
    """Write a submission; False if there is one."""
    written = {"run_id": run_id, "submitted": time.time(), "host": socket.gethostname()} | dict(asked)
    try:
        storage.create(f"runs/{run_id}/submission.json", json.dumps(written, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        return False
    return True


def _has(storage: Storage, run_id: str, what: str) -> bool:
    return bool(PLAIN_NAME.fullmatch(run_id)) and storage.exists(f"runs/{run_id}/{what}.json")


def _exists(storage: Storage, run_id: str) -> RunExistsError:
    return RunExistsError(f"--run-id {run_id}: this run exists in {storage.url}; choose another id or leave it out")


# --- a pipeline as a recipe -------------------------------------------------------------------------------------------


def _text(pipeline: Pipeline) -> str:
    """The recipe that a pipeline was loaded from, with its variables resolved; otherwise one made from its stages."""
    stages = pipeline.source.get("stages", {})
    if set(stages) != set(pipeline.nodes):
        stages = {node.name: _stage(node) for node in pipeline.nodes.values()}
    return yaml.safe_dump({"stages": stages}, sort_keys=False, allow_unicode=True)


def _stage(node: Node) -> dict[str, Any]:
    cls = type(node.stage)
    op = node.stage.op if node.stage.op in registry.OPS else f"{cls.__module__}:{cls.__qualname__}"
    if op.startswith("__main__:"):
        raise RecipeError(
            f"{node.name}: its class is defined in a script; move it to a module installed on the cluster"
        )
    values = node.stage.model_dump(mode="json", exclude_defaults=True)
    about = {"keep_null": True} if node.keep_null else {}
    return {"op": op, **({"from": list(node.inputs)} if node.inputs else {}), **node.ports, **about, **values}


# --- where the job server is ------------------------------------------------------------------------------------------


def job_server(address: str | None) -> JobServer:
    """The job server of a cluster: `auto` (this machine's), host:port of its GCS, or http://… of its dashboard. Raises
    CurateError within seconds if there is none."""
    place = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if place.startswith("ray://"):
            raise CurateError(f"this address serves no jobs; {ADVICE}")
        server = JobServer(place if "://" in place else _dashboard(place), _token())
        server.version()
    except CurateError as error:
        text = str(error).removeprefix("--address ")
        raise type(error)(f"--address {text if text.startswith(place) else f'{place}: {text}'}") from None
    return server


def _dashboard(address: str) -> str:
    """URL of the dashboard, which only Ray's GCS knows. The thread that asks it is abandoned if it does not answer."""
    from curate.engine.backends.connection import checked
    from curate.engine.backends.ray import dashboard_url

    future: Future[str] = Future()
    try:
        place = checked(address)
    except CurateError as error:
        raise UnreachableError(f"{error}, or give the dashboard's address, http://HOST:8265") from None

    def ask() -> None:
        try:
            future.set_result(dashboard_url(place))
        except BaseException as error:  # noqa: BLE001 - Ray raises anything, SystemExit too
            future.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return future.result(ANSWER_SECONDS)
    except TimeoutError:
        raise UnreachableError(f"no answer within {ANSWER_SECONDS:g} s; {ADVICE}") from None
    except BaseException as error:  # Ray raises anything; users get one line
        if isinstance(error, KeyboardInterrupt):
            raise
        text = " ".join(str(error).split())[:200]
        raise UnreachableError(f"no Ray job server answers there ({text}); {ADVICE}") from None


def _token() -> str:
    """The token of a cluster, where Ray's own tools look for it."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return ""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip()
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError, UnicodeDecodeError):  # without a token, the cluster says that it needs one
        return file.read_text(encoding="utf-8").strip()
    return ""
