"""`distill targets`: which features of the teachers have several modes, and what PHI-S does to them (AMoE, Fig. 4)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from curate.core.errors import RecipeError
from curate.html.page import render
from distill.commands.evaluate import writable_folder
from distill.commands.tags import with_resolved_tags
from distill.context import StageContext
from distill.parallel import join_world
from distill.recipe import Recipe
from distill.recipe.paths import local_folder
from distill.samples.sources.mixture import open_mixture
from distill.teachers.diagnose import Clouds, Finding, diagnose
from distill.teachers.modes import VALLEY
from distill.training.run_folder import RunFolder

PAGE, RESULT = "targets.html", "targets.json"
TEMPLATES = Path(__file__).parent / "templates"
_SIDE = 180
"""Pixels of a plot."""


def targets(recipe: Recipe, console: Console, *, images: int = 2000, to: str | None = None) -> list[Finding]:
    """Print the findings on the recipe's first stage, and write a page and a JSON file; to: their folder.

    Images are those that standardisation is fitted on. Weights of losses decide which kinds are computed."""
    if not recipe.teachers:
        raise RecipeError(f"{recipe.name}: no teachers, so there are no targets to look at; set teachers")
    recipe = with_resolved_tags(recipe, console).staged()[0]
    mixture = open_mixture(recipe.data)
    folder = writable_folder(local_folder(to or f"targets-{recipe.name}", "--to"), "the page")
    with join_world(recipe.run.device, recipe.run.timeout_seconds) as world:
        context = StageContext.of(recipe, mixture, world)
        findings = diagnose(context.teachers, context.some_images(images))
    run = RunFolder(folder)
    run.write(RESULT, {"dataset": mixture.url, "findings": [item.summary() for item in findings]})
    run.storage.publish_bytes(PAGE, page(recipe, mixture.url, findings))
    _print(findings, console)
    console.print(f"page: {folder / PAGE}", highlight=False, soft_wrap=True)
    return findings


def _print(findings: Sequence[Finding], console: Console) -> None:
    table = Table(
        "teacher",
        "features",
        *("width", "scale", "valley", "within", "distance"),
        "modes",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column.header in ("teacher", "features", "modes") else "right"
    for item in findings:
        shape = item.shape
        numbers = map("{:.2f}".format, (shape.valley, shape.within, shape.distance))
        modes = "several" if shape.multimodal else "one"
        table.add_row(item.teacher, item.kind, str(item.width), f"{item.scale:.3g}", *numbers, modes)
    console.print(table)
    line = f"{findings[0].vectors} images. within: variance after PHI-S that is left within the modes; 1 is intended"
    console.print(line, highlight=False, soft_wrap=True)


def page(recipe: Recipe, url: str, findings: Sequence[Finding]) -> bytes:
    """One page that needs no other file and no network."""
    kinds = {teacher.label: teacher.kinds for teacher in recipe.teachers}
    groups: dict[str, list[tuple[Finding, bool, list[bytes]]]] = {}
    for item in findings:
        standardised = ("registers" if item.kind.startswith("register") else item.kind) in kinds[item.teacher]
        groups.setdefault(item.teacher, []).append((item, standardised, plots(item.clouds)))
    title = f"{recipe.name}: targets"
    return render(TEMPLATES, "targets", title=title, url=url, groups=groups, valley=VALLEY)


def plots(clouds: Clouds) -> list[bytes]:
    """PNGs of the clouds; the first two have the same axes, and the last two."""
    found = []
    for pair in (clouds[:2], clouds[2:]):
        middle = pair[0].mean(0)
        reach = max(float(np.abs(points - middle).max()) for points in pair) or 1.0
        found += [_drawn((points - middle) / reach) for points in pair]
    return found


def _drawn(points_N2: NDArray[np.float64]) -> bytes:
    """A transparent PNG with a dot for each point within -1 … 1; opacity grows with the density."""
    x, y = (np.clip(np.rint((0.97 * axis + 1) / 2 * (_SIDE - 1)), 1, _SIDE - 2).astype(int) for axis in points_N2.T)
    counts = np.zeros((_SIDE, _SIDE))
    for right in (0, 1):
        for down in (0, 1):
            np.add.at(counts, (_SIDE - 1 - y + down - 1, x + right), 1)
    pixels = np.zeros((_SIDE, _SIDE, 4), dtype=np.uint8)
    pixels[..., :3] = (62, 134, 202)
    pixels[..., 3] = np.where(counts > 0, 255 * (0.25 + 0.75 * (1 - np.exp(-counts / 4))), 0).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return stream.getvalue()
