"""Training on clips, and on images and clips."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy, normalize

from curate.core.errors import InputError
from curate.core.hashing import make_key
from distill.commands.teach import teach
from distill.commands.train import train
from distill.context import StageContext
from distill.evaluation.models import StudentModel
from distill.objectives.outputs import Outputs
from distill.objectives.terms import relational, terms_of
from distill.objectives.views import frame_pair
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import last_checkpoint
from distill.training.run_folder import RunFolder
from tests.distill.clips import clip, frame, write_clips
from tests.distill.conftest import recipe_values
from tests.distill.ranks import take_steps, trainer_of

ALONE, QUIET = World(0, 1, torch.device("cpu")), Console(quiet=True)
DINO = "timm:vit_small_patch16_dinov3?depth=1&embed_dim=16&num_heads=2&patch_size=8&img_size=32&random=7"
SIGLIP = "timm:naflexvit_so400m_patch16_siglip?depth=1&embed_dim=16&num_heads=2&patch_size=8&random=7"
KEYS = [make_key("same", str(number)) for number in range(12)]
WORDS = [f"words {number % 5}" for number in range(12)]


def values_of(folder: Path, **source: Any) -> dict[str, Any]:
    """All images in each step; the contrastive loss, three kinds of teachers, and an objective from outside."""
    values = recipe_values(str(folder), str(folder.parent / f"{folder.name}-run"))
    values["data"] |= {"sequence_tokens": 10_000, "sequence_images": 6, "test_fraction": 0.0}
    values["data"]["sources"][0] |= {"modality": "video", "texts": {"txt": 1}, "max_tokens": 12, **source}
    text = {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}
    values["student"] |= {"text": text, "embed": 8, "registers": 4}
    values["teachers"] = [
        {"encoder": "descriptor", "standardise": "scale", "relations": {"kind": "arkd"}},
        {"encoder": DINO, "name": "dino", "pictures": "student", "standardise": "none"},
        {"encoder": SIGLIP, "name": "siglip", "pictures": "student", "standardise": "none", "pooler": True},
    ]
    values["contrastive"] = {"weight": 0.5}
    values["objectives"] = [{"objective": "tests.distill.objectives.toys:Colours"}]
    values["train"] |= {"precision": "float64", "epsilon": 1e-6, "steps": 2, "sequences": 2, "standardise_samples": 12}
    return values


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 1 to 4 different frames."""
    samples = [clip(number, 1 + number % 4) for number in range(12)]
    return write_clips(tmp_path_factory.mktemp("clips") / "d", samples, texts=WORDS, keys=KEYS)


def test_a_clip_of_equal_frames_has_the_gradients_of_the_image(tmp_path):
    images = [[frame(number * 20)] for number in range(12)]
    repeated = [image * (1 + number % 4) for number, image in enumerate(images)]
    one, two = (
        take_steps(values_of(write_clips(tmp_path / name, samples, texts=WORDS, keys=KEYS)), ALONE)
        for name, samples in (("images", images), ("clips", repeated))
    )
    left_out = {"tokens", "flops", "dino/relations"}  # summaries of a random DINOv3 differ by rounding only
    for first, second in zip(one["steps"], two["steps"], strict=True):
        assert second["sums"]["tokens"] > first["sums"]["tokens"]
        terms = {"dino/patches", "dino/registers", "siglip/summary", "descriptor/relations", "colours", "contrastive"}
        assert terms <= first["sums"].keys()
        for name in first["sums"].keys() - left_out:
            assert second["sums"][name] == pytest.approx(first["sums"][name], rel=1e-6, abs=1e-12), name
        for name, grad in first["grads"].items():
            assert torch.allclose(second["grads"][name], grad, rtol=1e-5, atol=1e-8), name


@pytest.mark.parametrize("frame_pairs", [0.0, 0.7])
def test_micro_batches_of_clips_equal_the_whole_batch(clips, frame_pairs):
    values = values_of(clips)
    values["contrastive"]["frame_pairs"] = frame_pairs
    whole = take_steps(values, ALONE)
    parts = take_steps(values | {"run": values["run"] | {"micro_sequences": 1}}, ALONE)
    for one, two in zip(whole["steps"], parts["steps"], strict=True):
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-6)  # SigLIP's pooler is float32
        for name, grad in one["grads"].items():
            assert torch.allclose(two["grads"][name], grad, rtol=1e-5, atol=1e-6), name


