"""A card shows what sources say, whatever that is, and nothing else comes of it."""

from __future__ import annotations

import re
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from curate.release.card import card, code, plain
from curate.release.public import REASONS

HOSTILE = (
    "a|b", "\\|", "\\\\|", "one\ntwo", "\r\n---\r\n", "---", "# not a title", "end #", "`", "``", "a`|`b", "<", "<!-- ",
    "--> x", "<script>alert(1)</script>", "</td></tr></table>", "&lt;b&gt;", "&#60;b&#62;", "[x](javascript:alert(1))",
    "![x](https://evil.example/p.png)", "[x]: http://e", "[^1]", "<https://evil.example>", "https://evil.example",
    "www.evil.example", "*bold*", "__bold__", "~~gone~~", "$x^2$", "@someone", "a_b", "_a_", "1. one", "> quote",
    "- item", "key: [value", "{a: b}", "!!python/object:os.system", "%TAG", "'", '"', "null", "yes", "1.0", "::: x",
    "{{ x }}", " ", "", "\x00\x07\x1b[31m", "\u202egpj", "\u2028", "\x85", "\t", "\ufeff",
)  # fmt: skip
SAID = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), min_size=1, max_size=3).map("".join)
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
TAGS = re.compile(r"<(/?[a-z0-9]+)([^>]*)>")
OWN = {"h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "pre"}


def shown(html: str) -> str:
    """The text of some HTML."""
    text = TAGS.sub("", html)
    for entity, sign in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, sign)
    return text.strip()


def words(text: str) -> str:
    """A text as one line can show it."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


@given(SAID)
def test_a_text_and_a_name_are_shown_as_they_are(said: str) -> None:
    for made in (plain(said), code(said)):
        assert len(made.splitlines()) <= 1
        html = MARKDOWN.render(f"- it says: {made}.")
        assert shown(html) == f"it says: {words(said)}."
        assert {tag.strip("/") for tag, _ in TAGS.findall(html)} <= {"ul", "li", "code"}
        cells = MARKDOWN.parse(f"| a | b |\n| --- | --- |\n| {made} | end |")
        assert [cell.content for cell in cells if cell.type == "inline"][-1] == "end"
        assert sum(cell.type == "td_open" for cell in cells) == 2


def about(said: list[str]) -> dict[str, Any]:
    """What a release says, with each text of a source drawn."""
    text = iter(said)
    lost = {next(text): 3, next(text): 2}
    return {
        "title": next(text), "license": next(text), "name": next(text), "dataset": "d1", "committed": "2025-01-01",
        "rows": 9, "samples": 9, "urls": 9, "digests": 9, "media": ["image"], "recipe_digest": "r1",
        "predecessor": {"name": next(text), "dataset": next(text), "digest": next(text)}, "added": 1, "removed": 1,
        "pixels": {"width": dict.fromkeys(("p5", "p25", "p50", "p75", "p95"), 8)},
        "words": {next(text): dict.fromkeys(("p5", "p25", "p50", "p75", "p95"), 8) | {"rows": 5}},
        "licences": {next(text): 5}, "balance": {}, "columns": {next(text): next(text)},
        "funnel": [{"stage": next(text), "op": next(text), "before": 9, "after": 4, "lost": lost}],
        "provenance": {"Pool": "`acquire.list`"}, "opt_outs": {next(text): 1}, "tombstoned": 0, "taken_down": 0,
        "withheld": {next(text): {next(iter(REASONS)): 1}},
    }  # fmt: skip


@given(st.lists(SAID, min_size=16, max_size=16))
def test_what_sources_say_changes_no_structure(said: list[str]) -> None:
    given, quiet = about(said), about([f"word{number}" for number in range(16)])
    header, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", card(given), re.DOTALL).groups()  # type: ignore[union-attr]
    found = yaml.safe_load(header)
    assert (found["pretty_name"], found["license"]) == tuple(
        " ".join(given[name].split()) for name in ("title", "license")
    )
    assert not re.search(r"^---\s*$", header, re.MULTILINE)
    html, plain_html = MARKDOWN.render(body), MARKDOWN.render(card(quiet).split("---\n", 2)[2])
    tags = [tag for tag, _ in TAGS.findall(html) if tag.strip("/") != "code"]
    assert tags == [tag for tag, _ in TAGS.findall(plain_html) if tag.strip("/") != "code"]
    assert {tag.strip("/") for tag in tags} <= OWN
    for text in {*given["licences"], *given["columns"], given["title"]}:
        assert words(text) in shown(html)
