"""`select.frequency`: under-samples common concepts and repeats rare ones (ViSE, of Xray-Visual Models)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from curate.core.errors import TargetError
from curate.kernels.entries import Entries
from curate.select.balance import power_mean, rarest, repeat_factor, solve_threshold
from curate.select.items import SelectItems


class SelectFrequency(SelectItems):
    """Balance texts by the frequency of their entries: under-sample the head, repeat the tail.

    A text whose rarest entry occurs in c texts has (t / c) ** exponent expected copies. One t serves all texts; it is
    chosen to give `target` samples or the given `share` (by default, as many samples as texts). Or give counts: texts
    above `head` are under-sampled, texts below `tail` are repeated, the others are taken once. Each text is drawn
    independently, by hash(seed, key, item). A text without an entry is taken once, as part of `target` and beside
    `share` (`no_entry: keep`): the paper resamples by what occurs and rejects nothing.

    Rejects: no_text, no_entry, head_cut.
    """

    op: ClassVar[str] = "select.frequency"

    target: int | None = Field(None, ge=1, description="Expected samples, including copies; or give `share` or counts.")
    share: float | None = Field(
        None, gt=0, description="Expected samples, including copies, as a share of the texts with an entry."
    )
    head: float | None = Field(None, gt=0, description="Count of an entry above which texts are under-sampled.")
    tail: float | None = Field(None, gt=0, description="Count of an entry below which texts are repeated.")
    exponent: float = Field(
        0.5, ge=0.01, le=4, description="1 balances entries fully; 0.5 by the square root of their frequency."
    )
    least: float = Field(0.0, ge=0, le=1, description="Least expected copies of a text, however common.")
    multiplier: int = Field(5, ge=1, le=1_000_000, description="Most copies of a text.")
    no_entry: Literal["keep", "reject"] = Field(
        "keep", description="Whether texts without an entry are taken, once each: as part of `target`, beside `share`."
    )
    combine: Literal["rarest", "mean"] = Field(
        "rarest", description="Which of its entries decide for a text: the rarest, or the mean of all."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        counts = self.head is not None or self.tail is not None
        if (self.target is not None) + (self.share is not None) + counts > 1:
            given = {name: getattr(self, name) for name in ("target", "share", "head", "tail")}
            given_values = ", ".join(f"{name}: {value}" for name, value in given.items() if value is not None)
            raise ValueError(f"{given_values}; give `target`, or `share`, or the counts `head` and `tail`")
        if self.head is not None and self.tail is not None and self.tail > self.head:
            raise ValueError(f"tail: {self.tail:g} is above head: {self.head:g}; give a tail of at most head")
        return self

    def scaled(self, fraction: float) -> Self:
        changes: dict[str, float] = {}
        for name in ("target", "head", "tail"):
            value = getattr(self, name)
            if value is not None:
                changes[name] = max(1, int(value * fraction)) if name == "target" else value * fraction
        return self.model_copy(update=changes)

    def _units(self, found: Entries) -> NDArray[np.int64]:
        if self.combine == "rarest":
            return super()._units(found)
        falling = -self._table.counts  # the unit of the entry with the closest count from below
        count = np.nan_to_num(self._count_of(found), nan=0.0)
        return np.where(found.matched, np.searchsorted(falling, -count, side="right").clip(1), 0)

    def _count_of(self, found: Entries) -> NDArray[np.float64]:
        """The count (m,) by which each text is drawn; NaN for texts without entries."""
        counts = self._table.counts
        if self.combine == "mean":
            return power_mean(counts[found.entry], found.item, len(found), self.exponent)
        row = rarest(found.entry, found.item, len(found), empty=-1)
        return np.where(row < 0, np.nan, counts[row])

    def without_entry(self) -> float:
        return 1.0 if self.no_entry == "keep" else 0.0

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._factor(self._count_of(found), counts)

    def _factor(self, count: NDArray[np.generic], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Expected copies of texts whose entries occur in `count` texts. `counts` (U,): texts per unit."""
        tail, head = self.tail or 0.0, self.head or np.inf
        if self.head is None and self.tail is None:
            texts = self._texts(counts)
            wanted = self._wanted(int(texts.sum()), round(int(counts[0]) * self.without_entry()))
            tail = head = solve_threshold(self._table.counts, texts, wanted, self.exponent, self.least, self.multiplier)
        return repeat_factor(count, tail, head, self.exponent, self.least, self.multiplier)

    def _wanted(self, texts: int, once: int) -> float:
        """Expected samples of `texts` with an entry, beside those that are taken `once`. Raises TargetError if they
        cannot give as many."""
        share = texts * (1.0 if self.share is None else self.share)
        wanted = self.target if self.target is not None else share + once
        least, most = texts * self.least + once, texts * self.multiplier + once
        if not least <= wanted <= most:
            others = f" and the {once:,} without" if once else ""
            limits = f"least {self.least:g}, multiplier {self.multiplier}" + (", no_entry keep" if once else "")
            raise TargetError(
                f"{self.op}: expected {wanted:,.0f} samples, but the {texts:,} texts with an entry{others} can give "
                f"{least:,.0f} to {most:,} ({limits}); change target or share, or these limits"
            )
        return wanted - once

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Expected copies per unit, rounded. Raises TargetError if the texts cannot give the target."""
        texts = self._texts(counts)
        samples = np.rint(texts * self._factor(self._table.counts, counts)).astype(np.int64)
        return np.append(round(int(counts[0]) * self.without_entry()), samples)
