import io
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from distill.data.blend import open_blend
from distill.data.loader import collate
from distill.evaluation.evaluate import judge
from distill.evaluation.judged import HELD_OUT, Judged
from distill.evaluation.runs import evaluate_run
from distill.evaluation.show import AFTER, BEFORE, show_evaluation
from distill.evaluation.subjects import OWN, Answer, StudentSubject
from distill.evaluation.watchers import Fidelity, Models, Vectors
from distill.parallel import World
from distill.recipe import apply_overrides, parse_recipe
from distill.workbench import Workbench
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

ALONE = World(0, 1, torch.device("cpu"))
VIT = {"encoder": "timm:vit_tiny_patch16_224?depth=2&embed_dim=32&num_heads=2&random=7&img_size=32", "name": "vit"}


def bench(recipe) -> Workbench:
    return Workbench.of(recipe, open_blend(recipe.data), ALONE)


def judged(one: Workbench, **settings) -> Judged:
    own = one.recipe.evaluate.model_copy(update=settings)
    return Judged(HELD_OUT, one.dataset, one.test, own, one.recipe.seed)


def evaluated(recipe):
    one = bench(recipe)
    return evaluate_run(one, one.new_student(), one.standards())


def bench_of(tmp_path, items, **values) -> Workbench:
    folder = write_dataset(tmp_path / "d", items)
    return bench(parse_recipe(recipe_values(str(folder), str(tmp_path / "run")) | values, "test"))


class Words:
    """A model that knows colours by name: the mean colour of a picture, and of a text."""

    name = "words"
    texts = {OWN: lambda texts: np.array([direction(text) for text in texts], dtype=np.float32)}

    def __call__(self, batch, targets):
        own = np.split(batch.patches, np.cumsum([rows * columns for rows, columns in batch.grids])[:-1])
        means = np.stack([1 - patches.reshape(-1, 3).mean(0) / 255 for patches in own]).astype(np.float32)
        patches = 1 - batch.patches.reshape(len(batch.patches), -1, 3).mean(1).astype(np.float32) / 255
        return Answer(means, patches, {OWN: means})


COLOURS = {"red": (0, 1, 1), "green": (1, 0, 1), "blue": (1, 1, 0)}


def direction(text: str):
    """What a text's colour lacks of white; of a text without one, the same of all."""
    return next((values for colour, values in COLOURS.items() if colour in text), (1, 1, 1))


def plain(colour: str, number: int, *, alpha: bool = False, mask: bool = False):
    """A disc of a colour on white; outside it the picture may be transparent, or its mask 0."""
    rng = np.random.default_rng(number)
    rgb = {"red": (220, 20, 20), "green": (20, 180, 20), "blue": (20, 20, 220)}[colour]
    y, x = np.mgrid[:48, :48]
    disc = np.hypot(y - rng.uniform(16, 32), x - rng.uniform(16, 32)) < rng.uniform(9, 15)
    pixels = np.where(disc[..., None], rgb, 255).astype(np.uint8)
    image = Image.fromarray(np.dstack([pixels, 255 * disc.astype(np.uint8)]) if alpha else pixels)
    return image, disc


def encoded(image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def coloured_items(count, **kind):
    """Discs of three colours, labelled by them."""
    items = drawn_items(count)
    for number, item in enumerate(items):
        colour = list(COLOURS)[number % 3]
        item.data, item.width, item.height = encoded(plain(colour, number, **kind)[0]), 48, 48
        item.columns = {"label": colour, "duplicate_set": item.key}
    return items


def words(one: Workbench) -> Models:
    return Models([Words()], None, one.pictures, ALONE)


class Threads:
    """Ranks as threads of this process: they meet at every gather."""

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=240)

    def world(self, rank: int):
        def gather(value):
            self.parts[rank] = pickle.dumps(value)
            self.barrier.wait()
            parts = [pickle.loads(part) for part in self.parts]
            self.barrier.wait()
            return parts

        return SimpleNamespace(rank=rank, size=self.size, device=torch.device("cpu"), first=rank == 0, gather=gather)


def test_ranks_share_the_pictures_and_find_the_same(values, tmp_path):
    values["teachers"] = [VIT]
    values["student"]["moe"] = {"experts": 2, "active": 1, "hidden": 8}
    values["evaluate"] = {"k": 3, "masks": "alpha", "map_images": 3}
    values["data"]["sources"][0]["dataset"] = str(write_dataset(tmp_path / "d", coloured_items(40, alpha=True)))
    recipe = parse_recipe(values, "test")
    alone = bench(recipe)
    expected, _ = evaluate_run(alone, alone.new_student(), alone.standards())
    ranks, standards = Threads(2), alone.standards()
    benches = [Workbench.of(recipe, open_blend(recipe.data), ranks.world(number)) for number in range(2)]
    for one in benches:  # weights are drawn here: threads share the generator
        drawn = one.new_student(), one.new_student()
        one.new_student = iter(drawn).__next__
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: evaluate_run(one, one.new_student(), standards)[0], benches)
    assert first == second
    (one,), (two,) = expected["sets"], first["sets"]
    for task in ("knn", "maps"):
        assert two[task] == one[task]
    for task in ("probe", "segmentation", "fidelity"):
        assert flat(two[task]["models"]) == pytest.approx(flat(one[task]["models"]), abs=1e-6)
    assert two["cka"]["models"][AFTER]["columns"] == one["cka"]["models"][AFTER]["columns"]
    assert set(two["cka"]["models"][AFTER]["rows"]) == set(one["cka"]["models"][AFTER]["rows"])


def flat(value):
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    return [value]


def test_no_duplicate_set_is_on_both_sides(recipe):
    one = bench(recipe)
    questions = judged(one).questions()
    sets = one.dataset.strings("duplicate_set")
    assert not {sets[row] for row in questions.train} & {sets[row] for row in questions.test}
    assert not {sets[row] for row in one.train_rows()} & {sets[row] for row in questions.test}
    assert len(questions.test) > 5


def test_copies_count_once_and_unlabelled_samples_not_at_all(tmp_path):
    items = drawn_items(40)
    items += items[:10]
    items[20].columns = {**items[20].columns, "label": None}
    questions = judged(bench_of(tmp_path, items)).questions()
    rows = [*questions.train, *questions.test, *questions.left_out]
    assert len(rows) == 39
    assert len({items[row].key for row in rows}) == len(rows)


def test_classes_that_nothing_could_get_right_are_left_out_and_counted(recipe):
    one = bench(recipe)
    labels = np.array(one.dataset.strings("label"))
    questions = judged(one, min_train_images=12).questions()
    rare = [name for name in set(labels) if (labels[~one.test] == name).sum() < 12]
    assert rare
    assert len(questions.left_out) == np.isin(labels[one.test], rare).sum()
    assert questions.left_out_classes == len(set(labels[one.test]) & set(rare))
    assert not set(labels[questions.test]) & set(rare)


def test_of_too_many_the_same_are_taken_first(recipe):
    one = bench(recipe)
    few, many = judged(one, max_train_images=7).questions(), judged(one).questions()
    assert len(few.train) == 7
    assert set(few.train) < set(many.train)


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
