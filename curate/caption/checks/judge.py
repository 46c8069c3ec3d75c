"""What `caption.check` and `caption.repair` find in a text, and the limits that turn it into a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from curate.caption.chat import EMPTY, REFUSED, TRUNCATED
from curate.caption.checks import endings, phrases, repetition
from curate.caption.checks.leaks import PromptWords, has_marks
from curate.caption.checks.names import Known
from curate.caption.checks.words import is_blank, words_of
from curate.caption.prompt import Prompt
from curate.caption.thoughts import has_thoughts
from curate.caption.untrusted.detect import follows_order

COMPLETE, NO_END, BROKEN_OFF = "complete", "no_end", "broken_off"


class TextLimits(BaseModel):
    """Limits beyond which a text has a reason. They do not change the other columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_words: Annotated[int, Field(ge=0, description="Words below which a text is too_short.")] = 3
    max_words: Annotated[
        int | None, Field(ge=1, description="Words above which a text is too_long; null for no limit.")
    ] = None
    max_loop_words: Annotated[
        int, Field(ge=0, description="Words of the longest loop above which a text is a repetition.")
    ] = 5
    max_repeated: Annotated[
        float, Field(ge=0, le=1, description="Share of characters in repeated n-grams above which it is a repetition.")
    ] = 0.3
    max_compression: Annotated[
        float, Field(gt=0, description="Compression ratio above which it is a repetition (2.4: Radford et al. 2022).")
    ] = 2.4
    max_leaked_words: Annotated[
        int, Field(ge=0, description="Words in a row that a prompt has, above which a text is a leaked_prompt.")
    ] = 7
    whole_sentences: Annotated[
        bool,
        Field(
            description="Whether a text is truncated if its last sentence has no end although an earlier one has. A "
            "text that breaks off is truncated anyway."
        ),
    ] = True
    max_unknown_names: Annotated[
        int | None, Field(ge=0, description="Capitalised words in no context, above which it has unknown_names.")
    ] = None
    max_unknown_numbers: Annotated[
        int | None, Field(ge=0, description="Numbers in no context, above which it has unknown_numbers.")
    ] = None


class Scores(NamedTuple):
    """What the checks find in one text, regardless of the limits."""

    words: int
    characters: int
    loop_words: int
    repeated: float
    compression: float
    ending: str
    declines: bool
    chats: bool
    leaked_words: int
    marks: bool
    unknown_names: int | None
    unknown_numbers: int | None
    injection: str | None


class Judge:
    """Finds scores and reasons of texts that models wrote to some prompts. thoughts: whether texts may have marks such
    as <think>."""

    def __init__(self, prompts: Iterable[Prompt], limits: TextLimits, thoughts: bool = False) -> None:
        self.thoughts = thoughts
        self.prompts, self.limits = PromptWords(text for one in prompts for text in _texts(one)), limits

    def scores(self, text: str, contexts: Sequence[str]) -> Scores:
        """`contexts`: the texts that the model was given as data."""
        words = words_of(text)
        known = Known(contexts) if contexts else None
        return Scores(
            words=len(words),
            characters=len(text),
            loop_words=repetition.longest_loop(words).words,
            repeated=repetition.repeated_share(words),
            compression=repetition.compression_ratio(text),
            ending=_ending(text),
            declines=phrases.declines(text),
            chats=phrases.chats(text),
            leaked_words=self.prompts.leaked(words),
            marks=has_marks(text) or (not self.thoughts and has_thoughts(text)),
            unknown_names=len(known.unknown_names(text)) if known else None,
            unknown_numbers=len(known.unknown_numbers(text)) if known else None,
            injection=follows_order(text, contexts, self.prompts),
        )

    def reason(self, text: str | None, outcome: str | None, scores: Scores | None) -> str | None:
        """The first reason against a text; None if it passes."""
        if outcome in (REFUSED, EMPTY):
            return outcome
        if text is None or is_blank(text) or scores is None:
            return "missing" if text is None else EMPTY
        broken = self._broken(outcome, scores)
        return next((name for name, is_so in broken.items() if is_so), None)

    def _broken(self, outcome: str | None, scores: Scores) -> dict[str, bool]:
        limits = self.limits
        return {
            "declines": scores.declines,
            "injection": scores.injection is not None,
            "leaked_prompt": scores.marks or scores.leaked_words > limits.max_leaked_words,
            "repetition": scores.loop_words > limits.max_loop_words
            or scores.repeated > limits.max_repeated
            or scores.compression > limits.max_compression,
            "chat": scores.chats,
            "truncated": outcome == TRUNCATED
            or scores.ending == BROKEN_OFF
            or (limits.whole_sentences and scores.ending == NO_END),
            "too_short": scores.words < limits.min_words,
            "too_long": limits.max_words is not None and scores.words > limits.max_words,
            "unknown_names": _above(scores.unknown_names, limits.max_unknown_names),
            "unknown_numbers": _above(scores.unknown_numbers, limits.max_unknown_numbers),
        }


def _above(found: int | None, most: int | None) -> bool:
    return found is not None and most is not None and found > most


def _ending(text: str) -> str:
    return BROKEN_OFF if endings.breaks_off(text) else NO_END if endings.lacks_end(text) else COMPLETE


def _texts(prompt: Prompt) -> Iterable[str]:
    """The texts of a prompt that an answer must not repeat."""
    yield prompt.system_text()
    yield prompt.user
    for example in prompt.examples:
        yield example.text()


def strings_of(value: Any) -> Iterable[str]:
    """The texts in a value of a column: itself, or in lists and objects."""
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_of(item)
    elif value is not None and not isinstance(value, (bool, bytes)):
        yield str(value)
