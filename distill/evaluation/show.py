"""An evaluation as people read it. Knows nothing of torch."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

BEFORE, AFTER = "student, random weights", "student, trained"


def show_evaluation(result: dict[str, Any], console: Console) -> None:
    if not result["models"]:
        console.print(f"kNN: not computed: {result['why_none']}", highlight=False)
        return
    settings = result["settings"]
    table = Table(
        title=f"kNN (k {settings['k']}, tau {settings['temperature']}) of column {settings['label']!r}",
        title_justify="left", box=None, pad_edge=False, title_style="bold",
    )  # fmt: skip
    table.add_column("features")
    table.add_column("accuracy", justify="right")
    table.add_column("mean over classes", justify="right")
    table.add_row("chance", _percent(result["chance"]), "")
    table.add_row("always the largest class", _percent(result["majority"]), _percent(1 / result["test_classes"]))
    for name, model in result["models"].items():
        label = name if name in (BEFORE, AFTER) else f"teacher {name}"
        table.add_row(label, _percent(model["accuracy"]), _percent(model["per_class"]))
    console.print(table, highlight=False)
    console.print(
        f"{result['test_images']} held-out pictures of {result['test_classes']} classes, neighbours from "
        f"{result['train_images']} training pictures of {result['classes']} classes, no duplicate set on both sides; "
        f"left out: {result['left_out_images']} pictures of {result['left_out_classes']} classes with fewer than "
        f"{settings['min_train_images']} training pictures",
        highlight=False,
        soft_wrap=True,
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
