"""How the stages ran and what they were asked to do: time, rate, bytes, parameters, fingerprints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curate.core.nouns import Manifest

VALUE_CHARACTERS = 600


@dataclass(frozen=True)
class Timing:
    name: str
    op: str
    seconds: float
    share: float
    """Percent of the longest."""
    rows: int
    built_rows: int
    rate: float | None
    """Rows a second; None where nothing was computed or too fast to say."""
    bytes: int

    @property
    def state(self) -> str:
        if self.rows and not self.built_rows:
            return "cached"
        return "computed" if self.built_rows >= self.rows else "partly cached"


def timings(stages: Mapping[str, Manifest]) -> list[Timing]:
    longest = max((manifest.seconds for manifest in stages.values()), default=0.0) or 1.0
    return [_timing(name, manifest, longest) for name, manifest in stages.items()]


def _timing(name: str, manifest: Manifest, longest: float) -> Timing:
    rows = manifest.entry.before or manifest.rows
    built = min(manifest.built_rows, rows)
    rate = built / manifest.seconds if built and manifest.seconds > 0 else None
    share = 100 * manifest.seconds / longest
    return Timing(name, manifest.op, manifest.seconds, share, rows, built, rate, manifest.bytes)


@dataclass(frozen=True)
class Card:
    """One stage of the recipe. Values are (name, text) pairs."""

    name: str
    op: str
    noun: str
    version: int
    fingerprint: str
    parameters: list[tuple[str, str]]
    identity: list[tuple[str, str]]
    inputs: list[tuple[str, str]]
    counters: list[tuple[str, int]]


def cards(stages: Mapping[str, Manifest]) -> list[Card]:
    return [
        Card(
            name=name,
            op=manifest.op,
            noun=manifest.noun,
            version=manifest.version,
            fingerprint=manifest.fingerprint,
            parameters=_pairs(manifest.parameters),
            identity=_pairs(manifest.identity),
            inputs=_pairs(manifest.inputs),
            counters=manifest.entry.counters.most_common(),
        )
        for name, manifest in stages.items()
    ]


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _shown(value)) for name, value in values.items()]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"
