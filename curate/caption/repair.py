"""`caption.repair`: asks again for the texts that failed their check, and for no others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field, PrivateAttr

from curate.caption.asking import NAME, Answer, Asked, Asking, Way, with_tokens_of
from curate.caption.chat import Completion, EncodedImage
from curate.caption.checks.check import REASON
from curate.caption.checks.judge import Judge, TextLimits, strings_of
from curate.caption.image import encode
from curate.caption.prompt import Prompt, PromptOf
from curate.codec.images import decode
from curate.core.contracts import Client, Runtime, Sample
from curate.kernels.meta import META, field_of

REWRITABLE = frozenset({"repetition", "chat", "truncated", "too_short", "too_long", "unknown_names", "unknown_numbers"})
"""Reasons against a text that another wording may remove. A text with another reason must not be the source of one."""
WITHOUT_CONTEXT = "injection"
"""Reason for which the context, which has an order, is not sent again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A text that failed, and the requests for another text."""

    text: str | None
    reason: str
    again: tuple[Asked, ...]
    image: EncodedImage | None
    values: str
    """JSON of the columns that the prompts read."""


class Repair(Asking):
    """Ask again for texts that failed caption.check: first with other seeds, then for another wording.

    Rows whose check is null are not asked and get nulls. Each answer is checked as by caption.check, and the first one
    that passes ends the repair. Writes the columns of the other stages that ask, OUTPUT_attempt (1 for the first
    request) and OUTPUT_check, the reason against the text if none passed. The tokens are those of all attempts.
    """

    op: ClassVar[str] = "caption.repair"
    usual_prompt: ClassVar[str] = "caption_short"

    prompt: PromptOf = Field(
        "caption_short",
        validate_default=True,
        description="the prompt to which the texts were written: an included one by name, or a file",
    )
    column: str = Field("generated", description="column of texts that were checked")
    check: str | None = Field(None, description="column of reasons against the texts; null: COLUMN_check")
    again: int = Field(1, ge=0, description="further requests with the same prompt, each with another seed")
    rewrite: PromptOf | None = Field(
        "vivid",
        validate_default=True,
        description="prompt that rewrites a text that fails again, the first label of its context; null: none",
    )
    rewrite_endpoint: Annotated[str | None, Runtime()] = Field(
        None, description="name of the endpoint that rewrites; null: `endpoint`"
    )
    limits: TextLimits = Field(TextLimits(), description="limits, as in caption.check")
    output: str = Field("repaired", pattern=NAME, description="name of the column of texts; others begin with it")

    _judge: Judge | None = PrivateAttr(None)

    @property
    def pixels(self) -> bool:
        return any(way.prompt.image for way in self.ways())

    # --- what it asks ---

    def ways(self) -> tuple[Way, ...]:
        if self.rewrite is None:
            return super().ways()
        return (*super().ways(), Way(self.rewrite, self._endpoint(self.rewrite_endpoint or self.endpoint)))

    def column_of(self, label: str, prompt: Prompt) -> str:
        if prompt is self.rewrite and label == next(iter(prompt.context)):
            return self.column
        return super().column_of(label, prompt)

    def problem_of(self, prompt: Prompt) -> str:
        if prompt is self.rewrite and not prompt.context:
            return "has no context to put the text into; give a prompt such as vivid"
        return super().problem_of(prompt)

    def parameters(self) -> dict[str, Any]:
        found = super().parameters()
        if found["rewrite"] is not None:
            del found["rewrite"]["description"]
        return found

    @property
    def _check_column(self) -> str:
        return self.check or f"{self.column}_{REASON}"

    def _read(self) -> dict[str, str]:
        return {self.column: "the texts", self._check_column: "the reasons"} | super()._read()

    def schema(self) -> pa.Schema:
        attempt = pa.field(f"{self.output}_attempt", pa.int32(), metadata={"of": "attempt that gave the text, from 1"})
        reason = {"of": f"first reason against {self.output}; null: it passes, or was not asked for"}
        return pa.schema([*self.standard(), attempt, pa.field(f"{self.output}_{REASON}", pa.string(), metadata=reason)])

    # --- requests ---

    def prepare(self, sample: Sample) -> Any:
        return sample.data  # only the images of texts that failed are decoded

    def request(self, row: Mapping[str, Any]) -> Failed | None:
        reason = row[self._check_column]
        if reason is None:
            return None
        way = self.way_of(row)
        image = None
        if self.pixels:
            image = encode(
                Sample(row["image"], decode).image(), self.image_side, self.image_quality, self.image_least_side
            )
        told = {**row, "image": image}
        if reason == WITHOUT_CONTEXT and self.ways()[way].prompt.image:
            told |= dict.fromkeys(self._context_columns(way))
        asked = (self.asked(told, way, number + 1) for number in range(self.again))
        again = tuple(one for one in asked if one is not None)
        values = {name: row[name] for name in sorted(self._read()) if name not in (self._check_column, "key")}
        text = json.dumps(values, ensure_ascii=False, sort_keys=True, default=str)
        return Failed(row[self.column], reason, again, image, text) if again or self.rewrite else None

    def _context_columns(self, way: int) -> list[str]:
        prompt = self.ways()[way].prompt
        names = [self.column_of(label, prompt) for label in prompt.context]
        return ["meta" if name.startswith(META) else name for name in names]

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        values = json.loads(request.values)
        contexts = self._contexts(values)
        text, reason = request.text, request.reason
        columns: dict[str, Any] = dict.fromkeys(self.schema().names)
        columns[f"{self.output}_{REASON}"] = reason
        spent: Completion | None = None
        for attempt in range(1, self.again + 2):
            asked = request.again[attempt - 1] if attempt <= len(request.again) else None
            if attempt == self.again + 1:
                asked = self._rewriting(text, reason, values, request.image)
            if asked is None:
                continue
            found = (await self.reply(asked, client)).completion
            spent = found if spent is None else with_tokens_of(found, spent)
            reason = self._reason(found, contexts)
            text = found.text or text
            columns = self.columns_of(asked, Answer(spent))
            columns |= {f"{self.output}_attempt": attempt, f"{self.output}_{REASON}": reason}
            if reason is None:
                break
        return columns

    def _rewriting(
        self, text: str | None, reason: str | None, values: Mapping[str, Any], image: EncodedImage | None
    ) -> Asked | None:
        """The request for another wording of a text; None if there is none to start from."""
        if self.rewrite is None or text is None or reason not in REWRITABLE:
            return None
        return self.asked({**values, self.column: text, "image": image}, len(self.ways()) - 1)

    def _reason(self, found: Completion, contexts: list[str]) -> str | None:
        if self._judge is None:
            self._judge = Judge((way.prompt for way in self.ways()), self.limits, self.thoughts == "keep")
        scores = self._judge.scores(found.text, contexts) if found.text is not None else None
        return self._judge.reason(found.text, found.outcome, scores)

    def _contexts(self, values: Mapping[str, Any]) -> list[str]:
        """The texts that the prompts get as context, other than the text that failed."""
        names = {self.column_of(label, way.prompt) for way in self.ways() for label in way.prompt.context}
        found: list[str] = []
        for name in sorted(names - {self.column}):
            value = field_of(values["meta"], name) if name.startswith(META) else values[name]
            found += strings_of(value)
        return found
