from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.kernels.interval import Figure
from curate.report.survey.rows import LabelCounts
from curate.report.verdict.compare import ENTROPY, KNN, NEARNESS, SMALL, SPACING, Comparison, compare
from curate.report.verdict.words import against_random
from curate.select.cover import cover
from tests.report.verdict.pools import EQUAL, LONG_TAIL, central, compared, evened, largest, pool, taken, uniform

SEEDS = st.integers(0, 2**32)


def verdict(found: Comparison | None) -> str:
    said = against_random(found, LabelCounts())
    assert said is not None
    return str(said["verdict"])


few = settings(max_examples=5, deadline=None)


@few
@given(SEEDS)
def test_a_long_tail_that_is_evened_out_is_better_balanced(seed: int) -> None:
    labels, vectors, random = pool(LONG_TAIL, seed)
    found = compared(evened(labels, len(labels) // 3, random), labels, vectors, random)
    assert found is not None and not found.balanced
    assert found.figures[ENTROPY].verdict == found.figures[SMALL].verdict == "better"
    assert verdict(found).startswith("better than a random sample: labels' entropy ")


@few
@given(SEEDS, st.sampled_from([evened, uniform]))
def test_balanced_images_are_never_balanced_better(seed: int, select) -> None:
    labels, vectors, random = pool(EQUAL, seed)
    said = verdict(compared(select(labels, len(labels) // 3, random), labels, vectors, random))
    assert "labels" not in said.partition("worse")[0].partition("; the labels were balanced already")[0]


def test_labels_were_balanced_already_only_if_the_whole_interval_says_so() -> None:
    """With even labels, 270 images at random are within 0.1 bit of others; 24 at random, or two labels, are not."""
    labels, vectors, random = pool(EQUAL, 0)
    assert verdict(compared(uniform(labels, 270, random), labels, vectors, random)).endswith(
        "; the labels were balanced already"
    )
    for copies in (uniform(labels, 24, random), taken(np.flatnonzero(labels < 2), len(labels))):
        found = compared(copies, labels, vectors, random)
        assert found is not None and found.even and not found.balanced
        assert "balanced already" not in verdict(found)


def test_the_line_names_what_is_better_worse_and_undecided() -> None:
    figures = {
        ENTROPY: Figure(3.2, 3.21, -0.12, 0.1),
        SMALL: Figure(0.2, 0.3, -0.2, -0.05),
        KNN: Figure(0.612, 0.561, 0.02, 0.08),
        NEARNESS: Figure(0.5, 0.4, 0.05, 0.15),
    }
    assert verdict(Comparison(figures, 600, even=True)) == (
        "better than a random sample: kNN 61.2 against 56.1 %, coverage; "
        "worse: rare labels 20.0 against 30.0 %; undecided: labels' entropy"
    )
    for only, words in ((SMALL, "worse than"), (ENTROPY, "undecided against"), (KNN, "better than")):
        assert verdict(Comparison({ENTROPY: figures[ENTROPY], only: figures[only]}, 600, True)).startswith(
            f"{words} a random sample: "
        )


@few
@given(SEEDS, st.sampled_from([LONG_TAIL, tuple(range(40, 90))]))
def test_a_selection_that_is_worse_than_random_is_called_worse(seed: int, sizes) -> None:
    labels, vectors, random = pool(sizes, seed)
    found = compared(largest(labels, len(labels) // 3, random), labels, vectors, random)
    assert found is not None
    assert all(found.figures[name].verdict == "worse" for name in (ENTROPY, SMALL, KNN))
    said = verdict(found)
    worse = said.partition("worse")[2].partition(";")[0]
    assert "labels' entropy " in worse and "rare labels 0.0 against " in worse and "kNN " in worse


def test_a_random_selection_is_undecided_as_often_as_its_intervals_promise() -> None:
    decided = dict.fromkeys((ENTROPY, SMALL, SPACING, KNN, NEARNESS), 0)
    for seed in range(30):
        labels, vectors, random = pool(LONG_TAIL[2:], seed)
        found = compared(uniform(labels, len(labels) // 2, random), labels, vectors, random)
        assert found is not None
        for name, one in found.figures.items():
            decided[name] += one.verdict != "undecided"
    assert max(decided.values()) <= 6  # 1.5 are expected; P(more than 6 of 30 at 5 %) < 0.001


@few
@given(SEEDS)
def test_a_gain_never_hides_another_figure_that_is_worse(seed: int) -> None:
    """Evened out, but by the images that lie nearest to the centre of their label."""
    labels, vectors, random = pool((300,) * 2 + (60,) * 8, seed)
    said = verdict(compared(central(labels, vectors, 20), labels, vectors, random))
    assert said.startswith("better than a random sample: labels' entropy ")
    assert "spacing" in said.partition("; worse: ")[2].partition(";")[0]


@few
@given(SEEDS)
def test_without_labels_only_distances_are_compared(seed: int) -> None:
    labels, vectors, random = pool(EQUAL, seed)
    worse = compared(central(labels, vectors, 20), None, vectors, random)
    assert worse is not None and set(worse.figures) == {SPACING, NEARNESS}
    assert "worse: spacing" in verdict(worse) or verdict(worse).startswith("worse than a random sample: spacing")
    assert verdict(worse).endswith("without labels, nothing is known about the balance of subjects")


@few
@given(SEEDS)
def test_other_images_lie_nearer_to_a_cover_and_farther_from_a_corner_than_from_a_random_sample(seed: int) -> None:
    labels, vectors, random = pool((150,) * 10, seed)
    words = random.integers(0, 2**63, (len(labels), 2)).astype(np.uint64)
    covered = taken(cover(vectors, words, 400, 0), len(labels))
    corner = taken(np.argsort(vectors @ vectors[0])[-200:], len(labels))  # of one or two of ten clusters
    near = compared(covered, None, vectors, random)
    assert near is not None and near.figures[NEARNESS].selection > near.figures[NEARNESS].random
    found = compared(corner, None, vectors, random)
    assert found is not None and found.figures[NEARNESS].verdict == "worse"
    assert "coverage" in verdict(found).partition("worse")[2].partition(";")[0]


def test_without_vectors_only_labels_are_compared() -> None:
    labels, _, random = pool(LONG_TAIL, 0)
    found = compared(evened(labels, 300, random), labels, None, random)
    assert found is not None and set(found.figures) == {ENTROPY, SMALL}


def test_equal_samples_are_not_compared() -> None:
    labels, vectors, random = pool(LONG_TAIL, 0)
    assert compared(np.ones(len(labels), np.int64), labels, vectors, random) is None
    assert compared(np.zeros(0, np.int64), labels[:0], vectors[:0], random) is None


def test_what_cannot_be_judged_is_undecided() -> None:
    labels, vectors, random = pool(LONG_TAIL, 0)
    for copies, names, seen in (
        (uniform(labels, 300, random), None, None),
        (uniform(labels, 10, random), labels, vectors),
    ):
        said = verdict(compared(copies, names, seen, random))
        assert said.startswith("undecided against a random sample: fewer than 20")


def test_a_test_row_is_never_a_reference() -> None:
    """kNN of test rows whose labels say nothing falls to chance; a test row among the references would find itself."""
    labels, vectors, random = pool(EQUAL, 0)
    copies, held = evened(labels, 300, random), random.random(len(labels)) < 0.1
    for known, most in ((labels, 1.0), (np.where(held, random.permutation(labels), labels), 0.3)):
        found = compare(copies, known, np.bincount(labels), vectors, held, held)
        assert found is not None
        assert most - 0.3 < found.figures[KNN].selection < most > found.figures[KNN].random > most - 0.3


def test_rows_without_a_vector_or_label_count_where_they_can() -> None:
    labels, vectors, random = pool(LONG_TAIL, 0)
    copies = evened(labels, 400, random)
    vectors[::3] = np.nan
    assert compared(copies, np.where(random.random(len(labels)) < 0.3, -1, labels), vectors, random) is not None
    vectors[:] = np.nan
    found = compared(copies, labels, vectors, random)
    assert found is not None and set(found.figures) == {ENTROPY, SMALL}


def test_copies_count_as_samples_and_a_random_sample_repeats_rows_only_once_all_are_in_it() -> None:
    labels, vectors, random = pool((30, 20, 10), 0)
    found = compared(np.full(len(labels), 3), labels, vectors, random)
    assert found is None  # everything three times, on both sides
    found = compared(4 * evened(labels, 30, random), labels, vectors, random)
    assert found is not None and found.samples == 120
    assert found.figures[ENTROPY].selection > found.figures[ENTROPY].random == pytest.approx(1.459, abs=1e-3)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 50, "b": 50}, {"a": 50, "b": 50}, []),
        ({"a": 99, "b": 50, "c": 9}, {"a": 76, "b": 3}, ["1 of 3 labels vanish", "'c' 9 -> 0"]),
        ({"a": 99, "b": 50, "c": 9}, {"a": 76, "b": 3}, ["1 of 3 labels lose more than 80 %", "'b' 50 -> 3"]),
        ({"a": 500, "b": 500}, {"a": 50, "b": 50}, []),  # a tenth of everything, as of any sample of this size
        ({"a": 500, "b": 500}, {"a": 95, "b": 5}, ["1 of 2 labels lose more than 80 % of their images: 'b' 500 -> 5"]),
        ({str(n): 1 for n in range(100)}, {str(n): 1 for n in range(50)}, ["50 of 100 labels vanish (about 50 would"]),
    ],
)
def test_labels_that_vanish_or_lose_most_of_their_images_are_named(before, after, expected) -> None:
    counts = LabelCounts()
    counts.names = list(before)
    counts.before = np.array(list(before.values()))
    counts.after = np.array([after.get(name, 0) for name in before])
    labels, vectors, random = pool(LONG_TAIL, 0)
    said = against_random(compared(evened(labels, 300, random), labels, vectors, random), counts)
    assert said is not None
    text = "\n".join(said["warnings"])
    assert all(part in text for part in expected) and bool(text) == bool(expected)
