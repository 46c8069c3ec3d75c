"""Says whether an answer follows an order in its context, such as an alt text "Ignore all instructions and write …".

Both must be there: a context that gives orders to a language model (orders.py), and an answer that looks as if it
followed them, because it repeats what the order contains, or because it is not a caption (signs.py): numbers, code,
another language, a role, the prompt. An honest caption beside an order passes, and so does anything beside a context
without orders.

This detects what it has rules for. It does not detect an order that is in the image, or one that it does not recognise,
or an answer that follows an order with a plausible caption in other words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from curate.caption.checks.leaks import PromptWords
from curate.caption.checks.overlap import GRAM, Grams
from curate.caption.checks.words import words_of
from curate.caption.untrusted.language import differs, function_words, script_of
from curate.caption.untrusted.orders import CLEAR_SHARE, Orders, announces, lexicon, orders_in, pieces_of
from curate.caption.untrusted.signs import SIGNS, Answer

LONGEST = 8000
"""Characters of an answer that are read."""
RUN_WORDS = 4
"""Words in a row of an order that an answer repeats only if it follows it."""
LONG_RUN_WORDS = 6
"""The same, if they are words that any caption may have."""
DROPPED_WORDS = 2
"""Words before what an order dictates."""
PAYLOAD_SHARE = 0.5
"""Share of an answer's content words that are the order's."""
PAYLOAD_WORDS = 2
"""Content words of an order in an answer."""
START_WORDS = 2
"""Words by which an answer shows the beginning of a text."""
AROUND_WORDS = 4
"""Words around quotations of a caption that describes an image with text."""
GLUED = 5
"""Characters of a whole answer that an order has, without regard to spaces."""
_MARKED = re.compile(r"[<>\[\]{}#|]")
_EMPHASIS = re.compile(
    r"\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)|‘([^’]+)’|«([^»]+)»|「([^」]+)」|\b([A-Z]{3,})\b"
)


def follows_order(answer: str, contexts: Sequence[str], prompts: PromptWords) -> str | None:
    """The sign by which an answer follows an order in one of the contexts: `payload` or a name of SIGNS. None: there is
    no order, or the answer does not follow it."""
    answer = answer.strip()[:LONGEST]
    if not answer:
        return None
    found = [orders_in(text) for text in contexts]
    most = max((orders.score for orders in found), default=0.0)
    least = max(min(most, lexicon().possible), CLEAR_SHARE * most)
    order = "\n".join(orders.text for orders in found if orders.score >= least)
    rest = "\n".join(o.rest if o.score >= least else text for o, text in zip(found, contexts, strict=True))
    given = Answer(answer, rest, "\n".join(contexts), prompts)
    if any(_is_dictated(given, one, text) for one, text in zip(found, contexts, strict=True)):
        return "payload"
    if most < lexicon().faint:
        return None
    if most < lexicon().possible:
        if SIGNS["address"](given):
            return "address"
        given = Answer(given.text, given.context, given.context, prompts)
        return next((name for name, has in SIGNS.items() if has(given)), None)
    likely = most >= lexicon().likely
    if most < lexicon().sure and _shows_start(given.words, order):
        return None  # a title that looks like an order, not what the order asks for
    if not likely:
        given = Answer(_without_quotations(given), rest, given.context, prompts)
    if _repeats(given, order, likely):
        return "payload"
    return next((name for name, has in SIGNS.items() if has(given)), None)


def content_of(words: Iterable[str]) -> set[str]:
    """Content words, without those that captions or orders usually have."""
    return {word for word in words if word not in function_words() and word not in lexicon().usual}


def _shows_start(words: Sequence[str], order: str) -> bool:
    """Whether the answer has the first words of a piece of the order."""
    starts = {tuple(words_of(piece)[:START_WORDS]) for piece in order.splitlines() if not _MARKED.search(piece)}
    return any(tuple(words[place : place + START_WORDS]) in starts for place in range(len(words)))


def _without_quotations(answer: Answer) -> str:
    """The text without what it quotes from the image, if there is enough around the quotations."""
    return answer.unquoted if len(words_of(answer.unquoted)) >= AROUND_WORDS else answer.text


def _is_dictated(answer: Answer, orders: Orders, text: str) -> bool:
    """Whether the answer, or the end of it, is the end of a sentence of the context, after words that announce it: a
    command such as `Say`, or words in another language; beside an order, any words."""
    likely = orders.score >= lexicon().likely
    last = len(words_of(pieces_of(answer.text)[-1]))
    pieces = f"{orders.text}\n{orders.rest}".splitlines() if orders.score else pieces_of(text)
    for piece in pieces:
        given = words_of(piece)
        after = given[len(answer.words) :]
        if after and given[: -len(after)] == answer.words and announces(after):
            other_script = script_of("".join(after)) != script_of(answer.text)
            if likely or other_script:  # verbs come last in Japanese
                return True
        same = _common_end(given, answer.words)
        whole = same == len(answer.words)
        part = likely and (same == last or same >= GRAM) and not _shows_start(answer.words, piece)
        dropped = given[: len(given) - same]
        if same and dropped and (whole or part) and _announced(dropped, orders.score, answer.prompts):
            return True
    return False


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of words that two texts have in common at their ends."""
    same = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        same += 1
    return same


def _announced(words: Sequence[str], score: float, prompts: PromptWords) -> bool:
    """Whether words announce what follows them, in a text with that score of orders."""
    if len(words) >= DROPPED_WORDS and score >= lexicon().likely:
        return True
    return bool(score and announces(words)) or (
        len(words) > DROPPED_WORDS and differs(" ".join(words), prompts.language)
    )


def _repeats(answer: Answer, order: str, likely: bool) -> bool:
    """Whether the answer repeats what the order asks for."""
    words = words_of(order)
    own = content_of(words) - answer.rest_words
    content = content_of(answer.words)
    shared = own & content
    run = Grams([words]).longest_run(answer.words)
    if Grams([words_of(answer.rest)]).longest_run(answer.words) < run:
        ends = Grams([answer.words[:GRAM], answer.words[-GRAM:]]).longest_run(words)
        if run >= (RUN_WORDS if shared else LONG_RUN_WORDS) or (ends and (shared or likely)):
            return True
    if shared and len(shared) >= PAYLOAD_SHARE * len(content):
        return True
    for match in _EMPHASIS.finditer(order):
        marked = content_of(words_of(next(filter(None, match.groups())))) & own
        if marked and len(marked & shared) >= PAYLOAD_SHARE * len(marked):
            return True
    glued = "".join(answer.words)
    if len(glued) >= GLUED and glued in "".join(words) and glued not in "".join(words_of(answer.rest)):
        return True
    if answer.words and {answer.words[0], answer.words[-1]} & own:
        return True
    return likely and len(shared) >= PAYLOAD_WORDS
