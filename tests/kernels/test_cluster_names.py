from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.cluster_names import Terms, cluster_names, words


def names_of(*clusters: list[str], pool: list[str] | None = None) -> list[str]:
    """Names of clusters given by their captions; captions of the pool are in no cluster."""
    groups = [pool or [], *clusters]
    cluster = np.repeat(np.arange(-1, len(clusters)), [len(group) for group in groups])
    return cluster_names(Terms.of([text for group in groups for text in group]), cluster, len(clusters))


def test_words_of_any_script_in_order():
    assert words("Красная ЗВЕЗДА, the 星星星 of 1999") == ["красная", "звезда", "星星星"]


def test_common_words_are_left_out():
    assert words("the picture.jpg of an ox, and a House, a house") == ["house", "house"]


def test_a_name_is_more_frequent_in_the_cluster_than_in_the_pool():
    pool = ["a nice red star"] * 5 + ["a nice blue house"] * 95
    assert names_of(["a nice red star", "another nice star, red"], pool=pool) == ["red, star"]


def test_a_pair_of_words_wins_a_tie():
    assert names_of(["fire engine"] * 3, ["house"] * 3) == ["fire engine", "house"]


def test_words_of_every_caption_do_not_name_a_cluster():
    assert names_of(["clip of a tree"] * 10, pool=["clip of a tree"] * 50) == [""]


def test_a_word_of_one_caption_does_not_name_a_cluster():
    assert names_of(["zebra", "horse", "donkey"], pool=["house"] * 9) == [""]


def test_singular_and_plural_are_one_name():
    assert names_of(["star", "stars", "star", "stars"], pool=["house"] * 9) == ["star"]


def test_clusters_without_captions_have_no_name():
    assert names_of() == [] and names_of([], []) == ["", ""]


@given(st.lists(st.text(max_size=80), max_size=12))
def test_any_text_gives_at_most_three_terms_in_any_order_of_captions(texts):
    found = names_of(texts, pool=["house"])
    assert len(found[0].split(", ")) <= 3
    assert found == names_of(texts[::-1], pool=["house"])
