"""The pages: complete HTML without JavaScript, one stylesheet, one script, nothing from elsewhere.

kit           templates, forms, and what every page gets
dag, graph    places the stages of a run, and says what their SVG shows
runs, new, …  routes of the pages, which only call actions
errors        what a browser gets instead of problem+json
"""

from __future__ import annotations

from fastapi import APIRouter

from curate.service.pages import audit, datasets, login, new, people, runs, static_files, targets, workspaces
from curate.service.pages.errors import error_page

__all__ = ["error_page", "router"]

router = APIRouter(include_in_schema=False)
for _part in (static_files, login, runs, new, datasets, workspaces, targets, people, audit):
    router.include_router(_part.router)
