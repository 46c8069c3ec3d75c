"""The stylesheet, the script and the icon. Routes, and not a mounted folder, so that the application's authentication
covers them; the stylesheet alone is open, because the login page needs it."""

from __future__ import annotations

from functools import cache

from fastapi import Request, Response

from curate.service.pages.kit import STATIC, version
from curate.service.rest.deps import ByWord

router = ByWord()
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@router.get("/static/service.css")
def style(request: Request) -> Response:
    return _file("service.css", request)


@router.get("/static/service.js")
def script(request: Request) -> Response:
    return _file("service.js", request)


@router.get("/favicon.ico")  # asked for by browsers on pages without an icon
@router.get("/static/icon.svg")
def icon(request: Request) -> Response:
    return _file("icon.svg", request)


def _file(name: str, request: Request) -> Response:
    """Kept by browsers until it changes: pages name its version."""
    keep = "private, max-age=31536000, immutable" if request.url.query == version() else "no-cache"
    return Response(_content(name), headers={"Cache-Control": keep}, media_type=TYPES[name.rpartition(".")[2]])


@cache
def _content(name: str) -> bytes:
    return (STATIC / name).read_bytes()
