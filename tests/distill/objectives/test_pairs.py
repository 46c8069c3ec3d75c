"""Images and texts, from the tars to a student that distinguishes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from curate.encoders.student.tokenizer import Tokenizer
from distill.commands.teach import teach
from distill.commands.train import train
from distill.context import StageContext
from distill.objectives.kernels.contrastive import numbered, same
from distill.objectives.outputs import Outputs
from distill.objectives.terms import relational, terms_of
from distill.parallel import World
from distill.recipe import Recipe, parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.sources.mixture import open_mixture
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.objectives.toys import Pairs

WORDS = ["Red bars", "green stripes", "blue  bars", "violet lines"]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    items = drawn_items(40)
    texts = [WORDS[int(item.columns["label"][-1])].encode() for item in items]
    values = recipe_values(str(write_dataset(tmp_path / "data", items, texts=texts)), str(tmp_path / "run"))
    values["teachers"] = []
    values["contrastive"] = {"temperature": 0.2}
    values["data"]["sources"][0]["texts"] = {"txt": 1.0}
    values["data"]["augment"] = {"crop": [0.7, 1.0], "flip": True, "colour": 0.1}
    text = {"vocabulary": 300, "context": 8, "width": 16, "depth": 1, "heads": 2}
    values["student"] |= {"text": text, "embed": 16}
    return parse_recipe(values, "test")


def test_a_student_learns_from_texts(recipe):
    values = recipe.model_dump(mode="json")
    values["train"] |= {"steps": 20, "learning_rate": 5e-3, "warmup_steps": 3}
    values["run"] |= {"checkpoint_every": 100, "tensorboard": False}
    other = {"name": "again", "dataset": values["data"]["sources"][0]["dataset"], "test_fraction": 1.0}
    values["evaluate"] |= {"tasks": ["retrieval"], "datasets": [other]}
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    losses = [json.loads(line)["contrastive"] for line in run.metrics.read_text().splitlines()]
    assert losses[-1] < 0.6 * losses[0]
    assert len(Tokenizer.parse((run.path / "tokenizer.json").read_text())) <= 300
    sets = json.loads((run.path / "evaluation.json").read_text())["sets"]
    assert [item["retrieval"]["from"] for item in sets] == [["txt"], ["txt"]]  # the members of data.sources


def paired(recipe: Recipe, tmp_path: Path, **data: Any) -> Recipe:
    """Half of the images have a second text, in their JSON; every eighth has only that one."""
    items = drawn_items(40)
    texts = [
        None if number % 8 == 3 else WORDS[int(item.columns["label"][-1])].encode() for number, item in enumerate(items)
    ]
    documents = [{"texts": {"tags": f"tag {number // 8}"}} if number % 2 else {} for number in range(40)]
    values = recipe.model_dump(mode="json")
    source = {"dataset": str(write_dataset(tmp_path / "paired", items, texts=texts, documents=documents))}
    values["data"]["sources"][0] |= source | {"texts": {"txt": 1, "tags": 1}, "text_pair": ["txt", "tags"], **data}
    return parse_recipe(values, "test")


def tokenized(recipe: Recipe) -> StageContext:
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    context.tokenizer = context.fit_tokenizer()
    return context


def test_a_pair_of_texts_is_two_rows_of_tokens_per_image(recipe, tmp_path):
    context = tokenized(paired(recipe, tmp_path))
    batch = collate([context.reader.get(row, 0) for row in range(16)])
    tokens = context.text_tokens(batch)
    assert tokens.shape[:2] == (16, 2)
    first = context.tokenizer.encode(batch.texts, 8)
    assert tokens[:, 0, : first.shape[1]].tolist() == first.tolist() and not tokens[:, 0, first.shape[1] :].any()
    for image, (first, second) in zip(batch.images, tokens, strict=True):
        assert torch.equal(first, second) == (image.row % 2 == 0 or image.row % 8 == 3)
    groups = context.groups(batch, tokens)
    assert groups.shape == (16, 3)
    assert torch.equal(groups[:, 0] == groups[:, 1], (tokens[:, 0] == tokens[:, 1]).all(1))


def test_images_without_a_pair_count_their_text_twice(recipe, tmp_path):
    """A source without `text_pair`, beside one that has it, has the loss that it has alone."""
    values = paired(recipe, tmp_path).model_dump(mode="json")
    alone = tokenized(
        parse_recipe(
            values
            | {
                "data": values["data"]
                | {"sources": [values["data"]["sources"][0] | {"text_pair": None, "texts": {"txt": 1}}]}
            },
            "test",
        )
    )
    both = tokenized(paired(recipe, tmp_path / "b", texts={"txt": 1, "none": 1}, text_pair=["txt", "none"]))
    rows = [row for row in range(16) if row % 8 != 3]
    images = [alone.reader.get(row, 0) for row in rows]
    losses = []
    for context in (alone, both):
        student, objectives = context.new_student(), context.recipe.every_objective
        terms = terms_of(objectives, Outputs.of(student, context.micro_batch(images), {}))
        losses.append(relational(objectives, terms.vectors, student)[0].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.long
def test_a_student_learns_from_two_texts_per_image_and_resumes(recipe, tmp_path):
    values = paired(recipe, tmp_path, single_sentence=0.5).model_dump(mode="json")
    values["train"] |= {"steps": 6, "learning_rate": 5e-3, "warmup_steps": 1}
    values["run"] |= {"checkpoint_every": 2, "tensorboard": False, "micro_sequences": 2}
    values["evaluate"] |= {"tasks": []}
    lines = {}
    for name in ("whole", "resumed"):
        values["run"]["folder"] = str(tmp_path / name)
        run = train(parse_recipe(values, "test"), Console(quiet=True))
        if name == "resumed":
            shutil.rmtree(run.checkpoint(6))
            run.metrics.write_text("".join(run.metrics.read_text().splitlines(True)[:4]))
            (run.path / "finished.json").unlink()
            console = Console(record=True, width=400)
            run = train(parse_recipe(values, "test"), console)
            assert "resuming after step 4" in console.export_text()
        lines[name] = [json.loads(line)["contrastive"] for line in run.metrics.read_text().splitlines()]
    assert lines["resumed"] == lines["whole"] and len(lines["whole"]) == 6


@pytest.fixture
def distilled(recipe, tmp_path) -> Recipe:
    """A recipe without any other objective than the divergence from a teacher of images and texts."""
    values = paired(recipe, tmp_path).model_dump(mode="json")
    unused = {"summary": {"weight": 0}, "patches": {"weight": 0}, "registers": {"weight": 0}}
    values["teachers"] = [{"encoder": "tiny", "name": "pairs", "standardise": "none", **unused}]
    values["objectives"] = [{"objective": "distill.objectives.kl:Kl", "teacher": "pairs"}]
    values["contrastive"], values["data"]["augment"] = None, None
    return parse_recipe(values, "test")


def test_a_student_learns_the_distributions_of_a_teacher(distilled):
    values = distilled.model_dump(mode="json")
    values["train"] |= {"steps": 20, "learning_rate": 5e-3, "warmup_steps": 3}
    values["run"] |= {"checkpoint_every": 100, "micro_sequences": 2}
    values["evaluate"] |= {"tasks": []}
    run = train(parse_recipe(values, "test"), Console(quiet=True))
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines[-1]["pairs/kl"] < 0.6 * lines[0]["pairs/kl"]
    assert lines[0]["loss"] == pytest.approx(lines[0]["pairs/kl"])


def test_the_teacher_reads_images_and_texts_as_they_are_and_each_text_once(distilled, monkeypatch):
    context = tokenized(distilled)
    encoder = context.teachers.encoders["pairs"]
    images = [context.reader.get(row, 0) for row in range(12)]
    seen, encode_text = list[str](), encoder.encode_text
    monkeypatch.setattr(encoder, "encode_text", lambda texts: seen.extend(texts) or encode_text(texts))
    micros = [context.micro_batch(batch) for batch in (images, images[:3], [])]
    texts = [text for image in micros[0].batch.images for text in (image.text, image.second_text or image.text)]
    assert sorted(filter(None, seen)) == sorted(set(texts))
    spaces = context.spaces(context.fit_standardisers())
    for micro, count in zip(micros, (12, 3, 0), strict=True):
        pictures, vectors = Outputs.of(context.new_student(), micro, spaces).pair_vectors("pairs")
        assert torch.equal(pictures, micro.targets["pairs"].summary) and pictures.shape == (count, encoder.dim)
        assert vectors.shape == (count, 2, encoder.dim)
    _, vectors = Outputs.of(context.new_student(), micros[0], spaces).pair_vectors("pairs")
    assert torch.allclose(vectors.flatten(0, 1), torch.from_numpy(encode_text(texts)), atol=1e-5)


def test_the_teachers_vectors_of_both_sides_come_from_disk(distilled, tmp_path, monkeypatch):
    values = distilled.model_dump(mode="json")
    values["teachers"][0]["encoder"] = "tests.distill.objectives.toys:Pairs"
    values["train"] |= {"steps": 4, "warmup_steps": 0}
    values["evaluate"] |= {"tasks": []}
    console, place, losses = Console(record=True, width=400), str(tmp_path / "features"), []
    for cache in (None, place):
        values["run"] |= {"teacher_cache": cache, "folder": str(tmp_path / f"run-{cache is None}")}
        recipe = parse_recipe(values, "test")
        if cache is not None:
            for _ in range(2):
                teach(recipe, console)
            monkeypatch.setattr(Pairs, "encode_text", lambda *_: pytest.fail("computed"))
            monkeypatch.setattr(Pairs, "encode", lambda *_, **__: pytest.fail("computed"))
        lines = train(recipe, Console(quiet=True)).metrics.read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == losses[1]
    printed = console.export_text()
    assert "pairs: 55 texts computed in 4 tars" in printed and "pairs: 0 texts computed in 0 tars" in printed
    file = next(path for path in Path(place).rglob("000001.arrow") if b"tag 1" in path.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"tag 1", b"tag 7"))
    context = tokenized(recipe)
    images = [context.reader.get(row, 0) for row in range(10, 20)]
    with pytest.raises(InputError, match=r"cannot read .*000001\.arrow \(row 3 is corrupt \(checksum.*distill teach"):
        context.micro_batch(images)


def test_a_teacher_without_a_text_tower_is_one_line(distilled):
    values = distilled.model_dump(mode="json")
    values["teachers"][0]["encoder"] = "descriptor"
    with pytest.raises(
        RecipeError, match="teachers: 'pairs': encoder: 'descriptor' has no text tower; use an image-te"
    ):
        tokenized(parse_recipe(values, "test"))


def test_a_teacher_of_texts_needs_texts(distilled):
    values = distilled.model_dump(mode="json")
    values["data"]["sources"][0]["text_pair"] = None
    values["student"]["text"] = {"tower": "columns", "column": "text_embedding", "width": 8, "depth": 1}
    with pytest.raises(RecipeError, match="the texts that pairs reads, but student"):
        parse_recipe(values, "test")


def test_names_that_no_sample_has_are_printed_before_training(recipe, tmp_path):
    values = paired(recipe, tmp_path, texts={"txt": 1, "tag": 1}, text_pair=None).model_dump(mode="json")
    values["train"] |= {"steps": 1, "warmup_steps": 0}
    values["data"]["max_bad_fraction"] = 1.0
    values["evaluate"] |= {"tasks": []}
    console = Console(record=True, width=400)
    train(parse_recipe(values, "test"), console)
    assert "'tag' is in none of 10 samples of" in console.export_text().splitlines()[0]


def test_groups_contain_equal_texts_and_duplicate_sets(recipe):
    mixture = open_mixture(recipe.data)
    context = StageContext.of(recipe, mixture, ALONE)
    context.tokenizer = context.fit_tokenizer()
    batch = collate([context.reader.get(row, 0) for row in range(10)])
    groups = context.groups(batch, context.text_tokens(batch))
    labels = [mixture.strings("label")[image.row] for image in batch.images]
    sets = [mixture.strings("duplicate_set")[image.row] for image in batch.images]
    for i, row in enumerate(same(numbered(groups), numbered(groups)).tolist()):
        assert row == [i != j and (labels[i] == labels[j] or sets[i] == sets[j]) for j in range(10)]
    assert torch.equal(groups, context.groups(batch, context.text_tokens(batch)))
