"""A run beside its teachers: what is asked, what is found, what is written."""

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
from distill.evaluation.runs import evaluate_run
from distill.evaluation.show import AFTER, BEFORE, show_evaluation
from distill.evaluation.subjects import StudentSubject
from distill.evaluation.tasks.knn import unit
from distill.evaluation.watchers import Fidelity, Models, Vectors
from distill.recipe import apply_overrides, parse_recipe
from distill.samples.batches.loader import collate
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.judging import ALONE, VIT, bench, bench_of, coloured_items, evaluated, judged


def test_a_run_beside_its_teachers(values):
    values["teachers"].append(VIT)
    result, page = evaluated(parse_recipe(values, "test"))
    (own,) = result["sets"]
    knn, probe = own["knn"], own["probe"]
    teachers = {"teacher descriptor", "teacher vit"}
    assert set(probe["models"]) == {BEFORE, AFTER, *teachers}
    assert set(knn["models"]) == {*probe["models"], f"{AFTER}, heads together"}
    assert knn["models"]["teacher descriptor"]["accuracy"] > max(knn["chance"], knn["majority"])
    assert knn["chance"] == 0.25
    assert knn["train_images"] + knn["test_images"] + knn["left_out_images"] == 60
    assert set(own["fidelity"]["models"]) == {AFTER}
    assert set(own["fidelity"]["models"][AFTER]["vit"]) == {"summary", "patches"}
    assert own["cka"]["models"][AFTER]["columns"] == ["vit: layer 1", "vit: layer 2", "vit: output"]
    assert own["cka"]["models"][AFTER]["rows"] == ["layer 1", "layer 2"]
    assert own["maps"]["models"] == [BEFORE, AFTER, "teacher vit"]
    assert "no model here reads texts" in own["zero_shot"]["why_none"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    text = page.decode()
    assert text.count("<img") == 4 * own["maps"]["pictures"]
    assert "http" not in text.replace("http-equiv", "")


def test_a_student_that_says_what_its_teacher_says_is_faithful(recipe):
    """The teacher's features stand in for the student's heads."""
    one = bench(recipe)
    subject = StudentSubject(AFTER, one.new_student(), teachers=one.teachers.names, standards=one.standards())
    models = Models([subject], one.teachers, one.pictures, ALONE)
    seen = models.ask(collate([one.pictures.get(row) for row in range(8)]))
    seen.answers[AFTER].foretold = dict(seen.targets)
    fidelity = Fidelity()
    fidelity.see(seen)
    assert fidelity.found[AFTER, "descriptor", "summary"].found()["explained"] == pytest.approx(1.0)


def test_heads_answer_in_their_teachers_raw_space_where_its_texts_are(recipe, monkeypatch):
    """A descriptor that reads: words about class C lie where the mean of C's pictures lies."""
    one = bench(recipe)
    labels, vectors = one.dataset.strings("label"), Vectors()
    student, standards = one.new_student(), one.standards()
    models = Models([StudentSubject(AFTER, student, teachers=one.teachers.names, standards=standards)],
                    one.teachers, one.pictures, ALONE)  # fmt: skip
    seen = models.ask(collate([one.pictures.get(row) for row in range(60)]))
    vectors.see(seen)
    true = dict(zip(seen.rows, seen.targets["descriptor"].summary.numpy(), strict=True))
    means = {name: np.mean([true[row] for row in true if labels[row] == name], axis=0) for name in set(labels)}

    def read(texts):
        return np.stack([next(means[name] for name in means if name.replace("-", " ") in text) for text in texts])

    encoder = one.teachers.encoders["descriptor"]
    monkeypatch.setattr(encoder, "context", 8, raising=False)
    monkeypatch.setattr(encoder, "encode_text", read, raising=False)
    result, _ = evaluate_run(one, student, standards)
    found = result["sets"][0]["zero_shot"]["models"]
    assert set(found) == {f"{AFTER}, as descriptor", "teacher descriptor"}
    assert found["teacher descriptor"]["accuracy"] > 0.6
    with torch.no_grad():
        output = student(torch.from_numpy(seen.batch.patches), seen.batch.grids)
        expected = standards[0].invert_summary(student.heads[0].summary(output.summary)).numpy()
    assert vectors.stack(AFTER, "descriptor", seen.rows) == pytest.approx(expected, abs=1e-5)


def test_a_sample_does_not_depend_on_its_batch(recipe):
    one = bench(apply_overrides(recipe, ["train.precision=float64"], "test"))
    subject = StudentSubject(AFTER, one.new_student(), teachers=one.teachers.names, standards=one.standards())
    models = Models([subject], one.teachers, one.pictures, ALONE)
    together, alone = Vectors(), Vectors()
    models.watch(np.arange(9), [together])
    for row in range(9):
        models.watch(np.array([row]), [alone])
    for key, own in together.found.items():
        for row, value in own.items():
            assert value == pytest.approx(alone.found[key][row], abs=1e-5)


def test_pictures_that_cannot_be_read_are_counted_and_not_asked_about(tmp_path):
    items = drawn_items(40)
    for item in items[5:10]:
        item.data = item.data[:50]
    one = bench_of(tmp_path, items)
    result, _ = evaluate_run(one, one.new_student(), one.standards())
    knn = result["sets"][0]["knn"]
    assert knn["train_images"] + knn["test_images"] + knn["left_out_images"] == 35
    assert sum(result["sets"][0]["counts"]["skipped"].values()) == one.test[5:10].sum()


def test_features_that_are_not_finite_are_one_line(recipe):
    one = bench(recipe)
    student = one.new_student()
    with torch.no_grad():
        next(student.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match=r"student, trained, on held-out: .* vectors are not finite"):
        evaluate_run(one, student, one.standards())


def test_text_encoders_of_another_width_are_one_line(recipe):
    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=64&num_heads=2&random=1&img_size=32"
    with pytest.raises(RecipeError, match="has vectors of 64 dimensions, the summaries of 'descriptor' have 728"):
        evaluated(apply_overrides(recipe, [f"evaluate.text_encoders={{descriptor: '{spec}'}}"], "test"))


def test_other_pictures_are_judged_as_well(recipe, tmp_path):
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
    assert "0 training" in whole["knn"]["why_none"] or "with 2 training pictures" in whole["knn"]["why_none"]
    console = Console(record=True, width=120, file=io.StringIO())
    show_evaluation(result, console, "there/evaluation.html")
    said = console.export_text()
    assert "both" in said and "report: there/evaluation.html" in said
    assert 'href="#set-4"' in page.decode()


def test_a_page_without_any_figure_still_says_why(recipe):
    result, page = evaluated(apply_overrides(recipe, ["data.test_fraction=0"], "test"))
    assert "none is held out" in page.decode()
    assert all(not result["sets"][0][task]["models"] for task in recipe.evaluate.tasks)


def test_names_of_sets_are_their_own(recipe):
    sets = [{"name": "a", "dataset": "x"}, {"name": "a", "dataset": "y"}]
    with pytest.raises(RecipeError, match="a name is given twice"):
        apply_overrides(recipe, [f"evaluate.datasets={json.dumps(sets)}"], "test")


CLIP = f"open_clip:{Path(__file__).parents[2] / 'encoders/tiny_clip'}?random=7"


def test_text_towers_of_teachers_and_those_named_for_them_answer_together(values, tmp_path):
    """One teacher reads, another is given the text tower of the first."""
    values["teachers"] = [{"encoder": CLIP, "name": "clip", "patches": {"weight": 0}}, VIT]
    values["evaluate"] = {"tasks": ["zero_shot"], "text_encoders": {"vit": CLIP}, "prompts": str(tmp_path / "prompts")}
    (tmp_path / "prompts").write_text("a {}\n")
    recipe = parse_recipe(values, "test")
    one = bench(recipe)
    student, standards = one.new_student(), one.standards()
    found = evaluate_run(one, student, standards)[0]["sets"][0]["zero_shot"]
    heads = [f"{AFTER}, as clip", f"{AFTER}, as vit"]
    assert set(found["models"]) == {*heads, f"{AFTER}, heads together", "teacher clip", "teacher vit"}

    questions = judged(one).questions()
    rows = sorted({*questions.test.tolist(), *questions.left_out.tolist()})
    labels = np.array([questions.labels[row] for row in rows])
    encoder = one.teachers.encoders["clip"]
    words = encoder.encode_text([f"a {name.replace('-', ' ')}" for name in questions.classes])
    pictures = [encoder.prepare(decode(one.pictures.members.read(row))) for row in rows]
    said = (unit(encoder.encode(pictures, patches=False).summary) @ unit(words).T).argmax(1)
    assert found["models"]["teacher clip"]["accuracy"] == pytest.approx((said == labels).mean())

    subject = StudentSubject(AFTER, student, teachers=one.teachers.names, standards=standards)
    vectors = Vectors()
    Models([subject], one.teachers, one.pictures, ALONE).watch(np.array(rows), [vectors])
    cosines = [unit(vectors.stack(AFTER, name, rows)) @ unit(words).T for name in ("clip", "vit")]
    sure = [softmax(one / 0.01, axis=1) for one in cosines]
    alpha = np.exp(-5 * np.stack([-xlogy(one, one).sum(1) for one in sure]))
    both = np.einsum("hn,hnc->nc", alpha / alpha.sum(0), np.stack(sure)).argmax(1)
    assert found["models"][f"{AFTER}, heads together"]["accuracy"] == pytest.approx((both == labels).mean())


def test_attention_of_sixteen_bits_gives_way_where_features_are_judged(recipe):
    one = bench(apply_overrides(recipe, ["evaluate.tasks=[fidelity]"], "test"))
    make = one.new_student

    def sixteen():
        student = make()
        student.backbone.attention = "varlen"
        return student

    one.new_student = sixteen
    result, _ = evaluate_run(one, sixteen(), one.standards())
    assert result["sets"][0]["fidelity"]["models"]


def test_a_single_picture_and_none_at_all_are_judged_in_words(recipe, tmp_path):
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
        said = console.export_text()
        assert "nan" not in said and "nan %" not in page.decode()
        if name == "one":
            assert found["fidelity"]["models"][AFTER]["descriptor"]["summary"]["explained"] is None
        else:
            assert found["counts"]["skipped"] == {"not_an_image": 1}
            assert "no picture that is asked about can be read (not_an_image 1)" in found["fidelity"]["why_none"]
