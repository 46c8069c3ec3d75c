"""`select.frequency`: common concepts less often, rare ones more often (ViSE, of Xray-Visual Models)."""

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
    """Balances texts by the frequency of what they say: the head is under-sampled, the tail goes on several times.

    A text whose rarest entry occurs in c texts is expected to go on (t / c) ** exponent times: t is one count for all,
    chosen so that as many samples come out as `target` or `share` ask for (as many as texts have an entry, without
    either). Or give counts: above `head` texts are thinned, below `tail` they are repeated, and once between. Every
    text is drawn alone, by hash(seed, key, item).

    Rejects: no_text, no_entry, head_cut.
    """

    op: ClassVar[str] = "select.frequency"

    target: int | None = Field(None, ge=1, description="Samples to expect, copies counted; or give `share`, or counts.")
    share: float | None = Field(
        None, gt=0, description="Samples to expect, copies counted, as a share of the texts that have an entry."
    )
    head: float | None = Field(None, gt=0, description="Count of an entry above which texts are thinned.")
    tail: float | None = Field(None, gt=0, description="Count of an entry below which texts go on more than once.")
    exponent: float = Field(
        0.5, ge=0.01, le=4, description="1 evens entries out altogether, 0.5 by the square root of their frequency."
    )
    least: float = Field(0.0, ge=0, le=1, description="Copies that even the commonest text is expected to give.")
    multiplier: int = Field(5, ge=1, le=1_000_000, description="The most copies of a text.")
    combine: Literal["rarest", "mean"] = Field(
        "rarest", description="What decides of a text's entries: the rarest, or the mean of what each would give."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        counts = self.head is not None or self.tail is not None
        if (self.target is not None) + (self.share is not None) + counts > 1:
            given = {name: getattr(self, name) for name in ("target", "share", "head", "tail")}
            said = ", ".join(f"{name}: {value}" for name, value in given.items() if value is not None)
            raise ValueError(f"{said}; give `target`, or `share`, or the counts `head` and `tail`")
        if self.head is not None and self.tail is not None and self.tail > self.head:
            raise ValueError(f"tail: {self.tail:g} is above head: {self.head:g}; the tail is what is rarer")
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
        falling = -self._book.counts  # the unit of the entry whose count comes closest from below
        stands = np.nan_to_num(self._stands(found), nan=0.0)
        return np.where(found.matched, np.searchsorted(falling, -stands, side="right").clip(1), 0)

    def _stands(self, found: Entries) -> NDArray[np.float64]:
        """The count (m,) that stands for each text; not a number for those of no entry."""
        counts = self._book.counts
        if self.combine == "mean":
            return power_mean(counts[found.entry], found.item, len(found), self.exponent)
        row = rarest(found.entry, found.item, len(found), empty=-1)
        return np.where(row < 0, np.nan, counts[row])

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._factor(self._stands(found), self._texts(counts))

    def _factor(self, counts: NDArray[np.generic], texts: NDArray[np.int64]) -> NDArray[np.float64]:
        tail, head = self.tail or 0.0, self.head or np.inf
        if self.head is None and self.tail is None:
            wanted = self._wanted(int(texts.sum()))
            tail = head = solve_threshold(self._book.counts, texts, wanted, self.exponent, self.least, self.multiplier)
        return repeat_factor(counts, tail, head, self.exponent, self.least, self.multiplier)

    def _wanted(self, texts: int) -> float:
        """Samples to expect. Raises TargetError where the texts cannot give as many."""
        wanted = self.target if self.target is not None else texts * (1.0 if self.share is None else self.share)
        if not texts * self.least <= wanted <= texts * self.multiplier:
            raise TargetError(
                f"{self.op}: {wanted:,.0f} samples asked for, but the {texts:,} texts that have an entry can give "
                f"{texts * self.least:,.0f} to {texts * self.multiplier:,} (least {self.least:g}, multiplier "
                f"{self.multiplier}); change target or share, or these limits"
            )
        return wanted

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copies expected per unit, rounded. Raises TargetError where the texts cannot give the target."""
        texts = self._texts(counts)
        return np.append(0, np.rint(texts * self._factor(self._book.counts, texts)).astype(np.int64))
