"""Retrains the encoder `tiny`, from data to weights. `make tiny` runs this.

Every step is a command that you can run yourself; the script prints each one first. Existing outputs are found by their
fingerprint and reused, and an interrupted training resumes from its last checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.commands import one_line, parser_of, run, run_pipeline, set_options
from pipelines.tiny_corpus import corpus

PIPELINE = "pipelines/tiny.yaml"
TRAINING = "distill/recipes/tiny.yaml"


def tiny(workspace: str, engine: str, to: str, settings: list[str], processes: int) -> None:
    """settings: overrides of the training recipe, name=value; processes: for training, one thread each."""
    images = corpus(Path(".cache/tiny"))
    dataset = run_pipeline(PIPELINE, [f"images={images.absolute()}"], workspace, engine)["dataset"]
    folder = f"{workspace}/students/{{name}}-{{fingerprint}}"
    values = [f"data.sources.0.dataset={dataset}", f"run.folder={folder}", *settings]
    output = run(*launcher(processes), "train", TRAINING, *set_options(values), capture=True)
    run("distill", "export", output.rpartition("run: ")[2].strip(), "--to", to, "--precision", "float16")


def launcher(processes: int) -> list[str]:
    """Command that runs `distill` in this number of processes."""
    if processes == 1:
        return ["distill"]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns if it is not set
    return ["torchrun", "--standalone", "--nproc-per-node", str(processes), "-m", "distill.cli"]


def main() -> None:
    parser = parser_of(__doc__, "--set")
    parser.add_argument("--to", default="workspace/tiny", help="folder of the exported model")
    parser.add_argument("--processes", type=int, default=2, help="training processes, one core each (default: 2)")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error(f"--processes {arguments.processes}: give 1 or more")
    with one_line("tiny"):
        tiny(arguments.workspace, arguments.engine, arguments.to, arguments.set, arguments.processes)


if __name__ == "__main__":
    main()
