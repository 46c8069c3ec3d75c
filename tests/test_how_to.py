"""The how-to pages work: their commands run in this order, and print what the pages show.

A `yaml` block is a file, named by its first line, and so is a `python` block of a package. A `sh` block is run line by
line, and a `text` block is part of its output. A `console` block (clusters, training) is not run.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from curate.api import load_recipe
from curate.caption.prompt import read_prompt
from curate.core.endpoints import read_endpoints
from curate.service.settings import Settings
from pipelines.serve import ImageServer, Request, Response
from tests.core.store.object_store import forget_connections
from tests.distill.datasets import drawn_items, write_dataset
from tests.e2e.commands import curate, distill
from tests.video.pool import video

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"
FASTER = ("encoder: lite1", "encoder: descriptor")
"""In recipes of `my-images.md` that other pages run: 6 s of CPU less."""
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
            write(code.replace(*FASTER))
    return tmp_path


def pattern(random: np.random.Generator, channel: int, width: int) -> Image.Image:
    pixels = random.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    pixels[..., channel] = 255
    return Image.fromarray(pixels).resize((width, 128), Image.Resampling.BICUBIC)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((HOW_TO / page).read_text())


def write(code: str) -> None:
    [name] = re.findall(r"\A# (\S+)\n", code)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(code)


def follow(page: str, monkeypatch: pytest.MonkeyPatch, replaced: Mapping[str, str] = {}) -> None:
    """replaced: texts of the page -> what the test has in their place."""
    printed = ""
    for language, code in blocks(page):
        for text, other in replaced.items():
            code = code.replace(text, other)
        if language == "yaml":
            write(code)
        elif language == "sh":
            printed = " ".join(run_line(line, monkeypatch) for line in code.splitlines())
        elif language == "python" and code.startswith("# mypackage/"):
            write(code)
        elif language == "python":
            exec(compile(code, page, "exec"), {})
        elif language == "text":
            for line in code.splitlines():
                assert " ".join(line.split()) in printed, f"{page}: {line!r} is not in: {printed}"


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    program, *words = shlex.split(line, comments=True)
    if program == "export":
        name, value = words[0].split("=", 1)
        monkeypatch.setenv(name, value)
        if name == "PYTHONPATH":  # of this process, too, in which the commands run
            monkeypatch.syspath_prepend(Path(value).resolve())
        return ""
    commands = {"curate": curate, "distill": distill}
    if program not in commands:
        return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout
    said = commands[program](*words)
    assert said.code == 0, said
    return said.words


def test_my_images(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("my-images.md", monkeypatch)
    follow("from-python.md", monkeypatch)


@pytest.mark.long
def test_labels(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("labels.md", monkeypatch)
    assert sorted(path.name for path in Path("exported/train").iterdir()) == ["blue", "green", "metadata.jsonl", "red"]
    train, validation = (
        {path.stem for path in Path("exported", name).rglob("*.jpg")} for name in ("train", "validation")
    )
    assert len(train) == 90 and validation and not train & validation
    assert all(len(list(Path("exported/train", name).iterdir())) == 30 for name in ("red", "green", "blue"))


@pytest.mark.long
def test_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("search.md", monkeypatch)


@pytest.mark.long
def test_map(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("map.md", monkeypatch)


class Hosts(ImageServer):
    """A server that is too busy for the first three requests of some images, as many as a URL gets in a run."""

    def __init__(self, mounted: dict[str, bytes]) -> None:
        super().__init__(mounted=mounted)
        self.asked: Counter[str] = Counter()

    def answer(self, request: Request) -> Response:
        self.asked[request.path] += 1
        return (
            Response(status=503)
            if "busy" in request.path and self.asked[request.path] <= 3
            else super().answer(request)
        )


@pytest.mark.long
@pytest.mark.usefixtures("runner_python")
def test_url_lists(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:03}.jpg" for number in range(93)] + ["busy-1.jpg", "busy-2.jpg"]
    new = [f"{number:03}.jpg" for number in range(93, 113)]
    file = io.BytesIO()
    pattern(np.random.default_rng(4), 0, 64).save(file, "jpeg")
    with Hosts(dict.fromkeys([*names, *new], file.getvalue())) as server:
        urls = [*map(server.url, [*names, "gone.jpg"]), None]
        captions = [f"a pattern, number {number}" for number in range(len(urls))]
        first = pa.table({"URL": [*urls, urls[0], urls[0]], "TEXT": [*captions, captions[0], "another caption"]})
        pq.write_table(first, "urls.parquet")
        grown = pa.table({"URL": [*map(server.url, new), *urls[:5]], "TEXT": ["a new one"] * 20 + captions[:5]})
        pq.write_table(grown, "more.parquet")
        follow(
            "url-lists.md",
            monkeypatch,
            {
                "https://example.org": server.origin(),
                "allow_networks: []": "allow_networks: [127.0.0.0/8]",
                "ports: [80, 443]": f"ports: [{server.port}]",
            },
        )
    assert server.asked.pop("/images/busy-1.jpg") == server.asked.pop("/images/busy-2.jpg") == 4
    assert set(server.asked.values()) == {1} and len(server.asked) == 114


class Later(Hosts):
    """From the second request on, some images are gone and some are others."""

    def answer(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        again = self.asked[request.path] > 0
        self.asked[request.path] += 1
        if again and name in ("000.jpg", "001.jpg", "002.jpg", "003.jpg"):
            return Response(status=404)
        return (
            Response(self.mounted["other"])
            if again and name in ("010.jpg", "011.jpg")
            else Response(self.mounted[name])
        )


@pytest.mark.long
@pytest.mark.usefixtures("runner_python")
def test_releases(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {"other": jpeg(0)} | {f"{number:03}.jpg": jpeg(number + 1) for number in range(100)}
    names = [name for name in images if name != "other"]
    licences = ["cc0"] * 40 + ["cc-by"] * 45 + ["all rights reserved", None] * 8
    opted = [None] * 80 + ["yes"] * 5 + [None] * 15
    with Later(images) as server:
        columns = {"url": [*map(server.url, names)], "caption": names, "license": licences[:100], "opt_out": opted}
        pq.write_table(pa.table(columns), "urls.parquet")
        loopback = "--allow-network 127.0.0.0/8"
        replaced = {
            "https://example.org": server.origin(),
            "allow_networks: []": "allow_networks: [127.0.0.0/8]",
            "ports: [80, 443]": f"ports: [{server.port}]",
            "--license cc-by-4.0": f"--license cc-by-4.0 {loopback}",
            "--contact you@example.org": f"--contact you@example.org {loopback} --allow-port {server.port}",
        }
        follow("releases.md", monkeypatch, replaced)
    assert (here / "release-v2" / "changes.parquet").exists()


def jpeg(seed: int) -> bytes:
    file = io.BytesIO()
    pattern(np.random.default_rng(seed), 0, 64).save(file, "jpeg")
    return file.getvalue()


@pytest.mark.long
def test_tune_a_threshold(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("tune-a-threshold.md", monkeypatch)


@pytest.mark.long
def test_captions(here: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Any) -> None:
    script = endpoint.script(style="captions", models=["my-model"])
    follow("captions.md", monkeypatch, {"http://localhost:8000/v1": script.base_url})
    assert set(Counter((line["prompt"], line["seed"], *line["images"]) for line in script.log()).values()) <= {1, 2}


@pytest.mark.long
def test_grow_a_pool(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "new").mkdir()
    random = np.random.default_rng(3)
    for number in range(20):
        pattern(random, 0, 100).save(here / "new" / f"{number:02}.jpg")
    follow("grow-a-pool.md", monkeypatch, dict([FASTER]))


@pytest.mark.long
def test_frames(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A still, an animation whose frames are plain, and one in which every other frame is."""
    (here / "animations").mkdir()
    random = np.random.default_rng(5)
    colours = [Image.new("RGB", (64, 128), (40 * number, 0, 0)) for number in range(5)]
    patterns = [pattern(random, number, 64) for number in range(3)]
    patterns[0].save("animations/still.png")
    colours[0].save("animations/plain.gif", save_all=True, append_images=colours[1:])
    striped = [frame for pair in zip(patterns, colours, strict=False) for frame in pair]
    striped[0].save("animations/striped.gif", save_all=True, append_images=striped[1:])
    follow("frames.md", monkeypatch)


