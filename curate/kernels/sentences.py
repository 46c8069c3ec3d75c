"""Splits a text into sentences.

The split uses rules: no model, no data, linear time. A sentence ends at a line break, at 。！？, or at . ! ? … (with
closing brackets and quotation marks) before white space and a possible beginning of a sentence. A full stop does not
end a sentence after an initial, a title (`Mr. Smith`), an abbreviation before a number (`No. 5`) or an enumerator
(`1. Soup`). After an abbreviation that can end a sentence (`Inc.`, `U.S.`, `a.m.`), it does so only before a word that
usually begins one (`The`).
"""

from __future__ import annotations

import re

_WHITE = r"[ \t-\r\x1c-\x1f]"
POSSIBLE = rf"[.!?][\"')\]]*{_WHITE}|[\n-\r]|^{_WHITE}|{_WHITE}$|[^\x00-\x7f]"
"""Matches every text that may need splitting or stripping, and all text that is not ASCII; for RE2 and `re`."""
_BREAKS = "\n\r\x0b\x0c\x85\u2028\u2029"
_MARKS = re.compile(f"[.!?…。！？{_BREAKS}]++")
_HARD = re.compile(f"[。！？{_BREAKS}]")
_CLOSERS = re.compile(r"[\"'”’»」』）)\]]*+")


def _words(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


_UNITS = _words("in ft cm mm oz lb lbs qt gal cu sq hr hrs")
"""After a number: not an end."""
_TITLES = _words("""
    mr mrs ms mx dr prof rev hon gen col capt lt sgt cpl cmdr adm gov sen rep pres supt msgr maj pvt sr sra srta
    dott mme mlle ste vs cf viz feat eds trans illus arr fig figs photog eg ie e.g i.e a.k.a approx ca
""")
"""Before a name or the rest of a phrase: never an end."""
_NUMBERED = _words("no nos nr vol vols ch pp p pg art sec op ver v pl plate lot min max tel ext")
"""Before a number: not an end."""
_EITHER = _words("""
    inc ltd co corp bros jr sr etc dept univ assn est ave blvd rd st mt ft pt sq bldg apt cm mm oz lb lbs qt gal
    cu hr hrs wt incl excl ed a.m p.m u.s u.k u.s.a u.n e.u d.c ph.d
""")
"""Before a word that usually begins a sentence: an end."""
_EITHER_NAMES = _words("""
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thurs Fri Sat Sun Mass Calif Conn Fla
    Ariz Pa Wis Minn Ill Tenn Wash Ore Tex Okla Colo Ga Va Md
""")
_STARTERS = _words("""
    the a an this that these those he she it we you they i there here in on at by for from with after before when
    while as if but and so his her its our your their my what who how why where all most some many please click
    see photo image picture photograph
""")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")


def split_sentences(text: str) -> list[str]:
    """The sentences in order, without surrounding white space. Together they have all characters of the text except
    white space."""
    found, start = [], 0
    for match in _MARKS.finditer(text):
        marks, end = match.group(), match.end()
        if marks[-1] not in _BREAKS:
            end = _CLOSERS.match(text, end).end()  # type: ignore[union-attr]  # the pattern also matches an empty string
        if _HARD.search(marks) or (text[end : end + 1].isspace() and _ends(text, start, match, end)):
            sentence = text[start:end].strip()
            if sentence:
                found.append(sentence)
            start = end
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def _ends(text: str, start: int, match: re.Match[str], end: int) -> bool:
    """Whether `.`, `!`, `?` or `…` before white space ends the sentence that began at `start`."""
    follows = text[end : end + 30].strip().lstrip("\"'“‘«([¿¡")
    if not follows:
        return True
    if follows[0].islower() or follows[0] in ",;:-–—)&|/+":
        return False
    if match.group() != ".":
        return True
    place = match.start()
    words = text[max(start, place - 30) : place].split()[-2:]
    before = words[-1].lstrip("(\"'“‘[") if words and not text[place - 1].isspace() else ""
    if not before or (before.isdigit() and not text[start : place - len(before)].strip()):
        return False  # an isolated full stop, an enumerator
    if before.lower().lstrip("0123456789.,/-") in _UNITS and words[0][0].isdigit():
        return False  # 72in., 50 in.
    return _may_end_after(before, follows)


def _may_end_after(before: str, follows: str) -> bool:
    """Whether a full stop after the word `before` ends a sentence, if the next may begin with `follows`."""
    low = before.lower()
    if low in _NUMBERED and follows[0].isdigit():
        return False
    initial = len(before) == 1 and before.isupper()
    if initial or low in _EITHER or before in _EITHER_NAMES or ("." in low and _ACRONYM.fullmatch(low)):
        word = follows.split(None, 1)[0].rstrip(",.:;!?")
        return before != "I" and word.lower() in _STARTERS and (len(word) == 1 or not word.isupper())
    return low not in _TITLES
