"""An experiment: images with a size, a threshold, texts with a rule, and two costly stages. Tests
count what each change computes; `bench/engine/rules.py` prints it with times."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from curate.core.contracts import Batch, Filter, Incoming, Map, Portion, Runtime, Sample, Source, Table
from curate.core.recipe.pipeline import Pipeline
from tests.engine import toys

IMAGES, SHARD_ROWS = 128, 32
SMALL, LARGE = 40, 70
"""Sides in pixels: every fourth image is small."""
MEETING: list[threading.Barrier] = []
"""Where runs in several threads meet before each batch of the toy LLM."""


class Sizes(Source):
    """Images of two sizes. Every 32nd text has a word that a rule takes away; `distinct` images repeat."""

    op: ClassVar[str] = "rules.sizes"
    rows: Annotated[int, Runtime()] = IMAGES
    shard_rows: int = SHARD_ROWS
    distinct: int = 0

    def plan(self) -> list[Portion]:
        starts = range(0, self.rows, self.shard_rows)
        return [Portion({"start": a, "stop": min(a + self.shard_rows, self.rows)}, self.shard_rows) for a in starts]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for number in range(portion.content["start"], portion.content["stop"]):
            image = number % self.distinct if self.distinct else number
            data = toys.image(image, SMALL if image % 4 == 0 else LARGE)
            text = f"buy now image {image}" if image % 32 == 5 else f"image {image}"
            yield Incoming(f"{number:06d}", ext="bmp", data=data, caption=text)


class Inspect(Map):
    op: ClassVar[str] = "rules.inspect"
    pixels: ClassVar[bool] = True

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("side", pa.int64()), pa.field("brightness", pa.float64())])

    def prepare(self, sample: Sample) -> tuple[int, float]:
        image = sample.image()
        return min(image.size), float(np.asarray(image).mean())

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"side": [side for side, _ in batch.prepared], "brightness": [mean for _, mean in batch.prepared]}


class MinSide(Filter):
    op: ClassVar[str] = "rules.min_side"
    min_side: int = 0

    def reads(self) -> tuple[str, ...]:
        return ("side",)

    def keep(self, table: Table) -> Any:
        return ["too_small" if side < self.min_side else None for side in table.column("side").to_pylist()]


class Clean(Map):
    """A text rule, on or off."""

    op: ClassVar[str] = "rules.clean"
    rule: bool = False

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("text", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = batch.column("caption")
        return {"text": [text.removeprefix("buy now ") if self.rule else text for text in texts]}


class LoggedMap(Map):
    """Notes in a `log` each row that it is asked for."""

    costly: ClassVar[bool] = True
    log: Annotated[str, Runtime()] = ""

    def note(self, batch: Batch) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.writelines(f"{key}\n" for key in batch.column("key"))


class Embed(LoggedMap):
    op: ClassVar[str] = "rules.embed"
    pixels: ClassVar[bool] = True

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("embedding", pa.binary(16))])

    def prepare(self, sample: Sample) -> bytes:
        return np.asarray(sample.image()).reshape(-1)[:16].tobytes()

    def process(self, batch: Batch) -> dict[str, Any]:
        self.note(batch)
        return {"embedding": batch.prepared}


class Caption(LoggedMap):
    """The toy LLM: reads the text and says something about it. Texts that `fails` ends are reported as bad, those that
    `raises` ends bring the whole batch down."""

    op: ClassVar[str] = "rules.caption"
    batch_rows: ClassVar[int] = 32
    fails: Annotated[tuple[str, ...], Runtime()] = ()
    raises: Annotated[tuple[str, ...], Runtime()] = ()

    def reads(self) -> tuple[str, ...]:
        return ("text",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("answer", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        for meeting in MEETING:
            meeting.wait(60)
        self.note(batch)
        texts = batch.column("text")
        for row, text in enumerate(texts):
            if text.endswith(self.raises or ("\0",)):
                raise ValueError(f"cannot digest {text!r}")
            if text.endswith(self.fails or ("\0",)):
                batch.fail(row, "http_503")
        mood = f" by {threading.get_ident()}" if MEETING else ""
        return {"answer": [f"about {text}{mood}" for text in texts]}


class Echo(Map):
    """Repeats the answer, or says that there is none."""

    op: ClassVar[str] = "rules.echo"

    def reads(self) -> tuple[str, ...]:
        return ("answer",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("echo", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"echo": [answer or "silence" for answer in batch.column("answer")]}


GLOBAL = ("total", "even", "dataset", "page")
READERS = ("contrast",)
"""Maps that read an artifact."""
COSTLY_STAGES = ("embed", "caption")


def pipeline(
    min_side: int = 32,
    rule: bool = False,
    other: int = 0,
    keep_null: bool = False,
    namespace: str = "rules",
    logs: Path | None = None,
    source: dict[str, Any] | None = None,
    **caption: Any,
) -> Pipeline:
    """inspect -> size -> text -> {embed, caption}, and global stages behind. `other` is a second threshold beside the
    first one's branch; `logs` a folder for `embed` and `caption`."""
    log = {name: str(logs / name) if logs else "" for name in COSTLY_STAGES}
    made = Pipeline().add("pool", Sizes(**{"namespace": namespace} | (source or {})))
    made.add("inspect", Inspect(), "pool").add("size", MinSide(min_side=min_side), "inspect")
    made.add("other", MinSide(min_side=other), "inspect").add("text", Clean(rule=rule), "size")
    made.add("embed", Embed(log=log["embed"]), "text")
    made.add("caption", Caption(log=log["caption"], **caption), "text", keep_null=keep_null)
    made.add("echo", Echo(), "caption").add("parity", toys.Parity(), "echo")
    made.add("total", toys.Total(), ("embed", "parity", "other"))
    made.add("contrast", toys.Brighter(), ("embed", "parity", "other"), total="total")
    made.add("even", toys.Even(each=8), "contrast").add("dataset", toys.PlainPack(name="rules"), "even")
    return made.add("page", toys.Page(), "dataset").check()


class Logs:
    """Rows requested from the costly stages since the last call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._seen = dict.fromkeys(COSTLY_STAGES, 0)

    def new(self) -> dict[str, list[str]]:
        found = {}
        for name in COSTLY_STAGES:
            path = self.folder / name
            lines = path.read_text().splitlines() if path.exists() else []
            found[name] = lines[self._seen[name] :]
            self._seen[name] = len(lines)
        return found
