"""Evaluation of a run next to its teachers: results, page and errors."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.special import softmax, xlogy

from curate.codec.images import decode
from curate.core.errors import InputError, RecipeError
from curate.encoders import load
from distill.evaluation.extraction import FeatureExtractor, Vectors
from distill.evaluation.models import StudentModel, TextSide
from distill.evaluation.runs import evaluate_run
from distill.evaluation.show import AFTER, BEFORE, show_evaluation
from distill.evaluation.tasks.fidelity import PredictionErrors
from distill.evaluation.tasks.knn import unit
from distill.recipe import apply_overrides, parse_recipe
from distill.samples.batches.loader import collate
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.evaluation.toys import ALONE, VIT, coloured_items, context, context_of, evaluated, held_out_set
from tests.encoders.test_dino_text import checkpoint


def test_a_run_next_to_its_teachers(values):
    values["teachers"].append(VIT)
    result, page = evaluated(parse_recipe(values, "test"))
    (own,) = result["sets"]
    knn, probe = own["knn"], own["probe"]
    teachers = {"teacher descriptor", "teacher vit"}
    assert set(probe["models"]) == {BEFORE, AFTER, *teachers}
    heads = {f"{AFTER}, as descriptor", f"{AFTER}, as vit", f"{AFTER}, heads together"}
    assert set(knn["models"]) == {*probe["models"], *heads}
    assert knn["models"]["teacher descriptor"]["accuracy"] > max(knn["chance"], knn["majority"])
    assert knn["chance"] == 0.25
    assert knn["train_images"] + knn["test_images"] + knn["left_out_images"] == 60
    assert set(own["fidelity"]["models"]) == {AFTER}
    assert set(own["fidelity"]["models"][AFTER]["vit"]) == {"summary", "patches"}
    assert own["cka"]["models"][AFTER]["columns"] == ["vit: layer 1", "vit: layer 2", "vit: output"]
    assert own["cka"]["models"][AFTER]["rows"] == ["layer 1", "layer 2"]
    assert own["maps"]["models"] == [BEFORE, AFTER, f"{AFTER}, as vit", "teacher vit"]
    assert "no model here encodes texts" in own["zero_shot"]["why_none"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    text = page.decode()
    assert text.count("<img") == 5 * own["maps"]["pictures"]
    assert "http" not in text.replace("http-equiv", "")


def test_perfect_predictions_explain_all_variance(recipe):
    """The teacher's features stand in for the student's heads."""
    one = context(recipe)
    model = StudentModel(AFTER, one.new_student(), teachers=one.teachers.names, standardisers=one.fit_standardisers())
    extractor = FeatureExtractor([model], one.teachers, one.reader, ALONE)
    features = extractor.extract(collate([one.reader.get(row) for row in range(8)]))
    features.outputs[AFTER].predictions = dict(features.targets)
    errors = PredictionErrors()
    errors.update(features)
    assert errors.values[AFTER, "descriptor", "summary"].result()["explained"] == pytest.approx(1.0)


def test_heads_predict_in_their_teachers_raw_space_which_has_its_texts(recipe, monkeypatch):
    """A descriptor with a text tower, which maps the name of a class to the mean vector of its images."""
    one = context(recipe)
    labels, vectors = one.dataset.strings("label"), Vectors()
    student, standardisers = one.new_student(), one.fit_standardisers()
    model = StudentModel(AFTER, student, teachers=one.teachers.names, standardisers=standardisers)
    extractor = FeatureExtractor([model], one.teachers, one.reader, ALONE)
    features = extractor.extract(collate([one.reader.get(row) for row in range(60)]))
    vectors.update(features)
    true = dict(zip(features.rows, features.targets["descriptor"].summary.numpy(), strict=True))
    means = {name: np.mean([true[row] for row in true if labels[row] == name], axis=0) for name in set(labels)}

    def read(texts):
        return np.stack([next(means[name] for name in means if name.replace("-", " ") in text) for text in texts])

    encoder = one.teachers.encoders["descriptor"]
    monkeypatch.setattr(encoder, "context", 8, raising=False)
    monkeypatch.setattr(encoder, "encode_text", read, raising=False)
    result, _ = evaluate_run(one, student, standardisers)
    found = result["sets"][0]["zero_shot"]["models"]
    assert set(found) == {f"{AFTER}, as descriptor", "teacher descriptor"}
    assert found["teacher descriptor"]["accuracy"] > 0.6
    with torch.no_grad():
        output = student(torch.from_numpy(features.batch.patches), features.batch.grids)
        expected = standardisers[0].invert_summary(student.heads[0].summary(output.summary)).numpy()
    assert vectors.stack(AFTER, "descriptor", features.rows) == pytest.approx(expected, abs=1e-5)


def test_features_do_not_depend_on_the_batch(recipe):
    one = context(apply_overrides(recipe, ["train.precision=float64"], "test"))
    model = StudentModel(AFTER, one.new_student(), teachers=one.teachers.names, standardisers=one.fit_standardisers())
    extractor = FeatureExtractor([model], one.teachers, one.reader, ALONE)
    together, alone = Vectors(), Vectors()
    extractor.run(np.arange(9), [together])
    for row in range(9):
        extractor.run(np.array([row]), [alone])
    for key, own in together.values.items():
        for row, value in own.items():
            assert value == pytest.approx(alone.values[key][row], abs=1e-5)


def test_unreadable_images_are_counted_and_not_used(tmp_path):
    items = drawn_items(40)
    for item in items[5:10]:
        item.data = item.data[:50]
    one = context_of(tmp_path, items)
    result, _ = evaluate_run(one, one.new_student(), one.fit_standardisers())
    knn = result["sets"][0]["knn"]
    assert knn["train_images"] + knn["test_images"] + knn["left_out_images"] == 35
    assert sum(result["sets"][0]["counts"]["skipped"].values()) == one.test[5:10].sum()


def test_features_that_are_not_finite_are_one_line(recipe):
    one = context(recipe)
    student = one.new_student()
    with torch.no_grad():
        next(student.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match=r"student, trained, on held-out: .* vectors are not finite"):
        evaluate_run(one, student, one.fit_standardisers())


def test_text_encoders_of_another_width_are_one_line(recipe):
    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=64&num_heads=2&random=1&img_size=32"
    with pytest.raises(RecipeError, match="has vectors of 64 dimensions, the summaries of 'descriptor' have 728"):
        evaluated(apply_overrides(recipe, [f"evaluate.text_encoders={{descriptor: '{spec}'}}"], "test"))


def test_other_datasets_are_evaluated_as_well(recipe, tmp_path):
    folder = write_dataset(tmp_path / "other", coloured_items(30))
    neighbours = write_dataset(tmp_path / "neighbours", coloured_items(42)[30:])
    sets = [
        {"name": "split", "dataset": str(folder), "test_fraction": 0.5},
        {"name": "both", "dataset": str(folder), "train": str(neighbours)},
        {"name": "all", "dataset": str(folder), "test_fraction": 1.0},
    ]
    settings = [f"evaluate.datasets={json.dumps(sets)}", "evaluate.tasks=[knn, probe]"]
    result, page = evaluated(apply_overrides(recipe, settings, "test"))
    _, split, both, whole = result["sets"]
    assert [item["name"] for item in result["sets"]] == ["held-out", "split", "both", "all"]
    assert split["knn"]["train_images"] + split["knn"]["test_images"] == 30
    assert (both["knn"]["train_images"], both["knn"]["test_images"]) == (12, 30)
    assert "0 training" in whole["knn"]["why_none"] or "with 2 training images" in whole["knn"]["why_none"]
    console = Console(record=True, width=120, file=io.StringIO())
    show_evaluation(result, console, "there/evaluation.html")
    text = console.export_text()
    assert "both" in text and "report: there/evaluation.html" in text
    assert 'href="#set-4"' in page.decode()


def test_a_page_without_figures_gives_the_reason(recipe):
    result, page = evaluated(apply_overrides(recipe, ["data.test_fraction=0"], "test"))
    assert "is held out" in page.decode()
    assert all(not result["sets"][0][task]["models"] for task in recipe.evaluate.tasks)


def test_names_of_sets_are_their_own(recipe):
    sets = [{"name": "a", "dataset": "x"}, {"name": "a", "dataset": "y"}]
    with pytest.raises(RecipeError, match="datasets: two have the same name"):
        apply_overrides(recipe, [f"evaluate.datasets={json.dumps(sets)}"], "test")


CLIP = f"open_clip:{Path(__file__).parents[2] / 'encoders/tiny_clip'}?random=7"


def test_text_towers_of_teachers_and_named_text_towers_form_an_ensemble(values, tmp_path):
    """One teacher has a text tower, which is named as the text tower of the other teacher, too."""
    values["teachers"] = [{"encoder": CLIP, "name": "clip", "patches": {"weight": 0}}, VIT]
    values["evaluate"] = {"tasks": ["zero_shot"], "text_encoders": {"vit": CLIP}, "prompts": str(tmp_path / "prompts")}
    (tmp_path / "prompts").write_text("a {}\n")
    recipe = parse_recipe(values, "test")
    one = context(recipe)
    student, standardisers = one.new_student(), one.fit_standardisers()
    found = evaluate_run(one, student, standardisers)[0]["sets"][0]["zero_shot"]
    heads = [f"{AFTER}, as clip", f"{AFTER}, as vit"]
    assert set(found["models"]) == {*heads, f"{AFTER}, heads together", "teacher clip", "teacher vit"}

    split = held_out_set(one).label_split()
    rows = sorted({*split.test.tolist(), *split.left_out.tolist()})
    labels = np.array([split.labels[row] for row in rows])
    encoder = one.teachers.encoders["clip"]
    words = encoder.encode_text([f"a {name.replace('-', ' ')}" for name in split.classes])
    images = [encoder.prepare(decode(one.reader.members.read(row))) for row in rows]
    predicted = (unit(encoder.encode(images, patches=False).summary) @ unit(words).T).argmax(1)
    assert found["models"]["teacher clip"]["accuracy"] == pytest.approx((predicted == labels).mean())

    model = StudentModel(AFTER, student, teachers=one.teachers.names, standardisers=standardisers)
    vectors = Vectors()
    FeatureExtractor([model], one.teachers, one.reader, ALONE).run(np.array(rows), [vectors])
    cosines = [unit(vectors.stack(AFTER, name, rows)) @ unit(words).T for name in ("clip", "vit")]
    certain = [softmax(one / 0.01, axis=1) for one in cosines]
    alpha = np.exp(-5 * np.stack([-xlogy(one, one).sum(1) for one in certain]))
    both = np.einsum("hn,hnc->nc", alpha / alpha.sum(0), np.stack(cosines)).argmax(1)
    assert found["models"][f"{AFTER}, heads together"]["accuracy"] == pytest.approx((both == labels).mean())


def test_features_are_computed_in_float32_also_for_varlen_attention(recipe):
    one = context(apply_overrides(recipe, ["evaluate.tasks=[fidelity]"], "test"))
    make = one.new_student

    def sixteen():
        student = make()
        student.backbone.attention = "varlen"
        return student

    one.new_student = sixteen
    result, _ = evaluate_run(one, sixteen(), one.fit_standardisers())
    assert result["sets"][0]["fidelity"]["models"]


def test_one_readable_image_or_none_gives_a_result_or_a_reason(recipe, tmp_path):
    items = drawn_items(2)
    for item in items[1:]:
        item.data = b"garbage"
    for name, own in (("one", items[:1]), ("garbage", items[1:])):
        sets = [{"name": name, "dataset": str(write_dataset(tmp_path / name, own)), "test_fraction": 1.0}]
        result, page = evaluated(apply_overrides(recipe, [f"evaluate.datasets={json.dumps(sets)}"], "test"))
        found = result["sets"][1]
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        console = Console(record=True, width=200, file=io.StringIO())
        show_evaluation(result, console)
        text = console.export_text()
        assert "nan" not in text and "nan %" not in page.decode()
        if name == "one":
            assert found["fidelity"]["models"][AFTER]["descriptor"]["summary"]["explained"] is None
        else:
            assert found["counts"]["skipped"] == {"not_an_image": 1}
            assert "no test image can be read (not_an_image 1)" in found["fidelity"]["why_none"]


@pytest.fixture(scope="module")
def dino_text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("dino") / "text.pth"
    torch.save(checkpoint(width=32, hidden=48, text=64), path)
    return f"curate.encoders.dino_text:DinoText@{path}"


def test_dino_txt_is_the_text_side_of_a_head_and_of_its_teacher(values, tmp_path, dino_text):
    """Both are compared with texts through its blocks; the head's own rows in kNN stay."""
    values["teachers"] = [VIT]
    values["evaluate"] = {"tasks": ["knn", "zero_shot"], "text_encoders": {"vit": dino_text}}
    values["evaluate"]["prompts"] = str(tmp_path / "prompts")
    (tmp_path / "prompts").write_text("a {}\n")
    one = context(parse_recipe(values, "test"))
    student, standardisers = one.new_student(), one.fit_standardisers()
    found = evaluate_run(one, student, standardisers)[0]["sets"][0]
    assert set(found["zero_shot"]["models"]) == {f"{AFTER}, as vit with patches", "teacher vit"}
    assert set(found["knn"]["models"]) == {BEFORE, AFTER, f"{AFTER}, as vit", "teacher vit"}

    encoder, split = load(dino_text, device="cpu"), held_out_set(one).label_split()
    side = TextSide(encoder.encode_text, encoder.image_vectors)
    model = StudentModel(AFTER, student, teachers=["vit"], standardisers=standardisers, sides={"vit": side})
    rows = sorted({*split.test.tolist(), *split.left_out.tolist()})
    batch = collate([one.reader.get(row) for row in rows])
    output = FeatureExtractor([model], one.teachers, one.reader, ALONE).extract(batch).outputs[AFTER]
    own, lengths = output.predictions["vit"], [rows * columns for rows, columns in batch.grids]
    images = encoder.image_vectors(own.summary, own.patches, lengths).numpy()
    assert output.spaces["vit with patches"] == pytest.approx(images, abs=1e-5)
    words = encoder.encode_text([f"a {name.replace('-', ' ')}" for name in split.classes])
    right = (unit(images) @ unit(words).T).argmax(1) == [split.labels[row] for row in rows]
    assert found["zero_shot"]["models"][f"{AFTER}, as vit with patches"]["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(("teacher", "has"), [({"encoder": "descriptor"}, "728 and"), (VIT, "32 and none")])
def test_dino_txt_of_another_model_or_without_patches_is_one_line(values, dino_text, teacher, has):
    values["teachers"] = [teacher | {"name": "other", "patches": {"weight": 0}}]
    values["evaluate"] = {"text_encoders": {"other": dino_text}}
    with pytest.raises(RecipeError, match=f"reads summaries and patches of 32 dimensions, 'other' has {has}"):
        evaluated(parse_recipe(values, "test"))
