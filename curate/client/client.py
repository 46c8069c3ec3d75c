"""The API of the service as methods."""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx2

from curate.client import logins
from curate.client.address import server_url
from curate.client.http import BUSY, Http, ServerError
from curate.core.errors import CurateError, DrainedError

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
"""How long `events` and `wait` try to reach a server that has stopped answering."""
ENDED = frozenset({"done", "failed", "stopped", "killed", "lost"})


class Client:
    """One server, as one user. Thread-safe. `runs` and other lists are iterators that fetch page by page."""

    def __init__(self, url: str, token: str, *, transport: httpx2.BaseTransport | None = None) -> None:
        self.url = server_url(url)
        self.http = Http(self.url, logins.checked_token(token, "token"), transport)

    @classmethod
    def of(cls, server: str) -> Self:
        """A server by URL, or by the name given to `curate login`; the token is CURATE_TOKEN or the login's."""
        login = logins.find(server)
        return cls(login.url, login.token)

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def me(self) -> dict[str, Any]:
        """User, roles, and when the token expires."""
        return self.get("me")

    # --- recipes and runs ---

    def check(self, recipe: str | Path, workspace: str, set: Sequence[str] = ()) -> dict[str, Any]:
        """Whether a recipe may be submitted: `ok`, and `mistakes`. recipe: YAML, or the path of a file."""
        return self.http.request("POST", "recipes/check", body=_recipe(recipe, workspace, set), repeat=True)

    def plan(self, recipe: str | Path, workspace: str, set: Sequence[str] = ()) -> dict[str, Any]:
        """`check`, and what a run would do and cost."""
        return self.http.request("POST", "recipes/plan", body=_recipe(recipe, workspace, set), repeat=True)

    def submit(
        self,
        recipe: str | Path,
        *,
        workspace: str,
        set: Sequence[str] = (),
        id: str | None = None,
        **fields: Any,
    ) -> RemoteRun:
        """Submit a recipe (YAML, or the path of a file). fields: title, target, priority, retries, drain_seconds, and
        options of the engine. id: of the run; the same order with the same id never submits twice (default: a new
        one)."""
        order = _recipe(recipe, workspace, set) | {name: value for name, value in fields.items() if value is not None}
        order["id"] = id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"
        made = self.http.request("POST", "runs", body=order, repeat=True)
        return RemoteRun(self, made["id"])

    def runs(
        self,
        *,
        workspace: str | None = None,
        state: str | None = None,
        user: str | None = None,
        query: str | None = None,
        limit: int = 50,
    ) -> Iterator[dict[str, Any]]:
        """Runs, latest first. limit: of a page."""
        filters = {"workspace": workspace, "state": state, "user": user, "query": query, "limit": limit}
        return self.pages("runs", filters)

    def run(self, id: str, workspace: str | None = None) -> RemoteRun:
        """A run by its id; workspace: if several have a run of this id. Asks nothing yet."""
        return RemoteRun(self, id, workspace)

    # --- data ---

    def datasets(self, workspace: str, query: str | None = None) -> Iterator[dict[str, Any]]:
        return self.pages(f"workspaces/{_part(workspace)}/datasets", {"query": query})

    def resolve(self, tagged: str, workspace: str | None = None) -> dict[str, Any]:
        """The dataset that `name@tag` is now: its URL, fingerprint, rows. workspace: if several have this tag."""
        name, mark, tag = tagged.rpartition("@")
        if not mark or not name or not tag:
            raise CurateError(f"{tagged!r}: expected NAME@TAG, such as openclipart@good")
        return self.get(f"resolve/{_part(name)}@{_part(tag)}", workspace=workspace)

    def tag(self, workspace: str, name: str, tag: str, base: str, version: int | None = None) -> dict[str, Any]:
        """Let `name@tag` be the dataset in the folder `base` of the workspace: datasets/<name>/<fingerprint>.
        version: that you have seen, 0 for a new tag; if someone has changed the tag since, it is unchanged and
        this raises an error with the code `changed`."""
        path = f"workspaces/{_part(workspace)}/datasets/{_part(name)}/tags/{_part(tag)}"
        found: dict[str, Any] = self.http.request("PUT", path, body={"base": base}, version=version)
        return found

    # --- any other resource ---

    def get(self, path: str, **query: Any) -> Any:
        """GET /api/v1/PATH."""
        return self.http.request("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """POST /api/v1/PATH, sent once."""
        return self.http.request("POST", path, body=body, query=query)

    def pages(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The items of all pages."""
        cursor = None
        while True:
            page = self.http.request("GET", path, query={**(query or {}), "cursor": cursor})
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return


class RemoteRun:
    """A run of the service. Its id never changes; each resume is a further attempt."""

    def __init__(self, client: Client, id: str, workspace: str | None = None) -> None:
        self.client, self.id, self.workspace = client, id, workspace
        self._path = f"runs/{_part(id)}"

    def __repr__(self) -> str:
        return f"RemoteRun({self.client.url!r}, {self.id!r})"

    def _get(self, path: str = "", **query: Any) -> Any:
        return self.client.get(self._path + path, workspace=self.workspace, **query)

    def _post(self, path: str, repeat: bool) -> dict[str, Any]:
        found: dict[str, Any] = self.client.http.request(
            "POST", self._path + path, query={"workspace": self.workspace}, repeat=repeat
        )
        return found

    def status(self) -> dict[str, Any]:
        """State, why it waits or failed, stages with rows and rates, datasets."""
        found: dict[str, Any] = self._get()
        return found

    @property
    def state(self) -> str:
        """queued, submitting, starting, running, stopping; done, failed, stopped, killed or lost."""
        return str(self.status()["state"])

    def follow(self, seconds: float = POLL_SECONDS) -> Iterator[dict[str, Any]]:
        """The status every `seconds`, until the run has ended; the last one is of its end. A server that stops
        answering is asked again for PATIENCE_SECONDS."""
        retry = _Patience()
        while True:
            try:
                found = self.status()
                retry.answered()
            except ServerError as error:
                retry.failed(error)
                continue
            yield found
            if is_over(found):
                return
            time.sleep(seconds)

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end; returns the last status. Raises DrainedError if it was stopped, CurateError if it failed,
        was killed or lost, TimeoutError after `timeout` seconds."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        found: dict[str, Any] = {}
        for found in self.follow():
            if not is_over(found) and time.monotonic() > until:
                raise TimeoutError(f"run {self.id}: still {found['state']} after {timeout:g} s")
        return ended(found)

    def events(self, last: str = "") -> Iterator[dict[str, Any]]:
        """Events as they happen, with those so far first, until the run ends: `id`, `event`, `time` and `data` of the
        engine's; `state` and `gap` (some were left out) of the service's, without id and time. After a broken
        connection it connects again, and continues after the last event. last: the id to continue after."""
        retry = _Patience()
        while True:
            try:
                with self.client.http.events(f"{self._path}/events{self._query()}", last) as source:
                    for item in source:
                        retry.answered()
                        last = item.id or last
                        if item.event == "end":
                            return
                        yield _event(item)
            except ServerError as error:
                retry.failed(error)
            else:
                retry.failed(ServerError(f"run {self.id}: the event stream ended early", "unreachable"))

    def _query(self) -> str:
        return "" if self.workspace is None else f"?workspace={_part(self.workspace)}"

    def prioritise(self, priority: int) -> dict[str, Any]:
        """Change the priority of a queued run: larger ones start first."""
        found: dict[str, Any] = self.client.http.request(
            "PATCH", self._path, body={"priority": priority}, query={"workspace": self.workspace}
        )
        return found

    def stop(self) -> dict[str, Any]:
        """Request it to stop: finished work is committed, and `resume` continues from there."""
        return self._post("/stop", repeat=True)

    def kill(self) -> dict[str, Any]:
        """End it at once."""
        return self._post("/kill", repeat=True)

    def resume(self) -> dict[str, Any]:
        """Run it again as the next attempt; finished work is reused. Sent once: sent again, it could be a further
        attempt."""
        return self._post("/resume", repeat=False)

    def limit(self, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Change limits of a running run, such as requests_per_second; None: no limit. Returns all that were changed
        so far."""
        found: dict[str, Any] = self.client.http.request(
            "POST", f"{self._path}/limit", body=dict(limits), query={"workspace": self.workspace}
        )
        return found

    def explain(self, key_or_url: str) -> dict[str, Any]:
        """What each stage says about a sample: its facts, why it was rejected, its copies, its dataset."""
        if "://" in key_or_url:
            found: dict[str, Any] = self._get("/samples", url=key_or_url)
        else:
            found = self._get(f"/samples/{_part(key_or_url)}")
        return found

    def ledger(self) -> dict[str, Any]:
        """The counts as the run has recorded them, by stage."""
        found: dict[str, Any] = self._get("/ledger")
        return found

    def funnel(self) -> list[dict[str, Any]]:
        """Rows before, rejected, unusable, in error and after, by stage."""
        found: list[dict[str, Any]] = self._get("/funnel")
        return found

    def logs(
        self, stage: str | None = None, level: str = "info", attempt: int | None = None, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Log lines by time; with `follow`, as they arrive, until the run ends."""
        after = ""
        while True:
            page = self._get("/logs", stage=stage, level=level, attempt=attempt, after=after)
            yield from page["items"]
            if page["next"] is None:
                return
            if page["next"] == after and not page["items"]:
                if not follow:
                    return
                time.sleep(POLL_SECONDS)
            after = page["next"]


def is_over(found: dict[str, Any]) -> bool:
    """Whether a run has ended, by its status; a lost one may be resubmitted."""
    return found["state"] in ENDED and not found["stoppable"]


def ended(found: dict[str, Any]) -> dict[str, Any]:
    """The status of a run that is done. Raises DrainedError or CurateError for one that ended otherwise."""
    if found["state"] == "done":
        return found
    text = f"run {found['id']}: {found['state']}" + (f": {found['reason']}" if found["reason"] else "")
    raise (DrainedError if found["state"] == "stopped" else CurateError)(text)


class _Patience:
    """Waits longer each time a server that has answered before does not answer, up to PATIENCE_SECONDS in all."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause, self._known = 0.0, False

    def answered(self) -> None:
        self._since, self._pause, self._known = None, 0.0, True

    def failed(self, error: ServerError) -> None:
        """Wait, or raise the error if waiting does not help."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        passes = error.status == 0 or error.status in BUSY
        if not (self._known and passes) or now - self._since > PATIENCE_SECONDS:
            raise error
        self._pause = min(10.0, self._pause * 2 or 0.25)
        time.sleep(max(self._pause, min(error.retry_after or 0.0, 60.0)) * random.uniform(0.75, 1.25))


def _event(item: httpx2.ServerSentEvent) -> dict[str, Any]:
    """The engine's events come as messages that are complete; the service's own are named."""
    data: dict[str, Any] = json.loads(item.data)
    return data if item.event == "message" else {"id": "", "event": item.event, "data": data}


def _recipe(recipe: str | Path, workspace: str, sets: Sequence[str]) -> dict[str, Any]:
    if isinstance(recipe, Path):
        try:
            recipe = recipe.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise CurateError(f"{recipe}: cannot be read ({why}); give a recipe's YAML file") from None
    return {"workspace": workspace, "recipe": recipe, "set": list(sets)}


def _part(text: str) -> str:
    """A part of a path."""
    return quote(text, safe="")
