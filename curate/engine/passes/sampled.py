"""An AsyncMap in a measurement (`curate plan --measure`): it asks a few rows and leaves the others out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate.core.nouns.facts import MISSING
from curate.engine.passes.async_map import AsyncMember
from curate.engine.passes.member import LEFT_OUT
from curate.engine.passes.task import StageResult

if TYPE_CHECKING:
    from curate.engine.requests.client import Answered


class SampledMember(AsyncMember):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._taken = self._reached = 0
        self._measured: list[dict[str, Any]] = []

    def _reuse(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first rows without an answer, as many as may be asked."""
        left = super()._reuse(rows)
        assert self.task.sample is not None
        left = left[: max(0, self.task.sample.asks.get(self.name, 0) - self._taken)]
        self._taken += len(left)
        return left

    def _settle(self) -> None:
        """Rows that are not asked leave before this stage, so that no count includes them."""
        start, stop = self.resolved, max(self.resolved, self._unfinished())
        self._reached += int(self.before.alive[start:stop].sum())
        out = self.before.alive[start:stop] & (self.facts.status[start:stop] == MISSING)
        self.before.leave(start + np.flatnonzero(out), self.spec.place, [LEFT_OUT] * int(out.sum()))
        super()._settle()

    def _accept_all(self, ended: Sequence[tuple[list[int], Answered]]) -> None:
        for rows, answered in ended:
            spend = {name: spent.to_json() for name, spent in answered.spend.items()}
            self._measured.append({"rows": len(rows), "seconds": answered.seconds, "spend": spend})
        super()._accept_all(ended)

    def result(self, index: int, start: int, stop: int) -> StageResult:
        found = super().result(index, start, stop)
        whole = {"asked": self._taken, "reached": self._reached, "measured": self._measured}
        return found | whole if index == 0 else found
