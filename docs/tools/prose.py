"""Finds idioms that read like a translation, and names the plain words: `python docs/tools/prose.py [FILES]`.

It reads comments, docstrings, messages and names of tests in Python files, Markdown, HTML templates, and comments and
quoted texts of other files. It skips code: names in backticks, fields of f-strings, strings of one word, paths and
options. Without FILES it reads all files that git tracks or would add. It exits with 1 if it finds an idiom. `--count`
prints totals.

To keep an idiom where it is data (a caption in a test, a list of stop words), add it to ALLOWED with a reason.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# Pattern -> plain words. Texts are in lower case; a space is any white space, also a line break within a comment; `\A`
# is the beginning of a text (not of a comment) or of a sentence. Patterns begin and end at the ends of words.
IDIOMS = {
    # glossary
    r"pictures?(?!: (?:own|student))|pictured": "image",
    r"(?<!connection )refus(?:e|es|ed|ing|al)(?! connections)": "reject",
    r"(?:go|goes|going|went) on(?! the| a)": "continue, resume; of rows: pass, stay",
    r"(?:made|make|makes|making|built|build|builds)(?: it| them| these| those| this| that| each)? (?:again|anew)": (
        "recompute, rebuild"
    ),
    r"anew": "again, from scratch",
    r"hurt": "corrupt",
    r"cut (?:tars?|files?|images?|jpegs?|archives?|tables?)": "truncated",
    r"(?:tars?|files?|images?|jpegs?|pngs?|archives?|tables?|lines?)(?: that)? (?:is|are|was|were) cut(?! into)": (
        "truncated"
    ),
    r"known to be cut": "truncated",
    r"buried|bury|burie[sd]": "tombstoned",
    r"foretells?|foretold": "predict",
    r"learnt": "learned; training rows",
    r"asked about": "test rows, queries",
    r"mend|mends|mended|mending": "fix",
    r"made out of|(?:makes?|made) of (?:it|them|these|this|that)": "derived from, computed from",
    r"what made (?:the|a|an|it|its|them)|how (?:it|they) (?:was|were) made": "provenance of",
    r"blends?": "dataset mixture, mixture",
    r"watchers?|examiners?": "evaluator",
    # negation
    r"(?<!there )(?:is|are|was|were) no(?! (?:more|less|better|worse|(?:long|few|great|larg|small|slow|fast)er)\b)": (
        "is not a"
    ),
    r"(?<!there )(?:is|are|was|were) none": "is not one",
    r"nobody(?:'s)?": "nothing, no run, no caller; or drop the clause",
    r"knows? nothing (?:of|about)": "does not depend on, does not import",
    r"in vain": "for nothing, wasted",
    # people who are processes
    r"somebody(?:'s)?": "another process, the caller; someone",
    r"anybody(?:'s)?": "any process; anyone",
    r"whoever": "the process that, any reader",
    r"who (?:is|are|was|were) (?:alive|there|asked)": "which rows are alive",
    r"\Awho|(?:of|for|over|all|with|by|what|mask|and) who": "name the actor or the rows: the later run, rows that",
    r"(?:says?|said|saying) (?:of|nothing of)": "records for, reports about",
    r"(?:speaks?|spoke|spoken|tells?|told) of": "covers, refers to, reports",
    r"(?:is|are|was|were|be|been) (?:never |not |also )?(?:said|told)(?! apart)": "is reported, is given, is notified",
    r"(?:is|are|was|were) asked(?! for| about)": "is queried, is requested",
    r"(?:is|are|was|were|be) looked at": "is read, is inspected",
    r"wants": "needs, requests",
    r"sees? to it": "ensure, make sure",
    r"to blame": "the cause, at fault",
    r"(?:just|newly) (?:been )?born|(?:is|are|was) born": "created, started",
    r"(?:held|hold|holds) against": "compared with",
    r"(?:hand|hands|handed|handing) out": "assign, distribute, return",
    # places
    r"(?:lies?|lay|lain|lying) (?:in|on|at|there|here|beside|below|under|elsewhere|side by side|about)": "is in, is at",
    r"(?:what|where(?: [\w'-]+){1,5}) (?:lies?|lay)(?! (?:within|above|near|far|close|between|beyond|outside))": (
        "where it is, what it holds"
    ),
    r"(?:stands?|stood) (?:in(?! for)|on|at|there|here|still|beside|after|under)": "is in, is on; has stopped",
    r"(?:that|what|which|whether (?:it|one)|it|they) (?:is|are|was|were) (?:already )?there": "existing, present",
    r"(?:is|are|was|were) not there": "does not exist, is missing",
    r"(?:is|are|was|were) lacking": "is missing",
    r"at hand": "available",
    r"comes? along": "is included, is bundled",
    r"(?<!left )(?<!stay )(?<!hides )(?<!figures )behind (?:it|them|this|that|an?|another|the|its|each|every|@)": (
        "after, downstream of"
    ),
    r"one image's way": "path of one image",
    # conditions
    r"whatever (?:the|its|their|happened|happens|became|becomes)": "regardless of",
    r"in whatever": "in any",
    r"be it|though it be": "whether",
    r"no matter": "regardless; harmless",
    r"(?<!is )(?<!are )none where": "None if",
    r"raises? \w+(?:,[\w ]{1,40},|,)? where": "raises X if",
    r"where there (?:is|are) (?:no|none|nothing)": "if there is no",
    r"\Aelse": "otherwise",
    # order and manner
    r"\A(?:only |also )?of(?! course) [\w-]+": "put the noun first: the last of several",
    r"of (?:its|their) own": "its own X, a separate X",
    r"another one(?:'s)?": "another X",
    r"one after (?:the other|another)": "in turn, one at a time",
    r"again and again": "repeatedly",
    r"in turns|by turns": "alternately",
    r"in (?:its|their) order": "in order, in that order",
    r"(?:at most|at least|after|of|in|than|for|by) so many": "n, the given number of",
    r"as [\w.' ]{1,30} ha(?:s|ve) (?:it|them)": "in the form of, as defined by",
    r"but for": "except, except for",
    r"now and then": "periodically",
    r"for ever": "forever, indefinitely",
    r"for good": "permanently",
    r"once for all|once and for all": "once",
    r"in words": "as text, as a message",
    r"(?:in|as) a line": "in one line",
    r"by alphabet": "alphabetically",
    r"whole or not at all": "atomically",
    r"(?:not )?as it was written": "corrupt (checksum mismatch)",
    r"stays? as (?:it is|they are)": "is unchanged",
    r"ends? well|ended well": "succeeds",
    r"let go": "release, drop, remove",
    r"be had": "is available, can be obtained",
    r"(?:is|are) at it": "is working on it",
    r"dear": "costly, expensive",
    r"slips?": "typo, mistake",
    r"waters": "distributes",
    r"besides": "as well as, apart from; in addition",
    r"beforehand|likewise|whereby|thereof|herein|therein|thereby|whence|thence": "first, also, by which; or drop it",
}

# (files, as in fnmatch; what the line of source has, a regular expression; reason)
ALLOWED = [
    ("docs/tools/prose.py", "", "the idioms themselves"),
    ("tests/test_prose.py", "", "plants idioms"),
    ("curate/text/stopwords.py", "^[a-z ]+$", "the stop words"),
    ("curate/kernels/sentences.py", "^    [a-z ]+$", "words that begin sentences"),
    ("curate/kernels/cluster_names.py", "image images picture pictures", "the words of file names"),
    ("curate/core/nouns/pools.py", "this one was made out of", "metadata stored in tables"),
    ("tests/*", r"(?i)picture of|picture number|picture \{|picture \d", "captions, which decide what the test finds"),
    ("curate/caption/*", r"\brefused\b", "the name of an outcome"),
    ("tests/caption/*", r"\brefused\b", "the name of an outcome"),
    ("curate/engine/record/summary.py", r"\brefused\b", "the name of a state, after the file refused.json"),
    ("curate/service/runs/remedies.py", r"connection \(refused", "the operating system's words"),
    ("curate/caption/untrusted/*.yaml", "", "words of orders"),
    ("tests/caption/untrusted/orders/*", "", "orders, and texts that look like them"),
    ("tests/caption/untrusted/*", "", "captions and orders, which decide what the test finds"),
    ("*", r"(?i)\b(is|are) asked\b", "models and endpoints are asked, by caption.ask for one"),
    ("tests/caption/untrusted/orders/*", "kind: ", "texts of the web and answers of models"),
    ("*", r"\bSLIP\b|\bslip (needs|compares)", "a method of training"),
    ("tests/e2e/test_cli_runs.py", "dear toy.costly", "the name of a stage"),
    ("tests/e2e/test_text_bad_input.py", "of a man", "a caption"),
]

FILES = ("*.py", "*.md", "*.html", "*.js", "*.css", "*.yaml", "*.yml", "*.toml", "*.sh", "*Makefile", "*Dockerfile")

START, CODE = "\x02", "\0"  # the beginning of a text; code between or within texts, which no idiom crosses
SEARCH = {  # one pattern each: an alternation of all takes ten times as long
    re.compile(rf"(?:{idiom})(?![\w=-])".replace(r"\A", f"(?<=[{START}.;] )")): plain for idiom, plain in IDIOMS.items()
}

STRING = (
    r"(?:\b[rubfRUBF]{1,2})?"
    r"""(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
)
TEST = "test_"
TEXTS = {  # what is prose in a file, by suffix; a text, comment or name of a test each
    ".py": re.compile(rf"#[^\n]*|(?<=\bdef ){TEST}\w+|{STRING}", re.DOTALL),
    ".toml": re.compile(rf"#[^\n]*|{STRING}", re.DOTALL),
    ".js": re.compile(rf"//[^\n]*|/\*.*?\*/|`[^`]*`|{STRING}", re.DOTALL),
    ".css": re.compile(r"/\*.*?\*/", re.DOTALL),
    ".md": re.compile(r".+", re.DOTALL),
    ".html": re.compile(r".+", re.DOTALL),
}
OTHERS = re.compile(r"#[^\n]*|\"[^\"\n]*\"")

FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
NOT_PROSE = re.compile(
    r"``.+?``|`[^`\n]+`|(?<!\w)'[\w.-]+'(?!\w)"  # quoted names
    r"|\w+://\S+|<[^<>\s]+>|(?<!\w)--?[\w-]+|\w+=(?!=)|\w+\("  # addresses, placeholders, options, calls
    r"|\w+_\w+|(?:[\w~.-]*/){2,}[\w.*-]*|(?<![\w.])\.?/[\w./-]+|\w[\w/-]*\.[a-z]\w*"  # identifiers, paths
)
MARKDOWN = re.compile(r"^```.*?^```|\]\([^)\s]*\)", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"(?:^|\s)#(\s[^\n]*)", re.MULTILINE)
HTML = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|\{\{.*?\}\}|\{%.*?%\}|<!--|-->|<[^>]*>", re.DOTALL)
ATTRIBUTE = re.compile(r'\b(?:title|alt|aria-label|placeholder|content)="([^"]*)"')


class Finding(NamedTuple):
    line: int
    words: str
    plain: str


def findings(name: str, source: str) -> list[Finding]:
    """Idioms in the prose of one file; its suffix says which parts are prose."""
    words: list[str] = []
    starts: list[int] = []  # of each word, in the text with single spaces
    offsets: list[int] = []  # of each word, in the source
    place = 0
    for start, part in prose(name, source):
        for found in re.finditer(r"\S+", part):
            words.append(found[0].lower())
            starts.append(place)
            offsets.append(start + found.start())
            place += len(words[-1]) + 1
    text = " ".join(words)
    result, stop = [], 0
    for found, plain in sorted(_matches(text), key=lambda match: (match[0].start(), -match[0].end())):
        if found.start() >= stop:
            stop = found.end()
            line = source.count("\n", 0, offsets[bisect_right(starts, found.start()) - 1])
            if not any(fnmatch(name, file) and re.search(has, source.split("\n")[line]) for file, has, _ in ALLOWED):
                result.append(Finding(line + 1, found[0], plain))
    return result


