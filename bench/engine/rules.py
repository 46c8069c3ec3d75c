"""Score once, decide later: what a changed threshold, rule or bad row computes. 128 images, two costly stages.

python -m bench.engine.rules
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine.experiment import COSTLY_STAGES, Logs, pipeline

RETRY = Options(failure_budget=1.0, retry={"caption": ()})


class Bench:
    """Runs of the experiment in one folder, a line of the table each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, Logs(folder / "logs")
        self.table = Table("workspace", "change", header_style="bold")
        for name in ("alive", *(f"asked of {stage}" for stage in COSTLY_STAGES), "rebuilt", "seconds"):
            self.table.add_column(name, justify="right")

    def __call__(self, place: str, change: str, options: Options | None = None, **changes: Any) -> Result:
        began = time.perf_counter()
        recipe = pipeline(logs=self.logs.folder, **changes)
        result = run(recipe, str(self.folder / place), options=options or Options(failure_budget=1.0))
        seconds = time.perf_counter() - began
        stages = result.stages()
        asked = [f"{len(rows)}" for rows in self.logs.new().values()]
        rebuilt = sum(said["rebuilt"] for said in stages.values())
        alive = f"{result.ledger['size'].after}"
        self.table.add_row(place, change, alive, *asked, f"{rebuilt} of {len(stages)}", f"{seconds:.2f}")
        return result


def thresholds(bench: Bench) -> None:
    bench("from 32", "min_side 32", min_side=32)
    bench("from 32", "32 -> 33, no row different", min_side=33)
    bench("from 32", "33 -> 64", min_side=64)
    bench("from 32", "64 -> 32", min_side=32)
    bench("from 64", "min_side 64", min_side=64)
    bench("from 64", "64 -> 32", min_side=32)


def inputs(bench: Bench) -> None:
    bench("rules", "a text rule off")
    bench("rules", "a text rule on: 3 % of the texts", rule=True)
    bench("rules", "the same images in another pool", namespace="again", rule=True)


def failures(bench: Bench) -> None:
    bench("bad row", "one row reported as bad", fails=(" 77",))
    bench("bad row", "the same again")
    bench("bad row", "curate retry", options=RETRY)
    bench("raises", "one row that raises", raises=(" 77",))
    bench("raises", "curate retry", options=RETRY)


def main() -> None:
    parts: list[Callable[[Bench], None]] = [thresholds, inputs, failures]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for part in parts:
            part(bench)
            bench.table.add_section()
    Console(width=140).print(bench.table)


if __name__ == "__main__":
    main()
