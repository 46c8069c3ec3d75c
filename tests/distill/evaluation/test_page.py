"""The page of an evaluation, as HTML and in a browser."""

import pytest

from distill.evaluation.page import main_model, render_page
from distill.evaluation.show import AFTER, BEFORE
from tests.distill.evaluation.toys import disc_image, encoded
from tests.html.browser import contrasts_by_theme, width_on_a_phone


def accuracies(*values):
    models = zip((BEFORE, AFTER, "teacher vit"), values, strict=True)
    return {name: {"accuracy": value, "per_class": value, "top5": 1.0} for name, value in models}


@pytest.fixture(scope="module")
def page() -> bytes:
    """A page with a figure of most kinds, and names that have to be escaped."""
    classes = [{"name": f"<class {n}>", "pictures": 4, "right": 1 - n / 40, "taken_for": "other"} for n in range(20)]
    knn = {
        "models": accuracies(0.2, 0.6, 0.7), "by_class": {AFTER: classes}, "chance": 0.05, "majority": 0.1,
        "test_images": 80, "test_classes": 20, "train_images": 300, "left_out_images": 2, "left_out_classes": 1,
    }  # fmt: skip
    rows = ["layer 1", "layer 2", *(f"expert {layer}.{number}" for layer in (1, 2) for number in range(8))]
    cka = {"rows": rows, "columns": ["vit: layer 1", "vit: output"], "values": [[0.2, None]] * len(rows)}
    one = {
        "name": "held-out", "url": "a/b", "counts": {"test": 80, "skipped": {"truncated": 1}}, "knn": knn,
        "cka": {"models": {AFTER: cka}, "pictures": 9}, "maps": {"models": [AFTER], "pictures": 2},
        "retrieval": {"models": {}, "why_none": "no texts given"},
    }  # fmt: skip
    drawn = [encoded(disc_image("red", number)[0]) for number in range(2)]
    mean = {
        "side": 512,
        "fit": "crop",
        "task": "retrieval",
        "figure": "R@1, text to image",
        "model": AFTER,
        "mean": 0.25,
        "sets": 2,
    }
    result = {"settings": {"k": 20}, "sets": [one, one], "averages": [mean]}
    return render_page("toy", result, [[("image", drawn)], []], {"held-out/knn": [(10, 0.2), (20, 0.5)]})


def test_the_best_and_worst_classes_are_shown(page):
    text = page.decode()
    assert "Best classes" in text and "Worst classes" in text
    assert "&lt;class 0&gt;" in text and "&lt;class 19&gt;" in text and "&lt;class 10&gt;" not in text
    assert "<class" not in text


def test_averages_are_a_separate_section(page):
    section = page.decode().partition('<section id="averages">')[2]
    assert 'href="#averages"' in page.decode()
    assert "512 px" in section and "R@1, text to image" in section and "25.0" in section


def test_the_main_model_is_the_trained_student_or_the_first():
    assert main_model({BEFORE: 0, AFTER: 0}) == AFTER
    assert main_model({f"{AFTER}, as clip": 0, "teacher clip": 0}) == f"{AFTER}, as clip"
    assert main_model({"toy": 0, "toy, heads together": 0}) == "toy"


@pytest.mark.long
def test_the_page_is_readable_in_both_themes_and_on_a_phone(page, browser, tmp_path):
    with browser.opened(page, tmp_path) as tab:
        contrasts = contrasts_by_theme(tab)
        assert len(contrasts) == 2 and min(contrasts.values()) > 7
        assert width_on_a_phone(tab) == 390
        assert tab.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
        assert tab.messages == []
