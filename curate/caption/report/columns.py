"""Which columns of a view belong to which text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from curate.core.view import View

ANSWERED = (
    "outcome", "model", "fingerprint", "prompt", "endpoint", "seed", "prompt_tokens", "completion_tokens",
)  # fmt: skip
"""Parts of the names of the columns that an asking stage writes beside its text NAME: NAME_outcome …"""
CHECK, INJECTION = "check", "injection"
"""NAME_check: why the text fails its checks; null if it passes. NAME_injection: the sign by which it follows an order
that its context contains; null if it does not."""
CHOSEN, CHOSEN_FROM = "chosen", "chosen_from"
ORIGINALS = ("text", "caption")
STRUCTURED = ("caption.ask", "caption.judge")
"""Ops whose answers are JSON."""


@dataclass(frozen=True)
class TextColumn:
    """A column of texts, with the columns about it."""

    name: str
    stage: str | None
    """The asking stage that wrote it; None for the original and for texts that a stage chose."""
    answered: tuple[str, ...]
    """Those of ANSWERED that exist."""
    about: tuple[str, ...]
    """Other columns NAME_*, such as those of its checks."""
    structured: bool = False

    @property
    def asked(self) -> bool:
        return "outcome" in self.answered

    @property
    def check(self) -> str | None:
        """The column with the reason why a text fails."""
        return self._about(CHECK)

    @property
    def injection(self) -> str | None:
        return self._about(INJECTION)

    def _about(self, part: str) -> str | None:
        return next((name for name in self.about if name == f"{self.name}_{part}"), None)

    @property
    def columns(self) -> list[str]:
        return [self.name, *(f"{self.name}_{part}" for part in self.answered), *self.about]


def text_columns(view: View, original: str | None, names: Sequence[str] | None) -> list[TextColumn]:
    """The original (the first ones of ORIGINALS by default), then the texts `names`: by default the answers of all
    asking stages, and the chosen texts. Columns that do not exist are left out."""
    known = view.columns()
    asked = [name.removesuffix("_outcome") for name in known if name.endswith("_outcome")]
    asked = [name for name in asked if name in known]
    if names is None:
        names = [*asked, *([CHOSEN] if CHOSEN in known and CHOSEN not in asked else [])]
    first = original or next((name for name in ORIGINALS if name in known), None)
    shown = [name for name in dict.fromkeys([first, *names]) if name is not None and name in known]
    owners = sorted({*shown, *asked}, key=len, reverse=True)
    about: dict[str, list[str]] = {}
    for column in known:
        owner = next((name for name in owners if column.startswith(f"{name}_")), None)
        if owner and column not in owners:
            about.setdefault(owner, []).append(column.removeprefix(f"{owner}_"))
    return [_text_column(view, name, about.get(name, [])) for name in shown]


def _text_column(view: View, name: str, parts: Sequence[str]) -> TextColumn:
    answered = tuple(part for part in ANSWERED if part in parts) if "outcome" in parts else ()
    stage = _writer(view, name) if answered else None
    return TextColumn(
        name=name,
        stage=stage,
        answered=answered,
        about=tuple(f"{name}_{part}" for part in parts if part not in answered and f"{name}_{part}" != CHOSEN_FROM),
        structured=stage is not None and view.stages[stage].op in STRUCTURED,
    )


def _writer(view: View, name: str) -> str | None:
    """The stage whose `output` is this column."""
    found = (
        stage
        for stage, made in view.stages.items()
        if made.parameters.get("output") == name and made.op.startswith("caption.")
    )
    return next(found, None)
