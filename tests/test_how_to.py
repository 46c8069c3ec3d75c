"""The how-to pages work: their commands run in this order, and print what the pages show.

A `yaml` block is a file, named by its first line. A `sh` block is run line by line, and a `text` block is part of its
output. A `console` block (clusters, training) is not run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from curate.api import load_recipe
from tests.core.store.object_store import forget_connections
from tests.e2e.commands import curate

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with what the pages take for granted: images, and the recipe of the first page."""
    monkeypatch.chdir(tmp_path)
    forget_connections()  # of an earlier test's `workspace`
    for colour in range(3):
        random = np.random.default_rng(colour)
        folder = tmp_path / "photos" / ("red", "green", "blue")[colour]
        folder.mkdir(parents=True)
        for number in range(50):
            image = pattern(random, colour, 64 + 2 * number)
            image.save(folder / f"{number:02}.jpg", quality=90)
            (folder / f"{number:02}.txt").write_text(f"a pattern, number {number}")
        image.save(folder / "copy.png")
        image.resize((24, 24)).save(folder / "small.jpg")
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"not an image")
    for language, code in blocks("my-images.md"):
        if language == "yaml":
            write(code)
    return tmp_path


def pattern(random: np.random.Generator, channel: int, width: int) -> Image.Image:
    pixels = random.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    pixels[..., channel] = 255
    return Image.fromarray(pixels).resize((width, 128), Image.Resampling.BICUBIC)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((HOW_TO / page).read_text())


def write(code: str) -> None:
    [name] = re.findall(r"\A# (\S+)\n", code)
    Path(name).write_text(code)


def follow(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = ""
    for language, code in blocks(page):
        if language == "yaml":
            write(code)
        elif language == "sh":
            printed = " ".join(run_line(line, monkeypatch) for line in code.splitlines())
        elif language == "text":
            for line in code.splitlines():
                assert " ".join(line.split()) in printed, f"{page}: {line!r} is not in: {printed}"


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    program, *words = shlex.split(line, comments=True)
    if program == "export":
        monkeypatch.setenv(*words[0].split("=", 1))
        return ""
    if program != "curate":
        return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout
    said = curate(*words)
    assert said.code == 0, said
    return said.words


def test_my_images(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("my-images.md", monkeypatch)


def test_tune_a_threshold(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("tune-a-threshold.md", monkeypatch)


def test_grow_a_pool(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "new").mkdir()
    random = np.random.default_rng(3)
    for number in range(20):
        pattern(random, 0, 100).save(here / "new" / f"{number:02}.jpg")
    follow("grow-a-pool.md", monkeypatch)


def test_s3(here: Path, monkeypatch: pytest.MonkeyPatch, object_store: Any) -> None:
    object_store.create_bucket(Bucket="bucket")
    for path in (here / "photos").rglob("*.*"):
        object_store.put_object(Bucket="bucket", Key=str(path.relative_to(here)), Body=path.read_bytes())
    follow("s3.md", monkeypatch)


@pytest.mark.parametrize("page", [path.name for path in sorted(HOW_TO.glob("*.md"))])
def test_every_recipe_is_one(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, code in blocks(page):
        if language == "yaml":
            write(code)
    for path in tmp_path.glob("*.yaml"):
        assert load_recipe(path).nodes


def test_the_objective_is_one() -> None:
    names: dict[str, Any] = {}
    [code] = [code for language, code in blocks("add-an-objective.md") if language == "python"]
    exec(compile(code, "add-an-objective.md", "exec"), names)
    student, teacher = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 4).double()

    def cosine(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        return x[i] @ x[j] / (x[i].norm() * x[j].norm())

    wanted = sum((cosine(student, i, j) - cosine(teacher, i, j)) ** 2 for i in range(5) for j in range(5)) / 25
    loss = names["cosines"](student, teacher)
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    assert student.grad is not None and student.grad.abs().sum() > 0
    assert names["cosines"](student[:1], teacher[:1]).requires_grad
