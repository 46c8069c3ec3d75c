"""Similarity of a student's layers and experts to its teachers' layers: linear CKA over tokens.

Features belong to the same patches: teachers' grids are resampled to the student's. An expert is compared on the
tokens routed to it, by its inputs, as in AMoE (section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from curate.encoders.student.network.moe import Moe
from curate.encoders.student.network.student import Student
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.extraction import FeatureExtractor, raise_on_all_ranks, reader_of
from distill.evaluation.models import StudentModel
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks.cka import EXPERT, LAYER, OUTPUT, Alignment, Covariances, Minibatches, passes, table
from distill.parallel import World
from distill.recipe import EvaluateRecipe
from distill.samples.batches.loader import collate
from distill.samples.images.reader import ImageReader, PatchedImage
from distill.teachers import Teachers
from distill.teachers.resample import resample_patches

Floats = NDArray[np.float32]
_TOKENS = 1024
"""Approximate size of a minibatch."""
_MAX_PREFIX = 8
MOST_BYTES = 2 << 30
"""Memory for covariances. Beyond it, the images are read again for the remaining pairs of layers."""


def run(extractor: FeatureExtractor, data: EvaluationSet) -> Result:
    """CKA table of the last student."""
    settings, teachers = data.settings, extractor.teachers
    students = [model for model in extractor.models if isinstance(model, StudentModel)]
    if teachers is None or not teachers.names:
        return not_computed("no teacher is available to compare layers with")
    if any(model.student.backbone.reduction for model in students):
        return not_computed("layers lack the output of each patch; set evaluate.keep=1 and evaluate.merge=0")
    fresh = teachers.with_empty_cache()
    reader = reader_of(data, extractor.reader.patch, fresh)
    chosen = data.rows(test=True, most=settings.cka_images)
    tables = {}
    for model in students[-1:]:
        found = align(model.student, fresh, reader, chosen.tolist(), extractor.world, settings)
        rows, columns, values = table(found)
        if values.size:
            cells = [[None if np.isnan(value) else float(value) for value in line] for line in values]
            tables[model.name] = {"rows": rows, "columns": columns, "values": cells}
    if not tables:
        return not_computed("none of these teachers exposes layers or patch features")
    return {"models": tables, "pictures": len(chosen)}


class Recorder:
    """Context that records inputs and outputs of modules, by name; the last ones of modules that run twice."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, name: str) -> Any:
        def keep(_: nn.Module, inputs: Any, output: Any) -> None:
            self.inputs[name] = inputs[0] if inputs else None
            self.outputs[name] = output[0] if isinstance(output, tuple) else output

        return keep


