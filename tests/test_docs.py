"""What README and docs show runs as it stands there."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFilter

from curate.core.pipeline import Pipeline
from curate.core.recipe import parse
from curate.core.registry import resolve
from curate.engine.run import run

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A sharp picture, the same blurred, and one that is too small."""
    folder = tmp_path / "photos"
    folder.mkdir()
    sharp = Image.effect_noise((96, 96), 100)
    sharp.save(folder / "sharp.png")
    sharp.filter(ImageFilter.GaussianBlur(8)).save(folder / "blurred.png")
    sharp.resize((40, 40)).save(folder / "small.png")
    return folder


def test_the_recipe_of_the_readme_is_a_recipe() -> None:
    [recipe] = blocks("README.md", "yaml")
    assert [node.stage.op for node in parse(recipe).nodes.values()][-1] == "report.html"


def test_the_python_of_the_readme_runs(photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [code] = blocks("README.md", "python")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", said)
    exec(compile(code, "README.md", "exec"), {})
    assert "'too_small': 1" in said.getvalue()


def test_the_stage_of_the_docs_is_a_stage(photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = blocks("docs/add-a-stage.md", "python")
    modules = [types.ModuleType(f"{name}_of_the_docs") for name in ("sharpness", "median")]
    for code, module in zip(codes, modules, strict=True):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(code, "add-a-stage.md", "exec"), module.__dict__)
    module = modules[0]
    pipeline = Pipeline()
    pipeline.add("pool", resolve("import.folder")(namespace="docs", path=str(photos)))
    pipeline.add("sharp", resolve(f"{module.__name__}:Sharpness")(least=500.0), "pool")
    pipeline.add("median", resolve("median_of_the_docs:Median")(), "sharp")
    result = run(pipeline, str(tmp_path / "workspace"))
    assert result.ledger["sharp"].rejected == {"blurred": 1}
    [columns] = (tmp_path / "workspace").glob("columns/image.sharpness/*/*.parquet")
    values = pq.read_table(columns, columns=["sharpness", "reject"]).to_pylist()
    least = min(row["sharpness"] for row in values if row["reject"] is None)
    [median] = np.load(f"{result.outputs['median']}/median.npy")  # of two numbers, it is the smaller one
    assert (result.ledger["median"].after, median) == (2, pytest.approx(least))


@pytest.mark.parametrize("file", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(file: str) -> None:
    here = (ROOT / file).parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / file).read_text())
    assert [link for link in links if not (here / link).exists()] == []
