"""All tasks on one set, by a model that recognises colours."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from curate.core.errors import InputError
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.evaluate import evaluate_set
from tests.distill.evaluation.toys import (
    ColourModel,
    colour_extractor,
    coloured_items,
    context_of,
    disc_image,
    encoded,
    held_out_set,
)


def test_class_names_classify_colours(tmp_path):
    one = context_of(tmp_path, coloured_items(36))
    own = held_out_set(one, texts=["json.caption"])
    found = evaluate_set(colour_extractor(one), own).result
    assert found["zero_shot"]["models"]["words"]["accuracy"] == 1.0
    assert found["zero_shot"]["chance"] == pytest.approx(1 / 3)
    assert found["knn"]["models"]["words"]["accuracy"] == 1.0
    assert "retrieval needs 2" in found["retrieval"]["why_none"]
    assert "set evaluate.masks" in found["segmentation"]["why_none"]


def test_a_probe_by_attention_without_patches_has_a_reason(tmp_path, monkeypatch):
    def without_patches(model, batch, targets):
        return replace(seen(model, batch, targets), patches=None)

    one, seen = context_of(tmp_path, coloured_items(36)), ColourModel.__call__
    monkeypatch.setattr(ColourModel, "__call__", without_patches)
    found = evaluate_set(colour_extractor(one), held_out_set(one, tasks=["probe"], probes=["attention"])).result
    assert found["probe"]["models"] == {} and "has an output of each patch" in found["probe"]["why_none"]


def test_class_names_come_from_a_file(tmp_path):
    items = coloured_items(36)
    codes = {"red": "n1", "green": "n2", "blue": "n3"}
    for item in items:
        item.columns["label"] = codes[item.columns["label"]]
    names = tmp_path / "names.txt"
    names.write_text("n1\tred\nn2\tgreen\nn3\tblue\n")
    one = context_of(tmp_path, items)
    found = evaluate_set(colour_extractor(one), held_out_set(one, class_names=str(names), tasks=["zero_shot"])).result
    assert found["zero_shot"]["models"]["words"]["accuracy"] == 1.0
    assert set(found) == {"name", "set", "url", "side", "fit", "counts", "zero_shot"}


def test_retrieval_needs_two_distinct_texts(tmp_path, monkeypatch):
    one = context_of(tmp_path, coloured_items(12))
    monkeypatch.setattr(EvaluationSet, "texts", lambda self, names, rows: [["a disc"] for _ in rows])
    found = evaluate_set(colour_extractor(one), held_out_set(one, texts=["txt"], tasks=["retrieval"])).result
    assert "images have the same text (txt)" in found["retrieval"]["why_none"]


def test_retrieval_with_several_texts_per_image(tmp_path, monkeypatch):
    one = context_of(tmp_path, coloured_items(36))
    own = held_out_set(one, texts=["txt"], retrieval_temperature=0.05)
    labels = one.dataset.strings("label")
    monkeypatch.setattr(
        EvaluationSet, "texts", lambda self, names, rows: [[f"a {labels[row]}", labels[row]] for row in rows]
    )
    found = evaluate_set(colour_extractor(one), own).result["retrieval"]
    assert found["texts"] == 6
    assert found["pairs"] == 2 * found["pictures"]
    for recalls in (found["models"]["words"], found["models"]["words"]["reweighted"]):
        assert recalls["image_to_text"]["R@1"] == 1.0
        assert recalls["text_to_image"]["R@1"] == 1.0


@pytest.mark.parametrize("kind", ["alpha", "seg.png"])
def test_a_linear_layer_segments_discs(tmp_path, monkeypatch, kind):
    """Mean colours of patches separate figure and ground."""
    items = coloured_items(40, alpha=kind == "alpha")
    one = context_of(tmp_path, items)
    own = held_out_set(one, masks=kind, segmentation_epochs=10)
    if kind != "alpha":
        discs = [disc_image(item.columns["label"], number)[1] for number, item in enumerate(items)]
        masks = [encoded(Image.fromarray(disc.astype(np.uint8))) for disc in discs]
        monkeypatch.setattr(own.members, "member", lambda row, name: masks[row] if row % 5 else None)
    found = evaluate_set(colour_extractor(one), own).result["segmentation"]
    assert found["classes"] == 2
    assert found["models"]["words"]["mean_iou"] > 0.75 > found["largest_class"] / 2
    assert found["models"]["words, 10 epochs"]["mean_iou"] > 0.7
    assert found["without_mask"] == (0 if kind == "alpha" else len(range(0, 40, 5)))
    assert found["train_images"] + found["test_images"] + found["without_mask"] == 40


def test_opaque_images_have_no_mask(tmp_path):
    items = coloured_items(20)
    items[3].data = encoded(Image.open(io.BytesIO(items[3].data)).convert("RGBA"))
    one = context_of(tmp_path, items)
    found = evaluate_set(colour_extractor(one), held_out_set(one, masks="alpha")).result["segmentation"]
    assert "no image has a mask (alpha) in both the training and the test images" in found["why_none"]


def test_a_mask_of_colours_is_one_line(tmp_path, monkeypatch):
    one = context_of(tmp_path, coloured_items(20))
    own = held_out_set(one, masks="seg.png")
    monkeypatch.setattr(own.members, "member", lambda row, name: encoded(disc_image("red", row)[0]))
    with pytest.raises(InputError, match="is an image of mode 'RGB'; give PNGs of mode L or P"):
        evaluate_set(colour_extractor(one), own)
