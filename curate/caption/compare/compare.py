"""`caption.compare`: two texts of the same samples, side by side: judged blind by people, and by a model.

Three files: `index.html` has the figures, `judge.html` lets a person judge pairs of texts without knowing which is
which, and `key.json` tells `curate caption tally`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from curate.caption.compare import page
from curate.caption.compare.blind import blind, key_file
from curate.caption.compare.survey import JUDGED, survey
from curate.caption.compare.tally import KEY
from curate.caption.report.costs import prices_of
from curate.core.contracts import Location, Report, Runtime
from curate.core.endpoints import Endpoints
from curate.core.secrets import Secret
from curate.core.view import View
from curate.html.page import render
from curate.html.thumbnails import thumbnails

TEMPLATES = Path(__file__).parents[1] / "templates"


class Compare(Report):
    """Compare two texts of the same samples: a page on which a person judges them blind, win rates, figures, cost."""

    op = "caption.compare"

    a: str = Field(description="Column of texts, such as `generated`.")
    b: str = Field(description="Column of the texts to compare it with.")
    judge: str | None = Field(None, description="Column that `caption.judge` wrote about the same two, if any.")
    similarity_a: str | None = Field(
        None, description="Column of the similarity of `a` to its image, as `align.similarity` writes it."
    )
    similarity_b: str | None = Field(None, description="The same of `b`.")
    title: str = Field("Comparison", min_length=1, max_length=200, description="Heading of the page.")
    question: str = Field(
        "Which text describes the image better?", min_length=1, max_length=500, description="The question to people."
    )
    samples: int = Field(100, ge=1, le=1000, description="Pairs of texts for people to judge, chosen by hash.")
    open_samples: int = Field(12, ge=0, le=200, description="Other pairs to show with their columns' names.")
    image_pixels: int = Field(480, ge=32, le=2048, description="Longer side of an image, in pixels.")
    seed: int = Field(0, ge=0, description="Seed of the samples and of the order of their texts.")
    endpoints: Annotated[Endpoints, Runtime(), Location("endpoints")] = Field(
        default={}, description="File of endpoints with their prices, for the cost. No endpoint is queried."
    )
    threads: Annotated[int, Runtime()] = Field(2, ge=1, description="Threads that decode images.")

    @model_validator(mode="after")
    def _two(self) -> Compare:
        if self.a == self.b:
            raise ValueError(f"b: {self.b!r} is the column `a` too; give two columns")
        if (self.similarity_a is None) != (self.similarity_b is None):
            missing = "similarity_a" if self.similarity_a is None else "similarity_b"
            raise ValueError(f"{missing}: missing; give the similarities of both texts, or of neither")
        return self

    @property
    def _similarities(self) -> tuple[str, ...]:
        return tuple(name for name in (self.similarity_a, self.similarity_b) if name is not None)

    def reads(self) -> tuple[str, ...]:
        judged = (f"{self.judge}_{part}" for part in JUDGED) if self.judge else ()
        return tuple(dict.fromkeys((self.a, self.b, *self._similarities, *judged)))

    def identity(self) -> dict[str, Any]:
        return {"prices": {name: price.model_dump() for name, price in prices_of(self.endpoints).items()}}

    def secrets(self) -> dict[str, Secret]:
        """None: only the prices of the endpoints are used."""
        return {}

    def render(self, view: View) -> dict[str, bytes]:
        """Reads the tables of at most 64 shards once, and the bytes of the images shown."""
        show = self.samples + self.open_samples
        texts = (self.a, self.b)
        found = survey(view, texts, self.judge, self._similarities, self.seed, show)
        hidden, opened = found.shown[: self.samples], found.shown[self.samples :]
        thumbs = thumbnails(view, (row["key"] for row in found.shown), self.image_pixels, self.threads)
        pairs, key = blind(hidden, self.a, self.b, self.judge, self.seed, thumbs)
        values = {
            "title": self.title,
            "a": self.a,
            "b": self.b,
            "found": found,
            "pairs": len(pairs),
            "judge": page.judgement(found) if self.judge else None,
            "sides": page.sides(found, texts, prices_of(self.endpoints)),
            "differences": page.differences(found, texts, self._similarities, self.seed),
            "distribution": page.distribution(found, texts),
            "opened": [page.opened(row, texts, self.judge, thumbs) for row in opened],
            "terms": page.TERMS,
        }
        judging = {"title": self.question, "page": key.page, "pairs": pairs}
        return {
            "index.html": render(TEMPLATES, "compare", styles=("texts",), **values, links=page.links(values)),
            "judge.html": render(TEMPLATES, "judge", styles=("texts",), **judging),
            KEY: key_file(key),
        }
