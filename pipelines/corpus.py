"""A recipe of this folder on the quickstart's corpus, or on a folder of one's own: `make vise`, `make metaclip` …

Every recipe here has the variables `images` and `namespace`. The command is printed before it runs; it is all there is.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from curate.core.errors import CurateError
from pipelines.openclipart import openclipart

RECIPES = Path(__file__).parent


def settings(images: Path | None) -> list[str]:
    """Settings for the corpus, or for a folder of pictures with captions of one's own."""
    if images is None:
        return [f"images={openclipart(Path('.cache/openclipart'))}"]
    return [f"images={images.absolute()}", "namespace=images", "dataset.carry=[]", "report.label=meta.folder"]


def main() -> None:
    names = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", choices=names)
    parser.add_argument("--images", type=Path, help="folder of images; default: OpenClipart, fetched with apt-get")
    parser.add_argument("--workspace", default="workspace", help="folder or URL of everything that is made")
    parser.add_argument("--engine", choices=["ray", "local"], default="ray")
    parser.add_argument("--set", action="append", default=[], help="variable=value or stage.parameter=value")
    arguments = parser.parse_args()
    command = ["run", f"pipelines/{arguments.recipe}.yaml"]
    command += ["--workspace", arguments.workspace, "--engine", arguments.engine]
    try:
        values = [*settings(arguments.images), *arguments.set]
    except CurateError as error:
        sys.exit(f"{arguments.recipe}: {error}")
    command += [word for value in values for word in ("--set", value)]
    print(f"$ curate {shlex.join(command)}", flush=True)
    sys.exit(subprocess.run([Path(sys.executable).parent / "curate", *command]).returncode)


if __name__ == "__main__":
    main()
