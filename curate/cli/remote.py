"""The verbs for runs, with `--server`: what a service does and knows."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from curate.cli.common import out
from curate.cli.tables import funnel_of, under_way
from curate.core.errors import CurateError

if TYPE_CHECKING:
    from curate.client import Client, RemoteRun

LOOK_SECONDS = 1.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def connect(server: str) -> Client:
    from curate.client import Client

    return Client.of(server)


def named(workspace: str) -> str | None:
    """The workspace's name on the server, if one is given. Raises CurateError for a folder or a URL."""
    if workspace and not NAME.fullmatch(workspace):
        raise CurateError(
            f"--workspace {workspace}: with --server (or CURATE_SERVER) it is a workspace's name there, such as main; "
            f"leave out the server to use a folder or URL"
        )
    return workspace or None


def submit(server: str, recipe: Path, workspace: str, sets: Sequence[str], fields: Mapping[str, Any]) -> None:
    """Print the run's id, and where to watch it on stderr."""
    with connect(server) as client:
        place = named(workspace) or _only_workspace(client)
        run = client.submit(recipe, workspace=place, set=sets, **fields)
        out.print(run.id, highlight=False)
        print(
            f"curate: submitted; watch it with `curate watch {run.id}`, or at {client.url}/runs/{run.id}",
            file=sys.stderr,
        )


def _only_workspace(client: Client) -> str:
    names = [found["name"] for found in client.pages("workspaces")]
    if len(names) != 1:
        known = ", ".join(names) or "none that you may use; ask an admin"
        raise CurateError(f"--workspace is missing; give the name of one of the server's: {known}")
    return str(names[0])


def runs(server: str, workspace: str, state: str | None, user: str | None, limit: int) -> None:
    table = Table("run", "state", "workspace", "user", "started", "seconds", "stages", "note", header_style="bold")
    with connect(server) as client:
        listed = client.runs(workspace=named(workspace), state=state, user=user, limit=min(limit, 100))
        for _, found in zip(range(limit), listed, strict=False):
            done = f"{found['stages_done']} of {found['stages']}" if found["stages"] else ""
            seconds = "" if found["seconds"] is None else f"{found['seconds']:,.0f}"
            began = (found["started"] or "")[:16].replace("T", " ")
            cells = (found["id"], found["state"], found["workspace"], found["user"], began, seconds, done)
            table.add_row(*map(str, cells), escape(note(found)))
    out.print(table)


def note(found: Mapping[str, Any]) -> str:
    """Position in the queue, alert and reason of a run."""
    place = f"position {found['position']}" if found.get("position") else ""
    return "; ".join(filter(None, (place, found["alert"], found["reason"])))


def stop(server: str, run_id: str, workspace: str, kill: bool, seconds: float) -> None:
    """Request it, and wait up to `seconds` until it has ended."""
    from curate.client import is_over

    with connect(server) as client:
        run = client.run(run_id, named(workspace))
        found = run.kill() if kill else run.stop()
        out.print(f"run {run_id}: {'kill' if kill else 'stop'} requested", highlight=False)
        began = time.monotonic()
        for found in run.follow(LOOK_SECONDS):
            if not is_over(found) and time.monotonic() - began > seconds:
                raise CurateError(
                    f"run {run_id}: still {found['state']} after {seconds:.0f} s; `curate watch {run_id}` follows it"
                )
        out.print(_ended(found, run_id), highlight=False, markup=False, soft_wrap=True)


def _ended(found: Mapping[str, Any], run_id: str) -> str:
    if found["state"] == "done":
        return f"run {run_id}: done before it saw the request"
    return f"run {run_id}: {found['state']}; `curate resume {run_id}` continues from there"


def resume(server: str, run_id: str, workspace: str) -> None:
    with connect(server) as client:
        found = client.run(run_id, named(workspace)).resume()
    out.print(f"run {run_id}: {found['state']} again, attempt {found['attempt']}", highlight=False)


def status(server: str, run_id: str, workspace: str) -> None:
    """One look at a run: its line, the stages under way, and the funnel once it has begun."""
    from curate.api import Entry

    with connect(server) as client:
        run = Watched(client.run(run_id, named(workspace)))
        out.print(run.line, highlight=False, markup=False, soft_wrap=True)
        stages = run.stages
        if not stages or all(stage.state == "waiting" for stage in stages):
            return
        if not all(stage.state in ("done", "reused") for stage in stages):
            out.print(under_way(run, out.width))  # type: ignore[arg-type]  # it has the fields that are shown
        ledger = {name: Entry.from_json(entry) for name, entry in run.run.ledger().items()}
        out.print(funnel_of(ledger, {stage.stage: stage.op for stage in stages}, out.width))
        for line in run.products():
            out.print(line, highlight=False, markup=False, soft_wrap=True)


def limit(server: str, run_id: str, workspace: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    with connect(server) as client:
        return client.run(run_id, named(workspace)).limit(wanted)


def priority(server: str, run_id: str, workspace: str, value: int) -> None:
    with connect(server) as client:
        found = client.run(run_id, named(workspace)).prioritise(value)
    place = f", position {found['position']}" if found["position"] else ""
    out.print(f"run {run_id}: priority {found['priority']}{place}", highlight=False)


def explain(server: str, run_id: str, workspace: str, key_or_url: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(stage, op, facts) of a sample."""
    with connect(server) as client:
        found = client.run(run_id, named(workspace)).explain(key_or_url)
    return [(one["stage"], one["op"], one["facts"]) for one in found["stages"]]


def logs(
    server: str, run_id: str, workspace: str, stage: str | None, level: str, follow: bool
) -> Iterator[dict[str, Any]]:
    """Log records as `Run.logs` has them."""
    from datetime import datetime

    with connect(server) as client:
        for line in client.run(run_id, named(workspace)).logs(stage, level, follow=follow):
            yield {**line, "time": datetime.fromisoformat(line["time"]).timestamp()}


class Watched:
    """A run of a service, as `watch` shows it."""

    def __init__(self, run: RemoteRun) -> None:
        self.run, self._looks = run, run.follow(LOOK_SECONDS)
        self.found = next(self._looks)

    def look(self) -> None:
        """Wait a little, and ask again; for minutes, if the service does not answer."""
        self.found = next(self._looks)

    @property
    def state(self) -> str:
        return str(self.found["state"])

    @property
    def ended(self) -> bool:
        from curate.client import is_over

        return is_over(self.found)

    @property
    def line(self) -> str:
        seconds = "" if self.found["seconds"] is None else f", {self.found['seconds']:,.0f} s"
        about = note(self.found)
        return f"{self.run.id}: {self.state}{seconds}" + (f" ({about})" if about else "")

    @property
    def error(self) -> str:
        return str(self.found["reason"])

    @property
    def stages(self) -> Sequence[Any]:
        return [_namespace(stage) for stage in self.found["stage_list"]]

    def products(self) -> list[str]:
        kinds = (("dataset", "datasets"), ("report", "reports"))
        return [f"{kind:8} {base}" for kind, name in kinds for base in self.found[name]]


def _namespace(stage: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{**stage, "lanes": [SimpleNamespace(**lane) for lane in stage["lanes"]]})