def test_vectors_of_a_clip_are_means_and_two_of_its_frames_are_a_pair(clips):
    values = values_of(clips)
    values["contrastive"] |= {"frame_pairs": 0.7, "weight": 1.0}
    values["teachers"], values["objectives"] = values["teachers"][:1], []
    trainer = trainer_of(values, ALONE)
    context, student = trainer.context, trainer.student
    images = [context.reader.get(row, 1) for row in (0, 1, 2, 3, 7)]
    batch = collate(images)
    outputs = Outputs.of(student, context.micro_batch(images), context.spaces(trainer.standardisers))
    each = student(torch.from_numpy(batch.patches), batch.grids).summary.split(batch.frames)
    projected = [student.project(own) for own in each]
    assert torch.allclose(outputs.image_vectors, torch.stack([own.mean(0) for own in projected]), rtol=1e-12)
    assert torch.allclose(outputs.image.summary, torch.stack([own.mean(0) for own in each]), rtol=1e-12)
    heads = torch.stack([student.heads[0].summary(own).mean(0) for own in each])
    assert torch.allclose(outputs.predicted("descriptor").summary, heads, rtol=1e-12)
    contrastive = context.recipe.contrastive
    _, parts = relational([contrastive], terms_of([contrastive], outputs).vectors, student)
    without = contrastive.model_copy(update={"frame_pairs": 0.0})
    _, plain = relational([without], terms_of([without], outputs).vectors, student)
    ranks = context.reader.draws(batch.images).tolist()
    drawn = [frame_pair(rank, len(own)) for rank, own in zip(ranks, projected, strict=True)]
    pairs = [(own, pair) for own, pair in zip(projected, drawn, strict=True) if len(own) > 1]
    first, second = (normalize(torch.stack([own[pair[side]] for own, pair in pairs]), dim=-1) for side in (0, 1))
    logits = first @ second.T * student.logit_scale.exp()
    assert len(logits) == 4 and len({image.text for image in images}) == 4  # rows 2 and 7 have the same words
    same = [image.row in (2, 7) for image in batch.images if image.frames > 1]
    alike = torch.tensor([[own and other for other in same] for own in same]).fill_diagonal_(False)
    logits, labels = logits.masked_fill(alike, float("-inf")), torch.arange(4)
    expected = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
    found = parts["contrastive"] - plain["contrastive"]
    assert found.item() == pytest.approx(0.7 * expected.item(), rel=1e-9)


def mixed(tmp_path: Path) -> dict[str, Any]:
    """Steps of images and steps of clips."""
    videos = write_clips(tmp_path / "videos", [clip(number, 1 + number % 4) for number in range(12)], keys=KEYS)
    images = write_clips(tmp_path / "images", [[frame(number)] for number in range(30)])
    values = recipe_values(str(images), str(tmp_path / "run"))
    values["data"]["sources"].append({"dataset": str(videos), "max_tokens": 12, "modality": "video", "frames": 3})
    values["data"] |= {"sequence_tokens": 100, "augment": {"crop": [0.5, 1.0], "flip": True}}
    values["train"] |= {"steps": 12, "sequences": {"image": 2, "video": 1}}
    values["run"] |= {"checkpoint_every": 5, "keep_checkpoints": 9}
    values["evaluate"] = {"label": "number", "tasks": ["knn", "fidelity", "maps"], "min_train_images": 1}
    return values


