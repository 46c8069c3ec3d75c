"""`distill targets`: modes of the teachers' features, with a table and a page."""

import json
import sys

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from curate.encoders.student.standardise import Target
from distill.cli import main
from distill.commands.targets import targets
from distill.recipe import parse_recipe
from distill.samples.images.reader import PatchedImage
from distill.teachers.diagnose import diagnose
from distill.teachers.teachers import Teachers
from tests.html.browser import found

IMAGES = [PatchedImage(row, (1, 3), np.zeros((3, 1), np.uint8)) for row in range(600)]


class Drawn(Teachers):
    """A teacher like DINOv3 with two registers, of which the second has two modes (AMoE, Fig. 4)."""

    def __init__(self):
        self.names = ["dino"]

    def targets(self, batch):
        rows = torch.tensor([image.row for image in batch])
        random = torch.Generator().manual_seed(int(rows[0]))
        values = torch.randn(len(rows), 6, 12, generator=random, dtype=torch.float64) * torch.logspace(0, 1, 12)
        registers = values[:, :2].clone()
        registers[:, 1, 4] += 40.0 * (rows % 2)
        return [Target(values[:, 2], values[:, 3:].flatten(0, 1), registers)]


def batches(images=IMAGES):
    return [(images[start : start + 64], []) for start in range(0, len(images), 64)]


def test_the_kind_with_several_modes_is_named():
    findings = {item.kind: item for item in diagnose(Drawn(), batches())}
    assert [kind for kind, item in findings.items() if item.shape.multimodal] == ["register 1"]
    assert list(findings) == ["summary", "patches", "register 0", "register 1"]
    assert {item.vectors for item in findings.values()} == {600}
    assert findings["register 1"].shape.within < 0.7
    assert all(item.shape.within == 1.0 for kind, item in findings.items() if kind != "register 1")
    for item in findings.values():
        real, gaussian, after, gaussian_after = item.clouds
        assert real.shape == gaussian.shape == after.shape == gaussian_after.shape == (600, 2)
        assert np.allclose(gaussian.std(0), real.std(0), rtol=0.15)  # the moments are those of the features
        assert np.allclose(after.std(0), 1.0)
        assert np.allclose(gaussian_after.std(0), 1.0, rtol=0.15)


def test_an_image_has_one_vector_of_each_kind():
    one = diagnose(Drawn(), batches(IMAGES[:7]))
    assert [item.vectors for item in one] == [7] * 4
    with pytest.raises(InputError, match=r"^data\.sources: 1 readable images to look at; expected at least 2"):
        diagnose(Drawn(), batches(IMAGES[:1]))


@pytest.mark.long
def test_the_command_prints_a_table_and_writes_a_page(values, tmp_path, monkeypatch, capsys):
    name = "timm:vit_small_patch16_dinov3?depth=1&embed_dim=20&num_heads=1&global_pool=token&random=7"
    values["student"]["registers"] = 4
    values["data"]["sequence_tokens"] = 70
    values["teachers"] = [{"encoder": name, "name": "dino"}, {"encoder": "descriptor"}]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    to = tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["distill", "targets", str(tmp_path / "r.yaml"), "--to", str(to), "--images", "30"]
    )
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    lines = capsys.readouterr().out.splitlines()
    kinds = ["summary", "patches", *(f"register {number}" for number in range(4))]
    result = json.loads((to / "targets.json").read_text())
    assert [(item["teacher"], item["kind"]) for item in result["findings"]] == [
        *(("dino", kind) for kind in kinds), ("descriptor", "summary"),
    ]  # fmt: skip
    for kind in kinds:
        assert any(line.startswith("dino") and kind in line for line in lines)
    assert f"page: {to / 'targets.html'}" in lines
    with found().opened((to / "targets.html").read_bytes(), tmp_path) as tab:
        loaded = tab.evaluate("[...document.images].filter(image => image.naturalWidth === 180).length")
        assert loaded == 4 * 7
        assert tab.evaluate("document.querySelectorAll('.figures tbody tr').length") == 7
        assert tab.evaluate("document.body.innerText").count("in its own space") == 4
        assert tab.messages == []


def test_a_recipe_without_teachers_is_one_line(values):
    values["teachers"] = []
    values["student"] |= {"text": {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}, "embed": 8}
    values["contrastive"] = {}
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    with pytest.raises(RecipeError, match=r"^toy: no teachers, so there are no targets to look at; set teachers$"):
        targets(parse_recipe(values, "test"), Console(quiet=True))
