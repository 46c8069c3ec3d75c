"""Everything that the page of a run shows, from one look at it."""

from __future__ import annotations

from dataclasses import dataclass

from curate.service.actions.run_logs import log_of
from curate.service.actions.run_views import funnel_of, look, shape
from curate.service.auth.roles import Principal, Role
from curate.service.service import Service
from curate.service.shapes.common import Page
from curate.service.shapes.runs import FunnelLine, LogLine, RunShape


@dataclass(frozen=True)
class RunPage:
    run: RunShape
    funnel: list[FunnelLine]
    log: Page[LogLine]
    role: Role | None
    """The reader's, in its workspace."""
    final: bool
    """Whether nothing of it changes any more unless the run is resumed."""


def run_page(
    service: Service, who: Principal, id: str, workspace: str | None, *, stage: str | None, level: str, log_lines: int
) -> RunPage:
    """With the newest lines of its log."""
    seen = look(service, who, id, workspace)
    return RunPage(
        shape(service, seen),
        funnel_of(seen.known) if seen.known is not None else [],
        log_of(service, seen.one, stage=stage, level=level, limit=log_lines)
        if log_lines
        else Page(items=[], next=None),
        who.role(seen.one.place.id),
        seen.final,
    )
