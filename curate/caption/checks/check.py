"""`caption.check`: what is wrong with texts that models wrote, as columns. It asks no model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from curate.caption.checks.judge import Judge, Scores, TextLimits, strings_of
from curate.caption.prompt import PromptOf
from curate.core.contracts import Added, Batch, Map
from curate.core.errors import CurateError
from curate.kernels.meta import META, field_of

WORDS = {"units": "words"}
COLUMNS: dict[str, tuple[pa.DataType, dict[str, str]]] = {
    "words": (pa.int32(), WORDS),
    "characters": (pa.int32(), {"units": "characters"}),
    "loop_words": (pa.int32(), WORDS | {"of": "longest stretch with a unit three times or more; 0 without one"}),
    "repeated": (pa.float32(), {"units": "share of characters in 4-grams of words that occurred before"}),
    "compression": (pa.float32(), {"units": "bytes, one per character, per byte of zlib"}),
    "ending": (pa.string(), {"values": "complete, no_end (unlike an earlier sentence), broken_off"}),
    "declines": (pa.bool_(), {"of": "whether the model says that it does not answer"}),
    "chats": (pa.bool_(), {"of": "whether the model talks to a user"}),
    "leaked_words": (pa.int32(), WORDS | {"of": "longest run that a prompt has too"}),
    "marks": (pa.bool_(), {"of": "whether it has marks around the context or of thoughts, or special tokens"}),
    "unknown_names": (pa.int32(), WORDS | {"of": "capitalised, in no context; null without context"}),
    "unknown_numbers": (pa.int32(), {"units": "numbers", "of": "in no context; null without context"}),
    "injection": (pa.string(), {"of": "sign by which the text follows an order in its context; null: it does not"}),
}
"""Suffix -> type and field metadata of a check's column."""
REASON = "check"
"""Suffix of the column of reasons."""


