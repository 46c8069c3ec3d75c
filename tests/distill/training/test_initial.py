"""Trainings that start from other weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import save_file

import distill
from curate.core.errors import InputError
from curate.encoders.student.model import weights_of
from distill.commands.train import train
from distill.context import StageContext
from distill.export import export
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.recipe.paths import with_absolute_paths
from distill.samples.sources.mixture import open_mixture
from distill.training.run_folder import run_fingerprint
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.encoders.models import save_open_clip

ALONE = World(0, 1, torch.device("cpu"))
VIT = "timm:vit_tiny_patch16_224?depth=2&embed_dim=16&num_heads=2&img_size=32&patch_size=8&random=7"
LIKE_VIT = {
    "norm": "layer", "mlp": "gelu", "mlp_ratio": 4.0, "bias": True, "qk_norm": False, "positions": "absolute",
    "position_grid": 4, "registers": 0,
}  # fmt: skip
TEXT = {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a text tower and a teacher."""
    place = tmp_path_factory.mktemp("before")
    items = drawn_items(30)
    texts = [f"number {number}".encode() for number in range(len(items))]
    values = recipe_values(str(write_dataset(place / "toy", items, texts=texts)), str(place / "run"))
    values["student"] |= {"text": TEXT, "embed": 8}
    values |= {"contrastive": {}, "evaluate": {"tasks": []}}
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    values["run"]["threads"], values["train"]["steps"] = 1, 2
    return train(parse_recipe(values, "test"), Console(quiet=True)).path


def after(before: Path, place: Path, **changes: Any) -> dict[str, Any]:
    """The recipe of another run that starts from it."""
    values = recipe_values(str(before.parent / "toy"), str(place / "run"))
    values["student"] |= {"text": TEXT, "embed": 8}
    values |= {"contrastive": {}, "evaluate": {"tasks": []}, "init_from": {"weights": str(before)}}
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    values["run"]["threads"], values["train"]["steps"] = 1, 2
    return values | changes


