"""`caption.summarise`: one text out of several and metadata."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from curate.caption.asking import NAME, Asking
from curate.caption.prompt import PromptOf


class Summarise(Asking):
    """Ask a language model to summarise several texts, such as captions of a video and of its frames, and metadata.

    Context may be lists, and any of it may be missing. Rows without any are not asked and get nulls. Writes the same
    columns as caption.generate.
    """

    op: ClassVar[str] = "caption.summarise"
    usual_prompt: ClassVar[str] = "video_summary_72"

    prompt: PromptOf = Field(
        "video_summary_72",
        validate_default=True,
        description="an included prompt by name, or the path or URL of a file",
    )
    output: str = Field("summary", pattern=NAME, description="name of the column of texts; others begin with it")