@pytest.mark.long
def test_videos(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "videos").mkdir()
    for name, film in (("holiday.mp4", "film"), ("holiday.avi", "again"), ("street.mp4", "other")):
        (here / "videos" / name).write_bytes(video(film))
    (here / "videos" / "photo.jpg").write_bytes((here / "photos" / "red" / "00.jpg").read_bytes())
    follow("videos.md", monkeypatch)


@pytest.mark.long
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
        if path.name == "prompt.yaml":
            assert read_prompt(str(path)).user
        elif path.name == "service.yaml":
            assert Settings.read(path).secure
        else:
            assert read_endpoints(str(path)) if path.name == "endpoints.yaml" else load_recipe(path).nodes


SHORT = ["train.steps=6", "train.sequences=2", "run.log_every=1", "run.tensorboard=false", "evaluate.tasks=[]"]
QUICKLY = {"train.steps=20": " --set ".join(SHORT)}
"""Shortens the trainings of the pages."""


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with the dataset of the recipe `quickstart`."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "workspace" / "datasets" / "quickstart", drawn_items(60))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]


def metrics_of(folder: Path, name: str) -> list[float]:
    """Values of a loss in the one run that has it."""
    files = [file.read_text().splitlines() for file in folder.glob("workspace/students/*/metrics.jsonl")]
    runs = [[json.loads(line) for line in lines] for lines in files]
    [found] = [[line[name] for line in lines] for lines in runs if name in lines[0]]
    return found


@pytest.mark.long
def test_add_an_objective(quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("add-an-objective.md", monkeypatch, QUICKLY)
    assert all(value > 0 for value in metrics_of(quickstart, "tiny/cosines"))
    first, *_, last = metrics_of(quickstart, "colours")
    assert last < first


def test_the_objective_of_the_page_is_its_formula() -> None:
    names: dict[str, Any] = {"__name__": "mypackage.cosines"}
    code = next(code for language, code in blocks("add-an-objective.md") if language == "python")
    exec(compile(code, "add-an-objective.md", "exec"), names)
    objective = names["Cosines"](teacher="tiny")
    student, teacher = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 4).double()

    def cosine(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        return x[i] @ x[j] / (x[i].norm() * x[j].norm())

    wanted = sum((cosine(student, i, j) - cosine(teacher, i, j)) ** 2 for i in range(5) for j in range(5)) / 25
    loss = objective.loss(student, teacher)
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    assert student.grad is not None and student.grad.abs().sum() > 0
    assert objective.loss(student[:1], teacher[:1]).requires_grad


@pytest.mark.long
def test_add_a_teacher(quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("add-a-teacher.md", monkeypatch, QUICKLY)
    for kind in ("summary", "patches"):
        first, *_, last = metrics_of(quickstart, f"mypackage.grid:Grid/{kind}")
        assert last < first
