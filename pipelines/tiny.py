"""The encoder `tiny`, from data to weights: `make tiny` calls this.

Every step is a command that you can call yourself; each is printed before it runs. What is there already is found by
its fingerprint, an interrupted training goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from curate.core.errors import CurateError
from pipelines.tiny_corpus import corpus

PIPELINE = "pipelines/tiny.yaml"
TRAINING = "distill/recipes/tiny.yaml"


def tiny(workspace: str, engine: str, to: str, settings: list[str], processes: int) -> None:
    """settings: overrides of the training's recipe, name=value; processes: of the training, each of one thread."""
    dataset = curate(corpus(Path(".cache/tiny")), workspace, engine)
    folder = f"{workspace}/students/{{name}}-{{fingerprint}}"
    values = [f"data.sources.0.dataset={dataset}", f"run.folder={folder}", *settings]
    said = run(*ranks(processes), "train", TRAINING, *flags(values), echo=True)
    run("distill", "export", said.rpartition("run: ")[2].strip(), "--to", to, "--precision", "float16")


def curate(images: Path, workspace: str, engine: str) -> str:
    """The dataset's place."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        where = ["--workspace", workspace, "--engine", engine, "--json", str(result)]
        run("curate", "run", PIPELINE, *where, *flags([f"images={images.absolute()}"]))
        outputs: dict[str, str] = json.loads(result.read_text())["outputs"]
        return outputs["dataset"]


def ranks(processes: int) -> list[str]:
    """`distill` alone, or as so many processes."""
    if processes == 1:
        return ["distill"]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns where nobody has decided
    return ["torchrun", "--standalone", "--nproc-per-node", str(processes), "-m", "distill.cli"]


def flags(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def run(program: str, *arguments: str, echo: bool = False) -> str:
    """Ends this process with the program's status where it fails: it has said why. echo: returns what it said."""
    print(f"\n$ {program} {shlex.join(arguments)}", flush=True)
    command = [str(Path(sys.executable).parent / program), *arguments]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE if echo else None, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    return "".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workspace", default="workspace", help="folder of everything that is made")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray")
    parser.add_argument("--to", default="workspace/tiny", help="folder of the exported model")
    parser.add_argument("--processes", type=int, default=2, help="that train together, a core each (2)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the training's recipe")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error(f"--processes {arguments.processes}: give 1 or more")
    try:
        tiny(arguments.workspace, arguments.engine, arguments.to, arguments.set, arguments.processes)
    except CurateError as error:
        sys.exit(f"tiny: {error}")


if __name__ == "__main__":
    main()
