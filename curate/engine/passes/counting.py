"""Members of a pass that compute nothing: they count what a run would compute, for a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.nouns.facts import MISSING
from curate.core.nouns.masks import Fate
from curate.engine.passes.map import MapMember
from curate.engine.passes.member import FilterMember, PassMember
from curate.engine.passes.task import StageResult


class Counting(PassMember):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unsure = np.zeros(self.unit.rows, dtype=bool)
        """Rows whose fate depends on missing facts."""

    def _arrive(self, start: int, stop: int) -> Fate:
        for member in self.near:
            assert isinstance(member, Counting)
            self.unsure[start:stop] |= member.unsure[start:stop]
        return super()._arrive(start, stop)


class CountingFilter(Counting, FilterMember):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gains = np.zeros(self.unit.rows, dtype=np.int8)
        """1 for rows that pass and that the last run's filter rejected, -1 for the reverse."""

    def _arrive(self, start: int, stop: int) -> Fate:
        for facts in self.makers.values():
            self.unsure[start:stop] |= facts.status[start:stop] == MISSING
        return super()._arrive(start, stop)

    def judged(self, start: int, stop: int, fate: Fate) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = fate.alive & ~self.unsure[start:stop]
        return found

    def note(self, rows: NDArray[np.int64], table: pa.Table, reasons: list[str | None]) -> None:
        if self.spec.earlier is not None and not self.spec.family:
            before = np.asarray(pa.array(self.spec.earlier.keep(table), pa.string()).is_null())
            self._gains[rows] = np.array([reason is None for reason in reasons]).astype(np.int8) - before

    def result(self, index: int, start: int, stop: int) -> StageResult:
        found = super().result(index, start, stop)
        found["unsure"] = int((self.unsure & self.before.alive)[start:stop].sum())
        if self.spec.earlier is not None:
            gains = self._gains[start:stop]
            found |= {"gains": int((gains > 0).sum()), "losses": int((gains < 0).sum())}
        return found


class CountingMap(Counting, MapMember):
    """Rows whose inputs may be missing are only counted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.todo = np.zeros(self.unit.rows, dtype=bool)
        """Rows that a run would compute."""
        self._vague = np.zeros(self.unit.rows, dtype=bool)
        """Rows that may be rejected before they get here."""

    def _needed(self, start: int, stop: int, fate: Fate) -> NDArray[np.bool_]:
        missing = super()._needed(start, stop, fate)
        self._vague[start:stop] = self.unsure[start:stop]
        self.todo[start:stop] = missing
        return missing & ~self.unsure[start:stop] if self.makers else missing

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Give rows their answers if these are known, as in a run."""
        if len(rows) and self.facts.input is not None:
            self.todo[rows] = False
            self.todo[self._reuse(rows)] = True

    def _settle(self) -> None:
        start, stop = self.resolved, self._unfinished()
        super()._settle()
        unknown = (self.facts.status[start:stop] == MISSING) | self.todo[start:stop]
        self.unsure[start:stop] |= self.after.alive[start:stop] & unknown

    def result(self, index: int, start: int, stop: int) -> StageResult:
        found = super().result(index, start, stop)
        alive, todo = self.before.alive[start:stop], self.todo[start:stop]
        found["lacking"], found["unsure"] = int((alive & todo).sum()), int((alive & self._vague[start:stop]).sum())
        return found | {"known": int((alive & self.facts.stored(start, stop) & ~todo).sum())}
