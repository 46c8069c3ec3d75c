"""Properties of the table of rules; test_captions.py has real captions for each rule."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.text.clean.rules import DEFAULT, NAMES, NOT_ASCII, RULES, UNSETTLED, clean, rounds, rules_named, steps

BY_NAME = {rule.name: rule for rule in RULES}
ALL = rules_named(NAMES)
EXAMPLES = [
    # (invented, because no real caption here has these; cleaned; rules that changed it)
    ("front &amp;amp;amp; back &#38;lt;3 &#x41;&#66", "front & back <3 AB", {"entities"}),
    ("L&Atilde;&copy;zard", "Lézard", {"entities", "mojibake"}),
    ('Snow <a href="http://x.org/y" target=', "Snow", {"tags", "spaces"}),
    ("See http://example.org/a_(b). Then rest.", "See. Then rest.", {"urls", "leftovers"}),
    ("a cat (photo: HTTPS://EXAMPLE.ORG/CAT) asleep", "a cat (photo: ) asleep", {"urls", "spaces"}),
    ("via bit.ly/2xYz and example.co.uk:8080/a?b=c", "via and", {"urls", "spaces"}),
    ("sunset, by @jane.doe and @user@host.social (via @x)", "sunset, and", {"mentions", "leftovers", "spaces"}),
    ("@jane's cat", "cat", {"mentions", "spaces"}),
    ("#dog#cat #4thofjuly ＃空", "dog cat 4thofjuly 空", {"hashtags"}),
    ("IMG_2034 (1).JPG", "", {"file_names", "camera_codes", "spaces"}),
    ("cat IMG-20190101-WA0001 DSC00012 P1010023.jpg _MG_1234", "cat", {"file_names", "camera_codes", "spaces"}),
    ("image001.png", "", {"file_names", "spaces"}),
    ("a cat.jpg saved as .png", "a cat saved as .png", {"file_names"}),
    ("family 👨\u200d👩\u200d👧 and क्\u200dष", "family and क्\u200dष", {"emojis", "spaces"}),
    ("top 1️⃣0️⃣ of 🇫🇷, ☺️!", "top 10 of !", {"emojis", "leftovers", "spaces"}),
    ("cat😀dog :) i <3 you", "cat dog :) i <3 you", {"emojis"}),
    ("F♯ for ♀ ★Barbie™Doll© 2020", "F♯ for ♀ Barbie Doll 2020", {"symbols"}),
    ("Cafe\u0301 Stra\u00adße H\ufffdrbuch", "Café Straße Hrbuch", {"hidden", "unicode"}),
    ("what?!?! no...... yes.. wow!!!! a,,b ---- c", "what?! no... yes. wow! a,b - c", {"punctuation"}),
    ("red , blue ( ) | -", "red, blue", {"leftovers"}),
    ("x\x00y\ud800z \t\u3000 w", "xyz w", {"mojibake", "hidden", "spaces"}),
    (r"Men\'s \"best\" C:\new", 'Men\'s "best" C:\\new', {"quoting"}),
]
LEFT_ALONE = [
    "node.js, Booking.com, AC/DC, and/or, 24/7, U.S./Canada",
    "C# tutorial, F#m, #1 dad, #070/155, #a0b1c2, $#!+ &#x",
    "Canon EOS 5D Mark II, Sony DSC-RX100, Boeing 747-400",
    "AT&T, mix&match, S&notes, &bogus; &#1 dad",
    "I <3 cats, and a < b > c <user@host",
    "me@ home @ 3pm, @3pm, foo@2x",
    "it's 50% off, 9:16, 3.5mm, U.S.A., résumé",
    "1..10 -- std::vector ... “so” … 15.6''",
    "<完売>セール開催中!",
]
PIECES = ["&amp;", "&", "lt;", "<b>", "</p", "<a b=", ">", "http://", "www.", "a.co/", "a@b.cd", "@a", "#a", "#B", "Ã©"]
PIECES += ["\u200b", "(", ")", " ", "-", ":", ".", ",", "x", "A", "1", "12", '"', '""', "\\", "IMG_123", ".jpg", "via "]
PIECES += ["👨", "\u200d", "\ufe0f", "®", "e\u0301", "\ud800", "\x00", "!", "…", "语", "。", "\n", "\u00a0"]
PIECES += ["😀", "DSC ", "_", "'s", "＃", "\u0344", "#a0b1c2", "P1010023", "jpg", "by "]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@pytest.mark.parametrize(("caption", "text", "hits"), EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_examples(caption: str, text: str, hits: set[str]) -> None:
    assert clean(caption) == (text, hits)


@pytest.mark.parametrize("caption", LEFT_ALONE)
def test_meaningful_signs_stay(caption: str) -> None:
    assert clean(caption) == (caption, set())


@pytest.mark.parametrize(
    ("caption", "text"),
    [
        ("It's #MensHealthWeek #blue_sky #fun", "It's Mens Health Week blue sky fun"),
        ("#iPhone #McDonald #HTMLPage #Class2020 #ABBA", "iPhone McDonald HTML Page Class 2020 ABBA"),
    ],
)
def test_hashtags_of_several_words(caption: str, text: str) -> None:
    assert clean(caption, ALL)[0] == text


@given(TEXTS)
@example("&" + "amp;" * 60 + "lt;b>")
@example("<" * 50 + "b>" * 50)
@example("&#38;" + "#38;" * 50)
@example('"' * 999)
def test_clean_text_is_unchanged(caption: str) -> None:
    for rules in (rules_named(DEFAULT), ALL):
        text, _ = clean(caption, rules)
        assert clean(text, rules) == (text, set())


@given(st.text(max_size=60), st.sets(st.sampled_from(NAMES)))
def test_only_the_chosen_rules_act(caption: str, names: set[str]) -> None:
    text, hits = clean(caption, rules_named(names))
    assert hits <= names
    assert bool(hits) or text == caption


@given(TEXTS)
@example("\x0b")
@example("a\x0cb")
def test_text_without_a_hint_stays(caption: str) -> None:
    for rule in RULES:
        if not re.search(rule.hint, caption) and not re.search(NOT_ASCII, caption):
            assert rule.apply(caption) == caption


@given(TEXTS)
def test_steps_lead_from_the_caption_to_the_text(caption: str) -> None:
    done = steps(caption, ALL)
    places = [caption, *(after for _, _, after in done)]
    assert [before for _, before, _ in done] == places[:-1]
    assert places[-1] == clean(caption, ALL)[0]


@given(
    st.text(st.sampled_from("abcXYZ0189äéñßжя語漢字हिन्दी"), min_size=1, max_size=20).filter(lambda w: clean(w)[0] == w)
)
def test_a_word_between_words_survives(word: str) -> None:
    assert clean(f"one {word}  two")[0].split() == ["one", *word.split(), "two"]


def test_text_with_endless_nesting_becomes_empty() -> None:
    text, hits = clean("&" + "#38;" * 200)
    assert text == ""
    assert hits >= {"entities", UNSETTLED}
    assert [rounds(n) for n in (0, 100, 10**6, 10**9)] == [32, 32, 4, 4]


# --- time -------------------------------------------------------------------------------------------------------------

WORST = ["<a b=", "<a ", "<", "@a.", " .", "😀!", "#A#b", "ÃƒÂ©"]
LONG_RUNS = [" " * 10**6 + "x", '<a "' + "=" * 10**6 + "<", "http://" + "." * 10**6 + "x", '"' * 10**6]


@pytest.mark.timeout(60)  # linear work takes about a second, quadratic work minutes
@pytest.mark.parametrize("name", NAMES)
def test_every_rule_is_linear(name: str) -> None:
    for piece in sorted({*PIECES, *WORST}):
        text = piece * (100_000 // len(piece)) + "x<"
        assert len(BY_NAME[name].apply(text)) <= 2 * len(text)


@pytest.mark.parametrize(
    "text", [*(piece * (10**6 // len(piece.encode())) for piece in WORST), *LONG_RUNS], ids=lambda t: t[:6]
)
@pytest.mark.timeout(60)  # linear work takes a fraction of a second, quadratic work hours
def test_a_megabyte_is_linear(text: str) -> None:
    cleaned, _ = clean(text)
    assert clean(cleaned) == (cleaned, set())


def test_every_rule_has_a_description() -> None:
    assert len(set(NAMES)) == len(RULES)
    assert all(rule.meaning for rule in RULES)
