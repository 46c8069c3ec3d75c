"""A toy Derive and its pipelines: tiles of a picture become samples of their own."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

from curate.core.contracts import Child, Derive, Resources, Runtime, Sample
from curate.core.errors import Reject
from curate.core.recipe.pipeline import Pipeline
from tests.engine import toys


class Tiles(Derive):
    """`each` columns of a picture as pictures; does something else with the pictures of given numbers."""

    op: ClassVar[str] = "toy.tiles"
    child_kind: ClassVar[str] = "tile"
    namespace: str = "tiles"
    each: int = 2
    refused: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    none: tuple[int, ...] = ()
    killing: tuple[int, ...] = ()
    broken: Annotated[tuple[int, ...], Runtime()] = ()
    log: Annotated[str, Runtime()] = ""

    def resources(self) -> Resources:
        return Resources(cpus=1)

    def children(self, sample: Sample) -> Iterator[Child]:
        number = int(str(sample.row["caption"]).split()[-1])
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{number}\n")
        if number in self.killing:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in self.none:
            return
        image = sample.image()
        width = image.width // self.each
        for place in range(self.each):
            out = io.BytesIO()
            image.crop((place * width, 0, (place + 1) * width, image.height)).save(out, "BMP")
            span = {"left": 0 if number in self.twice else place * width}
            yield Child(span, out.getvalue(), "bmp", {"tile": place})
        if number in self.refused:
            raise Reject("unwanted")
        if number in self.broken:
            raise ValueError(f"cannot cut {number}")


def computed(log: Path) -> list[int]:
    """Numbers of the parents whose children were made, in order; forgotten afterwards."""
    found = [int(line) for line in log.read_text().split()] if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def pipeline(**changes: Any) -> Pipeline:
    """Numbers -> brightness, light -> tiles -> their brightness, parity -> even -> pack -> page;
    `stage__parameter=value` changes one."""
    made = Pipeline()
    for name, (cls, inputs) in STAGES.items():
        values = {key.partition("__")[2]: value for key, value in changes.items() if key.startswith(f"{name}__")}
        if cls is toys.Numbers:
            values = {"namespace": "toys", "rows": 20, "shard_rows": 5} | values
        made.add(name, cls(**values), inputs)
    return made.check()


STAGES: dict[str, Any] = {
    "pool": (toys.Numbers, ()),
    "bright": (toys.Brightness, ("pool",)),
    "light": (toys.Light, ("bright",)),
    "tiles": (Tiles, ("light",)),
    "shade": (toys.Brightness, ("tiles",)),
    "lit": (toys.Light, ("shade",)),
    "parity": (toys.Parity, ("lit",)),
    "total": (toys.Total, ("parity",)),
    "even": (toys.Even, ("parity",)),
    "dataset": (toys.PlainPack, ("even",)),
    "page": (toys.Page, ("dataset",)),
}
