"""`Source`: what is outside becomes a pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import field_validator

from curate.core.contracts.stage import Stage, plain_name


@dataclass(frozen=True)
class Portion:
    """What goes into one shard. `content` (JSON-able) is all that `read` needs and all that decides the shard."""

    content: dict[str, Any]
    rows: int | None = None
    """Rows at most, where that is known without reading; None otherwise."""
    bytes: int = 0
    """Bytes that will be copied into the pool, as far as is known without reading."""


@dataclass
class Incoming:
    """One sample on its way into a pool: bytes to copy, or the place of its member in a tar that stays where it is."""

    source_id: str
    name: str = ""
    """Member stem in the source; becomes the member's name in our tar when empty (then the key)."""
    ext: str = ""
    data: bytes | None = None
    offset: int | None = None
    size: int | None = None
    caption: str | None = None
    url: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    reject: str | None = None


class Source(Stage):
    unique_keys: ClassVar[bool] = False
    """Whether keys cannot repeat across portions; otherwise the engine looks for repeats across shards."""
    namespace: str
    """Enters every key: the same source id in another namespace is another sample. Names a folder too."""

    _plain_namespace = field_validator("namespace", check_fields=False)(plain_name)

    def plan(self) -> list[Portion]:
        """What there is to read, cut into shards. Raises InputError when there is nothing."""
        raise NotImplementedError

    def tar(self, portion: Portion) -> str | None:
        """URL of the tar that already holds the portion's members and stays in place; None when bytes are copied."""
        return None

    def read(self, portion: Portion) -> Iterator[Incoming]:
        raise NotImplementedError
