"""A list of rows in JSON files, and a source that fetches them from a store that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import PrivateAttr

from curate.core.contracts import Artifact, Collect, Fetch, Incoming, Portion, Runtime, Source
from curate.core.contracts.collect import GROUP, ROW
from tests.engine.toys.rows import image

SPREAD = 0x9E3779B97F4A7C15
"""Spreads small numbers over 64 bits."""


class Listed(Collect):
    """Rows [group, row] of the JSON files of a folder; a row whose group is null is dropped."""

    op: ClassVar[str] = "toys.list"
    kind: ClassVar[str] = "toys_list"
    folder: Annotated[str, Runtime()]
    portion_rows: int = 4

    def plan(self) -> list[Portion]:
        files = sorted(Path(self.folder).glob("*.json"))
        return [Portion({"path": f.name, "stamp": f.read_text()}, bytes=f.stat().st_size) for f in files]

    def read(self, portion: Portion) -> Iterator[pa.Table]:
        rows = json.loads((Path(self.folder) / portion.content["path"]).read_text())
        for start in range(0, len(rows), 3):
            some = rows[start : start + 3]
            yield pa.table(
                {
                    "name": pa.array([f"{group}-{row}" for group, row in some], pa.string()),
                    GROUP: pa.array([None if g is None else g * SPREAD % 2**64 for g, _ in some], pa.uint64()),
                    ROW: pa.array([row for _, row in some], pa.uint64()),
                    "reject": pa.array(["no_group" if g is None else None for g, _ in some], pa.string()),
                }
            )


class Fetched(Source):
    """A row is an image, unless `store` says otherwise: a JSON file {name: code}; codes in capitals may pass. Appends
    the name of every row that it fetches to `store`.log."""

    op: ClassVar[str] = "toys.fetch"
    ports: ClassVar[dict[str, str]] = {"list": "toys_list"}
    unique_keys: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False
    namespace: str = "fetched"
    store: Annotated[str, Runtime()]
    _list: Any = PrivateAttr(None)

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        self._list = artifacts["list"]

    def plan(self) -> list[Portion]:
        lines = self._list["portions"].to_pylist()
        return [Portion({"rows": line["digest"]}, line["rows"], place=line) for line in lines]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        codes = json.loads(Path(self.store).read_text())
        for name in self._list.portion(portion.place)["name"].to_pylist():
            if portion.only is not None and name not in portion.only:
                continue
            with open(f"{self.store}.log", "a") as log:
                log.write(f"{name}\n")
            code = codes.get(name)
            fetch = Fetch(f"host-{name.partition('-')[0]}", tries=2 if code else 1, bytes=100)
            if code is None:
                yield Incoming(name, ext="png", data=image(int(name.partition("-")[0])), fetch=fetch)
            else:
                status: Any = "error" if code.isupper() else "unusable"
                yield Incoming(name, reject=code.lower(), status=status, fetch=fetch)
