"""/audit: every write, whether it succeeded or not."""

from __future__ import annotations

from fastapi import Response

from curate.service.actions import people as actions
from curate.service.actions import places as place_actions
from curate.service.pages.kit import LIMIT, Visiting, link, page
from curate.service.rest.deps import ByWord

router = ByWord()
FILTERS = ("workspace", "user", "action")


@router.get("/audit")
def audit(visit: Visiting) -> Response:
    query = {name: visit.query(name) for name in FILTERS}
    cursor = visit.query("cursor")
    found = actions.audit(
        *visit.args, workspace=query["workspace"] or None, user=query["user"] or None, action=query["action"] or None,
        cursor=cursor or None, limit=LIMIT,
    )  # fmt: skip
    return page(
        visit, "audit", title="Audit", page=found, query=query, filtered=any(query.values()),
        places=[(one.name, one.name) for one in place_actions.workspaces(*visit.args)],
        first=link("/audit", **query) if cursor else "",
    )  # fmt: skip
