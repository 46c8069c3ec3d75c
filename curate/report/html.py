"""The report: one HTML page about a run that needs no other file and no network.

It shows whether the selection is better balanced than a random sample, the funnel, downloads, the balance of clusters
and of texts over entries before and after the selection, the clusters themselves, the rejects by reason, the time of
each stage, and the recipe. The first pass over the tables counts and samples rows; the second fetches the images
nearest to the centroids of the clusters shown. If the pool has more than READ_SHARDS shards, the passes read that many,
chosen by hash, and the page says so; the ledger and the selection's quotas give the counts of the whole pool. Time
therefore does not grow with the pool. Memory is the counts (a few numbers per cluster, three per entry) and samples of
fixed size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from curate.core.contracts import Location, Report, Runtime
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.view import View
from curate.html.page import render
from curate.html.thumbnails import thumbnails
from curate.kernels.labels import read_labels
from curate.report.page import sections, stages
from curate.report.page.downloads import downloads
from curate.report.page.images import Gallery
from curate.report.page.terms import DOWNLOAD_TERMS, TERMS, VIDEO_TERMS
from curate.report.page.videos import videos
from curate.report.survey.entries import entry_section
from curate.report.survey.profile import drifts, profile_of
from curate.report.survey.quotas import fills
from curate.report.survey.scope import Scope, scope_of
from curate.report.survey.survey import Survey, survey, with_pool_counts
from curate.report.survey.tree import Gathered, ShownCluster, choose, fanouts, fill, gather
from curate.report.verdict.words import against_random

TEMPLATES = Path(__file__).parent / "templates"
KEPT_SHOWN = 24
FILM_FRAMES = 8


class ReportHtml(Report):
    """Write an HTML page: funnel, balance of clusters, their images, rejected images, times, recipe."""

    op = "report.html"
    version = 6

    title: str = Field(default="Curation report", min_length=1, max_length=200, description="Heading of the page.")
    seed: int = Field(default=0, description="Seed of the random sample of rejected and kept images.")
    caption: str | None = Field(
        default=None,
        description="Column of the texts that clusters are named after (default: `text`, or `caption` without it).",
    )
    label: str | None = Field(
        default=None,
        description="Column, or field of the pool's meta such as `meta.category`, to show the balance of (default: "
        "what the dataset carries as `label`).",
    )
    labels: Annotated[Path | None, Runtime(), Location()] = Field(
        default=None,
        description="File of labels instead: .csv or .parquet with the columns key and label. A few hundred rows, "
        "drawn at random, are enough to compare the selection with a random sample.",
    )
    clusters_shown: int = Field(default=12, ge=1, le=200, description="Clusters of the coarsest level to show.")
    leaves_shown: int = Field(
        default=84, ge=1, le=2000, description="Approximate number of clusters of the finest level to show."
    )
    pictures_shown: int = Field(
        default=6, ge=1, le=50, description="Images per finest cluster to show, nearest to its centroid."
    )
    rejects_shown: int = Field(default=12, ge=0, le=200, description="Rejected images to show per stage and reason.")
    thumbnail_pixels: int = Field(default=128, ge=32, le=512, description="Longer side of a thumbnail, in pixels.")
    threads: Annotated[int, Runtime()] = Field(default=2, ge=1, description="Threads that decode images.")

    def meta_fields(self) -> tuple[str, ...]:
        return (self.label or "",)

    def identity(self) -> dict[str, Any]:
        return {} if self.labels is None else {"labels": digest(sorted(read_labels(self.labels).items()))}

    def preflight(self) -> list[str]:
        try:
            self.identity()
        except InputError as error:
            return [str(error)]
        return []

    def render(self, view: View) -> dict[str, bytes]:
        """`index.html`, and `balance.json` if the selection can be compared with a random sample. Reads the tables of
        at most READ_SHARDS shards twice, and the bytes of the images shown."""
        scope = scope_of(view, self.caption, self.label, self.labels)
        found = with_pool_counts(view, scope, survey(view, scope, self.seed, self.rejects_shown, KEPT_SHOWN))
        root = self._tree(found)
        rejected = (row for rows in found.reject_rows.values() for row in rows)
        keepers = sorted({key for row in rejected if (key := sections.keeper_of(row))})
        gathered = Gathered({}, {}, {})
        if root is not None or keepers:
            gathered = gather(view, scope, root, keepers, self.pictures_shown, self.seed)
        profile = profile_of(view, len(found.levels))
        if root is not None:
            fill(root, gathered, found, profile)
        keys = dict.fromkeys(_shown_keys(found, root, keepers))
        gallery = Gallery(thumbnails(view, keys, self.thumbnail_pixels, self.threads, FILM_FRAMES), scope.caption)
        shown = {(node.level, node.id) for node in root.nodes()} if root is not None else set()
        values = self._sections(view, scope, found, root, gallery, gathered)
        values |= {
            "drifts": drifts(view, profile, shown),
            "fills": fills(view),
            "profiled": profile is not None,
            "even": profile.even if profile is not None else [],
        }
        styles = ("videos",) if values["videos"] else ()  # pages about images need no more
        files = {"index.html": render(TEMPLATES, "report", styles=styles, **values, links=_links(values))}
        if values["compared"] is not None:
            files["balance.json"] = json.dumps(values["compared"]).encode()
        return files

    def _tree(self, found: Survey) -> ShownCluster | None:
        if not found.levels or not found.levels[-1].before.sum():
            return None
        return choose(found.levels, fanouts(len(found.levels), self.clusters_shown, self.leaves_shown), self.seed)

    def _sections(
        self, view: View, scope: Scope, found: Survey, root: ShownCluster | None, gallery: Gallery, gathered: Gathered
    ) -> dict[str, Any]:
        selected = scope.select is not None
        rejects = sections.reject_groups(found, gallery, gathered.keepers, list(view.stages))
        anchors = {(group.stage, group.reason): group.anchor for group in rejects}
        fetched = downloads(view.stages, found.sizes)
        return {
            "title": self.title,
            "selected": selected,
            "found": found,
            "noun": found.videos.noun,
            "dataset": view.dataset(),
            "funnel": stages.funnel(view.stages, anchors, found),
            "downloads": fetched,
            "rejects": rejects,
            "balances": sections.balances(found.levels, selected, found.videos.noun) if root else [],
            "tree": sections.branch(root, gallery, selected, 1) if root else None,
            "levels": len(found.levels),
            "videos": videos(found.videos, found.kept_rows, gallery),
            "kept": [gallery.card(row) for row in found.kept_rows],
            "label": "label" if self.labels else scope.label or self.label,
            "labels_file": self.labels,
            "compared": against_random(found.comparison, found.labels, whole=self.labels is None),
            "labels": sections.label_table(found.labels, selected),
            "entries": entry_section(found.entries, view.stages.get(scope.select or ""), scope.entries),
            "counters": stages.counters(view.stages),
            "timings": stages.timings(view.stages),
            "recipe": stages.cards(view.stages),
            "terms": TERMS | (DOWNLOAD_TERMS if fetched else {}) | (VIDEO_TERMS if found.videos.ms else {}),
        }


def _shown_keys(found: Survey, root: ShownCluster | None, keepers: list[str]) -> Iterator[str]:
    leaves = [leaf.rows for leaf in root.leaves()] if root else []
    for rows in (*found.reject_rows.values(), found.kept_rows, *leaves):
        yield from (row["key"] for row in rows)
    yield from keepers


def _links(values: dict[str, Any]) -> list[tuple[str, str]]:
    """(anchor, name) of the sections that the page has."""
    links = [
        ("random", "Against random", values["compared"]),
        ("drift", "Growth", values["drifts"]),
        ("funnel", "Funnel", True),
        ("downloads", "Downloads", values["downloads"]),
        ("videos", "Videos", values["videos"]),
        ("balance", "Balance", values["balances"]),
        ("entries", "Entries", values["entries"]),
        ("labels", "Labels", values["label"]),
        ("browse", "Clusters", values["tree"]),
        ("kept", "Kept", True),
        ("rejected", "Rejected", values["rejects"]),
        ("counters", "Counts", values["counters"]),
        ("time", "Time", True),
        ("recipe", "Recipe", True),
    ]
    return [(anchor, name) for anchor, name, shown in links if shown]
