"""Which pictures are learnt from and which are asked about."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError
from curate.core.hashing import ranks_of_words
from distill.evaluation.evaluate import judge
from distill.evaluation.judged import lowest, open_judged
from distill.recipe import EvaluateRecipe
from distill.recipe.evaluate import JudgedRecipe
from distill.samples.sources import dataset
from distill.samples.sources.mixture import Blend
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.judging import bench, bench_of, judged, words


def test_no_duplicate_set_is_on_both_sides(recipe):
    one = bench(recipe)
    questions = judged(one).questions()
    sets = one.dataset.strings("duplicate_set")
    assert not {sets[row] for row in questions.train} & {sets[row] for row in questions.test}
    assert not {sets[row] for row in np.flatnonzero(~one.test)} & {sets[row] for row in questions.test}
    assert len(questions.test) > 5


def test_copies_count_once_and_unlabelled_samples_not_at_all(tmp_path):
    items = drawn_items(40)
    items += items[:10]
    items[20].columns = {**items[20].columns, "label": None}
    questions = judged(bench_of(tmp_path, items)).questions()
    rows = [*questions.train, *questions.test, *questions.left_out]
    assert len(rows) == 39
    assert len({items[row].key for row in rows}) == len(rows)


def test_few_labels_among_many_rows_are_found_in_two_passes(tmp_path, monkeypatch):
    items = drawn_items(90)
    for number, item in enumerate(items):
        item.columns["label"] = f"class-{number // 9 % 2}" if number % 9 == 0 else None
    own, passes = judged(bench_of(tmp_path, items), max_train_images=4, min_train_images=1), []
    real = dataset._batches
    monkeypatch.setattr(dataset, "_batches", lambda *given: passes.append(given) or real(*given))
    questions = own.questions()
    assert len(questions.train) == 4 and all(row % 9 == 0 for row in questions.labels)
    assert len(passes) == 2


def test_a_label_that_is_no_word_is_one_line(tmp_path):
    items = drawn_items(20)
    for item in items:
        item.columns["tags"] = ["a", "b"]
    own = judged(bench_of(tmp_path, items), label="tags")
    with pytest.raises(InputError, match=r"evaluate\.label: column 'tags' holds lists; name one of words or numbers"):
        own.questions()


def test_classes_that_nothing_could_get_right_are_left_out_and_counted(recipe):
    one = bench(recipe)
    labels = np.array(one.dataset.strings("label"))
    questions = judged(one, min_train_images=12).questions()
    rare = [name for name in set(labels) if (labels[~one.test] == name).sum() < 12]
    assert rare
    assert len(questions.left_out) == np.isin(labels[one.test], rare).sum()
    assert questions.left_out_classes == len(set(labels[one.test]) & set(rare))
    assert not set(labels[questions.test]) & set(rare)


def test_of_too_many_the_same_are_taken_first(recipe, monkeypatch):
    """And no whole column is made Python's strings of for it."""
    one = bench(recipe)
    monkeypatch.setattr(Blend, "strings", None)
    few, many = judged(one, max_train_images=7).questions(), judged(one).questions()
    assert len(few.train) == 7
    assert set(few.train) < set(many.train)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"label": "colour"}, "no column, member or JSON field 'colour'"),
        ({"min_train_images": 999}, "no picture that is asked about has a 'label' with 999 training pictures"),
        ({"label": "key"}, "no picture that is asked about has a 'key' with 2 training pictures"),
    ],
)
def test_without_questions_it_says_why(recipe, settings, why):
    one = bench(recipe)
    found = judge(words(one), judged(one, **settings)).result
    assert found["knn"]["models"] == {}
    assert why in found["knn"]["why_none"]


def test_one_class_or_nothing_held_out_is_said_in_words(tmp_path):
    items = drawn_items(20)
    for item in items:
        item.columns["label"] = "cat"
    one = bench_of(tmp_path, items)
    assert "have the same 'label', 'cat'" in judge(words(one), judged(one)).result["probe"]["why_none"]
    one.test[:] = False
    found = judge(words(one), judged(one)).result
    assert "none is held out" in found["knn"]["why_none"]
    assert "none is held out" in found["maps"]["why_none"]


@given(st.integers(0, 60), st.integers(1, 30), st.integers(1, 20), st.integers(0, 1000))
def test_the_lowest_are_those_of_lowest_hash_each_key_once(count, most, chunk, seed):
    rng = np.random.default_rng(seed)
    words = np.stack([rng.integers(0, 8, count), rng.integers(0, 3, count)], axis=1).astype(np.uint64)
    chosen = rng.random(count) < 0.7
    found = lowest(words.__getitem__, chosen, seed=seed, most=most, chunk=chunk)
    first = {tuple(words[row]): row for row in reversed(range(count)) if chosen[row]}
    rows = np.array(sorted(first.values()), dtype=np.int64)
    rank = ranks_of_words(seed, words[rows], 0xE7A1)
    assert found.tolist() == rows[np.argsort(rank, kind="stable")][:most].tolist()


def test_what_is_asked_about_is_not_learnt_from_though_it_lies_there_too(tmp_path):
    items = drawn_items(30)
    asked, learnt = write_dataset(tmp_path / "asked", items[:10]), write_dataset(tmp_path / "learnt", items[5:])
    recipe = JudgedRecipe(name="other", dataset=str(asked), train=str(learnt))
    own = open_judged(recipe, EvaluateRecipe(min_train_images=1), max_tokens=4, seed=0, workers=1)
    questions = own.questions()
    assert (len(questions.test), len(questions.train)) == (10, 20)
    learnt_keys, asked_keys = ({own.blend.key(row) for row in own.rows(test=test, most=99)} for test in (False, True))
    assert len(learnt_keys) == 20 and not learnt_keys & asked_keys


def test_a_set_is_asked_as_the_section_says_where_it_says_nothing_itself(folder):
    settings = EvaluateRecipe(label="label", texts=["txt"], masks="alpha", class_names="names.txt")
    plain = JudgedRecipe(name="other", dataset=str(folder))
    own = open_judged(plain, settings, max_tokens=4, seed=0, workers=1).settings
    assert own == settings
    said = plain.model_copy(
        update={"label": "key", "texts": ["json.title"], "masks": "seg.png", "class_names": "my.txt"}
    )
    own = open_judged(said, settings, max_tokens=4, seed=0, workers=1).settings
    assert (own.label, own.texts, own.masks, own.class_names) == ("key", ["json.title"], "seg.png", "my.txt")
