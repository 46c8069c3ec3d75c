"""`Pack`: a selection becomes a dataset that training reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from curate.core.contracts.stage import Stage


@dataclass(frozen=True)
class Packed:
    """One member group as it lies in an output tar: what the dataset's index says of it."""

    ext: str
    offset: int
    size: int
    text_offset: int = -1
    text_size: int = 0
    width: int | None = None
    height: int | None = None


class Pack(Stage):
    """Writes the dataset. The engine ranks the selection, hands each output shard its rows and publishes the files."""

    name: str
    shard_rows: int = 1000
    seed: int = 0

    def texts(self) -> tuple[str, ...]:
        """Columns of which the first that is there holds an item's text: with a value per item, if items are packed."""
        return ()

    def reads(self) -> tuple[str, ...]:
        """Columns that `write` needs or that the index carries."""
        return ()

    def reads_if_there(self) -> tuple[str, ...]:
        """Columns that `write` uses when something upstream writes them."""
        return ()

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        """Put one sample into the tar; `add(member name, bytes)` returns the offset of the member's bytes. Raise Reject
        before anything is added, to leave the sample out. Of per-item columns, `row` has the item's element."""
        raise NotImplementedError

    def carried(self) -> tuple[str, ...]:
        """Columns that go into the index beside the fixed ones."""
        return ()

    def carried_values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Their values for a row."""
        return {name: row[name] for name in self.carried()}

    def finish(self, tars: list[tuple[str, int]]) -> dict[str, bytes]:
        """(file name, samples) of every tar -> further files by name (sizes.json, wids index)."""
        return {}
