"""What the pages of one run share: its head, its tabs, and where they lead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from curate.service.auth.roles import Role
from curate.service.pages.kit import Visit, link, part
from curate.service.samples.looking import Looked, looked

PROFILE = "cluster_profile"
CLUSTERS = {"cluster_tree", PROFILE}
TABS: list[tuple[str, str, Callable[[Looked], bool]]] = [
    ("", "Overview", lambda _: True),
    ("/samples", "Samples", lambda seen: bool(seen.made.with_rows)),
    ("/rejects", "Rejects", lambda seen: any(map(seen.made.rejected, seen.made.with_rows))),
    ("/captions", "Captions", lambda seen: bool(seen.made.with_rows) and seen.made.captions),
    ("/clusters", "Clusters", lambda seen: not CLUSTERS.isdisjoint(seen.made.kinds.values())),
    ("/map", "Map", lambda seen: bool(seen.made.maps)),
    ("/thresholds", "Thresholds", lambda seen: bool(seen.made.with_rows)),
    ("/compare", "Compare", lambda seen: bool(seen.made.bases)),
]
"""(path below the run's, text, whether a run has what the page needs). Each page is listed once it works."""


@dataclass(frozen=True)
class Tab:
    href: str
    text: str
    current: bool


def run_values(visit: Visit, seen: Looked, current: str) -> dict[str, Any]:
    """For `run_tabs.html`. `current`: path of the page below the run's."""
    one, base = seen.one, f"/runs/{part(seen.one.id)}"
    workspace = visit.query("workspace") or None
    tabs = [
        Tab(link(f"{base}{path}", workspace=workspace), text, path == current) for path, text, has in TABS if has(seen)
    ]
    title = one.row.title if one.row is not None and one.row.title else one.id
    return {
        "tabs": tabs, "base": base, "workspace": workspace or "", "place": one.place.name, "run_id": one.id,
        "run_title": title, "pixels": seen.pixels,
        "operator": seen.role.covers(Role.OPERATOR),
    }  # fmt: skip


def of_run(visit: Visit, run_id: str) -> Looked:
    """The run of an address."""
    return looked(*visit.args, run_id, visit.query("workspace") or None)
