"""Which layers and experts of a student have come to resemble which layers of its teachers: linear CKA over tokens.

Features are those of the same patches: a teacher's grid is brought to the student's. An expert is compared on the
tokens that were routed to it, which is why the estimate has to be unbiased: they may be few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import silu

from distill.evaluation.tasks.cka import EXPERT, LAYER, OUTPUT, Alignment
from distill.evaluation.watchers import agreed
from distill.models.moe import Moe
from distill.models.student import Student
from distill.objectives.losses import resample_patches
from distill.samples.batches.loader import collate
from distill.samples.images.images import Picture, Pictures
from distill.teachers import Teachers
from distill.training.parallel import World

Floats = NDArray[np.float32]
_TOKENS = 1024
"""Of a minibatch, about."""
_MOST_PREFIX = 8


class Recorder:
    """What some modules are given and give while it is entered, by name; of modules that ran twice, the last."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.given: dict[str, Any] = {}
        self.found: dict[str, Any] = {}
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
            self.given[name] = inputs[0] if inputs else None
            self.found[name] = output[0] if isinstance(output, tuple) else output

        return keep


def layers_of(model: nn.Module, most: int | None = None) -> dict[str, nn.Module]:
    """Blocks of a network's image tower, `layer 1` …: the longest list of modules of one kind. most: evenly spread,
    the last among them."""
    tower = getattr(model, "visual", None) or getattr(model, "vision_model", None) or model
    lists = (part for part in tower.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    alike = [part for part in lists if len(part) > 1 and len({type(child) for child in part}) == 1]
    blocks = list(max(alike, key=len, default=()))
    places = range(len(blocks))
    if most is not None and len(blocks) > most:
        places = np.unique(np.rint(np.linspace(len(blocks) - 1, 0, most, endpoint=False)).astype(int)).tolist()
    return {f"{LAYER} {place + 1}": blocks[place] for place in places}


def on_grid(tokens: Tensor, prefix: int | None, shape: tuple[int, int], grid: tuple[int, int]) -> Tensor | None:
    """Tokens (1, T, D), or a map (1, D, h, w), of one picture of `shape` -> its patches (rows * columns, D).

    prefix: class and register tokens in front; None for as many as leave a grid closest to the picture's aspect. None
    for what is no grid.
    """
    if tokens.ndim == 4:
        return resample_patches(tokens[0].permute(1, 2, 0).float(), *grid)
    flat, aspect = tokens.reshape(-1, tokens.shape[-1]).float(), shape[1] / shape[0]
    best: tuple[float, int, int] | None = None
    for skipped in range(_MOST_PREFIX + 1) if prefix is None else (prefix,):
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
    """Features of the same patches, of several pictures."""

    rows: dict[str, list[Floats]] = field(default_factory=dict)
    experts: dict[str, tuple[list[Floats], list[NDArray[np.int64]]]] = field(default_factory=dict)
    """Outputs, and which patches of the minibatch they belong to."""
    columns: dict[str, list[Floats]] = field(default_factory=dict)
    tokens: int = 0

    def into(self, alignment: Alignment) -> None:
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        columns = {name: values for name, values in columns.items() if len(values) == self.tokens}
        for name, parts in self.rows.items():
            alignment.add(name, np.concatenate(parts), columns)
        for name, (outputs, places) in self.experts.items():
            which = np.concatenate(places)
            alignment.add(name, np.concatenate(outputs), {key: values[which] for key, values in columns.items()})


@torch.no_grad()
def align(
    student: Student, teachers: Teachers, pictures: Pictures, rows: Sequence[int], world: World, *, layers: int
) -> Alignment:
    """Rows: the student's layers and experts. Columns: `TEACHER: layer I`, at most `layers` of them, and
    `TEACHER: output`. rows: pictures, the same on every rank; those that cannot be read are left out."""

    def look() -> Alignment:
        alignment, batch = Alignment(), _Minibatch()
        for row in rows[world.rank :: world.size]:
            picture = pictures.get(int(row))
            if not isinstance(picture, Picture):
                continue
            _student_rows(batch, student, picture)
            _teacher_columns(batch, teachers, picture, layers)
            batch.tokens += len(picture.patches)
            if batch.tokens >= _TOKENS:
                batch.into(alignment)
                batch = _Minibatch()
        batch.into(alignment)
        return alignment

    total = Alignment()
    for part in world.gather(agreed(world, look)):
        total.merge(part)
    return total


def _student_rows(batch: _Minibatch, student: Student, picture: Picture) -> None:
    one, count = collate([picture]), len(picture.patches)
    blocks = {f"{LAYER} {place + 1}": block for place, block in enumerate(student.backbone.blocks)}
    moes = {f"{EXPERT} {place + 1}": block.mlp for place, block in enumerate(blocks.values()) if _is_moe(block)}
    with Recorder(blocks | moes) as recorder:
        student(torch.from_numpy(one.patches).to(student.backbone.prefix.device), one.grids)
    for name in blocks:
        batch.rows.setdefault(name, []).append(_array(recorder.found[name][-count:]))
    for name, moe in moes.items():
        for expert, (output, which) in enumerate(said_by_experts(moe, recorder.given[name][-count:])):
            outputs, places = batch.experts.setdefault(f"{name}.{expert}", ([], []))
            outputs.append(output)
            places.append(which + batch.tokens)


def said_by_experts(moe: Moe, x_NC: Tensor) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Of each expert in turn: what it says (n, C), unweighted, of the tokens routed to it, and which these are (n,)."""
    _, experts = moe.route(x_NC)
    for expert, (gate_up, down) in enumerate(zip(moe.gate_up, moe.down, strict=True)):
        which = (experts == expert).any(1).nonzero()[:, 0]
        gate, up = (x_NC[which] @ gate_up.T).chunk(2, dim=-1)
        yield _array((silu(gate) * up) @ down.T), which.cpu().numpy()


def _is_moe(block: nn.Module) -> bool:
    return isinstance(block.mlp, Moe)


def _teacher_columns(batch: _Minibatch, teachers: Teachers, picture: Picture, most: int) -> None:
    with Recorder(
        {
            f"{name}: {layer}": module
            for name, encoder in teachers.encoders.items()
            if isinstance(getattr(encoder, "model", None), nn.Module)
            for layer, module in layers_of(encoder.model, most).items()
        }
    ) as recorder:
        targets = dict(zip(teachers.names, teachers.targets([picture]), strict=True))
    for name, tokens in recorder.found.items():
        teacher = name.rpartition(": ")[0]
        given = picture.prepared.get(teacher)
        shape = picture.grid if given is None else tuple(given.shape[-2:])
        prefix = getattr(teachers.encoders[teacher].model, "num_prefix_tokens", None)
        found = on_grid(tokens, prefix, shape, picture.grid)
        if found is not None:
            batch.columns.setdefault(name, []).append(_array(found))
    for name, target in targets.items():
        if target.patches is not None:
            batch.columns.setdefault(f"{name}: {OUTPUT}", []).append(_array(target.patches))


def _array(values: Tensor) -> Floats:
    return values.float().cpu().numpy()
