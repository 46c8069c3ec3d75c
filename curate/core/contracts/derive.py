"""`Derive`: a pool of samples derived from samples: frames of an animation, pages, later clips and crops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import field_validator

from curate.core.contracts.map import Sample
from curate.core.contracts.source import Source
from curate.core.contracts.stage import Stage, plain_name


@dataclass
class Child:
    """A sample derived from a parent. `span` (JSON-able, such as {"frame": 3} or {"start": 1.0, "stop": 2.5}) is its
    part of the parent; its key is a hash of (parent key, the op's `child_kind`, span)."""

    span: dict[str, Any]
    data: bytes | None
    """None: what the parent's medium extracts for the span, whenever it is read (a virtual child)."""
    ext: str
    meta: dict[str, Any] = field(default_factory=dict)
    probe: Any = None
    """For virtual children: what the probe of their medium would find, as far as it is known."""


class Derive(Stage):
    """A pool whose samples have a `parent`, a `root` and a `span`. Downstream stages see the children."""

    child_kind: ClassVar[str] = ""
    """Kind of the children, such as `frame`. Enters their keys."""
    media: ClassVar[tuple[str, ...]] = ("image",)
    """Names of the media (curate.codec.media) of the children; `sees` has those of the parents."""
    namespace: str
    """Names the pool's folder."""

    @property
    def virtual(self) -> bool:
        """Whether the children are."""
        return False

    _plain_namespace = field_validator("namespace", check_fields=False)(plain_name)

    def children(self, sample: Sample) -> Iterator[Child]:
        """Children in order of their spans, each span once. Raise Reject if the parent is unusable. `sample.row` has
        the parent's `key`, `source_id`, `name`, `caption`, `url` and `meta` (JSON), and the columns that the stage
        `reads`. A parent for which one of these is in error has no children until it is retried: its reason is
        `error_upstream`."""
        raise NotImplementedError


def media_of(stage: Source | Derive) -> tuple[str, ...]:
    """Names of the media (curate.codec.media) of the pool that it makes. Those of a Source may be a parameter."""
    return tuple(getattr(stage, "media", ("image",)))
