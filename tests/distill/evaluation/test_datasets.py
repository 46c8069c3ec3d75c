"""The split of evaluation sets into training and test images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError
from curate.core.hashing import ranks_of_words
from distill.evaluation.datasets import lowest, open_set
from distill.evaluation.evaluate import evaluate_set
from distill.recipe import EvaluateRecipe
from distill.recipe.evaluate import EvaluationDataset
from distill.samples.sources import dataset
from distill.samples.sources.mixture import Mixture
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.evaluation.toys import colour_extractor, context, context_of, held_out_set


def test_no_duplicate_set_is_on_both_sides(recipe):
    one = context(recipe)
    split = held_out_set(one).label_split()
    sets = one.dataset.strings("duplicate_set")
    assert not {sets[row] for row in split.train} & {sets[row] for row in split.test}
    assert not {sets[row] for row in np.flatnonzero(~one.test)} & {sets[row] for row in split.test}
    assert len(split.test) > 5


def test_copies_count_once_and_unlabelled_samples_not_at_all(tmp_path):
    items = drawn_items(40)
    items += items[:10]
    items[20].columns = {**items[20].columns, "label": None}
    split = held_out_set(context_of(tmp_path, items)).label_split()
    rows = [*split.train, *split.test, *split.left_out]
    assert len(rows) == 39
    assert len({items[row].key for row in rows}) == len(rows)


def test_few_labels_among_many_rows_are_found_in_two_passes(tmp_path, monkeypatch):
    items = drawn_items(90)
    for number, item in enumerate(items):
        item.columns["label"] = f"class-{number // 9 % 2}" if number % 9 == 0 else None
    own, passes = held_out_set(context_of(tmp_path, items), max_train_images=4, min_train_images=1), []
    real = dataset._batches
    monkeypatch.setattr(dataset, "_batches", lambda *given: passes.append(given) or real(*given))
    split = own.label_split()
    assert len(split.train) == 4 and all(row % 9 == 0 for row in split.labels)
    assert len(passes) == 2


def test_a_label_column_of_lists_is_one_line(tmp_path):
    items = drawn_items(20)
    for item in items:
        item.columns["tags"] = ["a", "b"]
    own = held_out_set(context_of(tmp_path, items), label="tags")
    with pytest.raises(
        InputError, match=r"evaluate\.label: column 'tags' holds lists; name a column of strings or numbers"
    ):
        own.label_split()


def test_classes_with_too_few_training_images_are_left_out_and_counted(recipe):
    one = context(recipe)
    labels = np.array(one.dataset.strings("label"))
    split = held_out_set(one, min_train_images=12).label_split()
    rare = [name for name in set(labels) if (labels[~one.test] == name).sum() < 12]
    assert rare
    assert len(split.left_out) == np.isin(labels[one.test], rare).sum()
    assert split.left_out_classes == len(set(labels[one.test]) & set(rare))
    assert not set(labels[split.test]) & set(rare)


def test_a_limit_takes_the_same_images_first(recipe, monkeypatch):
    """It does not convert a whole column to Python strings."""
    one = context(recipe)
    monkeypatch.setattr(Mixture, "strings", None)
    few, many = held_out_set(one, max_train_images=7).label_split(), held_out_set(one).label_split()
    assert len(few.train) == 7
    assert set(few.train) < set(many.train)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"label": "colour"}, "no column, member or JSON field 'colour'"),
        ({"min_train_images": 999}, "no test image has a 'label' with 999 training images"),
        ({"label": "key"}, "no test image has a 'key' with 2 training images"),
    ],
)
def test_without_labels_it_gives_the_reason(recipe, settings, why):
    one = context(recipe)
    found = evaluate_set(colour_extractor(one), held_out_set(one, **settings)).result
    assert found["knn"]["models"] == {}
    assert why in found["knn"]["why_none"]


def test_one_class_or_no_test_image_gives_the_reason(tmp_path):
    items = drawn_items(20)
    for item in items:
        item.columns["label"] = "cat"
    one = context_of(tmp_path, items)
    assert (
        "have the same 'label', 'cat'"
        in evaluate_set(colour_extractor(one), held_out_set(one)).result["probe"]["why_none"]
    )
    one.test[:] = False
    found = evaluate_set(colour_extractor(one), held_out_set(one)).result
    assert "is held out" in found["knn"]["why_none"]
    assert "is held out" in found["maps"]["why_none"]


@given(st.integers(0, 60), st.integers(1, 30), st.integers(1, 20), st.integers(0, 1000))
def test_lowest_takes_the_keys_of_lowest_hash_once(count, most, chunk, seed):
    rng = np.random.default_rng(seed)
    words = np.stack([rng.integers(0, 8, count), rng.integers(0, 3, count)], axis=1).astype(np.uint64)
    chosen = rng.random(count) < 0.7
    found = lowest(words.__getitem__, chosen, seed=seed, most=most, chunk=chunk)
    first = {tuple(words[row]): row for row in reversed(range(count)) if chosen[row]}
    rows = np.array(sorted(first.values()), dtype=np.int64)
    rank = ranks_of_words(seed, words[rows], 0xE7A1)
    assert found.tolist() == rows[np.argsort(rank, kind="stable")][:most].tolist()


def test_test_images_are_removed_from_the_training_dataset(tmp_path):
    items = drawn_items(30)
    test, train = write_dataset(tmp_path / "test", items[:10]), write_dataset(tmp_path / "train", items[5:])
    recipe = EvaluationDataset(name="other", dataset=str(test), train=str(train))
    own = open_set(recipe, EvaluateRecipe(min_train_images=1), max_tokens=4, seed=0, workers=1)
    split = own.label_split()
    assert (len(split.test), len(split.train)) == (10, 20)
    train_keys, test_keys = ({own.mixture.key(row) for row in own.rows(test=test, most=99)} for test in (False, True))
    assert len(train_keys) == 20 and not train_keys & test_keys


def test_a_dataset_without_own_settings_uses_the_sections(folder):
    settings = EvaluateRecipe(label="label", texts=["txt"], masks="alpha", class_names="names.txt")
    plain = EvaluationDataset(name="other", dataset=str(folder))
    own = open_set(plain, settings, max_tokens=4, seed=0, workers=1).settings
    assert own == settings
    own_settings = plain.model_copy(
        update={"label": "key", "texts": ["json.title"], "masks": "seg.png", "class_names": "my.txt"}
    )
    own = open_set(own_settings, settings, max_tokens=4, seed=0, workers=1).settings
    assert (own.label, own.texts, own.masks, own.class_names) == ("key", ["json.title"], "seg.png", "my.txt")
