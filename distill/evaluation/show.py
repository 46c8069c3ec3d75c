"""Prints an evaluation on a terminal. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from curate.html.numbers import score

BEFORE, AFTER = "student, random weights", "student, trained"
TITLES = {
    "knn": "k nearest neighbours",
    "probe": "probe",
    "zero_shot": "zero-shot classification",
    "retrieval": "retrieval between images and texts",
    "segmentation": "linear segmentation",
    "fidelity": "prediction of teacher features",
    "cka": "similarity of layers (CKA)",
    "maps": "maps of patch features",
}
DIRECTIONS = {"image_to_text": "image to text", "text_to_image": "text to image"}
Result = Mapping[str, Any]


def show_evaluation(result: Result, console: Console, page: str | None = None) -> None:
    """page: path of the HTML page."""
    for one in result["sets"]:
        if len(result["sets"]) > 1:
            console.print(f"\n[bold]{one['name']}[/bold]  {one['url']}", highlight=False, soft_wrap=True)
        _show_set(one, result["settings"], console)
    _averages(result["averages"], console)
    if page is not None:
        console.print(f"report: {page}", highlight=False, soft_wrap=True)


def _show_set(one: Result, settings: Result, console: Console) -> None:
    for task, show in _TASKS.items():
        found = one.get(task)
        if found is not None and found["models"]:
            show(found, settings, console)
    missing: dict[str, list[str]] = {}
    for task, title in TITLES.items():
        if task in one and not one[task]["models"]:
            missing.setdefault(one[task]["why_none"], []).append("kNN" if task == "knn" else title)
    for why, titles in missing.items():
        console.print(f"{', '.join(titles)}: not computed: {why}", highlight=False, soft_wrap=True)
    skipped = one["counts"]["skipped"]
    if skipped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in skipped.items())
        console.print(f"unreadable images: {reasons}", highlight=False, soft_wrap=True)


def _knn(found: Result, settings: Result, console: Console) -> None:
    title = f"kNN (k {settings['k']}, tau {settings['temperature']}) of {settings['label']!r}"
    _classes(title, found, console)
    console.print(
        f"{found['test_images']} test images of {found['test_classes']} classes, neighbours from "
        f"{found['train_images']} training images of {found['classes']} classes, no duplicate set on both sides; "
        f"left out: {found['left_out_images']} images of {found['left_out_classes']} classes with fewer than "
        f"{settings['min_train_images']} training images",
        highlight=False,
        soft_wrap=True,
    )


def _probe(found: Result, settings: Result, console: Console) -> None:
    _classes(
        f"{TITLES['probe']} of {settings['label']!r} ({', '.join(settings['probes'])}; the same images)", found, console
    )


def _zero_shot(found: Result, settings: Result, console: Console) -> None:
    sizes = f"{found['test_images']} images, {found['classes']} classes, {found['prompts']} prompts"
    _classes(f"{TITLES['zero_shot']} ({sizes})", found, console)


def _classes(title: str, found: Result, console: Console) -> None:
    top = any("top5" in model for model in found["models"].values())
    table = _table(title, ["features", "accuracy", *(["top 5"] if top else []), "mean over classes"], console)
    blank = [""] if top else []
    table.add_row("chance", score(found["chance"]), *blank, "")
    if "majority" in found:
        largest = score(found["majority"]), *blank, score(1 / found["test_classes"])
        table.add_row("always the largest class", *largest)
    for name, model in found["models"].items():
        extra = [score(model["top5"])] if top else []
        table.add_row(name, score(model["accuracy"]), *extra, score(model["per_class"]))
    console.print(table, highlight=False)


def _retrieval(found: Result, settings: Result, console: Console) -> None:
    title = f"{TITLES['retrieval']} ({found['pictures']} images, {found['texts']} texts)"
    table = _table(title, ["features", "direction", "R@1", "R@5", "R@10"], console)
    for name, model in found["models"].items():
        for label, values in ((name, model), (f"{name}, re-weighted", model.get("reweighted"))):
            for key, direction in DIRECTIONS.items() if values is not None else ():
                table.add_row(label, direction, *(score(values[key][k]) for k in ("R@1", "R@5", "R@10")))
    console.print(table, highlight=False)


def _segmentation(found: Result, settings: Result, console: Console) -> None:
    counts = f"{found['train_images']} and {found['test_images']} images, {found['classes']} classes"
    table = _table(f"{TITLES['segmentation']} ({counts})", ["features", "mean IoU", "pixel accuracy"], console)
    table.add_row("always the largest class", "", score(found["largest_class"]))
    for name, model in found["models"].items():
        table.add_row(name, score(model["mean_iou"]), score(model["pixel_accuracy"]))
    console.print(table, highlight=False)


def _fidelity(found: Result, settings: Result, console: Console) -> None:
    table = _table(TITLES["fidelity"], ["teacher", "features", "cosine", "variance explained"], console)
    for teachers in found["models"].values():
        for teacher, kinds in teachers.items():
            for kind, one in kinds.items():
                table.add_row(teacher, kind, f"{one['cosine']:.3f}", score(one["explained"]))
    console.print(table, highlight=False)


def _averages(found: Sequence[Result], console: Console) -> None:
    if not found:
        return
    table = _table("averages over the evaluation sets", ["features", "task", "figure", "size", "sets", "mean"], console)
    for one in found:
        size = "" if one["side"] is None else f"{one['side']} px, {one['fit']}"
        table.add_row(one["model"], TITLES[one["task"]], one["figure"], size, str(one["sets"]), score(one["mean"]))
    console.print(table, highlight=False)


_TASKS = {
    "knn": _knn,
    "probe": _probe,
    "zero_shot": _zero_shot,
    "retrieval": _retrieval,
    "segmentation": _segmentation,
    "fidelity": _fidelity,
}


def _table(title: str, columns: Sequence[str], console: Console) -> Table:
    """Prints the title on its own line, because rich wraps a table's title to the width of the table."""
    console.print(f"[bold]{title}[/bold]", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table
