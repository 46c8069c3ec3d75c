"""The whole story in one go: pictures in, a curated dataset out, a student trained on it. `make quickstart` calls this.

Every step is a command that you can call yourself; each is printed before it runs. What is there already is found by
its fingerprint and not made again, so that a second call takes seconds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from curate.acquire.extensions import RASTER_EXTENSIONS
from curate.core.errors import CurateError, InputError
from distill import commands
from distill.evaluation.show import AFTER, BEFORE
from distill.recipe import load_recipe
from pipelines.openclipart import openclipart

PIPELINE = "pipelines/quickstart.yaml"
TRAINING = "distill/recipes/quickstart.yaml"
OPENCLIPART = 8121
"""Pictures that the recipe's sizes are meant for."""
SHARE = 0.5
"""How much of one's own folder is taken, of what is left after copies have gone."""


def quickstart(images: Path | None, workspace: str, engine: str, console: Console) -> None:
    if images is None:
        settings = [f"images={openclipart(Path('.cache/openclipart'))}"]
    else:
        settings = fitted(images)

    outputs = curate(settings, workspace, engine)
    place = workspace if "://" not in workspace else ".cache"  # checkpoints are written to a local disk
    settings = [f"data.sources.0.dataset={outputs['dataset']}", f"run.folder={place}/students/{{name}}-{{fingerprint}}"]
    say(f"distill train {shlex.join([TRAINING, '--set', settings[0], '--set', settings[1]])}")
    run = commands.train(load_recipe(TRAINING, settings), console)
    say(f"distill eval {run.path}")
    evaluated = commands.evaluate(str(run.path), [], console)

    print()
    print(f"dataset  {outputs['dataset']}")
    print(f"report   {outputs['report']}/index.html")
    print(f"student  {run.path}")
    print(f"judged   {run.path}/{commands.PAGE}")
    print(f"kNN      {verdict(evaluated['sets'][0]['knn'])}")


def fitted(images: Path) -> list[str]:
    """Settings for a folder of one's own: folders are the labels, the sizes follow what is there."""
    files = sum(path.suffix.lower().lstrip(".") in RASTER_EXTENSIONS for path in images.rglob("*"))
    if not files:
        raise InputError(
            f"IMAGES={images}: no such folder, or no images in it; give one with images, or leave IMAGES out"
        )
    part = min(1.0, files / OPENCLIPART)
    levels = [max(least, int(most * part)) for least, most in ((3, 400), (2, 60), (1, 12))]
    return [
        f"images={images.absolute()}",
        "namespace=images",
        f"levels={levels}",
        "sample.target=null",
        f"sample.share={SHARE}",
        "dataset.carry={label: meta.folder, duplicate_set: duplicate_set}",
        "report.label=meta.folder",
    ]


def curate(settings: list[str], workspace: str, engine: str) -> dict[str, str]:
    """Run the pipeline over a folder of images; returns where each stage's output lies."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = ["run", PIPELINE, "--workspace", workspace, "--engine", engine]
        command += [word for setting in settings for word in ("--set", setting)]
        say(f"curate {shlex.join(command)}")
        done = subprocess.run([Path(sys.executable).parent / "curate", *command, "--json", str(result)])
        if done.returncode:
            sys.exit(done.returncode)  # it has said why
        outputs: dict[str, str] = json.loads(result.read_text())["outputs"]
        return outputs


def verdict(knn: dict[str, Any]) -> str:
    if not knn["models"]:
        return f"none: {knn['why_none']}; pictures sorted into a folder per kind would be labelled by it"
    accuracy = {name: f"{100 * model['accuracy']:.1f} %" for name, model in knn["models"].items()}
    teachers = ", ".join(f"{name} {accuracy[name]}" for name in accuracy if name not in (BEFORE, AFTER))
    return f"student {accuracy[BEFORE]} before training, {accuracy[AFTER]} after ({teachers})"


def say(command: str) -> None:
    print(f"\n$ {command}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=Path, help="folder of images; default: OpenClipart, fetched with apt-get")
    parser.add_argument("--workspace", default="workspace", help="folder or URL of everything that is made")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray")
    arguments = parser.parse_args()
    try:
        quickstart(arguments.images, arguments.workspace, arguments.engine, Console())
    except CurateError as error:
        sys.exit(f"quickstart: {error}")


if __name__ == "__main__":
    main()
