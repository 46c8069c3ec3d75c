"""ETags: weak ones, of what an answer says. If-None-Match saves the body; If-Match names the version to change."""

from __future__ import annotations

import hashlib
import re

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from curate.service.problems import InvalidProblem

_TAG = re.compile(r'(?:W/)?"([^"]*+)"\s*+(?:,|$)')
_VERSION = re.compile(r"(\d{1,18})(?:-[0-9a-f]+)?")


def tagged(request: Request, shape: BaseModel, version: int | None = None, status: int = 200) -> Response:
    """The answer with its ETag, W/"VERSION-DIGEST" or W/"DIGEST"; 304 without a body if the client has it."""
    body = shape.model_dump_json().encode()
    digest = hashlib.sha256(body).hexdigest()[:16]
    tag = digest if version is None else f"{version}-{digest}"
    headers = {"ETag": f'W/"{tag}"'}
    if request.method == "GET" and _knows(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, "application/json")


def _knows(given: str, tag: str) -> bool:
    return given.strip() == "*" or tag in _TAG.findall(given)


def version_of(if_match: str | None) -> int | None:
    """The version that If-Match names; None without one. Raises InvalidProblem."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = _TAG.findall(if_match)
    found = _VERSION.fullmatch(tags[0]) if len(tags) == 1 else None
    if found is None:
        raise InvalidProblem("If-Match: expected the ETag of an earlier answer, or *")
    return int(found[1])
