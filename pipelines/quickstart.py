"""The whole story in one go: pictures in, a curated dataset out, a student trained on it. `make quickstart` calls this.

Every step is a command that you can call yourself; each is printed before it runs. What is there already is found by
its fingerprint and not made again, so that a second call takes seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from curate.core.errors import CurateError, InputError
from distill import commands
from distill.recipe import load_recipe
from distill.show import AFTER, BEFORE
from pipelines.openclipart import openclipart

HERE = Path(__file__).parent
PIPELINE = HERE / "quickstart.yaml"
TRAINING = "distill/recipes/quickstart.yaml"


def quickstart(images: Path | None, workspace: str, engine: str, console: Console) -> None:
    if images is None:
        images = openclipart(HERE.parent / ".cache/openclipart")
    elif not images.is_dir():
        raise InputError(f"IMAGES={images}: no such folder; give one with images in it, or leave IMAGES out")

    outputs = curate(images, workspace, engine)
    place = workspace if "://" not in workspace else ".cache"  # checkpoints are written to a local disk
    settings = [f"data.dataset={outputs['dataset']}", f"run.folder={place}/runs/distill/{{name}}-{{fingerprint}}"]
    say(f"distill train {TRAINING} --set {settings[0]}")
    run = commands.train(load_recipe(str(HERE.parent / TRAINING), settings), console)
    say(f"distill eval {run.path}")
    knn = commands.evaluate(str(run.path), [], console)

    print()
    print(f"dataset  {outputs['dataset']}")
    print(f"report   {outputs['report']}/index.html")
    print(f"student  {run.path}")
    print(f"kNN      {verdict(knn)}")


def curate(images: Path, workspace: str, engine: str) -> dict[str, str]:
    """Run the pipeline over a folder of images; returns where each stage's output lies."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = ["run", str(PIPELINE), "--workspace", workspace, "--set", f"images={images}", "--engine", engine]
        say(f"curate {' '.join(command)}")
        done = subprocess.run([Path(sys.executable).parent / "curate", *command, "--json", str(result)])
        if done.returncode:
            sys.exit(done.returncode)  # it has said why
        outputs: dict[str, str] = json.loads(result.read_text())["outputs"]
        return outputs


def verdict(knn: dict[str, Any]) -> str:
    if not knn["models"]:
        return f"none: {knn['why_none']}"
    accuracy = {name: f"{100 * model['accuracy']:.1f} %" for name, model in knn["models"].items()}
    teachers = ", ".join(f"teacher {name} {accuracy[name]}" for name in accuracy if name not in (BEFORE, AFTER))
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