class Check(Map):
    """Check texts that models wrote: repetitions, apologies, chat, truncation, length, words of the prompt, names and
    numbers that no context has, and orders of the context that the model followed.

    Each check is a column, null for a null text. COLUMN_check is the first reason against a text, or null if it passes;
    caption.repair and caption.choose read it, and so may filter.where. Reasons: refused, empty (the outcome), missing
    (null), declines, injection, leaked_prompt, repetition, chat, truncated, too_short, too_long, unknown_names,
    unknown_numbers, language, similarity. The counter of a reason is check_REASON.
    """

    op: ClassVar[str] = "caption.check"
    version: ClassVar[int] = 2
    batch_rows: ClassVar[int] = 1024

    column: str = Field("generated", description="Column of texts, one per row.")
    outcomes: bool = Field(
        True, description="Whether COLUMN_outcome exists, as for texts of the stages that ask; false for other texts."
    )
    prompts: list[PromptOf] = Field(
        default_factory=list,
        description="Prompts to which the texts were written: included names or files. Their words must not be in the "
        "texts, and the columns of their context are read.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="label -> column (or meta.<field>) of the prompts' context, as in the stage that asked.",
    )
    context: tuple[str, ...] = Field(
        (), description="Further columns (or meta.<field>) of texts that the model was given."
    )
    thoughts: Annotated[Literal["fail", "keep"], Added()] = Field(
        "fail", description="A text with a mark such as <think> is a leaked_prompt; keep: texts may rightly have them."
    )
    limits: TextLimits = Field(TextLimits(), description="Limits beyond which a text has a reason.")
    language_column: str | None = Field(None, description="Column of language codes, from text.language.")
    languages: tuple[str, ...] = Field((), description="Codes that a text may have; others have the reason language.")
    similarity_column: str | None = Field(None, description="Column of similarities, from align.similarity.")
    min_similarity: float | None = Field(
        None, description="Similarity below which a text has the reason similarity. A null similarity is not below."
    )

    _judge: Judge | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _pairs(self) -> Check:
        if (self.language_column is None) != (not self.languages):
            raise ValueError("languages: give both `language_column` and `languages`, or neither")
        if (self.similarity_column is None) != (self.min_similarity is None):
            raise ValueError("min_similarity: give both `similarity_column` and `min_similarity`, or neither")
        labels = {label for prompt in self.prompts for label in prompt.context}
        for label in self.columns.keys() - labels:
            known = ", ".join(sorted(labels)) or "none"
            raise ValueError(f"columns: no prompt has the context {label!r}; there are: {known}")
        return self

    def parameters(self) -> dict[str, Any]:
        found = super().parameters()
        for prompt in found["prompts"]:
            del prompt["description"]
        return found

    def _sources(self) -> list[str]:
        """Columns, or fields meta.<field>, of the context."""
        named = [self.columns.get(label, prompt.context[label]) for prompt in self.prompts for label in prompt.context]
        return [name for name in dict.fromkeys([*named, *self.context]) if name != self.column]

    def meta_fields(self) -> tuple[str, ...]:
        return tuple(self._sources())

    def reads(self) -> tuple[str, ...]:
        names = [self.column, *([f"{self.column}_outcome"] if self.outcomes else [])]
        names += ["meta" if name.startswith(META) else name for name in self._sources()]
        return tuple(dict.fromkeys([*names, *filter(None, (self.language_column, self.similarity_column))]))

    def use_of(self, column: str) -> str:
        return "`outcomes`: false for texts that no stage wrote" if column == f"{self.column}_outcome" else ""

    def schema(self) -> pa.Schema:
        of = {"of": self.column}
        checks = COLUMNS.items()
        fields = [pa.field(f"{self.column}_{name}", kind, metadata=of | about) for name, (kind, about) in checks]
        reason = {"of": f"first reason against {self.column}; null: it passes"}
        return pa.schema([*fields, pa.field(f"{self.column}_{REASON}", pa.string(), metadata=reason)])

    def process(self, batch: Batch) -> dict[str, Any]:
        judge = self._judged()
        texts = _texts(self.op, self.column, batch)
        outcomes = batch.column(f"{self.column}_outcome") if self.outcomes else [None] * len(batch)
        scores: list[Scores | None] = []
        reasons: list[str | None] = []
        for text, outcome, values in zip(texts, outcomes, self._contexts(batch), strict=True):
            found = judge.scores(text, values) if text is not None else None
            scores.append(found)
            reasons.append(judge.reason(text, outcome, found))
        self._by_columns(batch, reasons)
        for reason in filter(None, reasons):
            batch.counters[f"check_{reason}"] += 1
        columns = {name: [None if one is None else getattr(one, name) for one in scores] for name in COLUMNS}
        found_columns = {f"{self.column}_{name}": pa.array(columns[name], COLUMNS[name][0]) for name in COLUMNS}
        return found_columns | {f"{self.column}_{REASON}": pa.array(reasons, pa.string())}

    def _judged(self) -> Judge:
        if self._judge is None:
            self._judge = Judge(self.prompts, self.limits, self.thoughts == "keep")
        return self._judge

    def _contexts(self, batch: Batch) -> list[list[str]]:
        """The texts of the context of each row."""
        rows: list[list[str]] = [[] for _ in range(len(batch))]
        for name in self._sources():
            values = batch.column("meta" if name.startswith(META) else name)
            if name.startswith(META):
                values = [field_of(value, name) for value in values]
            for row, value in zip(rows, values, strict=True):
                row += strings_of(value)
        return rows

    def _by_columns(self, batch: Batch, reasons: list[str | None]) -> None:
        """Adds the reasons by the columns of other stages."""
        if self.language_column is not None:
            for row, language in enumerate(batch.column(self.language_column)):
                if reasons[row] is None and language not in self.languages:
                    reasons[row] = "language"
        if self.similarity_column is not None and self.min_similarity is not None:
            least = float(np.float32(self.min_similarity))
            for row, value in enumerate(batch.column(self.similarity_column)):
                values = value if isinstance(value, list) else [value]
                found = min((one for one in values if one is not None), default=None)
                if reasons[row] is None and found is not None and found < least:
                    reasons[row] = "similarity"


def _texts(op: str, name: str, batch: Batch) -> list[str | None]:
    column = batch.table.column(name)
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise CurateError(f"{op}.column: {name!r} holds {column.type}, expected one text per row, such as `generated`")
    return column.to_pylist()
