from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from curate.report.words import document_counts, typical_words


def test_a_cluster_is_named_after_what_the_pool_says_less_often():
    pool = ["a nice red star"] * 5 + ["a nice blue house"] * 95
    assert typical_words(["a nice red star", "another nice star, red"], *document_counts(pool)) == ["red", "star"]


def test_words_that_everybody_says_name_nothing():
    pool = ["clip of a tree"] * 50
    assert typical_words(pool[:10], *document_counts(pool)) == []


def test_a_word_of_one_caption_is_no_name():
    assert typical_words(["zebra", "horse", "donkey"], *document_counts(["house"] * 9)) == []


def test_singular_and_plural_are_one_name():
    captions = ["star stars"] * 3
    assert typical_words(captions, *document_counts(["house"] * 9)) == ["star"]


@given(st.lists(st.text(max_size=80), max_size=12))
def test_any_text_gives_at_most_three_names_in_a_fixed_order(texts):
    background = document_counts(texts)
    found = typical_words(texts, *background)
    assert len(found) <= 3
    assert found == typical_words(list(reversed(texts)), *background)
