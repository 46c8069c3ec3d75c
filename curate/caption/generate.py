"""`caption.generate`: a text about each image."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from curate.caption.asking import Asking
from curate.caption.prompt import Prompt, PromptOf


class Generate(Asking):
    """Ask a vision-language model for a text about each image.

    Writes the text, its outcome (ok, truncated, refused, empty), the model and fingerprint that the endpoint reported,
    the prompt, the endpoint, the seed and the tokens. In error: endpoint_refuses, image_too_large, not_a_completion,
    and requests that failed at every attempt.
    """

    op: ClassVar[str] = "caption.generate"
    pixels: ClassVar[bool] = True
    usual_prompt: ClassVar[str] = "caption_short"

    prompt: PromptOf = Field(
        "caption_short", validate_default=True, description="an included prompt by name, or the path or URL of a file"
    )

    def problem_of(self, prompt: Prompt) -> str:
        if not prompt.image:
            return f"has no image (`image: true`), but {self.op} sends one; use caption.rewrite or caption.summarise"
        return super().problem_of(prompt)
