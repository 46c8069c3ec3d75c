"""Runs a recipe of this folder on the quickstart's corpus or on your own images: `make vise`, `make metaclip` …

Every recipe here has the variables `images` and `namespace`. The script only runs the `curate run` command it prints.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.commands import one_line, parser_of, run, set_options
from pipelines.openclipart import openclipart

RECIPES = Path(__file__).parent
SMALL = {
    "openlvd": (
        "source=folder",
        "encoder=tiny",
        "precision=float32",
        "subsample=3500",
        "levels=[400, 120, 60, 12]",
        "target=700",
    ),
    "amoe_highres": ("source=folder", "min_side=200"),
}
"""Settings of recipes whose values are of production, for a few thousand images."""


def settings(images: Path | None) -> list[str]:
    """Settings for the corpus, or for your own folder of images with captions."""
    if images is None:
        return [f"images={openclipart(Path('.cache/openclipart'))}"]
    return [
        f"images={images.absolute()}",
        "namespace=images",
        "dataset.carry=[]",
        "pool.label=-1",
        "report.label=meta.label",
    ]


def main() -> None:
    names = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    parser = parser_of(__doc__, "--images", "--set")
    parser.add_argument("recipe", choices=names)
    arguments = parser.parse_args()
    with one_line(arguments.recipe):
        values = [*settings(arguments.images), *SMALL.get(arguments.recipe, ()), *arguments.set]
    where = ["--workspace", arguments.workspace, "--engine", arguments.engine]
    run("curate", "run", f"pipelines/{arguments.recipe}.yaml", *where, *set_options(values))


if __name__ == "__main__":
    main()