@pytest.mark.long
def test_images_and_clips_train_one_student_and_resume_exactly(tmp_path):
    recipe = parse_recipe(mixed(tmp_path), "test")
    run = train(recipe, QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert all(line["skipped"] == 0 for line in lines) and len(lines) == 12
    broken = RunFolder(tmp_path / "broken")
    shutil.copytree(run.path, broken.path)
    for step in (10, 12):
        shutil.rmtree(broken.checkpoints / f"step-{step:08d}")
    for name in ("finished.json", "evaluation.json"):
        (broken.path / name).unlink()
    train(parse_recipe(mixed_at(recipe, broken), "test"), QUIET)
    again = [json.loads(line) for line in broken.metrics.read_text().splitlines()]
    assert [line["loss"] for line in again] == [line["loss"] for line in lines]
    assert [line["tokens_seen"] for line in again] == [line["tokens_seen"] for line in lines]
    one, two = (last_checkpoint(item, item.fingerprint()).weights() for item in (run, broken))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert run.read("evaluation.json")["sets"] == broken.read("evaluation.json")["sets"]


def mixed_at(recipe: Any, run: RunFolder) -> dict[str, Any]:
    values: dict[str, Any] = recipe.model_dump(mode="json")
    return values | {"run": values["run"] | {"folder": str(run.path)}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"sequence_tokens": 40}}, r"^data\.sequence_tokens 40 is less than the 45 tokens of a clip of 3 frame"
         r"s in .*videos; raise it, or set data\.sources\.1\.frames=2, or a lower max_tokens$"),
        ({"contrastive": {"frame_pairs": 1.0}}, r"^contrastive\.frame_pairs requires clips of at least 2 frames, and"),
    ],
)  # fmt: skip
def test_recipes_that_do_not_fit_clips_are_one_line_before_training(tmp_path, change, message):
    values = mixed(tmp_path)
    if "contrastive" in change:
        values["data"]["sources"][1] |= {"frames": 1, "texts": {"txt": 1}}
        values["data"]["sources"][0]["texts"] = {"txt": 1}
        values["student"] |= {"text": {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}, "embed": 8}
    values["data"] |= change.get("data", {})
    recipe = parse_recipe(values | {name: own for name, own in change.items() if name != "data"}, "test")
    with pytest.raises(InputError, match=message):
        train(recipe, QUIET)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_image_recipe_reads_the_middle_frames_of_clips(clips):
    values = values_of(clips, modality="image")
    with pytest.raises(InputError, match="set modality: video, or frames: 1"):
        open_mixture(parse_recipe(values, "test").data)
    recipe = parse_recipe(values_of(clips, modality="image", frames=1), "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    assert [context.reader.get(row).frames for row in range(12)] == [1] * 12


def test_teachers_features_of_clips_on_disk_are_those_computed(clips, tmp_path):
    values = values_of(clips, frames=3)
    values["run"]["teacher_cache"] = str(tmp_path / "features")
    recipe = parse_recipe(values, "test")
    teach(recipe, QUIET)
    without = parse_recipe(values | {"run": values["run"] | {"teacher_cache": None}}, "test")
    found = []
    for own in (recipe, without):
        context = StageContext.of(own, open_mixture(own.data), ALONE)
        images = [context.reader.get(row) for row in range(12)]
        found.append(context.teachers.targets(images))
        assert context.teachers.counts["read" if own is recipe else "computed"] == 36
    for read, computed in zip(*found, strict=True):
        for name, value in vars(computed).items():
            assert (value is None) == (getattr(read, name) is None)
            assert value is None or torch.allclose(getattr(read, name), value, rtol=1e-4, atol=1e-5), name
    assert len(found[0][1].patches) == 12 * sum(min(3, 1 + number % 4) for number in range(12))


def test_an_evaluated_clip_has_the_means_of_its_frames(clips):
    trainer = trainer_of(values_of(clips), ALONE)
    context, student = trainer.context, trainer.student.float()
    names, poolers = context.teachers.names, context.poolers()
    model = StudentModel(
        "student",
        student,
        teachers=names,
        standardisers=trainer.standardisers,
        poolers=poolers,
        tower=lambda _: 0,
    )
    image = context.reader.get(3)
    whole, parts = model(collate([image]), {}), [model(collate([one]), {}) for one in image.pictures()]
    assert len(parts) == 4 and set(whole.spaces) == {"", *names}
    mean = np.mean([part.summary for part in parts], axis=0)
    assert np.allclose(whole.summary, mean, atol=1e-5) and not np.allclose(whole.summary, parts[0].summary, atol=1e-3)
    for space, vectors in whole.spaces.items():
        assert np.allclose(vectors, np.mean([part.spaces[space] for part in parts], axis=0), atol=1e-5), space
    assert np.allclose(whole.patches, np.concatenate([part.patches for part in parts]), atol=1e-5)
