from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.text.rules import NAMES, RULES, clean

EXAMPLES = [
    # (as found in OpenClipart's or LAION's captions, cleaned, rules that changed it)
    ("Croissant (B &amp; W)", "Croissant (B & W)", {"entities"}),
    ("Baden-W&uuml;rttemberg", "Baden-Württemberg", {"entities"}),
    ("front &amp;amp; back", "front & back", {"entities"}),
    ("L&Atilde;&copy;zard", "Lézard", {"entities", "mojibake"}),
    ("Jean d'Arc Ã  RouÃ«n", "Jean d'Arc à Rouën", {"mojibake"}),
    ("Access Hollywood&#8217;s Shaun Robinson", "Access Hollywood’s Shaun Robinson", {"entities"}),
    ("The weather is &lt; 5 &deg;C", "The weather is < 5 °C", {"entities"}),
    ("<em>The Red Solstice</em> Preview (PC)", "The Red Solstice Preview (PC)", {"tags"}),
    ("Ryde<br /> Grave of Maria Ann Smith", "Ryde Grave of Maria Ann Smith", {"tags", "spaces"}),
    ("Tour (includes lunch)<br>[Visa Exclusive]", "Tour (includes lunch) [Visa Exclusive]", {"tags"}),
    ('"Watch Conor Oberst on <i>Late Show</i>"', '"Watch Conor Oberst on Late Show"', {"tags"}),
    ("<!--0201-->Hip Hop Flash Drive", "Hip Hop Flash Drive", {"tags", "spaces"}),
    ('Snow <a href="http://x.org/y" target=', "Snow", {"tags", "spaces"}),
    ("I <3 cats, and a < b > c", "I <3 cats, and a < b > c", set()),
    ("<完売>セール開催中!", "<完売>セール開催中!", set()),
    ("Nature Tones - https://www.design-seeds.com/nature-tones-6", "Nature Tones", {"urls", "leftovers"}),
    ("Planet\nhttp://www.bcostea.net", "Planet", {"urls", "spaces"}),
    ("See http://example.org/a_(b). Then rest.", "See ). Then rest.", {"urls", "spaces"}),
    ("http://www.mytowntutors.com/2013/01/", "", {"urls", "spaces"}),
    ("EPS converted from  http://aiga.org", "EPS converted from", {"urls", "spaces"}),
    ("Covers - Paybydaddy.com", "Covers - Paybydaddy.com", set()),
    ("jean.victor.balin@gmail.com", "", {"emails", "spaces"}),
    ("contact: hermann.schwarting@knackich.de", "", {"emails", "spaces"}),
    ("Telefono (email: frollandin@email.it)", "Telefono", {"emails", "leftovers", "spaces"}),
    ("A pizza slice. Email: ri@rin.no.", "A pizza slice.", {"emails", "leftovers", "spaces"}),
    ("Palo Alto Adult School@2x", "Palo Alto Adult School@2x", set()),
    ("\u200bBappi Lahrri Records", "Bappi Lahrri Records", {"hidden"}),
    ("Del-Tones \u200e– Surfer's Guitar", "Del-Tones – Surfer's Guitar", {"hidden"}),
    ("family 👨\u200d👩\u200d👧 and क्\u200dष", "family 👨\u200d👩\u200d👧 and क्\u200dष", set()),
    ("Cafe\u0301 Stra\u00adße", "Café Straße", {"hidden", "unicode"}),
    ("Urbini Omni Plus, Special Edition ()", "Urbini Omni Plus, Special Edition", {"leftovers", "spaces"}),
    (": Decorative wall clocks", "Decorative wall clocks", {"leftovers"}),
    ("U.S. Air Force Tag   -", "U.S. Air Force Tag", {"leftovers"}),
    ("Shape package\u00a0 pantyhose.\n", "Shape package pantyhose.", {"spaces"}),
    ("Pyjamas - ROSE PÂLE DAD M", "Pyjamas - ROSE PÂLE DAD M", set()),
    ("Spaß mit “Zitaten” – und ´Akzenten`", "Spaß mit “Zitaten” – und ´Akzenten`", set()),
]
PIECES = [
    "&amp;",
    "lt;",
    "<b>",
    "</p",
    ">",
    "http://",
    "www.",
    "a@b.cd",
    "Ã©",
    "\u200b",
    "(",
    ")",
    " ",
    "-",
    ":",
    ".",
    "x",
]


@pytest.mark.parametrize(("caption", "text", "hits"), EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_examples(caption: str, text: str, hits: set[str]) -> None:
    assert clean(caption) == (text, hits)


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
@example("&" + "amp;" * 60 + "lt;b>")
def test_clean_text_stays_as_it_is(caption: str) -> None:
    text, _ = clean(caption)
    assert clean(text) == (text, set())


@given(st.text(max_size=60), st.sets(st.sampled_from(NAMES)))
def test_only_the_chosen_rules_act(caption: str, chosen: set[str]) -> None:
    text, hits = clean(caption, chosen)
    assert hits <= chosen
    assert bool(hits) or text == caption


@given(
    st.text(st.sampled_from("abcXYZ0189äéñßжя語漢字हिन्दी"), min_size=1, max_size=20).filter(lambda w: clean(w)[0] == w)
)
def test_a_word_between_words_survives(word: str) -> None:
    assert clean(f"one {word}  two")[0].split() == ["one", *word.split(), "two"]


@pytest.mark.parametrize("piece", ["a", "&amp;", "<a ", "<!--", "((", "www.", "a.", "@", "http://", " -", "x@"])
@pytest.mark.timeout(60)
def test_no_rule_is_quadratic(piece: str) -> None:
    """A hundredth of a second each; minutes, so the time-out, if a rule looked back from every place."""
    text, _ = clean(piece * (200_000 // len(piece)))
    assert len(text) <= 200_000


def test_every_rule_says_what_it_does() -> None:
    assert len(set(NAMES)) == len(RULES)
    assert all(rule.meaning for rule in RULES)


def test_real_captions(data: Path) -> None:
    table = pq.read_table(data / "laion-alt-text-10k.parquet", columns=["caption"])
    for caption in table.column("caption")[:3000].to_pylist():
        text, _ = clean(caption)
        assert clean(text) == (text, set())
        assert not any(piece in text for piece in ("http://", "https://", "&amp;", "<br"))
