import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import distill
from curate.core.errors import CurateError, InputError, StorageError
from curate.encoders.student.model_folder import CARD, CONFIG, TOKENIZER, WEIGHTS, read_config
from curate.encoders.student.network.pooler import FrozenPooler
from curate.encoders.student.network.student import build_student
from curate.encoders.student.patches import patchify
from distill import export
from distill.cli import main
from distill.commands.train import train
from distill.recipe import TeacherRecipe, parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.images.reader import PatchedImage
from distill.teachers import TargetStandardiser, Teachers
from distill.training.checkpoint import last_checkpoint
from tests.distill.exports import HEADS, TRAINED, save_distill, standardiser, standardisers
from tests.distill.exports import recipe as recipe_of
from tests.distill.full_disk import files_of_at_most
from tests.encoders.models import blob_image

ROOT = Path(__file__).parents[2]
SIZES = [(90, 60), (16, 40), (200, 200), (8, 8), (40, 16), (300, 20)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return tmp_path_factory.mktemp("export") / "model"


@pytest.fixture(scope="module")
def student(exported):
    return save_distill(exported)


@pytest.fixture(scope="module")
def model(exported, student):
    return distill.load(exported)


@pytest.fixture
def images():
    return [blob_image(*size, seed=seed) for seed, size in enumerate(SIZES)]


@torch.no_grad()
def test_a_loaded_model_equals_the_student(student, model, images):
    """To the last bit, in the order of the images, with predictions in the teachers' own spaces."""
    seen = model(images)
    pixels = [model.prepare(image) for image in images]
    grids = [(item.shape[0] // 8, item.shape[1] // 8) for item in pixels]
    batch = collate([PatchedImage(place, grids[place], patchify(item, 8)) for place, item in enumerate(pixels)])
    own = student(torch.from_numpy(batch.patches), batch.grids)
    places = [item.row for item in batch.images]
    assert torch.equal(seen.summary[places], own.summary)
    assert torch.equal(torch.cat([seen.patches[place].flatten(0, 1) for place in places]), own.patches)
    assert torch.equal(seen.embedding[places], student.project(own.summary))
    for number, (name, one) in enumerate(zip(("plain", "dense"), standardisers(2), strict=True)):
        summary, patches = seen.teachers[name]
        expected = one.invert_summary(student.heads[number].summary(own.summary))
        assert torch.allclose(summary[places], expected, atol=1e-5)
        assert (patches is None) == (HEADS[number].patches is None)
    dense = standardisers(2)[1].invert_patches(student.heads[1].patches(own.patches))
    assert torch.allclose(torch.cat([seen.teachers["dense"][1][i].flatten(0, 1) for i in places]), dense, atol=1e-5)
    assert seen.grids == grids
    assert [tuple(item.shape[:2]) for item in seen.patches] == grids
    assert max(rows * columns for rows, columns in grids) <= 24


@torch.no_grad()
def test_an_image_has_the_same_vectors_alone_and_in_any_form(model, images):
    seen = model(images, teachers=["dense"])
    assert list(seen.teachers) == ["dense"]
    for place, image in enumerate(images):
        alone = model([np.asarray(image)], teachers=[])
        assert torch.allclose(alone.summary[0], seen.summary[place], atol=1e-5)
        assert torch.allclose(alone.patches[0], seen.patches[place], atol=1e-5)
        prepared = model.prepare(image)
        assert np.array_equal(model.prepare(prepared), prepared)
    grey = model([images[0].convert("L")], teachers=[]).summary
    assert torch.equal(grey, model([images[0].convert("L").convert("RGB")], teachers=[]).summary)


@torch.no_grad()
def test_texts_equal_the_text_tower(student, model):
    tokens = torch.from_numpy(model.tokenizer.encode(["A red STAR", "the sea, the sea"], 12))
    assert torch.equal(model.encode_text(["A red STAR", "the sea, the sea"]), student.text(tokens))


def test_gradients_reach_the_weights(model, images):
    model(images).teachers["dense"][0].square().sum().backward()
    assert model.student.backbone.embed.weight.grad.abs().sum() > 0
    model.zero_grad()


def test_the_same_student_gives_the_same_bytes(exported, student, tmp_path):
    save_distill(tmp_path / "again")
    names = sorted(item.name for item in exported.iterdir())
    assert names == sorted([CONFIG, WEIGHTS, TOKENIZER])
    assert {item.stat().st_mode & 0o777 for item in exported.iterdir()} == {0o644}
    assert all((exported / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 3e-3), ("bfloat16", 3e-2)])
@torch.no_grad()
def test_half_precision_halves_the_file(model, exported, images, tmp_path, precision, tolerance):
    save_distill(tmp_path / "half", precision=precision)
    half = distill.load(tmp_path / "half")
    assert all(value.dtype == torch.float32 for value in half.student.parameters())
    one, other = (found(images).summary for found in (model, half))
    assert 0 < (one - other).abs().max() < tolerance * one.abs().max()
    assert (tmp_path / "half" / WEIGHTS).stat().st_size < 0.6 * (exported / WEIGHTS).stat().st_size


def test_a_model_is_replaced_as_a_whole_and_keeps_its_card(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (place / CARD).write_text("a card")
    save_distill(place, seed=1)
    (place / "old.txt").write_text("from an older format")
    before = (place / WEIGHTS).read_bytes()
    for most in (1000, 100_000):
        with (
            files_of_at_most(most),
            pytest.raises(StorageError, match=r"cannot write the model to .*File too large"),
        ):
            save_distill(place, seed=2)
    assert (place / WEIGHTS).read_bytes() == before
    save_distill(place, seed=2, text=False)
    assert sorted(item.name for item in place.iterdir()) == sorted([CARD, CONFIG, WEIGHTS])
    assert (place / WEIGHTS).read_bytes() != before
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_nothing_else_is_replaced(tmp_path, what):
    place = tmp_path / "thesis"
    if what == "file":
        place.write_text("all of it")
    else:
        place.mkdir()
        (place / "chapter-1.txt").write_text("all of it")
    with pytest.raises(
        InputError, match=r"thesis exists and is not a model; remove it, or give another folder with --to"
    ):
        save_distill(place)


def test_a_missing_folder_head_or_input_is_an_error(model, images, tmp_path):
    with pytest.raises(InputError, match="'/nowhere' is not a folder; give a folder written by `distill export`"):
        distill.load("/nowhere")
    with pytest.raises(InputError, match="no images"):
        model([])
    with pytest.raises(InputError, match="has no head 'clip'; its heads: plain, dense"):
        model(images, teachers=["clip"])
    save_distill(tmp_path / "model", text=False, teachers=["one"])
    blind = distill.load(tmp_path / "model")
    assert blind(images).embedding is None
    with pytest.raises(CurateError, match=r"has no text tower; train one with student\.text and contrastive"):
        blind.encode_text(["a star"])


@torch.no_grad()
def test_a_run_is_exported_with_its_moving_average(values, tmp_path, images, monkeypatch, capsys):
    values["train"]["ema"], values["evaluate"]["tasks"] = 0.5, ["knn"]
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    monkeypatch.setattr(sys, "argv", ["distill", "export", str(run.path), "--to", str(tmp_path / "model")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and capsys.readouterr().out == f"{tmp_path / 'model'}\n"
    saved = last_checkpoint(run, run.read("run.json")["fingerprint"])
    model = distill.load(tmp_path / "model")
    assert all(torch.equal(value, saved.weights()[name]) for name, value in model.student.state_dict().items())
    trained = model.config.trained
    assert (trained.step, trained.ema, model.teachers) == (4, True, ["descriptor"])
    summary, patches = model(images).teachers["descriptor"]
    assert summary.shape == (len(images), 728) and patches is None
    assert summary.mean(1).std() < 0.1 and summary[:, 512:].mean() > 0  # colour shares are never negative
    assert export.export(run.path) == run.path / "model"
    for name in (CONFIG, WEIGHTS):
        assert (run.path / "model" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


SIGLIP = "timm:naflexvit_so400m_patch16_siglip?depth=1&embed_dim=32&num_heads=2&patch_size=8&random=0"


@torch.no_grad()
def test_a_teachers_pooler_is_exported(images, tmp_path):
    """It computes the summary from the patches in the teacher's own space, without the teacher."""
    teacher = {"encoder": SIGLIP, "pooler": True, "pictures": "student"}
    made = recipe_of(text=False).model_copy(update={"teachers": [TeacherRecipe(**teacher)]})
    loaded = Teachers.of(made, torch.device("cpu"))
    pooler = loaded.poolers()[made.teachers[0].label]
    torch.nn.init.normal_(pooler.module.latent)
    heads, scales = loaded.heads(made), [TargetStandardiser(standardiser(32, 0), standardiser(32, 1))]
    student = build_student(made.student, heads, seed=0)
    config = export.describe(made, heads, TRAINED, "float32", [pooler])
    model = distill.load(export.write_model(tmp_path / "model", config, student, scales, poolers=[pooler]))
    [name] = model.teachers
    assert name == "timm-naflexvit_so400m_patch16_siglip-depth-1-embed_dim-32-num_heads-2-patch_size-8-random-0"
    summary, patches = model(images).teachers[name]
    for place in range(len(images)):
        own = pooler(patches[place].flatten(0, 1), [patches[place].shape[0] * patches[place].shape[1]])
        assert torch.allclose(summary[place], own[0], atol=1e-5)
    assert summary.std(0).max() > 1e-3
    with pytest.raises(
        InputError, match=r"cannot export its pooler \(Identity\), only timm's AttentionPoolLatent; train without"
    ):
        export.describe(made, heads, TRAINED, "float32", [FrozenPooler(torch.nn.Identity())])


def test_a_wrong_run_or_precision_is_an_error_in_one_line(recipe, tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder \(no recipe.yaml\)"):
        export.export(tmp_path)
    with pytest.raises(CurateError, match="--precision: expected one of float32, float16, bfloat16, not half"):
        export.export(tmp_path, precision="half")


def test_importing_distill_does_not_import_torch():
    code = "import sys, distill; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_configuration_names_no_paths(exported):
    config = read_config(exported)
    assert [teacher.name for teacher in config.teachers] == ["plain", "dense"]
    assert str(exported.parent) not in (exported / CONFIG).read_text()
    assert config.preprocessing.max_tokens == 24
