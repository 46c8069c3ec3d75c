"""An evaluation as one page of HTML, with no other file and no network behind it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from distill.evaluation.show import AFTER, BEFORE, TITLES, WAYS, percent
from distill.evaluation.tasks.cka import EXPERT

TEMPLATES = Path(__file__).parent / "templates"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_CLASSES_SHOWN = 8
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(127, 160)], "\ufffd")
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 26, 7, 52, 8
Maps = list[tuple[str, list[bytes]]]


@dataclass(frozen=True)
class Heatmap:
    """Experts against a teacher's layers, to be drawn."""

    width: int
    height: int
    cells: list[tuple[int, int, float, str]]
    """x, y, share of full colour, what it says."""
    rows: list[tuple[int, str]]
    """y and name of each layer's first expert."""
    columns: list[tuple[int, str]]
    cell: tuple[int, int] = (_CELL_WIDTH, _CELL_HEIGHT)


def render(title: str, result: Mapping[str, Any], maps: Sequence[Maps]) -> bytes:
    """result: as evaluation.json has it; maps: of each set, what is drawn and a PNG per picture."""
    style = (TEMPLATES / "report.css").read_text("utf-8")
    sets = [_shown(judged, own) for judged, own in zip(result["sets"], maps, strict=True)]
    text = _template().render(
        title=title, sets=sets, titles=TITLES, ways=WAYS, policy=_POLICY, style=Markup(style),
        settings=json.dumps(result["settings"], indent=1, ensure_ascii=False),
    )  # fmt: skip
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    """Compiled once per process, which takes longer than to fill it in."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=_printable, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "number": _number, "picture": _picture, "sentence": _sentence}
    return environment.get_template("report.html")


def _shown(judged: Mapping[str, Any], maps: Maps) -> dict[str, Any]:
    missing: dict[str, list[str]] = {}
    for task, title in TITLES.items():
        if task in judged and not judged[task]["models"]:
            missing.setdefault(judged[task]["why_none"], []).append(title)
    done = {task: judged[task] for task in TITLES if task in judged and judged[task]["models"]}
    return {
        "name": judged["name"],
        "url": judged["url"],
        "counts": judged["counts"],
        "done": done,
        "missing": missing,
        "main": {task: main_model(found["models"]) for task, found in done.items()},
        "tiles": _tiles(done),
        "classes": {task: _classes(done[task]) for task in ("knn", "zero_shot") if task in done},
        "alignments": _alignments(done["cka"]) if "cka" in done else [],
        "maps": maps,
    }


def _tiles(done: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a reader looks for first: name, figure, what to compare it with."""
    tiles = []
    for task, place, what in (
        ("knn", ("accuracy",), "kNN"), ("probe", ("accuracy",), "linear probe"),
        ("zero_shot", ("accuracy",), "zero-shot"), ("retrieval", ("image_to_text", "R@1"), "R@1, text of a picture"),
        ("segmentation", ("mean_iou",), "mean IoU"),
    ):  # fmt: skip
        if task in done:
            models = done[task]["models"]
            name = main_model(models)
            figures = {other: _value(own, place) for other, own in models.items()}
            among = f"among {done[task]['texts']:,} texts" if task == "retrieval" else ""
            beside = _beside(name, figures, done[task].get("chance"))
            tiles.append((what, percent(figures[name]), ", ".join(filter(None, (beside, among)))))
    return tiles


def _beside(name: str, figures: Mapping[str, float], chance: float | None) -> str:
    """What a figure is compared with: before training, the best teacher, chance."""
    said = [f"before training {percent(figures[BEFORE])}"] if BEFORE in figures and name != BEFORE else []
    teachers = {other: value for other, value in figures.items() if other.startswith("teacher ")}
    if teachers:
        best = max(teachers, key=lambda other: teachers[other])
        said.append(f"{best} {percent(teachers[best])}")
    return ", ".join([*said, *([f"chance {percent(chance)}"] if chance is not None else [])])


def main_model(models: Mapping[str, Any]) -> str:
    """The one that is judged: the trained student in the space of its own, else in another, else the first."""
    names = [name for name in models if name == AFTER] or [name for name in models if name.startswith(AFTER)]
    return (names or list(models))[0]


def _value(model: Mapping[str, Any], place: Sequence[str]) -> float:
    value: Any = model
    for name in place:
        value = value[name]
    return float(value)


def _classes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of the model that is judged: the classes most and least right; all where they are few."""
    name = main_model(found["models"])
    rows = found["by_class"][name]
    if len(rows) <= 2 * _CLASSES_SHOWN:
        return {"model": name, "most": rows, "least": []}
    return {"model": name, "most": rows[:_CLASSES_SHOWN], "least": rows[-_CLASSES_SHOWN:][::-1]}


def _alignments(cka: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By student and teacher: a table of layers, and a drawing of experts where there are any."""
    out = []
    for student, table in cka["models"].items():
        teachers = dict.fromkeys(name.rpartition(": ")[0] for name in table["columns"])
        for teacher in teachers:
            places = [at for at, name in enumerate(table["columns"]) if name.rpartition(": ")[0] == teacher]
            columns = [table["columns"][at].rpartition(": ")[2] for at in places]
            rows = [
                (name, [line[at] for at in places]) for name, line in zip(table["rows"], table["values"], strict=True)
            ]
            layers = [row for row in rows if not row[0].startswith(EXPERT)]
            experts = [row for row in rows if row[0].startswith(EXPERT)]
            drawn = _heatmap(experts, columns) if experts else None
            out.append({"student": student, "teacher": teacher, "columns": columns, "rows": layers, "experts": drawn})
    return out


def _heatmap(rows: Sequence[tuple[str, Sequence[float | None]]], columns: Sequence[str]) -> Heatmap:
    cells, names = [], []
    last = ""
    for line, (name, values) in enumerate(rows):
        y = _TOP + line * _CELL_HEIGHT
        layer = name.removeprefix(f"{EXPERT} ").partition(".")[0]
        if layer != last:
            names.append((y, f"layer {layer}"))
            last = layer
        for place, value in enumerate(values):
            if value is not None:
                said = f"{name}, {columns[place]}: {value:.2f}"
                cells.append((_LEFT + place * _CELL_WIDTH, y, round(min(max(value, 0.0), 1.0), 3), said))
    short = [column.removeprefix("layer ").replace("output", "out") for column in columns]
    heads = [(_LEFT + place * _CELL_WIDTH + _CELL_WIDTH // 2, name) for place, name in enumerate(short)]
    height = _TOP + len(rows) * _CELL_HEIGHT
    return Heatmap(_LEFT + len(columns) * _CELL_WIDTH, height + 18, cells, names, heads)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _picture(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _sentence(text: str) -> str:
    """With a capital; the rest as it is."""
    return text[:1].upper() + text[1:]


def _printable(value: Any) -> Any:
    """Text without control characters, which HTML forbids even as references."""
    return value.translate(_CONTROLS) if type(value) is str else value
