"""Tasks of one set, by a model that knows colours by name."""

import io

import numpy as np
import pytest
from PIL import Image

from curate.core.errors import InputError
from distill.evaluation.evaluate import judge
from distill.evaluation.judged import Judged
from tests.distill.judging import bench_of, coloured_items, encoded, judged, plain, words


def test_words_tell_colours_apart(tmp_path):
    one = bench_of(tmp_path, coloured_items(36))
    own = judged(one, texts=["json.caption"])
    found = judge(words(one), own).result
    assert found["zero_shot"]["models"]["words"]["accuracy"] == 1.0
    assert found["zero_shot"]["chance"] == pytest.approx(1 / 3)
    assert found["knn"]["models"]["words"]["accuracy"] == 1.0
    assert "retrieval needs 2" in found["retrieval"]["why_none"]
    assert "set evaluate.masks" in found["segmentation"]["why_none"]


def test_class_names_come_from_a_file(tmp_path):
    items = coloured_items(36)
    codes = {"red": "n1", "green": "n2", "blue": "n3"}
    for item in items:
        item.columns["label"] = codes[item.columns["label"]]
    names = tmp_path / "names.txt"
    names.write_text("n1\tred\nn2\tgreen\nn3\tblue\n")
    one = bench_of(tmp_path, items)
    found = judge(words(one), judged(one, class_names=str(names), tasks=["zero_shot"])).result
    assert found["zero_shot"]["models"]["words"]["accuracy"] == 1.0
    assert set(found) == {"name", "url", "counts", "zero_shot"}


def test_one_text_of_all_pictures_is_nothing_to_find(tmp_path, monkeypatch):
    one = bench_of(tmp_path, coloured_items(12))
    monkeypatch.setattr(Judged, "texts", lambda self, names, rows: [["a disc"] for _ in rows])
    found = judge(words(one), judged(one, texts=["txt"], tasks=["retrieval"])).result
    assert "pictures have the same text (txt)" in found["retrieval"]["why_none"]


def test_retrieval_with_several_texts_a_picture(tmp_path, monkeypatch):
    one = bench_of(tmp_path, coloured_items(36))
    own = judged(one, texts=["txt"], retrieval_temperature=0.05)
    labels = one.dataset.strings("label")
    monkeypatch.setattr(Judged, "texts", lambda self, names, rows: [[f"a {labels[row]}", labels[row]] for row in rows])
    found = judge(words(one), own).result["retrieval"]
    assert found["texts"] == 6
    assert found["pairs"] == 2 * found["pictures"]
    for recalls in (found["models"]["words"], found["models"]["words"]["reweighted"]):
        assert recalls["image_to_text"]["R@1"] == 1.0
        assert recalls["text_to_image"]["R@1"] == 1.0


@pytest.mark.parametrize("kind", ["alpha", "seg.png"])
def test_a_linear_layer_finds_discs(tmp_path, monkeypatch, kind):
    """Mean colours of patches know ground from figure."""
    items = coloured_items(40, alpha=kind == "alpha")
    one = bench_of(tmp_path, items)
    own = judged(one, masks=kind)
    if kind != "alpha":
        discs = [plain(item.columns["label"], number)[1] for number, item in enumerate(items)]
        masks = [encoded(Image.fromarray(disc.astype(np.uint8))) for disc in discs]
        monkeypatch.setattr(own.members, "member", lambda row, name: masks[row] if row % 5 else None)
    found = judge(words(one), own).result["segmentation"]
    assert found["classes"] == 2
    assert found["models"]["words"]["mean_iou"] > 0.75 > found["largest_class"] / 2
    assert found["without_mask"] == (0 if kind == "alpha" else len(range(0, 40, 5)))
    assert found["train_images"] + found["test_images"] + found["without_mask"] == 40


def test_opaque_pictures_have_no_figure(tmp_path):
    items = coloured_items(20)
    items[3].data = encoded(Image.open(io.BytesIO(items[3].data)).convert("RGBA"))
    one = bench_of(tmp_path, items)
    found = judge(words(one), judged(one, masks="alpha")).result["segmentation"]
    assert "no picture has a mask (alpha) on both sides" in found["why_none"]


def test_a_mask_of_colours_is_one_line(tmp_path, monkeypatch):
    one = bench_of(tmp_path, coloured_items(20))
    own = judged(one, masks="seg.png")
    monkeypatch.setattr(own.members, "member", lambda row, name: encoded(plain("red", row)[0]))
    with pytest.raises(InputError, match="is a picture of mode 'RGB'; give PNGs of mode L or P"):
        judge(words(one), own)
