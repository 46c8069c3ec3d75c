"""The rules that clean a caption: a table of small functions from text to text, applied in order.

To add a rule, write its function (markup.py, names.py, signs.py) and insert it into RULES: rules that decode come
before rules that remove, and rules that tidy come last. A rule must not change clean text and must run in linear time.
The table runs until nothing changes, because one removal can expose the next (`&amp;lt;b>`); cleaning is therefore
idempotent. Real captions take two or three rounds. If a text needs more than `rounds` allows, its result is empty,
which is idempotent too and bounds the work.

`hint` makes cleaning fast: a regular expression in the common syntax of `re` and RE2 that matches every ASCII text that
the rule changes (and maybe others). One search of a column finds the hints of all rules and any character that is not
ASCII, at memory speed; texts without a match are clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from curate.text.clean import markup, names, signs
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
    Rule("quoting", markup.unquote, r"""""|\\["']""", "CSV's doubled quotes and backslashes before quotes are removed"),
    Rule("entities", markup.unescape_entities, "&[#A-Za-z]", "HTML entities become the characters they stand for"),
    Rule(
        "mojibake",
        markup.fix_mojibake,
        NOT_ASCII,
        "text decoded with the wrong encoding is decoded again (ftfy)",
    ),
    Rule(
        "hidden",
        signs.remove_hidden,
        r"[\x00-\x08\x0b\x0c\x0e-\x1b\x7f]",
        "control, invisible and replacement characters are removed",
    ),
    Rule("unicode", signs.normalise_unicode, NOT_ASCII, "Unicode is put into normal form C"),
    Rule("tags", markup.strip_tags, "<[A-Za-z/!]", "HTML tags and comments are removed"),
    Rule(
        "urls",
        names.remove_urls,
        r"://|[wW]{3}\.|[A-Za-z0-9-]\.[A-Za-z]{2,6}(:[0-9]{1,5})?/",
        "web addresses are removed; names of sites such as Booking.com stay",
    ),
    Rule("emails", names.remove_emails, "[^ ]@[^ ]", "e-mail addresses are removed"),
    Rule("mentions", names.remove_mentions, "@[^ 0-9]", "users (@name) are removed, with a `via` or `by` before"),
    Rule(
        "hashtag_words",
        names.split_hashtags,
        "#[^ ]",
        "hashtags of several words (#BlueSky, #blue_sky) become these words",
        default=False,
    ),
    Rule("hashtags", names.unsign_hashtags, "#[^ ]", "the sign is removed, the hashtag's word stays; #1 stays"),
    Rule(
        "file_names",
        names.remove_file_names,
        rf"\.(?i:{EXTENSIONS})",
        "file names are removed; a plain word loses its extension only",
    ),
    Rule(
        "camera_codes",
        names.remove_camera_codes,
        "[IiDdPpHh][MmSsIiPpXx][A-Za-z]{1,2}[ _-]?[0-9]{3}|_[0-9]{3}|[Pp][1-9A-Ca-c][0-3][0-9]{5}"
        "|([Oo][Pp][Rr]|[Nn][Yy]|[Dd][Cc]1)[0-9]{4}",
        "names that cameras give (IMG_2034, DSC00012) are removed",
    ),
    Rule("emojis", signs.remove_emojis, NOT_ASCII, "emojis are removed; emoticons such as :) stay"),
    Rule(
        "symbols",
        signs.remove_symbols,
        NOT_ASCII,
        "signs without meaning are removed: ®, ™, ©, ornaments, private use",
    ),
    Rule(
        "punctuation",
        signs.collapse_punctuation,
        r"[!?][!?]|,,|;;|\.\.|---|___|===|~~~",
        "repeated punctuation is reduced to one; an ellipsis stays",
    ),
    Rule(
        "leftovers",
        signs.tidy_leftovers,
        rf"[(\[{{<]{_SPACE}*[)\]}}>]| [.,;]( |$)"
        rf"|[,;:]{_SPACE}*$|^{_SPACE}*{_SEPARATOR}+({_SPACE}|$)|{_SPACE}{_SEPARATOR}+{_SPACE}*$",
        "empty brackets, stray commas and separators at the ends are removed",
    ),
    Rule(
        "spaces",
        signs.collapse_spaces,
        r"^ | $|  |[\t-\r\x1c-\x1f]",
        "white space and line breaks become single spaces",
    ),
)
NAMES = tuple(rule.name for rule in RULES)
DEFAULT = tuple(rule.name for rule in RULES if rule.default)


def rules_named(wanted: Iterable[str]) -> tuple[Rule, ...]:
    """The rules with these names, in the table's order."""
    names_wanted = frozenset(wanted)
    return tuple(rule for rule in RULES if rule.name in names_wanted)


def rounds(characters: int) -> int:
    """Most rounds of the table over a text: 32, fewer above 125,000 characters, at least 4. A text therefore costs at
    most 4 rounds or as much as one round over 4 million characters, whichever is larger."""
    return max(4, min(32, 4_000_000 // max(1, characters)))


def steps(text: str, rules: Iterable[Rule]) -> list[tuple[str, str, str]]:
    """(rule, before, after) of each change, in order. The last `after`, if any, is the cleaned text."""
    rules, quiet = tuple(rules), 0
    done: list[tuple[str, str, str]] = []
    for _ in range(rounds(len(text))):
        for rule in rules:
            after = rule.apply(text)
            if after == text:
                quiet += 1
                if quiet >= len(rules):  # no rule changes the text
                    return done
            else:
                quiet = 0
                done.append((rule.name, text, after))
                text = after
    return [*done, (UNSETTLED, text, "")] if rules else done


UNSETTLED = "unsettled"
"""Counter next to those of the rules: texts still changing after all rounds."""


def clean(text: str, rules: Iterable[Rule] = rules_named(DEFAULT)) -> tuple[str, set[str]]:
    """The cleaned text, and the names of the rules that changed it."""
    done = steps(text, rules)
    return (done[-1][2] if done else text), {name for name, _, _ in done}


def hint(rules: Iterable[Rule]) -> str:
    """A regular expression that matches every text that any of these rules changes."""
    return "|".join(dict.fromkeys([*(f"({rule.hint})" for rule in rules), f"({NOT_ASCII})"]))