def _matches(text: str) -> Iterator[tuple[re.Match[str], str]]:
    for pattern, plain in SEARCH.items():
        for found in pattern.finditer(text):
            if not re.match(r"[\w-]", text[max(found.start() - 1, 0)]):
                yield found, plain


def prose(name: str, source: str) -> Iterator[tuple[int, str]]:
    """(offset, prose) of each comment, string, name of a test or page, with CODE in place of every other character."""
    suffix = Path(name).suffix
    stop = -1
    for found in TEXTS.get(suffix, OTHERS).finditer(source):
        part = found[0]
        if suffix == ".md":
            part = MARKDOWN.sub(_only_comments, part)
        elif suffix == ".html":
            part = HTML.sub(_only_attributes, part)
        elif part.startswith(TEST):
            part = part.replace(TEST, " " * len(TEST), 1).replace("_", " ")
        elif part.startswith(("#", "/")):
            part = re.sub(r"^[#/*]+", lambda sign: " " * len(sign[0]), part)
        else:
            part = _text(part)
        if stop < 0 or source[stop : found.start()].strip():
            yield found.start(), f"{CODE} {START}" if found[0][0] not in "#/" else CODE
        stop = found.end()
        yield found.start(), NOT_PROSE.sub(_code, part)


def _text(literal: str) -> str:
    """The content of a string literal; CODE for bytes, for a single word and for fields."""
    prefix, content = re.match(r"(\w*)(.*)", literal, re.DOTALL).groups()  # type: ignore[union-attr]
    if " " not in content or "b" in prefix.lower():
        return CODE * len(literal)
    if "f" in prefix.lower():
        content = FIELD.sub(lambda field: re.sub(rf"({STRING})|.", _quoted, field[0], flags=re.DOTALL), content)
    quotes = 3 if content[:3] in ('"""', "'''") else 1
    content = re.sub(r"\\[ntr]", "  ", content[quotes:-quotes])
    return " " * (len(prefix) + quotes) + content


