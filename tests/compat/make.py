"""Write `before.tar.xz`: a workspace, a database of the service, a training run, and the recipes of `distill` as runs
keep them, as this commit writes them.

    python -m tests.compat.make

The tests of later commits read it. Rebuild it only to test a change of a format, at the commit before that change.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from curate.core.hashing import digest
from curate.service.database.database import Database
from curate.service.database.migrate import migrate
from curate.service.database.models import IndexedRun
from curate.service.service import Service
from curate.service.settings import Settings
from distill.recipe import load_recipe
from distill.recipe.load import RECIPES as PACKAGED
from tests.servers.scripted import started
from tests.service.people import people

HERE = Path(__file__).parent
ARCHIVE = HERE / "before.tar.xz"
RECIPES = ("recipe.yaml", "student.yaml")


def images(folder: Path) -> None:
    """48 images in three folders, a copy, a small one, an animation and a file that is not an image."""
    rng = np.random.default_rng(0)
    for channel, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for number in range(16):
            pixels = np.kron(rng.integers(0, 90, (5, 5, 3)), np.ones((8, 8, 1))).astype(np.uint8)
            pixels[..., channel] += np.uint8(150)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    (folder / "red" / "copy.png").write_bytes((folder / "red" / "0.png").read_bytes())
    Image.new("RGB", (16, 16)).save(folder / "red" / "small.png")
    frames = [Image.new("RGB", (40, 40), (value, 0, value)) for value in (40, 120, 200)]
    frames[0].save(folder / "blue" / "moving.gif", save_all=True, append_images=frames[1:])
    (folder / "blue" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")


def database(path: Path) -> None:
    """People, a workspace and a run."""
    url = f"sqlite:///{path}"
    with closing(Database(url)) as made:
        migrate(made)
    service = Service.of(Settings(database=url, url="http://testserver"))
    try:
        place = people(service, "workspace").workspace
        with service.database.write() as session:
            session.add(
                IndexedRun(
                    workspace_id=place.id, id="first", attempt_id="first", started=1e9, ended=1e9 + 5, title="compat",
                    user="operator", target="local", state="done", submitted=True,
                )
            )  # fmt: skip
    finally:
        service.close()


def recipes(folder: Path) -> None:
    """The packaged recipes with all their values, and what their fingerprints depend on."""
    folder.mkdir()
    semantic = {}
    for path in sorted(PACKAGED.glob("*.yaml")):
        recipe = load_recipe(path.stem)
        (folder / path.name).write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
        semantic[path.stem] = digest(recipe.semantic())
    (folder / "semantic.json").write_text(json.dumps(semantic, indent=1))


def call(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, started() as endpoint:
        folder = Path(name)
        images(folder / "images")
        script = endpoint.script(style="captions")
        about = {"base_urls": [script.base_url], "model": "tiny", "price": {"input": 1.0, "output": 2.0}}
        (folder / "endpoints.yaml").write_text(yaml.safe_dump({"local": about}))
        for recipe in RECIPES:
            (folder / recipe).write_text((HERE / recipe).read_text())
        call(folder, "curate.cli", "run", "recipe.yaml", "-w", "workspace", "--run-id", "first", "--quiet")
        call(folder, "curate.cli", "pin", "good", "first", "tree", "-w", "workspace")
        call(folder, "distill.cli", "train", "student.yaml")
        database(folder / "service.db")
        recipes(folder / "recipes")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
    ARCHIVE.write_bytes(packed.getvalue())
    print(f"{ARCHIVE.name}: {len(packed.getvalue()) / 2**20:.2f} MiB")  # noqa: T201


if __name__ == "__main__":
    main()
