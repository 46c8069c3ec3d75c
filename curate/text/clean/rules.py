"""The rules by which a caption is cleaned: a table of small functions from text to text, applied in its order.

To add a rule, write its function (rules_markup.py, rules_names.py, rules_signs.py) and put it into RULES where it
belongs: what unpacks comes before what removes, what tidies comes last. A rule must leave clean text alone and run in
linear time. The table is run until nothing changes any more (removing one thing may lay bare another: `&amp;lt;b>`),
which makes cleaning idempotent. Real captions take two or three rounds. Text that was made to need more than `rounds`
allows is given up: nothing is left of it, which is idempotent too, and the work has a bound.

`hint` is what makes cleaning quick: a regular expression in the syntax that `re` and RE2 have in common, which finds
something in every ASCII text that the rule changes (and in others). A column is searched for the hints of all rules,
and for whatever is not ASCII, at once and at memory speed; where nothing is found the text is clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from curate.text.clean import markup as rules_markup
from curate.text.clean import names as rules_names
from curate.text.clean import signs as rules_signs
from curate.text.clean.names import EXTENSIONS

_SPACE = r"[ \t-\r\x1c-\x1f]"
_SEPARATOR = "[|,;:/<>*~-]"
NOT_ASCII = r"[^\x00-\x7f]"


class Rule(NamedTuple):
    name: str
    apply: Callable[[str], str]
    hint: str
    meaning: str
    default: bool = True


RULES = (
    Rule("quoting", rules_markup.unquote, r"""""|\\["']""", "CSV's doubled quotes and backslashes before quotes go"),
    Rule(
        "entities", rules_markup.unescape_entities, "&[#A-Za-z]", "HTML entities become the characters they stand for"
    ),
    Rule(
        "mojibake",
        rules_markup.fix_mojibake,
        NOT_ASCII,
        "text decoded with the wrong encoding is decoded again (ftfy)",
    ),
    Rule(
        "hidden",
        rules_signs.remove_hidden,
        r"[\x00-\x08\x0e-\x1b\x7f]",
        "control, invisible and replacement characters are removed",
    ),
    Rule("unicode", rules_signs.normalise_unicode, NOT_ASCII, "Unicode is put into normal form C"),
    Rule("tags", rules_markup.strip_tags, "<[A-Za-z/!]", "HTML tags and comments are removed"),
    Rule(
        "urls",
        rules_names.remove_urls,
        r"://|[wW]{3}\.|[A-Za-z0-9-]\.[A-Za-z]{2,6}(:[0-9]{1,5})?/",
        "web addresses are removed; names of sites such as Booking.com stay",
    ),
    Rule("emails", rules_names.remove_emails, "[^ ]@[^ ]", "e-mail addresses are removed"),
    Rule("mentions", rules_names.remove_mentions, "@[^ 0-9]", "users (@name) are removed, with a `via` or `by` before"),
    Rule(
        "hashtag_words",
        rules_names.split_hashtags,
        "#[^ ]",
        "hashtags of several words (#BlueSky, #blue_sky) become these words",
        default=False,
    ),
    Rule("hashtags", rules_names.unsign_hashtags, "#[^ ]", "the sign goes, the hashtag's word stays; #1 stays"),
    Rule(
        "file_names",
        rules_names.remove_file_names,
        rf"\.(?i:{EXTENSIONS})",
        "file names are removed; a plain word loses its extension only",
    ),
    Rule(
        "camera_codes",
        rules_names.remove_camera_codes,
        "[IiDdPpHh][MmSsIiPpXx][A-Za-z]{1,2}[ _-]?[0-9]{3}|_[0-9]{3}|[Pp][1-9A-Ca-c][0-3][0-9]{5}"
        "|([Oo][Pp][Rr]|[Nn][Yy]|[Dd][Cc]1)[0-9]{4}",
        "names that cameras give (IMG_2034, DSC00012) are removed",
    ),
    Rule("emojis", rules_signs.remove_emojis, NOT_ASCII, "emojis are removed; emoticons such as :) stay"),
    Rule(
        "symbols",
        rules_signs.remove_symbols,
        NOT_ASCII,
        "signs that say nothing are removed: ®, ™, ©, ornaments, private use",
    ),
    Rule(
        "punctuation",
        rules_signs.collapse_punctuation,
        r"[!?][!?]|,,|;;|\.\.|---|___|===|~~~",
        "repeated punctuation is said once; an ellipsis stays",
    ),
    Rule(
        "leftovers",
        rules_signs.tidy_leftovers,
        rf"[(\[{{<]{_SPACE}*[)\]}}>]| [.,;]( |$)"
        rf"|[,;:]{_SPACE}*$|^{_SPACE}*{_SEPARATOR}+({_SPACE}|$)|{_SPACE}{_SEPARATOR}+{_SPACE}*$",
        "empty brackets, stray commas and separators at the ends are removed",
    ),
    Rule(
        "spaces",
        rules_signs.collapse_spaces,
        r"^ | $|  |[\t-\r\x1c-\x1f]",
        "white space and line breaks become single spaces",
    ),
)
NAMES = tuple(rule.name for rule in RULES)
DEFAULT = tuple(rule.name for rule in RULES if rule.default)


def chosen(names: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of these names, in the table's order."""
    wanted = frozenset(names)
    return tuple(rule for rule in RULES if rule.name in wanted)


def rounds(characters: int) -> int:
    """How often the table is run over a text at most: 32 times, fewer over texts above 125,000 characters, 4 times at
    least; so no text costs more than the larger of 4 rounds and of a table run over 4 million characters."""
    return max(4, min(32, 4_000_000 // max(1, characters)))


def steps(text: str, rules: Iterable[Rule]) -> list[tuple[str, str, str]]:
    """(rule, before, after) of everything that changed, in order. The last `after`, if any, is the cleaned text."""
    rules, done, quiet = tuple(rules), [], 0
    for _ in range(rounds(len(text))):
        for rule in rules:
            after = rule.apply(text)
            if after == text:
                quiet += 1
                if quiet >= len(rules):  # none of them has anything to do
                    return done
            else:
                quiet = 0
                done.append((rule.name, text, after))
                text = after
    return [*done, (UNSETTLED, text, "")] if rules else done


UNSETTLED = "unsettled"
"""Counted beside the rules: texts given up since they had not settled after all rounds."""


def clean(text: str, rules: Iterable[Rule] = chosen(DEFAULT)) -> tuple[str, set[str]]:
    """Text under these rules, and the names of the rules that changed it."""
    done = steps(text, rules)
    return (done[-1][2] if done else text), {name for name, _, _ in done}


def hint(rules: Iterable[Rule]) -> str:
    """What is found in every text that any of these rules changes."""
    return "|".join(dict.fromkeys([*(f"({rule.hint})" for rule in rules), f"({NOT_ASCII})"]))
