"""The first pass over the quickstart's corpus, against another commit of this repository, in one run.

    python -m bench.engine.passes COMMIT [--images FOLDER] [--repeats 3] [--rows 2000]

Both commits run their own `pipelines/quickstart.yaml` on the local engine, taking turns, each time in an empty
workspace. What is compared is the time of the pass that decodes, inspects, cleans, fingerprints and embeds.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^inspect \+ .*: ([\d,]+) rows in ([\d.]+) s", re.MULTILINE)


def pass_seconds(tree: Path, images: Path, place: Path) -> tuple[int, float]:
    """(rows, seconds) of the pass of one run in a tree's own code."""
    command = [sys.executable, "-m", "curate.cli", "run", "pipelines/quickstart.yaml", "--workspace", str(place)]
    done = subprocess.run(
        [*command, "--set", f"images={images}", "--set", "target=200"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    found = LINE.search(done.stdout)
    if found is None:
        sys.exit(f"bench.engine.passes: no pass in the output of {tree}: {done.stdout[-300:]} {done.stderr[-300:]}")
    return int(found[1].replace(",", "")), float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--images", type=Path, default=ROOT / ".cache/openclipart/images")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2000, help="images to take, at least 500; 0 takes all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other, images = Path(folder, "other"), Path(folder, "images")
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(other), arguments.commit], cwd=ROOT, check=True
        )
        try:
            files = sorted(path for path in arguments.images.rglob("*") if path.suffix == ".png")
            step = max(1, len(files) // arguments.rows) if arguments.rows else 1
            for path in files[::step]:
                place = images / path.relative_to(arguments.images)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
            kept = {path.relative_to(arguments.images).as_posix() for path in files[::step]}
            about = (arguments.images / "metadata.jsonl").read_text().splitlines(keepends=True)
            lines = [line for line in about if json.loads(line)["file_name"] in kept]
            (images / "metadata.jsonl").write_text("".join(lines))
            times: dict[str, list[float]] = {"before": [], "now": []}
            rows = 0
            for number in range(arguments.repeats):
                for name, tree in (("before", other), ("now", ROOT)):
                    rows, seconds = pass_seconds(tree, images, Path(folder, f"{name}-{number}"))
                    times[name].append(seconds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=False)
    before, now = (statistics.median(times[name]) for name in ("before", "now"))
    for name, found in times.items():
        print(f"{name:<7} {rows:,} images in {', '.join(f'{value:.1f}' for value in found)} s")
    print(f"median rate now / {arguments.commit}: {before / now:.2f}")


if __name__ == "__main__":
    main()