def started(values: dict[str, Any]) -> tuple[Any, Any]:
    recipe = parse_recipe(values, "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    student = context.new_student()
    return student, context.initial


def test_a_run_continues_from_a_run_with_its_tokenizer(before, tmp_path):
    console = Console(record=True, width=300, force_terminal=False)
    values = after(before, tmp_path)
    values["teachers"] = [{"encoder": "tiny"}, *values["teachers"]]
    run = train(parse_recipe(values, "test"), console).path
    assert (run / "tokenizer.json").read_bytes() == (before / "tokenizer.json").read_bytes()
    listed = json.loads((run / "initial.json").read_text())
    assert listed["weights"] == str(before) and not listed["different"] and not listed["unused"]
    assert {name.split(".")[0] for name in listed["missing"]} == {"heads"}
    assert all(name.startswith("heads.0.") for name in listed["missing"])
    assert "heads.1.out.weight" in listed["taken"]  # of the same teacher, which is the second here
    line = next(line for line in console.export_text().splitlines() if line.startswith("init_from"))
    total = len(listed["taken"]) + len(listed["missing"])
    assert line.endswith(f": took {len(listed['taken'])} of {total} weights; drawn at random: heads (6)")


def test_a_run_an_export_and_a_file_give_the_same_weights(before, tmp_path):
    model = export(before, tmp_path / "model")
    held = weights_of(distill.load(model).student)
    save_file(held, tmp_path / "own.safetensors")
    torch.save({"state_dict": held}, tmp_path / "own.pt")
    places = [before, model, f"distill:{model}", tmp_path / "own.safetensors", tmp_path / "own.pt"]
    for place in places:
        values = after(before, tmp_path, init_from={"weights": str(place), "text": False})
        values["teachers"], values["student"]["head_hidden"] = [{"encoder": "descriptor"}], 16
        student, initial = started(values)
        own = student.state_dict()
        backbone = [name for name in held if name.startswith("backbone")]
        assert all(torch.equal(own[name], held[name]) for name in backbone)
        assert not any(torch.equal(own[name], held[name]) for name in ("text.tokens.weight", "project.weight"))
        assert "text.tokens.weight" in initial.unused and set(backbone) <= set(initial.taken)


def test_weights_of_timm(values, dataset):
    """The patch embedding of the student sees pixels scaled as by 0.5 and 0.5, as this model's."""
    values["student"] |= LIKE_VIT
    student, initial = started(values | {"init_from": {"weights": VIT}})
    assert not initial.unused and all(name.startswith("heads") for name in initial.missing)
    options = {"depth": 2, "embed_dim": 16, "num_heads": 2, "img_size": 32, "patch_size": 8, "num_classes": 0}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        other = timm.create_model("vit_tiny_patch16_224", **options).eval()
    pixels = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    patches = pixels[0].unflatten(0, (4, 8)).unflatten(2, (4, 8)).permute(0, 2, 1, 3, 4).flatten(2).flatten(0, 1)
    found = student(patches, [(4, 4)]).patches
    expected = other.forward_features((pixels / 127.5 - 1).permute(0, 3, 1, 2))[0, 1:]
    assert torch.allclose(found, expected, atol=1e-3)  # epsilons of the norms differ


def test_each_mismatch_is_a_line_or_in_the_list(values):
    """The student is wider, and has registers."""
    values["student"] |= LIKE_VIT | {"width": 24, "registers": 1, "depth": 1}
    with pytest.raises(InputError) as caught:
        started(values | {"init_from": {"weights": VIT}})
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("does not fit the student; change it, or set init_from.strict=false")
    assert "backbone.blocks.0.attention.qkv.weight: [72, 24] here, [48, 16] in the weights" in lines
    assert lines[-1].startswith("… and") or "backbone.blocks.1.mlp.up.bias: not in the student" in lines
    values["student"]["width"] = 16
    _, initial = started(values | {"init_from": {"weights": VIT, "strict": False}})
    assert initial.different == {"backbone.prefix": [[2, 16], [1, 16]]}
    assert all(name.startswith("backbone.blocks.1.") for name in initial.unused)
    assert "with other shapes: backbone; not used: backbone (12)" in initial.line()


def test_the_fingerprint_has_the_digest_of_the_weights_and_not_their_place(before, tmp_path):
    def fingerprint(**init: Any) -> str:
        recipe = parse_recipe(after(before, tmp_path, init_from=init or None), "test")
        return run_fingerprint(with_absolute_paths(recipe), [open_mixture(recipe.data)])

    first, second = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    save_file({"a": torch.zeros(2)}, first)
    second.write_bytes(first.read_bytes())
    of_first = fingerprint(weights=str(first))
    assert of_first == fingerprint(weights=str(second)) != fingerprint()
    assert of_first != fingerprint(weights=str(first), strict=False)
    save_file({"a": torch.ones(2)}, second)
    assert of_first != fingerprint(weights=str(second))
    assert fingerprint(weights=str(before)) == fingerprint(weights=str(before)) != fingerprint()
    with pytest.raises(InputError, match=r"init_from: .*nowhere/run. is not a run, an export or a file; give one, or"):
        fingerprint(weights="nowhere/run")


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"weights": "{place}/pickled.pt"}, "pickled.pt is a pickle that may run code; save its weights as"),
        ({"weights": "timm:vit_tiny_patch16_224@{place}/pickled.pt"}, "is a pickle that may run code"),
        ({"weights": "{place}/torn.safetensors"}, "init_from: cannot read .*torn.safetensors"),
        ({"weights": "{place}/other.safetensors"}, "other.safetensors has no weight of the student; its names: a$"),
        ({"weights": "{place}"}, "no config.json in"),
        ({"weights": "descriptor"}, "init_from: 'descriptor' has no weights; give a model of timm, open_clip or hf"),
        ({"weights": "open_clip:{place}/pair", "strict": False}, "has the tokenizer CLIP, the student's [0-9a-f]{12}"),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_taken_are_one_line(before, tmp_path, init, message):
    (tmp_path / "pickled.pt").write_bytes(pickle.dumps({"a": Path("x")}))
    save_open_clip(tmp_path / "pair", seed=3)
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    init["weights"] = init["weights"].replace("{place}", str(tmp_path))
    recipe = parse_recipe(after(before, tmp_path, init_from=init), "test")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    context.tokenizer = context.fit_tokenizer()
    with pytest.raises(InputError, match=message) as caught:
        context.new_student()
    assert "\n" not in str(caught.value)
