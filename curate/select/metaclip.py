"""`select.metaclip`: MetaCLIP's balance, in which each entry takes at most about t texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from curate.core.contracts import Artifact
from curate.kernels.entries import TAIL_SHARE, Entries, tail_count
from curate.select.balance import any_probability, log_missed, take_probability
from curate.select.items import SelectItems


class SelectMetaClip(SelectItems):
    """Take all texts of tail entries, and about t texts per head entry (MetaCLIP).

    A text is taken with probability 1 - prod(1 - p) over its entries, p = min(1, t / count) (Xu et al. 2023,
    Demystifying CLIP Data, section 3.4). t is given, or chosen for the pool so that entries with fewer than t texts
    have as close to `tail_share` of all matches as possible; the tail is not empty if counts differ. Entries of exactly
    t texts are also kept whole. With `by`, each group has a separate t from its own counts (MetaCLIP 2, for languages).
    Texts without an entry are rejected. Each text is drawn independently, by hash(seed, key, item): a larger t takes
    all that a smaller t takes.

    Rejects: no_text, no_entry, head_cut.
    """

    op: ClassVar[str] = "select.metaclip"
    version: ClassVar[int] = 2

    threshold: float | None = Field(None, gt=0, description="t, in texts per entry; or give `tail_share`.")
    tail_share: float | None = Field(
        None, gt=0, lt=1, description="Share of all matches in entries below t (default: 0.06)."
    )
    multiplier: Literal[1] = Field(1, description="Always 1: texts are not repeated.")

    _probability: NDArray[np.float64] = PrivateAttr()
    _missed: NDArray[np.float64] = PrivateAttr()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.threshold is not None and self.tail_share is not None:
            raise ValueError(f"threshold: {self.threshold:g} with tail_share: {self.tail_share:g}; give one of the two")
        return self

    def scaled(self, fraction: float) -> Self:
        if self.threshold is None:
            return self
        return self.model_copy(update={"threshold": self.threshold * fraction})

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        super().setup(artifacts)
        counts, group = self._table.counts, self._table.group
        if self.threshold is not None:
            thresholds = np.full(len(self._table.groups), self.threshold)
        else:
            share = TAIL_SHARE if self.tail_share is None else self.tail_share
            thresholds = np.array([tail_count(counts[group == g], share) for g in range(len(self._table.groups))])
        self._probability = take_probability(counts, np.append(thresholds, 1)[group])
        self._missed = log_missed(self._probability)

    def expected(self, found: Entries, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return any_probability(self._missed[found.entry], found.item, len(found))

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per unit, the expected texts that the rarest entry alone takes, rounded. Raises TargetError."""
        return np.append(0, np.rint(self._texts(counts) * self._probability).astype(np.int64))
