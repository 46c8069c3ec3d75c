"""Curates a folder of videos, trains a student on the clips and evaluates it. `make video` runs this.

As in `make quickstart`, every step is a command that you can run yourself, and a second call takes seconds. Everything
is known of the generated videos, so the script also says how much of it the stages found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from curate.acquire.kinds import VIDEO_EXTENSIONS
from curate.api import Workspace
from pipelines.commands import count_files, one_line, parser_of, run_pipeline
from pipelines.quickstart import levels, teach
from pipelines.video_corpus import corpus

PIPELINE = "pipelines/video.yaml"
TRAINING = "distill/recipes/video.yaml"
NEAR_MS = 100
"""How far from the truth a cut may be found."""


def video(videos: Path | None, workspace: str, engine: str, console: Console) -> None:
    if videos is None:
        folders = ", ".join(map(str, corpus(Path(".cache"))))
        settings = [f"videos=[{folders}]"]
    else:
        settings = own_videos(videos)
    curate_and_teach(settings, workspace, engine, console)
    if videos is None:
        print(*found(Workspace(workspace)), sep="\n", flush=True)


def curate_and_teach(
    settings: list[str], workspace: str, engine: str, console: Console, training: list[str] | None = None
) -> dict[str, str]:
    """The place of each stage's output. settings, training: overrides of the two recipes."""
    outputs = run_pipeline(PIPELINE, settings, workspace, engine)
    teach(outputs, workspace, training or [], console, "sort the videos into a folder per class", TRAINING)
    return outputs


def own_videos(videos: Path) -> list[str]:
    """Settings for your own folder: the folder that holds a video is its label, unless its metadata has one."""
    files = count_files(videos, VIDEO_EXTENSIONS, "VIDEOS", "videos")
    return [f"videos={videos.absolute()}", "namespace=own", levels(files), "pool.label=-1"]


def found(workspace: Workspace) -> Iterator[str]:
    """What the latest run found of what is known of the generated videos."""
    run = workspace.run(None).id
    columns = ["key", "source_id", "meta", "duplicate_set", "cuts_ms"]
    rows = workspace.table(run, "members", columns).table.to_pylist()
    films = [row | {"film": json.loads(row["meta"])} for row in rows if "moves" in row["meta"]]
    originals = {film["source_id"]: film for film in films if "copy_of" not in film["film"]}
    copies = [film for film in films if "copy_of" in film["film"]]
    together = sum(copy["duplicate_set"] == originals[copy["film"]["copy_of"]]["duplicate_set"] for copy in copies)
    cuts = [(film["film"]["cuts_ms"], film["cuts_ms"]) for film in originals.values()]
    right = sum(any(abs(cut - one) <= NEAR_MS for one in said) for true, said in cuts for cut in true)
    passed = [set(workspace.table(run, stage, ["key"]).table["key"].to_pylist()) for stage in ("unique", "moving")]
    still = {film["key"] for film in films if set(film["film"]["moves"]) == {"still"}} & passed[0]
    rejected = passed[0] - passed[1]
    every, reported = (sum(map(len, times)) for times in zip(*cuts, strict=True))
    yield f"copies   {together} of {len(copies)} found"
    yield f"cuts     {right} of {every} found; {reported} reported"
    yield f"still    {len(still & rejected)} of {len(still)} rejected; {len(rejected)} rejected in all"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--videos", type=Path, help="folder of videos; default: generated ones, and some of Debian")
    arguments = parser.parse_args()
    with one_line("video"):
        video(arguments.videos, arguments.workspace, arguments.engine, Console())


if __name__ == "__main__":
    main()