def layers_of(model: nn.Module, most: int | None = None) -> dict[str, nn.Module]:
    """Blocks of a network's image tower, `layer 1` …: the longest list of modules of one type. most: take this many,
    evenly spaced and including the last."""
    tower = getattr(model, "visual", None) or getattr(model, "vision_model", None) or model
    lists = (part for part in tower.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    alike = [part for part in lists if len(part) > 1 and len({type(child) for child in part}) == 1]
    blocks = list(max(alike, key=len, default=()))
    places = range(len(blocks))
    if most is not None and len(blocks) > most:
        places = np.unique(np.rint(np.linspace(len(blocks) - 1, 0, most, endpoint=False)).astype(int)).tolist()
    return {f"{LAYER} {place + 1}": blocks[place] for place in places}


def on_grid(tokens: Tensor, prefix: int | None, shape: tuple[int, int], grid: tuple[int, int]) -> Tensor | None:
    """Tokens (1, T, D), or a map (1, D, h, w), of one image of `shape` -> its patches (rows * columns, D).

    prefix: number of class and register tokens before the patches; None: the number that leaves the grid closest to
    the image's aspect ratio. Returns None if the tokens are not a grid.
    """
    if tokens.ndim == 4:
        return resample_patches(tokens[0].permute(1, 2, 0).float(), *grid)
    flat, aspect = tokens.reshape(-1, tokens.shape[-1]).float(), shape[1] / shape[0]
    best: tuple[float, int, int] | None = None
    for skipped in range(_MAX_PREFIX + 1) if prefix is None else (prefix,):
        count = len(flat) - skipped
        rows = round((max(count, 0) / aspect) ** 0.5)
        if rows and count % rows == 0:
            best = min(best or (math.inf, 0, 0), (abs(math.log(count / rows**2 / aspect)), skipped, rows))
    if best is None:
        return None
    _, skipped, rows = best
    return resample_patches(flat[skipped:].view(rows, (len(flat) - skipped) // rows, -1), *grid)


@dataclass
class _Minibatch:
    """Features of the same patches, of several images."""

    rows: dict[str, list[Floats]] = field(default_factory=dict)
    experts: dict[str, tuple[list[Floats], list[NDArray[np.int64]]]] = field(default_factory=dict)
    """Inputs, and the indices of their patches in the minibatch."""
    columns: dict[str, list[Floats]] = field(default_factory=dict)
    tokens: int = 0

    def dimensions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Dimensions of the features of the rows, experts included, and of the columns, by name."""
        experts = {name: inputs[0].shape[1] for name, (inputs, _) in self.experts.items()}
        rows = {name: parts[0].shape[1] for name, parts in self.rows.items()}
        return {**rows, **experts}, {name: parts[0].shape[1] for name, parts in self.columns.items()}

    def add_to(self, alignment: Alignment) -> None:
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        columns = {name: values for name, values in columns.items() if len(values) == self.tokens}
        for name, parts in self.rows.items():
            alignment.add(name, np.concatenate(parts), columns)
        for name, (inputs, places) in self.experts.items():
            which = np.concatenate(places)
            alignment.add(name, np.concatenate(inputs), {key: values[which] for key, values in columns.items()})


@torch.no_grad()
def align(
    student: Student,
    teachers: Teachers,
    reader: ImageReader,
    rows: Sequence[int],
    world: World,
    settings: EvaluateRecipe,
) -> dict[tuple[str, str], float]:
    """CKA by row and column, in clips on their middle frame.

    Rows: the student's layers and experts. Columns: `TEACHER: layer I` and `TEACHER: output`, and the same of `TEACHER,
    clipped to ±C`. rows: rows of images, the same on every rank; unreadable images are skipped.
    """

    def batches(rows: Sequence[int]) -> Iterator[_Minibatch]:
        batch = _Minibatch()
        for row in rows:
            image = reader.get(int(row))
            if not isinstance(image, PatchedImage):
                continue
            image = image.pictures()[image.frames // 2]
            _student_rows(batch, student, image, settings.cka_student_layers)
            _teacher_columns(batch, teachers, image, settings)
            batch.tokens += len(image.patches)
            if batch.tokens >= _TOKENS:
                yield batch
                batch = _Minibatch()
        if batch.tokens:
            yield batch

    def measure(new: Callable[[], Alignment]) -> Alignment:
        def own() -> Alignment:
            alignment = new()
            for batch in batches(rows[world.rank :: world.size]):
                batch.add_to(alignment)
            return alignment

        total = new()
        for part in world.gather(raise_on_all_ranks(world, own)):
            total.merge(part)
        return total

    if settings.cka_estimate == "unbiased":
        return measure(Minibatches).values()
    found: dict[tuple[str, str], float] = {}
    first = next(batches(rows), _Minibatch())
    for pairs in passes(*first.dimensions(), MOST_BYTES):
        found |= measure(partial(Covariances, pairs)).values()
    return found


def _student_rows(batch: _Minibatch, student: Student, image: PatchedImage, chosen: Sequence[int]) -> None:
    """chosen: layers, counted from 1; empty: all."""
    one, count = collate([image]), len(image.patches)
    numbers = chosen or range(1, len(student.backbone.blocks) + 1)
    blocks = {f"{LAYER} {number}": student.backbone.blocks[number - 1] for number in numbers}
    mlps = {f"{EXPERT} {number}": student.backbone.blocks[number - 1].mlp for number in numbers}
    moes = {name: mlp for name, mlp in mlps.items() if isinstance(mlp, Moe)}
    with Recorder({**blocks, **moes}) as recorder:
        student(torch.from_numpy(one.patches).to(student.backbone.prefix.device), one.grids)
    for name in blocks:
        batch.rows.setdefault(name, []).append(_array(recorder.outputs[name][-count:]))
    for name, moe in moes.items():
        for expert, (routed, which) in enumerate(routed_inputs(moe, recorder.inputs[name][-count:])):
            inputs, places = batch.experts.setdefault(f"{name}.{expert}", ([], []))
            inputs.append(routed)
            places.append(which + batch.tokens)


def routed_inputs(moe: Moe, x_NC: Tensor) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Per expert: the tokens routed to it (n, C), as the layer receives them, and their indices (n,)."""
    _, experts = moe.route(x_NC)
    for expert in range(len(moe.gate_up)):
        which = (experts == expert).any(1).nonzero()[:, 0]
        yield _array(x_NC[which]), which.cpu().numpy()


def _teacher_columns(batch: _Minibatch, teachers: Teachers, image: PatchedImage, settings: EvaluateRecipe) -> None:
    with Recorder(
        {
            f"{name}: {layer}": module
            for name, encoder in teachers.encoders.items()
            if isinstance(model := getattr(encoder, "model", None), nn.Module)
            for layer, module in layers_of(model, settings.cka_layers).items()
        }
    ) as recorder:
        targets = dict(zip(teachers.names, teachers.targets([image]), strict=True))
    for name, tokens in recorder.outputs.items():
        teacher = name.rpartition(": ")[0]
        prepared = image.prepared.get(teacher)
        shape = image.grid if prepared is None else (prepared.shape[-2], prepared.shape[-1])
        prefix = getattr(getattr(teachers.encoders[teacher], "model", None), "num_prefix_tokens", None)
        for label, values in _clipped(teacher, tokens, settings.cka_clip):
            patches = on_grid(values, prefix, shape, image.grid)
            if patches is not None:
                batch.columns.setdefault(f"{label}{name.removeprefix(teacher)}", []).append(_array(patches))
    for name, target in targets.items():
        if target.patches is not None:
            for label, values in _clipped(name, target.patches, settings.cka_clip):
                batch.columns.setdefault(f"{label}: {OUTPUT}", []).append(_array(values))


def _clipped(teacher: str, values: Tensor, clip: float | None) -> list[tuple[str, Tensor]]:
    """A teacher's features under its name, and clipped to ±clip under another."""
    own = [(teacher, values)]
    return own if clip is None else [*own, (f"{teacher}, clipped to ±{clip:g}", values.clamp(-clip, clip))]


def _array(values: Tensor) -> Floats:
    array: Floats = values.float().cpu().numpy()
    return array
