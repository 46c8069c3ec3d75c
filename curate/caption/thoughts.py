"""What a reasoning model thinks before it answers, where its server does not separate the two."""

from __future__ import annotations

import re

_NAME = r"(?:\w+[:_])?(?:think|thinking|thoughts?|reasoning|analysis|scratchpad)"
_GPT_OSS = r"(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*{}\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
MARKS = (
    (rf"<{_NAME}(?:\s[^<>]*)?>", rf"</{_NAME}\s*>"),  # DeepSeek, Qwen, GLM, MiniMax; seed:think; longcat_think; Keye
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"◁think▷", r"◁/think▷"),  # Kimi
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command
    (_GPT_OSS.format("(?:analysis|commentary)"), _GPT_OSS.format("final")),
    (r"<\|?channel\|?>thought", r"<channel\|>"),  # Gemma
    (r"<\|think\|>", r"<\|end\|>\s*<\|begin\|>\s*assistant\s*<\|content\|>"),  # Solar
    (r"<unused94>", r"<unused95>"),  # MedGemma
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"\[BEGIN REASONING\]", r"\[BEGIN FINAL RESPONSE\]"),  # Apriel
)
"""Patterns of (the opening mark, the closing mark)."""
WORDS = re.compile(
    r"\A\s*analysis(?=[A-Z]).*?assistantfinal(?=\S)"  # gpt-oss, if its server removes special tokens
    r"|\A\s*Here(?:'s| is) my thought process:.*?Here(?:'s| is) my response:",  # Granite
    re.DOTALL,
)
"""Thoughts between words that may be part of an answer elsewhere."""
AROUND = re.compile(
    r"\A\s*<(?:answer|response|output|\|START_RESPONSE\||\|begin_of_solution\|)>"
    r"|</(?:answer|response|output)>\s*\Z|<\|(?:END_RESPONSE|end_of_solution|return|end)\|>\s*\Z"
    r"|\[END FINAL RESPONSE\]\s*\Z|<\|(?:begin|end)_of_box\|>",
    re.IGNORECASE,
)
"""Marks around the answer that follows a thought."""
_MARK = re.compile(
    f"(?P<open>{'|'.join(first for first, _ in MARKS)})|(?P<close>{'|'.join(last for _, last in MARKS)})", re.IGNORECASE
)


def without_thoughts(text: str) -> tuple[str, bool]:
    """(the answer, whether a thought has no end). The template of a chat may have opened a thought: what precedes a
    closing mark without an opening one is part of it."""
    text, kept, place, inside = WORDS.sub("", text), list[str](), 0, False
    for mark in _MARK.finditer(text):
        if mark["close"]:
            if not inside:
                kept.clear()
            place, inside = mark.end(), False
        elif not inside:
            kept.append(text[place : mark.start()])
            inside = True
    if not inside:
        kept.append(text[place:])
    return AROUND.sub("", "".join(kept)).strip(), inside


def has_thoughts(text: str) -> bool:
    """Whether the text has a mark of thoughts."""
    return _MARK.search(text) is not None
