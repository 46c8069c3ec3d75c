"""The whole application in tests, over a database and a workspace of a module; no reconciler, no cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from curate.service.auth.roles import Principal
from curate.service.database.models import IndexedRun, Submission
from curate.service.runs import recipes
from curate.service.runs.shapes import RecipeOrder, StageLine
from curate.service.service import Service
from tests.service.people import People, Person
from tests.service.records import Recorded

RECIPE = "stages:\n  pool: {op: toy.pool}\n"
STAGES = [
    StageLine(stage="pool", op="toy.pool", contract="source", inputs=[]),
    StageLine(stage="facts", op="toy.facts", contract="map", inputs=["pool"]),
]


@dataclass(frozen=True)
class Site:
    service: Service
    people: People
    app: FastAPI
    client: TestClient

    def ask(self, method: str, path: str, who: Person | None = None, **options: Any) -> Response:
        """A request to the API, as the operator unless it says otherwise."""
        headers = (who or self.people.operator).headers | options.pop("headers", {})
        url = path if path.startswith("/") else f"/api/v1/{path}"
        return self.client.request(method, url, headers=headers, **options)

    def submit(self, **order: Any) -> str:
        """A run in the queue."""
        answer = self.ask("POST", "runs", json={"workspace": "main", "recipe": RECIPE} | order)
        assert answer.status_code == 202, answer.text
        run: str = answer.json()["id"]
        return run

    def change(self, run: str, **values: Any) -> None:
        """What the reconciler would write."""
        with self.service.database.write() as session:
            row = session.get_one(Submission, run)
            line = session.get_one(IndexedRun, (row.workspace_id, run))
            for name, value in values.items():
                setattr(row, name, value)
                if hasattr(line, name):
                    setattr(line, name, value)
            row.version += 1
            line.attempt_id = row.attempt_id

    def begin(self, run: str, attempt: int = 1) -> Recorded:
        """Its record in the workspace, as its driver writes it."""
        return Recorded(self.people.workspace.url, f"{run}-{attempt}")


def admitted(service: Service, who: Principal, order: RecipeOrder) -> recipes.Admitted:
    """Any recipe, without a process that checks it."""
    return recipes.Admitted(order.recipe, {}, STAGES)
