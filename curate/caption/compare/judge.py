"""`caption.judge`: which of two texts is better, asked in both orders.

A model tends to prefer the text at one position (Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena", section 3.4). A text wins only if it is better in both orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, model_validator

from curate.caption.asking import NAME, Answer, Asked, Asking, with_tokens_of
from curate.caption.prompt import Prompt, PromptOf
from curate.core.contracts import Client

FIRST, SECOND, TIE = "first", "second", "tie"
PLACES = (FIRST, SECOND)
INCONSISTENT = "inconsistent"
SIDES = {"ab": {FIRST: "a", SECOND: "b", TIE: TIE}, "ba": {FIRST: "b", SECOND: "a", TIE: TIE}}
"""Order of the texts -> what its answers mean."""
JUDGED: dict[str, dict[str, str]] = {
    "ab": {"values": "first, second, tie", "of": "the answer with `a` first"},
    "ba": {"values": "first, second, tie", "of": "the answer with `b` first"},
    "verdict": {"values": "a, b, tie, inconsistent", "of": "both answers"},
}
"""Columns beside the answers: suffix -> field metadata."""


class Judge(Asking):
    """Ask a model which of two texts is better, in both orders.

    The context of its prompt has the texts as `first` and `second`, and its schema has `verdict`: first, second or tie.
    OUTPUT is both answers as JSON, OUTPUT_ab and OUTPUT_ba the answers in either order, and OUTPUT_verdict a or b if
    both answers prefer the same text, tie if both say so, otherwise inconsistent. The outcome is the first one that is
    not ok; tokens are those of both requests. Rows without both texts, and rows whose texts are equal, are not asked.
    """

    op: ClassVar[str] = "caption.judge"
    usual_prompt: ClassVar[str] = "judge"

    a: str = Field(description="column of texts")
    b: str = Field(description="column of the texts to compare it with")
    prompt: PromptOf = Field(
        "judge",
        validate_default=True,
        description="a prompt about two texts: an included one by name, or the path or URL of a file",
    )
    output: str = Field("judge", pattern=NAME, description="name of the column of answers; others begin with it")

    @property
    def pixels(self) -> bool:
        """Whether a prompt needs the image."""
        return any(one.image for one in ([variant.prompt for variant in self.variants] or [self.prompt]))

    @model_validator(mode="after")
    def _two(self) -> Judge:
        if self.a == self.b:
            raise ValueError(f"b: {self.b!r} is the column `a` too; give two columns")
        taken = next((label for label in PLACES if label in self.columns), None)
        if taken is not None:
            raise ValueError(f"columns: {taken!r} is one of the two texts; give them as `a` and `b`")
        return self

    def problem_of(self, prompt: Prompt) -> str:
        if not set(PLACES) <= prompt.context.keys():
            return f"{self.op} needs a prompt whose context has `first` and `second`"
        about = ((prompt.schema_of_answer() or {}).get("properties") or {}).get("verdict")
        values = about.get("enum") if isinstance(about, Mapping) else None
        if sorted(values or []) != sorted([*PLACES, TIE]):
            return f"{self.op} needs a schema with `verdict`, one of first, second, tie"
        return ""

    def column_of(self, label: str, prompt: Prompt) -> str:
        return {FIRST: self.a, SECOND: self.b}.get(label) or super().column_of(label, prompt)

    def schema(self) -> pa.Schema:
        whole = self.standard().set(0, pa.field(self.output, pa.string(), metadata={"of": "both answers as JSON"}))
        fields = [pa.field(f"{self.output}_{name}", pa.string(), metadata=about) for name, about in JUDGED.items()]
        return pa.schema([*whole, *fields])

    def request(self, row: Mapping[str, Any]) -> tuple[Asked, Asked] | None:
        """Requests with `a` first and with `b` first."""
        if not row[self.a] or not row[self.b] or row[self.a] == row[self.b]:
            return None
        way = self.way_of(row)
        one, other = self.asked(row, way), self.asked({**row, self.a: row[self.b], self.b: row[self.a]}, way)
        return None if one is None or other is None else (one, other)

    async def answer(self, request: tuple[Asked, Asked], client: Client) -> dict[str, Any]:
        """One request after the other, so that rows in flight are requests in flight."""
        first, second = [await self.reply(asked, client) for asked in request]
        shown, other = (second, first) if first.value is not None and second.value is None else (first, second)
        said = {"ab": first.value, "ba": second.value}
        both = with_tokens_of(shown.completion, other.completion)
        columns = self.columns_of(request[0], Answer(both, None if None in said.values() else said))
        places = {order: None if value is None else value["verdict"] for order, value in said.items()}
        columns |= {f"{self.output}_{order}": place for order, place in places.items()}
        return columns | {f"{self.output}_verdict": verdict_of(places["ab"], places["ba"])}


def verdict_of(ab: str | None, ba: str | None) -> str | None:
    """The verdict over both orders; None if an answer is missing."""
    if ab is None or ba is None:
        return None
    one, other = SIDES["ab"][ab], SIDES["ba"][ba]
    return one if one == other else INCONSISTENT
