"""`caption.rewrite`: each text in other words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from curate.caption.asking import NAME, Asking
from curate.caption.prompt import Prompt, PromptOf


class Rewrite(Asking):
    """Ask a language model to rewrite a text.

    The first label of the prompt's context is the text. Rows without it are not asked and get nulls. Writes the same
    columns as caption.generate.
    """

    op: ClassVar[str] = "caption.rewrite"
    usual_prompt: ClassVar[str] = "vivid"

    prompt: PromptOf = Field(
        "vivid", validate_default=True, description="an included prompt by name, or the path or URL of a file"
    )
    output: str = Field("rewritten", pattern=NAME, description="name of the column of texts; others begin with it")

    def answerable(self, values: Mapping[str, Any], prompt: Prompt) -> bool:
        return next(iter(prompt.context)) in values