def _quoted(found: re.Match[str]) -> str:
    """A text within a field of an f-string, but CODE for a single word and for all else."""
    return f"{CODE}{found[1][1:-1]}{CODE}" if found[1] and " " in found[1] else CODE * len(found[0])


def _code(found: re.Match[str]) -> str:
    return CODE * len(found[0])


def _only_comments(found: re.Match[str]) -> str:
    """A block of code in Markdown without all but its comments."""
    return _keep(COMMENT, found[0])


def _only_attributes(found: re.Match[str]) -> str:
    """A tag without all but what browsers show of its attributes."""
    return _keep(ATTRIBUTE, found[0]) if found[0].startswith("<") else _code(found)


def _keep(kept: re.Pattern[str], text: str) -> str:
    result = [CODE] * len(text)
    for found in kept.finditer(text):
        result[found.start(1) : found.end(1)] = found[1]
        result[found.start(1) - 1] = " "
    return "".join(result)


def files(given: Iterable[str]) -> list[str]:
    """Files to check, relative to ROOT: those given, or below the folders given, that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [name for name in sorted(listed) if any(fnmatch(name, kind) for kind in FILES) and (ROOT / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files or folders, from the root of the checkout; all if left out")
    parser.add_argument("--count", action="store_true", help="print findings per folder and per idiom")
    args = parser.parse_args()
    found = [(name, one) for name in files(args.files) for one in findings(name, (ROOT / name).read_text("utf-8"))]
    if args.count:
        folders = Counter("/".join(Path(name).parts[:-1][:2]) or "." for name, _ in found)
        plain = Counter(one.plain for _, one in found)
        lines = [f"{number:6}  {what}" for counter in (folders, plain) for what, number in counter.most_common()]
    else:
        lines = [f'{name}:{one.line}: "{one.words}" -> say "{one.plain}"' for name, one in found]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if found:
        sys.stdout.write(f"{len(found)} idioms; rephrase them (docs/tools/prose.py lists all)\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
