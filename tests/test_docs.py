"""The code blocks of README and docs run as printed."""

from __future__ import annotations

import io
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFilter

from curate.acquire.fetch.codes import CODES
from curate.acquire.lists.rows import REASONS as LISTED
from curate.core import contracts
from curate.core.contracts import Stage
from curate.core.group import Group, Part
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.load import parse
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.core.store.object_store import forget_connections
from tests.servers.scripted import Endpoint

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A sharp image, the same blurred, and one that is too small."""
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
    monkeypatch.chdir(tmp_path)
    forget_connections()  # of an earlier test's `photos`
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", said)
    names: dict[str, object] = {}
    for code in blocks("README.md", "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert "'too_small': 1" in said.getvalue() and "\ndone " in said.getvalue()


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], type[Stage]]:
    """The stages of the docs by `module:Class`, each module under the name that its first line gives it."""
    monkeypatch.setitem(sys.modules, "mypackage", types.ModuleType("mypackage"))
    for code in blocks("docs/how-to/add-a-stage.md", "python"):
        [name] = re.findall(r"\A# mypackage/(\w+)\.py\n", code)
        module = types.ModuleType(f"mypackage.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(code, f"add-a-stage.md, {name}", "exec"), module.__dict__)
    return lambda op: resolve(f"mypackage.{op}")


@pytest.fixture
def listing(photos: Path) -> Path:
    file = photos / "listing.txt"
    file.write_text("sharp.png\ta sharp one\nblurred.png\ta blurred one\nsmall.png\n")
    return file


Ops = Callable[[str], type[Any]]


def test_the_stages_of_the_docs_are_stages(ops: Ops, listing: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"

    def go(least: float, most: int = 1) -> Result:
        pipeline = Pipeline()
        pipeline.add("pool", ops("listing:Listing")(namespace="docs", path=str(listing), shard_rows=2))
        pipeline.add("sharpness", ops("sharpness:Sharpness")(), "pool")
        pipeline.add("sharp", ops("sharp:Sharp")(least=least), "sharpness")
        pipeline.add("median", ops("median:Median")(), "sharp").add("mean", ops("mean:Mean")(), "sharp")
        pipeline.add("each", ops("each:EachShape")(most=most), "sharp")
        pipeline.add("plain", ops("plain:Plain")(name="docs"), "each").add("counts", ops("plain:Counts")(), "plain")
        return run(pipeline, str(workspace))

    result = go(500.0)
    assert result.ledger["sharp"].rejected == {"blurred": 1} and result.ledger["each"].rejected == {"not_sampled": 1}
    values = {}
    for file in workspace.glob("facts/image.sharpness/*/*/*/000001.parquet"):
        values |= {(file.parent.name, row["_row"]): row["sharpness"] for row in pq.read_table(file).to_pylist()}
    blurred, *sharp = sorted(values.values())
    assert len(values) == 3 and blurred < 500 <= sharp[0]
    [median], [mean] = (np.load(f"{result.outputs[name]}/{name}.npy") for name in ("median", "mean"))
    assert (median, mean) == (pytest.approx(sharp[0]), pytest.approx(sum(sharp) / 2))  # of two, the smaller one
    [packed] = pq.read_table(f"{result.outputs['plain']}/index.parquet").to_pylist()
    assert packed["sharpness"] in sharp
    assert "<li>sharp: 2" in Path(result.outputs["counts"], "index.html").read_text()
    assert go(0.0, most=3).stages()["sharpness"]["computed"] == 0


def test_the_tests_of_the_docs_pass(ops: Ops) -> None:
    module = vars(sys.modules["mypackage.test_sharpness"])
    tests = [function for name, function in module.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert len(tests) == 2


def test_the_secret_of_the_docs_stays_one(
    ops: Ops, listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    script = endpoint.script(faults=[{"text": "Describe in one sentence: a blurred one", "status": 503}])
    monkeypatch.setenv("DESCRIBE_KEY", "hunter2-hunter2")
    pipeline = Pipeline().add("pool", ops("listing:Listing")(namespace="docs", path=str(listing)))
    pipeline.add("said", ops("describe:Describe")(url=script.url, model="scripted", attempts=1), "pool")
    result = run(pipeline, str(tmp_path / "workspace"), options=Options(failure_budget=1))
    entry = result.ledger["said"]
    assert (entry.after, entry.unusable, entry.error) == (1, {"no_caption": 1}, {"http_503": 1})
    assert script.stats()["headers"] == {"Authorization": "Bearer hunter2-hunter2"}
    files = [path for path in (tmp_path / "workspace").rglob("*") if path.is_file()]
    assert files and not any(b"hunter2" in path.read_bytes() for path in files)


def test_the_children_of_the_docs_are_samples(ops: Ops, photos: Path, tmp_path: Path) -> None:
    pipeline = Pipeline().add("pool", resolve("acquire.folder")(namespace="docs", path=str(photos)))
    pipeline.add("halves", ops("halves:Halves")(namespace="halves"), "pool")
    pipeline.add("sharpness", ops("sharpness:Sharpness")(), "halves")
    result = run(pipeline, str(tmp_path / "workspace"))
    assert (result.ledger["halves"].children, result.ledger["sharpness"].after) == (6, 6)


def test_the_methods_that_add_a_stage_names_exist() -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs/how-to/add-a-stage.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(?:\w+\.)?(\w+)\(", text)) | set(re.findall(r"`(?:group|part|batch|client)\.(\w+)", text))
    known = {"MemoryGroup", "Incoming", "null"}
    for cls in (*vars(contracts).values(), Group, Part, StoredArtifact):
        known |= {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
    assert named - known == set()


def test_the_codes_of_a_download_are_in_the_docs() -> None:
    """Those of HTTP are in a sentence."""
    text = (ROOT / "docs/how-to/url-lists.md").read_text()
    shown = text.partition("<!-- codes -->\n")[2].partition("<!-- end -->")[0].splitlines()[2:]
    named = [(code, *about) for code, about in CODES.items() if not code.startswith("http_") and code != "done"]
    assert shown == [f"| `{code}` | {status} | {meaning} |" for code, status, meaning in named]
    listed = re.search(r"Rows that\n`acquire.list` rejects are never fetched:(.*?)\. ", text, re.DOTALL)
    assert listed and set(re.findall("`([a-z0-9_]+)`", listed[1])) == LISTED.keys() - {"no_url"}


GENERATED = re.compile(r"(\.\./)*(reference/|architecture\.svg)")
"""Links from docs/ to what `make docs` generates, and checks."""


@pytest.mark.parametrize("file", ["README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))])
def test_links_lead_somewhere(file: str) -> None:
    here = (ROOT / file).parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / file).read_text())
    assert [link for link in links if not ((here / link).exists() or GENERATED.match(link))] == []
