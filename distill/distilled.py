"""An exported student as one module: pictures of any size in, summaries, patch features and teachers' spaces out.

model = distill.load("student")
seen = model([Image.open("a.jpg"), Image.open("b.png")])
seen.summary                    # (2, width)
seen.patches[0]                 # (rows, columns, width) of the first picture
summary, patches = seen.teachers["dinov3"]  # in the teacher's own space
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from curate.core.errors import CurateError, InputError
from distill.data.packing import grids as grids_of
from distill.data.patches import patchify, resize_to_grid
from distill.exported import TOKENIZER, WEIGHTS, ModelConfig, read_config
from distill.models.pooler import FrozenPooler
from distill.models.pooler_config import new_pooler
from distill.models.student import HeadConfig, Student, StudentConfig, build_student
from distill.models.vit import VitOutput
from distill.recipe import StudentRecipe
from distill.teachers import Standards
from distill.tokenizer import Tokenizer

Seen = Image.Image | NDArray[np.uint8]


@dataclass
class Output:
    """Of B pictures, in the order given."""

    summary: Tensor
    """CLS (B, width)."""
    patches: list[Tensor]
    """(rows, columns, width) of each picture."""
    grids: list[tuple[int, int]]
    """(rows, columns) of patches."""
    registers: Tensor
    """(B, R, width)."""
    embedding: Tensor | None = None
    """(B, embed), comparable by cosine with `encode_text`; None without a text tower."""
    teachers: dict[str, tuple[Tensor, list[Tensor] | None]] = field(default_factory=dict)
    """Summary (B, D) and patch features (rows, columns, P) as each teacher itself would give them."""


class DistilledModel(nn.Module):
    """`model(images)` and `model.encode_text(texts)`, differentiable; `model.student` is what was trained."""

    def __init__(
        self,
        config: ModelConfig,
        student: Student,
        standards: Sequence[Standards],
        tokenizer: Tokenizer | None = None,
        poolers: Mapping[str, FrozenPooler] | None = None,
    ) -> None:
        """standards: of each teacher, in the configuration's order; poolers: of those that have one, by name."""
        super().__init__()
        self.config, self.student, self.tokenizer = config, student, tokenizer
        self.max_tokens = config.preprocessing.max_tokens
        """Patches of a picture at most; larger pictures are scaled down."""
        self.teachers = [teacher.name for teacher in config.teachers]
        self.standards = list(standards)
        self.poolers = dict(poolers or {})
        self._pooling = nn.ModuleList(self.poolers.values())

    @property
    def device(self) -> torch.device:
        return self.student.backbone.prefix.device

    def prepare(self, image: Seen) -> NDArray[np.uint8]:
        """A PIL picture, or bytes (H, W, 3), -> bytes (rows * patch, columns * patch, 3); what fits is not changed."""
        patch = self.config.preprocessing.patch
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
                raise InputError(
                    f"a picture of shape {image.shape} and type {image.dtype}; give RGB bytes (height, width, 3)"
                )
            height, width = image.shape[:2]
        else:
            width, height = image.size
        size = np.array([width]), np.array([height])
        columns, rows = (int(side[0]) for side in grids_of(*size, patch=patch, max_tokens=self.max_tokens))
        if isinstance(image, np.ndarray):
            if (height, width) == (rows * patch, columns * patch):
                return image
            image = Image.fromarray(image)
        return resize_to_grid(image.convert("RGB"), columns, rows, patch)

    def forward(self, images: Sequence[Seen], *, teachers: Collection[str] | None = None) -> Output:
        """Images (B) of any sizes, packed without padding. teachers: whose heads to compute; None for all."""
        prepared = [self.prepare(image) for image in images]
        if not prepared:
            raise InputError("no pictures; give the model at least one")
        patch = self.config.preprocessing.patch
        grids = [(pixels.shape[0] // patch, pixels.shape[1] // patch) for pixels in prepared]
        order = sorted(range(len(grids)), key=lambda place: (grids[place][0] * grids[place][1], grids[place]))
        patches = torch.from_numpy(np.concatenate([patchify(prepared[place], patch) for place in order]))
        seen = self.student(patches.to(self.device), [grids[place] for place in order])
        back = np.argsort(order).tolist()
        lengths = [grids[place][0] * grids[place][1] for place in order]

        def each(values_NP: Tensor) -> list[Tensor]:
            pieces = values_NP.split(lengths)
            return [pieces[back[place]].view(*grid, -1) for place, grid in enumerate(grids)]

        output = Output(seen.summary[back], each(seen.patches), grids, seen.registers[back])
        if self.tokenizer is not None:
            output.embedding = self.student.project(seen.summary)[back]
        for name in self.teachers if teachers is None else teachers:
            summary, own = self._project(name, seen, lengths)
            output.teachers[name] = summary[back], None if own is None else each(own)
        return output

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (B, embed), comparable by cosine with `embedding`. Raises CurateError without a text tower."""
        if self.tokenizer is None or self.config.student.text is None:
            raise CurateError(
                f"model {self.config.name!r} has no text tower; train one with student.text and contrastive"
            )
        tokens = torch.from_numpy(self.tokenizer.encode(texts, self.config.student.text.context))
        return self.student.text(tokens.to(self.device))

    def _project(self, name: str, seen: VitOutput, lengths: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """In the teacher's own space."""
        if name not in self.teachers:
            known = ", ".join(self.teachers) or "none"
            raise InputError(f"model {self.config.name!r} has no head {name!r}; its heads: {known}")
        number = self.teachers.index(name)
        head, standards = self.student.heads[number], self.standards[number]
        patches = None
        if self.config.teachers[number].patches:
            patches = standards.invert_patches(head.patches(seen.patches))
        if name in self.poolers:
            return self.poolers[name](patches, lengths).to(seen.summary), patches
        return standards.invert_summary(head.summary(seen.summary)), patches


def load(path: str | Path, *, device: str | torch.device = "cpu") -> DistilledModel:
    """A folder that `distill export` wrote -> the model in float32, in evaluation mode.

    Raises InputError, a line, for a folder that is none, of a newer version, or whose weights are missing or broken.
    """
    folder = Path(path).expanduser()
    config = read_config(folder)
    tensors = _tensors(folder / WEIGHTS)
    student = new_student(config.student, [HeadConfig(**teacher.head) for teacher in config.teachers])
    _fill(student, _below(tensors, "student."), folder / WEIGHTS)
    standards = [Standards.of(_below(tensors, f"standards.{number}.")) for number in range(len(config.teachers))]
    poolers = {}
    for number, teacher in enumerate(config.teachers):
        if teacher.pooler is not None:
            poolers[teacher.name] = new_pooler(teacher.pooler)
            _fill(poolers[teacher.name].module, _below(tensors, f"poolers.{number}."), folder / WEIGHTS)
    tokenizer = None
    if config.student.text is not None:
        tokenizer = Tokenizer.parse((folder / TOKENIZER).read_text(), str(folder / TOKENIZER))
    return DistilledModel(config, student, standards, tokenizer, poolers).eval().to(device)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}); export the model again") from error


def new_student(size: StudentRecipe, heads: Sequence[HeadConfig]) -> Student:
    """With weights that mean nothing yet."""
    return build_student(StudentConfig.of(size), heads, 0)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """What is saved, by name; each once, also where modules share it."""
    lasting = module.state_dict().keys()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value for name, value in named.items() if name in lasting}


def _below(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


@torch.no_grad()
def _fill(module: nn.Module, found: Mapping[str, Tensor], place: Path) -> None:
    """Every weight must be there, and of its size."""
    wanted = weights_of(module)
    wrong = sorted(
        name
        for name in wanted.keys() | found.keys()
        if name not in found or name not in wanted or wanted[name].shape != found[name].shape
    )
    if wrong:
        raise InputError(
            f"{str(place)!r} does not fit its configuration: {len(wrong)} weights differ, first {wrong[0]!r}; "
            f"export the model again"
        )
    for name, value in wanted.items():
        value.copy_(found[name])
