"""The report: one page of HTML about a run, with no other file and no network behind it.

It shows the funnel, how evenly pictures are spread over clusters, and texts over what they say, before and after the
selection, the clusters themselves, what was refused and why, the time each stage took, and the recipe. Two passes over
tables: the first counts and samples, the second fetches the pictures nearest to the centroids of the clusters that are
shown. Of a pool of more than READ_SHARDS shards so many are read, chosen by hash, and the page says so; what stages and
clusters hold in all comes from the ledger and the selection's quotas. So time does not grow with the pool. Memory is
the counts (some numbers per cluster, three per entry) and samples of fixed size.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import jinja2
from markupsafe import Markup
from pydantic import Field

from curate.core.contracts import Report, Runtime
from curate.core.view import View
from curate.report import page
from curate.report.counters import counters
from curate.report.entries import entry_section
from curate.report.format import FILTERS, printable
from curate.report.pictures import Album
from curate.report.profile import drifts, profile_of
from curate.report.quotas import fills
from curate.report.runs import cards, timings
from curate.report.stats import fanouts
from curate.report.survey import Scope, Survey, scope_of, survey
from curate.report.terms import TERMS
from curate.report.thumbs import thumbnails
from curate.report.tree import Gathered, Node, choose, fill, gather
from curate.report.whole import whole

TEMPLATES = Path(__file__).parent / "templates"
KEPT_SHOWN = 24


class ReportHtml(Report):
    """A page to look at: funnel, balance of clusters, their pictures, refused pictures, times, recipe."""

    op = "report.html"
    version = 3

    title: str = Field(default="Curation report", min_length=1, max_length=200, description="Heading of the page.")
    seed: int = Field(default=0, description="Decides which refused and kept pictures are sampled.")
    caption: str | None = Field(
        default=None,
        description="Column of the texts that clusters are named after; `text`, or else `caption`, by default.",
    )
    label: str | None = Field(
        default=None,
        description="Column, or field of the pool's meta as `meta.category`, whose balance before and after is shown.",
    )
    clusters_shown: int = Field(default=12, ge=1, le=200, description="Clusters of the coarsest level.")
    leaves_shown: int = Field(default=84, ge=1, le=2000, description="Clusters of the finest level, about.")
    pictures_shown: int = Field(
        default=6, ge=1, le=50, description="Pictures per finest cluster, nearest its centroid."
    )
    rejects_shown: int = Field(default=12, ge=0, le=200, description="Refused pictures per stage and reason.")
    thumbnail_pixels: int = Field(default=128, ge=32, le=512, description="Longer side of a thumbnail, in pixels.")
    threads: Annotated[int, Runtime()] = Field(default=2, ge=1, description="Threads that decode pictures.")

    def render(self, view: View) -> dict[str, bytes]:
        """`index.html`. Reads the tables of READ_SHARDS shards at most, twice, and the bytes of pictures it shows."""
        scope = scope_of(view, self.caption, self.label)
        found = whole(view, scope, survey(view, scope, self.seed, self.rejects_shown, KEPT_SHOWN))
        root = self._tree(found)
        keepers = sorted({key for rows in found.reject_rows.values() for row in rows if (key := page.keeper_of(row))})
        gathered = Gathered({}, {}, {})
        if root is not None or keepers:
            gathered = gather(view, scope, root, keepers, self.pictures_shown, self.seed)
        profile = profile_of(view, found.levels)
        if root is not None:
            fill(root, gathered, found, profile)
        keys = dict.fromkeys(_shown_keys(found, root, keepers))
        album = Album(thumbnails(view, keys, self.thumbnail_pixels, self.threads), scope.caption)
        shown = {(node.level, node.id) for node in root.nodes()} if root is not None else set()
        clusters = {
            "drifts": drifts(view, profile, shown),
            "fills": fills(view),
            "profiled": profile is not None,
        }
        return {"index.html": _html(self._sections(view, scope, found, root, album, gathered) | clusters)}

    def _tree(self, found: Survey) -> Node | None:
        if not found.levels or not found.levels[-1].before.sum():
            return None
        return choose(found.levels, fanouts(len(found.levels), self.clusters_shown, self.leaves_shown), self.seed)

    def _sections(
        self, view: View, scope: Scope, found: Survey, root: Node | None, album: Album, gathered: Gathered
    ) -> dict[str, Any]:
        selected = scope.select is not None
        groups = page.reject_groups(found, album, gathered.keepers, list(view.stages))
        return {
            "title": self.title,
            "selected": selected,
            "found": found,
            "refused": found.left,
            "dataset": view.dataset(),
            "steps": page.funnel(view.stages, groups),
            "groups": groups,
            "balances": page.balances(found.levels, selected) if root else [],
            "tree": page.branch(root, album, selected, 1) if root else None,
            "levels": len(found.levels),
            "kept": [album.picture(row) for row in found.kept_rows],
            "label": self.label,
            "labels": page.label_table(found.labels, selected),
            "entries": entry_section(found.entries, view.stages.get(scope.select or ""), scope.entries),
            "counters": counters(view.stages),
            "timings": timings(view.stages),
            "cards": cards(view.stages),
            "terms": TERMS,
        }


def _shown_keys(found: Survey, root: Node | None, keepers: list[str]) -> Iterator[str]:
    groups = [*found.reject_rows.values(), found.kept_rows, *(leaf.rows for leaf in root.leaves())] if root else []
    for rows in groups or [*found.reject_rows.values(), found.kept_rows]:
        yield from (row["key"] for row in rows)
    yield from keepers


def _html(sections: Mapping[str, Any]) -> bytes:
    """Everything is escaped by the template; only our own style and script are put in as they are. The page forbids
    itself the network and any script but that one."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=strict, finalize=printable, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    text = environment.get_template("report.html").render(
        **sections, style=Markup(style), script=Markup(script), policy=policy
    )
    return text.encode("utf-8", "replace")
