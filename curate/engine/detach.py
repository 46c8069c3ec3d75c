"""Detached runs: `curate run --detach` writes a submission and starts a Ray job, which carries out the run.

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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml

from curate.core.contracts import PLAIN_NAME
from curate.core.errors import AlreadyExistsError, CurateError, RecipeError, RunExistsError
from curate.core.recipe import load as recipe
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.secrets import redacted
from curate.core.store.storage import Storage
from curate.engine.record import stop
from curate.engine.record.status import Status
from curate.engine.state import Options

STOP_SECONDS = 60
"""Time that Ray gives a job between stopping and killing it; its default is 3."""
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 6.0
"""Ray itself would wait for minutes."""
SUBMIT_SECONDS = 60.0
ADVICE = "check it with `ray status`, or give the dashboard's address, http://HOST:8265"
T = TypeVar("T")


def submit(storage: Storage, pipeline: Pipeline, options: Options, run_id: str, address: str | None) -> None:
    """Write the submission and start its job on the cluster at `address` (auto, host:port, or its dashboard's http://…).
    Raises CurateError on failure."""
    if not PLAIN_NAME.fullmatch(run_id):
        raise RecipeError(f"--run-id {run_id!r}: expected letters, digits, . - and _, and a letter or digit first")
    written = {"run_id": run_id, "submitted": time.time(), "host": socket.gethostname(), "address": address}
    written |= {"recipe": _text(pipeline), "options": asdict(options)}
    if _has(storage, run_id, "run") or _has(storage, run_id, "submission"):
        raise _exists(storage, run_id)
    jobs = Jobs(address)
    if jobs.known(run_id):  # Ray's own error for a duplicate name is unclear
        raise RunExistsError(f"--run-id {run_id}: the cluster has a job of this name; choose another id")
    try:
        storage.create(f"runs/{run_id}/submission.json", json.dumps(written, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        raise _exists(storage, run_id) from None
    try:
        jobs.submit(run_id, entrypoint(storage, run_id), {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)})
    except BaseException:  # Ctrl-C too: remove the submission, because no job will start it
        storage.remove(f"runs/{run_id}")
        raise


def entrypoint(storage: Storage, run_id: str) -> str:
    """Shell command of the job."""
    words = ["curate", "run", "--submission", run_id, "--workspace", storage.url, "--engine", "ray"]
    return shlex.join([*words, "--address", "auto"])


def read(storage: Storage, run_id: str) -> tuple[Pipeline, Options]:
    """The submitted pipeline and options. Raises CurateError if the submission does not exist."""
    try:
        found = storage.read_json(f"runs/{run_id}/submission.json")
    except FileNotFoundError:
        raise CurateError(
            f"--submission {run_id}: not found in {storage.url}; check that this machine sees the workspace"
        ) from None
    retry = {stage: tuple(reasons) for stage, reasons in found["options"].pop("retry", {}).items()}
    return recipe.parse(found["recipe"], file=f"runs/{run_id}/submission"), Options(**found["options"], retry=retry)


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


# --- Ray's job server -------------------------------------------------------------------------------------------------


class Jobs:
    """Client of Ray's job server at an address: auto (this machine's cluster), host:port of its GCS, or http://… of its
    dashboard. Raises CurateError within seconds if no job server answers."""

    def __init__(self, address: str | None) -> None:
        self.address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "auto"
        if self.address.startswith("ray://"):
            raise CurateError(
                f"--address {self.address}: does not serve jobs; give the dashboard's address, http://HOST:8265"
            )
        if ":" in self.address:
            self._reach(self.address)
        self._client = self._within(ANSWER_SECONDS, self._connected)

    def known(self, name: str) -> bool:
        """Whether the cluster has a job of this name."""
        return self._within(ANSWER_SECONDS, lambda: self._info(name)) is not None

    def ended(self, name: str) -> str | None:
        """How a job ended, in one line; None while it runs. A job unknown to the cluster has ended."""
        found = self._within(ANSWER_SECONDS, lambda: self._info(name))
        if found is None:
            return "the cluster does not know this job"
        if not found.status.is_terminal():
            return None
        lines = [line.strip() for line in str(found.message or "").splitlines() if line.strip()]
        return f"{found.status.value.lower()}" + (f" ({lines[-1][:200]})" if lines else "")

    def _info(self, name: str) -> Any:
        try:
            return self._client.get_job_info(name)
        except RuntimeError as error:  # of any HTTP status
            if "404" not in str(error):
                raise
            return None

    def submit(self, name: str, entrypoint: str, environment: dict[str, str]) -> None:
        """Start a job. No files are uploaded: the cluster has the package, the workspace everything else."""
        about: dict[str, Any] = {"submission_id": name, "runtime_env": {"env_vars": environment}}
        self._within(SUBMIT_SECONDS, lambda: self._client.submit_job(entrypoint=entrypoint, **about))

    def _connected(self) -> Any:
        from curate.engine.backends.ray import job_client

        return job_client(self.address)

    def _reach(self, address: str) -> None:
        found = urlsplit(address if "://" in address else f"//{address}")
        try:
            port = found.port or (443 if found.scheme == "https" else 80)
            socket.create_connection((found.hostname or "", port), CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise self._no_answer(error) from None

    def _within(self, seconds: float, ask: Callable[[], T]) -> T:
        """The result of `ask`. Raises CurateError after `seconds`; the waiting thread is abandoned."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - Ray's client raises anything, SystemExit too
                future.set_exception(error)

        threading.Thread(target=answer, daemon=True).start()
        try:
            return future.result(seconds)
        except TimeoutError:
            raise self._no_answer(f"nothing within {seconds:g} s") from None
        except BaseException as error:  # Ray's client raises anything; users get one line
            if isinstance(error, KeyboardInterrupt):
                raise
            raise self._no_answer(error) from None

    def _no_answer(self, why: object) -> CurateError:
        text = " ".join(str(why).split())[:200]
        return CurateError(f"--address {self.address}: no Ray job server answers there ({text}); {ADVICE}")
