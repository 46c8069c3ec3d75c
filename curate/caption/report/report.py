"""`caption.report`: a page about captions that needs no other file and no network.

It shows what became of every request, models and cost, how the texts differ from the originals, the checks, images with
all their texts, and examples of every kind of failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from curate.caption.report import page
from curate.caption.report.cards import Cards
from curate.caption.report.columns import text_columns
from curate.caption.report.costs import prices_of
from curate.caption.report.survey import survey
from curate.core.contracts import Location, Report, Runtime
from curate.core.endpoints import Endpoints
from curate.core.secrets import Secret
from curate.core.spend import estimate
from curate.core.view import View
from curate.html.page import render
from curate.html.thumbnails import thumbnails

TEMPLATES = Path(__file__).parents[1] / "templates"


class CaptionReport(Report):
    """Write an HTML page: images with all their texts, outcomes, checks, cost, texts before and after, failures."""

    op = "caption.report"
    version = 2

    title: str = Field("Captions", min_length=1, max_length=200, description="Heading of the page.")
    original: str | None = Field(None, description="Column of the original texts (default: `text`, or `caption`).")
    texts: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Columns of texts to show beside it (default: the answers of all asking stages, and `chosen`).",
    )
    cluster: str | None = Field(
        None, description="Column of clusters, such as `cluster_1`, from which the images shown are sampled evenly."
    )
    clusters_shown: int = Field(12, ge=1, le=200, description="Clusters to sample images from.")
    per_cluster: int = Field(
        4, ge=1, le=50, description="Images per cluster. Without clusters, as many images are sampled in total."
    )
    failures_shown: int = Field(6, ge=0, le=100, description="Examples of each kind of failure.")
    image_pixels: int = Field(256, ge=32, le=1024, description="Longer side of an image, in pixels.")
    seed: int = Field(0, ge=0, description="Seed of all samples.")
    endpoints: Annotated[Endpoints, Runtime(), Location("endpoints")] = Field(
        default={}, description="File of endpoints with their prices, for the cost. No endpoint is queried."
    )
    threads: Annotated[int, Runtime()] = Field(2, ge=1, description="Threads that decode images.")

    def reads(self) -> tuple[str, ...]:
        named = (self.original, *(self.texts or ()), self.cluster)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def identity(self) -> dict[str, Any]:
        return {"prices": {name: price.model_dump() for name, price in prices_of(self.endpoints).items()}}

    def secrets(self) -> dict[str, Secret]:
        """None: only the prices of the endpoints are used."""
        return {}

    def render(self, view: View) -> dict[str, bytes]:
        """`index.html`. Reads the tables of at most 64 shards once, and the bytes of the images shown."""
        texts = text_columns(view, self.original, self.texts)
        sizes = (self.clusters_shown, self.per_cluster, self.failures_shown)
        found = survey(view, texts, self.cluster, self.seed, sizes)
        rows = [row for part in (found.samples, found.failures) for own in part.values() for row in own]
        thumbs = thumbnails(view, (row["key"] for row in rows), self.image_pixels, self.threads)
        cards = Cards(thumbs, texts)
        names = [text.name for text in texts]
        failures = page.failures(found, cards, names)
        measured = page.measures(texts, found.measured)
        origins = page.origins(found, prices_of(self.endpoints))
        plain = [text.name for text in texts if not text.structured]
        values = {
            "found": found,
            "original": names[0],
            "outcomes": page.outcomes(texts, found, view.stages),
            "origins": origins,
            "spent": view.spend.total,
            "estimate": estimate(view.spend.total),
            "totals": page.totals(found),
            "measured": measured,
            "distributions": page.distributions(measured),
            "checks": page.checked(found.checks, {(one.text, one.reason): one.anchor for one in failures}),
            "injections": page.checked(found.injections, {}),
            "flags": page.flags(found),
            "chosen": page.chosen(found),
            "groups": page.groups(found, cards, plain),
            "failures": failures,
            "prompts": page.prompts(texts, view.stages),
        }
        values |= {"title": self.title, "terms": page.TERMS, "links": _links(values)}
        return {"index.html": render(TEMPLATES, "captions", styles=("texts",), **values)}


def _links(values: dict[str, Any]) -> list[tuple[str, str]]:
    """(anchor, name) of the sections that the page has."""
    links = [
        ("outcomes", "Outcomes", values["outcomes"]),
        ("cost", "Models and cost", values["origins"]),
        ("texts", "Before and after", values["distributions"]),
        ("checks", "Checks", values["checks"] or values["flags"]),
        ("samples", "Images", values["groups"]),
        ("failures", "Failures", values["failures"]),
        ("prompts", "Prompts", values["prompts"]),
    ]
    return [(anchor, name) for anchor, name, shown in links if shown]
