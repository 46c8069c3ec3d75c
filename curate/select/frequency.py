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
    chosen to give `target` samples or the given `share` (by default, as many samples as texts with an entry). Or give
    counts: texts above `head` are under-sampled, texts below `tail` are repeated, the others are taken once. Each text
    is drawn independently, by hash(seed, key, item).

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

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._factor(self._count_of(found), self._texts(counts))

    def _factor(self, counts: NDArray[np.generic], texts: NDArray[np.int64]) -> NDArray[np.float64]:
        tail, head = self.tail or 0.0, self.head or np.inf
        if self.head is None and self.tail is None:
            wanted = self._wanted(int(texts.sum()))
            tail = head = solve_threshold(self._table.counts, texts, wanted, self.exponent, self.least, self.multiplier)
        return repeat_factor(counts, tail, head, self.exponent, self.least, self.multiplier)

    def _wanted(self, texts: int) -> float:
        """Expected samples. Raises TargetError if the texts cannot give as many."""
        wanted = self.target if self.target is not None else texts * (1.0 if self.share is None else self.share)
        if not texts * self.least <= wanted <= texts * self.multiplier:
            raise TargetError(
                f"{self.op}: expected {wanted:,.0f} samples, but the {texts:,} texts with an entry can give "
                f"{texts * self.least:,.0f} to {texts * self.multiplier:,} (least {self.least:g}, multiplier "
                f"{self.multiplier}); change target or share, or these limits"
            )
        return wanted

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Expected copies per unit, rounded. Raises TargetError if the texts cannot give the target."""
        texts = self._texts(counts)
        return np.append(0, np.rint(texts * self._factor(self._table.counts, texts)).astype(np.int64))
