"""Signs that a text is not the caption or description that a prompt asked for.

Some honest captions have one of them, so they only count beside an order (detect.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property

from curate.caption.checks.leaks import PromptWords, has_marks
from curate.caption.checks.phrases import chats, declines
from curate.caption.checks.repetition import longest_loop
from curate.caption.checks.words import words_of
from curate.caption.untrusted.language import differs, is_backwards

LEAKED_WORDS = 6
"""Words in a row of the prompt that an answer repeats only if an order asks for it."""
FEW_WORDS = 2
"""An answer of so few words describes nothing."""
COPIED_SHARE = 0.5
LINES = 3
"""Lines from which a text is a poem or a list."""

_URL = re.compile(
    r"(?i)\bhttps?:|\bwww\.|\b[\w-]{1,63}\.(?:com|net|org|io|shop|store|biz|info|co|uk|de|xyz|app|dev|site|online"
    r"|link|click|top|example|test|invalid|ru|cn|me|ly|to|tv|gg)\b|[\w.]+@\w|(?<!\w)@\w{3}|\+?\d[\d ()-]{8,}\d"
)
_CODE = re.compile(
    r"^\s*(?:[{\[<|`#]|[a-z_]+: |[-*•] |\w+ ?[:=] ?[\"'\[{]|\d+[.)] "
    r"|(?:def|import|print|select|function|var|let|const)\b[^.]*[({;=])|```|</?\w+/?>|\{\s*[\"']|[\"']\s*:\s|(?m:^\w+,\w+$)|\*\*|;\s*$|\w,\w+,\w+"
)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|(?<!\w)'[^']*'(?!\w)|‘[^’]*’")
_VOICE = re.compile(
    r"(?i)\b(?:i|i'm|i'll|i've|i'd|me|my|mine|myself|we|we're|us|our|ours|you|you're|your|yours|ye|yer|thee|thy|thou"
    r"|ahoy|arr+|aye|matey|hello|hi|hey|greetings|welcome|ok|okay|once upon a time|beep|meow|woof)\b"
)
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{24,}|(?:\b[01]{6,8}\b ?){3}|(?:[.-]{1,5}[ /]){6}|(?:\b\w\b[ .-]){6}")
_LOUD = re.compile(r"[!?！？]+[\"'”’)]*\s*$")
_SYMBOL = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")


class Answer:
    """An answer with its context: all of it, and the `rest` of it, without orders."""

    def __init__(self, text: str, rest: str, context: str, prompts: PromptWords) -> None:
        self.text, self.rest, self.context, self.prompts = text, rest, context, prompts
        self.words = words_of(text)

    @cached_property
    def unquoted(self) -> str:
        """The text without quotations: an image may show any words."""
        return _QUOTED.sub(" ", self.text.replace("’", "'"))

    @cached_property
    def rest_words(self) -> frozenset[str]:
        return frozenset(words_of(self.rest))

    @cached_property
    def is_copied(self) -> bool:
        """Whether most of its words are in the context."""
        context = set(words_of(self.context))
        return sum(word in context for word in self.words) > COPIED_SHARE * len(self.words)


def _beyond(pattern: re.Pattern[str], text: str, context: str) -> bool:
    """Whether the pattern finds something in a text that the context does not have."""
    context = context.casefold()
    return any(match.group().casefold() not in context for match in pattern.finditer(text))


def _is_numbers(answer: Answer) -> bool:
    digits = sum(word[0].isdigit() for word in answer.words)
    return digits > 0 and digits >= 0.5 * len(answer.words) and not set(answer.words) <= answer.rest_words


def _is_code(answer: Answer) -> bool:
    return any(_beyond(pattern, answer.text, answer.context) for pattern in (_CODE, _BLOB))


def _is_loud(answer: Answer) -> bool:
    letters = [sign for sign in answer.unquoted if sign.isalpha()]
    upper = len(letters) >= 4 and sum(map(str.isupper, letters)) > 0.8 * len(letters)
    return (upper and not answer.is_copied) or _beyond(_LOUD, answer.unquoted, answer.rest)


def _is_foreign(answer: Answer) -> bool:
    return not answer.is_copied and differs(answer.text, answer.prompts.language)


def _is_voice(answer: Answer) -> bool:
    return any(not set(words_of(match.group())) <= answer.rest_words for match in _VOICE.finditer(answer.unquoted))


def _is_poem(answer: Answer) -> bool:
    return sum(bool(line.strip()) for line in answer.text.splitlines()) >= LINES


def _is_short(answer: Answer) -> bool:
    return len(answer.words) <= FEW_WORDS and not (answer.words and set(answer.words) <= answer.rest_words)


SIGNS: Mapping[str, Callable[[Answer], bool]] = {
    "prompt": lambda answer: answer.prompts.leaked(answer.words) >= LEAKED_WORDS or has_marks(answer.text),
    "declines": lambda answer: declines(answer.text),
    "chat": lambda answer: chats(answer.text) and not answer.is_copied,
    "numbers": _is_numbers,
    "code": _is_code,
    "backwards": lambda answer: is_backwards(answer.text),
    "language": _is_foreign,
    "address": lambda answer: _beyond(_URL, answer.text, answer.rest),
    "voice": _is_voice,
    "loud": _is_loud,
    "poem": _is_poem,
    "symbols": lambda answer: _beyond(_SYMBOL, answer.text, answer.context),
    "loop": lambda answer: longest_loop(answer.words).words > 0,
    "short": _is_short,
}
"""Name -> whether an answer has the sign; in this order."""
