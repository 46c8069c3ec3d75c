"""`Pack`: a selection becomes a dataset that training reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    carried: dict[str, Any] = field(default_factory=dict)
    """Further columns of the index, the same names for every sample."""


class Pack(Stage):
    """Writes the dataset. The engine ranks the selection, hands each output shard its rows and publishes the files."""

    name: str
    shard_rows: int = 1000
    seed: int = 0

    def reads(self) -> tuple[str, ...]:
        """Columns that `write` needs."""
        return ()

    def text_columns(self) -> tuple[str, ...]:
        """Columns that may hold a sample's text, best first: `write` gets those that exist, and it is no error if one
        does not. Where items are packed, the first that exists must have a value per item."""
        return ()

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        """Put one sample into the tar; `add(member name, bytes)` returns the offset of the member's bytes. Raise Reject
        before anything is added, to leave the sample out. Of per-item columns, `row` has the item's element."""
        raise NotImplementedError

    def finish(self, tars: list[tuple[str, int]]) -> dict[str, bytes]:
        """(file name, samples) of every tar -> further files by name (sizes.json, wids index)."""
        return {}
