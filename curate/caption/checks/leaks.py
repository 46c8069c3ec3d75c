"""What an answer shows of its prompt: runs of the prompt's words, and the marks around its context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from curate.caption.checks.overlap import Grams
from curate.caption.checks.words import words_of
from curate.caption.untrusted.language import language_of

MARK = re.compile(r"<<<\s*data\b|\bdata\s*>>>|\b[0-9a-f]{16} data\b|\bdata [0-9a-f]{16}\b")
"""Parts of the marks of `curate.caption.untrusted.wrap`."""
TOKEN = re.compile(r"<\|[\w/]+\|>|<[｜|]\w+[｜|]>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<image>")
"""Special tokens of chat templates."""


class PromptWords:
    """The texts of some prompts, which answers must not repeat."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = list(texts)
        self.language = language_of("\n".join(texts)) or "english"
        """`language_of` the prompts."""
        self._grams = Grams(map(words_of, texts))

    def leaked(self, words: Sequence[str]) -> int:
        """Words of the longest run in an answer's words that a prompt has."""
        return self._grams.longest_run(words)


def has_marks(text: str) -> bool:
    """Whether the text has a mark of the context or a special token of a chat template."""
    return MARK.search(text) is not None or TOKEN.search(text) is not None
