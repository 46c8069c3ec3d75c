from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.sentences import POSSIBLE, split_sentences

EXAMPLES = [
    "Mr. Smith went to St. Paul.|He slept.",
    "No. 5 is here.|It is not No. 6",
    "The U.S. Air Force lands in the U.S.|The crowd cheers at 5 p.m.|It rains",
    "Windfall by Jennifer E. Smith.|J. K. Rowling reads",
    "72in. Galvanized Window Box, 50 in. Kawasaki engine, 7.4 cu. ft. Dryer",
    "First Manufacturing Co. Women's Vest",
    "1. Soup of the day",
    "Anchor icon.|Internet button on green background.|Stock Photo",
    "Just in time for the holiday... again.|Next one...|And another",
    "Hello!|(A dog.)|“Who?”|¿Qué?|Yes",
    "The Unsuspected Illness, by Broda O. Barnes, M.D., Ph.D.",
    "Supplies for sale. - stock photo",
    "Wow!Next v3.5.2 node.js 3.5mm x . Y",
    "「猫。」|犬！|鳥",
    "Lakers Rumors: L.A. Must Continue",
    "Chicago Cubs vs. St. Louis, Vol. 3, approx. 4 ft. Tall",
    "a|“b” c",  # a line break
]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(["Mr", "A", "dog", "5", ".", "!", "…", "。", "\n", " ", '"', ")", "No", "The", "é"])).map(
        "".join
    ),
)


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(line: str) -> None:
    text = line.replace("|", "\n" if line == EXAMPLES[-1] else "" if "。" in line else " ")
    assert split_sentences(text) == line.split("|")


@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


@given(TEXTS)
def test_text_that_cannot_have_several_sentences_is_one(text: str) -> None:
    if not re.search(POSSIBLE, text):
        assert split_sentences(text) == ([text] if text else [])


@pytest.mark.parametrize(
    "piece", [".", "a.", "a. A", "1. ", "5 5. ", "A. ", '!"', "\n", "。", '"', "... A", "Mr. ", " "]
)
@pytest.mark.timeout(60)  # linear work takes a second, quadratic work hours
@pytest.mark.long
def test_a_megabyte_is_linear(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
