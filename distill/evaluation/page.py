"""Renders an evaluation as one HTML page that needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from curate.html.charts import heatmap, line_chart
from curate.html.numbers import score
from curate.html.page import render
from distill.evaluation.show import AFTER, BEFORE, DIRECTIONS, TITLES
from distill.evaluation.tasks.cka import EXPERT

TEMPLATES = Path(__file__).parent / "templates"
_CLASSES_SHOWN = 8
Maps = list[tuple[str, list[bytes]]]
Curves = Mapping[str, Sequence[tuple[int, float]]]
"""(step, accuracy) by set and task."""


def render_page(title: str, result: Mapping[str, Any], maps: Sequence[Maps], curves: Curves) -> bytes:
    """result: the content of evaluation.json; maps: per set, the rows of the drawing: name, and a PNG per image;
    curves: of validations during training."""
    sets = [_section(one, own) for one, own in zip(result["sets"], maps, strict=True)]
    averages = result["averages"]
    settings = json.dumps(result["settings"], indent=1, ensure_ascii=False)
    links = [(f"set-{number}", one["name"]) for number, one in enumerate(sets, 1)] if len(sets) > 1 else []
    if averages:
        links.append(("averages", "averages"))
    charts = [(name, line_chart(name, points, ("steps", "accuracy, %"))) for name, points in curves.items()]
    return render(
        TEMPLATES, "evaluation", title=title, sets=sets, links=links, titles=TITLES, directions=DIRECTIONS,
        settings=settings, averages=averages, charts=charts,
    )  # fmt: skip


def _section(one: Mapping[str, Any], maps: Maps) -> dict[str, Any]:
    missing: dict[str, list[str]] = {}
    for task, title in TITLES.items():
        if task in one and not one[task]["models"]:
            missing.setdefault(one[task]["why_none"], []).append(title)
    done = {task: one[task] for task in TITLES if task in one and one[task]["models"]}
    return {
        "name": one["name"],
        "url": one["url"],
        "counts": one["counts"],
        "done": done,
        "missing": missing,
        "main": {task: main_model(found["models"]) for task, found in done.items()},
        "tiles": _tiles(done),
        "classes": {task: _classes(done[task]) for task in ("knn", "zero_shot") if task in done},
        "alignments": _alignments(done["cka"]) if "cka" in done else [],
        "maps": maps,
    }


def _tiles(done: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The most important figures: name, figure, figures to compare it with."""
    tiles = []
    for task, path, name in (
        ("knn", ("accuracy",), "kNN accuracy"),
        ("probe", ("accuracy",), "Probe accuracy"),
        ("zero_shot", ("accuracy",), "Zero-shot accuracy"),
        ("retrieval", ("image_to_text", "R@1"), "R@1, image to text"),
        ("segmentation", ("mean_iou",), "Segmentation, mean IoU"),
    ):
        if task in done:
            models = done[task]["models"]
            main = main_model(models)
            figures = {model: _value(own, path) for model, own in models.items() if not model.endswith(" epochs")}
            notes = _references(main, figures, done[task].get("chance"))
            if task == "retrieval":
                notes.append(f"{done[task]['texts']:,} texts")
            tiles.append((name, score(figures[main]), [note.replace(" %", "\N{NO-BREAK SPACE}%") for note in notes]))
    return tiles


def _references(main: str, figures: Mapping[str, float], chance: float | None) -> list[str]:
    """Figures to compare the main model with: before training, the best teacher, chance."""
    notes = [f"before training {score(figures[BEFORE])}"] if BEFORE in figures and main != BEFORE else []
    teachers = {model: value for model, value in figures.items() if model.startswith("teacher ")}
    if teachers:
        best = max(teachers, key=lambda model: teachers[model])
        notes.append(f"{best} {score(teachers[best])}")
    return [*notes, *([f"chance {score(chance)}"] if chance is not None else [])]


def main_model(models: Mapping[str, Any]) -> str:
    """The trained student in its own space, or else in another space, or else the first model."""
    names = [name for name in models if name == AFTER] or [name for name in models if name.startswith(AFTER)]
    return (names or list(models))[0]


def _value(model: Mapping[str, Any], path: Sequence[str]) -> float:
    value: Any = model
    for name in path:
        value = value[name]
    return float(value)


def _classes(found: Mapping[str, Any]) -> dict[str, Any]:
    """The main model's most and least accurate classes; all classes if there are few."""
    name = main_model(found["models"])
    rows = found["by_class"][name]
    if len(rows) <= 2 * _CLASSES_SHOWN:
        return {"model": name, "best": rows, "worst": []}
    return {"model": name, "best": rows[:_CLASSES_SHOWN], "worst": rows[-_CLASSES_SHOWN:][::-1]}


def _alignments(cka: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per student and teacher, a table of layers, and a heatmap of experts if the student has any."""
    found = []
    for student, table in cka["models"].items():
        teachers = dict.fromkeys(name.rpartition(": ")[0] for name in table["columns"])
        for teacher in teachers:
            places = [at for at, name in enumerate(table["columns"]) if name.rpartition(": ")[0] == teacher]
            columns = [table["columns"][at].rpartition(": ")[2] for at in places]
            rows = [
                (name, [line[at] for at in places]) for name, line in zip(table["rows"], table["values"], strict=True)
            ]
            layers = [row for row in rows if not row[0].startswith(EXPERT)]
            experts = [(_layer(name), name, values) for name, values in rows if name.startswith(EXPERT)]
            heads = [(column, column.removeprefix("layer ").replace("output", "out")) for column in columns]
            drawn = heatmap(experts, heads) if experts else None
            found.append({"student": student, "teacher": teacher, "columns": columns, "rows": layers, "experts": drawn})
    return found


def _layer(expert: str) -> str:
    """`expert 2.5` -> layer 2."""
    return f"layer {expert.removeprefix(f'{EXPERT} ').partition('.')[0]}"
