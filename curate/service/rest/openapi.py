"""The description of the API: what FastAPI knows, with our errors and how to authenticate."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi

from curate.core.version import __version__
from curate.service.rest.errors import MEDIA_TYPE
from curate.service.shapes import ProblemShape

PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemShape"}}}
EVERYWHERE = {
    400: "The request is not HTTP as expected, such as a wrong Host.",
    401: "No token, or one that is unknown, expired or revoked.",
    403: "The role does not suffice.",
    404: "It does not exist, or in a workspace that you may not see.",
    413: "The body is too large.",
    422: "A value is out of range or of the wrong form.",
    429: "Too many requests, streams or queued runs; see Retry-After.",
    500: "A bug; the log has the rest under the request's id.",
    503: "The database, a workspace or a target does not answer; try again.",
}
"""What any operation may answer."""
WRITES = {409: "It exists already, or its state does not allow it."}
DESCRIPTION = """Submit curation recipes to Ray clusters, watch their runs, and find the datasets they made.

Requests carry `Authorization: Bearer TOKEN`. Lists are paged by `cursor` and `limit`. Errors are
`application/problem+json` with a stable `code`. Clients may choose the `id`
of a run: the same request then submits it once, however often it is sent."""
TAGS = [
    {"name": "runs", "description": "Submit, watch, stop, kill and resume runs."},
    {"name": "recipes", "description": "Check and plan recipes; the ops they can use."},
    {"name": "data", "description": "Datasets, tags, artifacts, lineage, samples."},
    {"name": "upkeep", "description": "Pins, tombstones, storage and gc of a workspace."},
    {"name": "places", "description": "Workspaces, targets (Ray clusters), and what recipes may use."},
    {"name": "people", "description": "Users, roles, tokens, quotas, audit."},
    {"name": "operate", "description": "Health and metrics of the service."},
]


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title="curate", version=__version__, description=DESCRIPTION, routes=app.routes, tags=app.openapi_tags
        )
        parts = made.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemShape"] = ProblemShape.model_json_schema(ref_template="#/components/schemas/{model}")
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _complete(path, method, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    if path == "/healthz":
        operation["security"] = []
    responses = operation.setdefault("responses", {})
    for status, text in (EVERYWHERE | ({} if method == "get" else WRITES)).items():
        responses[str(status)] = {"description": text}
    for status, response in responses.items():
        if status.isdecimal() and int(status) >= 400:
            response["content"] = PROBLEM


def openapi(request: Request) -> dict[str, Any]:
    """Needs a token, like everything else."""
    return describe(request.app)
