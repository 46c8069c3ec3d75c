"""The pages: complete HTML without JavaScript, one stylesheet, one script, nothing from elsewhere.

kit, forms    templates, what every page gets, and what a form leads to
dag, graph    places the stages of a run, and says what their SVG shows
runs, new, …  routes of the pages, which only call actions
data          pages that explain data
"""

from __future__ import annotations

from fastapi import APIRouter

from curate.service.pages import datasets, login, new, people, places, runs
from curate.service.pages.data import act, captions, clusters, compare, find, maps, sample, samples, thresholds
from curate.service.pages.kit import error_page

__all__ = ["error_page", "router"]

router = APIRouter(include_in_schema=False)
for _part in (
    login, samples, sample, find, clusters, captions, maps, thresholds, compare, act, runs, new, datasets,
    places, people,
):  # fmt: skip
    router.include_router(_part.router)
