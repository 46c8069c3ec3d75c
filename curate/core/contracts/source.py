"""`Source`: makes a pool of external data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import field_validator

from curate.core.contracts.stage import Stage, plain_name


@dataclass(frozen=True)
class Portion:
    """The data of one shard. `content` (JSON-able) is all that `read` needs, and determines the shard."""

    content: dict[str, Any]
    rows: int | None = None
    """Most rows, if known without reading; otherwise None."""
    bytes: int = 0
    """Bytes to copy into the pool, as far as known without reading."""


@dataclass
class Incoming:
    """A sample to put into a pool: bytes to copy, or the location of its member in a tar that stays in place."""

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
    """Whether keys are unique across portions; otherwise the engine searches for repeats across shards."""
    namespace: str
    """Part of every key: the same source id in another namespace is another sample. Also names a folder."""

    _plain_namespace = field_validator("namespace", check_fields=False)(plain_name)

    def plan(self) -> list[Portion]:
        """The data to read, divided into shards. Raises InputError if there is none."""
        raise NotImplementedError

    def tar(self, portion: Portion) -> str | None:
        """URL of the existing tar of the portion's members, which stays in place; None if bytes are copied."""
        return None

    def read(self, portion: Portion) -> Iterator[Incoming]:
        raise NotImplementedError
