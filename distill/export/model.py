"""An exported student as one module: pictures of any size in, summaries, patch features and teachers' spaces out.

model = distill.load("student")
seen = model([Image.open("a.jpg"), Image.open("b.png")])
seen.summary                    # (2, width)
seen.patches[0]                 # (rows, columns, width) of the first picture
summary, patches = seen.teachers["dinov3"]  # in the teacher's own space
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from curate.core.errors import CurateError, InputError
from distill.export.images import Given, listed, pixels_of
from distill.export.model_folder import TOKENIZER, WEIGHTS, ModelConfig, TeacherConfig, read_config
from distill.models.pooler import FrozenPooler
from distill.models.pooler_config import new_pooler
from distill.models.student import HeadConfig, Student, StudentConfig, build_student
from distill.models.tokenizer import Tokenizer
from distill.models.vit import VitOutput
from distill.recipe import StudentRecipe
from distill.samples.batches.packing import grid
from distill.samples.images.patches import patchify
from distill.teachers import Standards

Module = TypeVar("Module", bound=nn.Module)


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

    def prepare(self, image: Given) -> NDArray[np.uint8]:
        """A picture (its path, encoded bytes, PIL's, or RGB bytes (H, W, 3)) -> RGB bytes (rows * patch, columns *
        patch, 3), as the reader of training makes them; what fits is not changed.

        Raises InputError for a picture that cannot be read, TypeError for what is none.
        """
        patch, limit = self.config.preprocessing.patch, self.max_tokens

        def fit(width: int, height: int) -> tuple[int, int]:
            columns, rows = grid(width, height, patch=patch, max_tokens=limit)
            return columns * patch, rows * patch

        return pixels_of(image, fit, reduced=self.config.preprocessing.decoding == "reduced")

    def forward(self, images: Sequence[Given], *, teachers: Collection[str] | None = None) -> Output:
        """Images (B) of any sizes, packed without padding. teachers: whose heads to compute; None for all.

        Raises as `prepare` does, with the place of the picture.
        """
        prepared = [self._prepared(place, image) for place, image in enumerate(listed(images))]
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
        """Texts -> (B, embed), comparable by cosine with `embedding`.

        Raises CurateError without a text tower, TypeError for what is no list of texts.
        """
        if self.tokenizer is None or self.config.student.text is None:
            raise CurateError(
                f"model {self.config.name!r} has no text tower; train one with student.text and contrastive"
            )
        if isinstance(texts, str):
            raise TypeError("a text alone; give a list of texts, as in encode_text([text])")
        texts = list(texts)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {place} is a {type(text).__name__}; give texts")
        if not texts:
            return torch.zeros(0, self.config.student.embed, device=self.device)
        tokens = torch.from_numpy(self.tokenizer.encode(texts, self.config.student.text.context))
        return self.student.text(tokens.to(self.device))

    def _prepared(self, place: int, image: Given) -> NDArray[np.uint8]:
        try:
            return self.prepare(image)
        except (InputError, TypeError) as error:
            raise type(error)(f"picture {place}: {error}") from error

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
    config, place = read_config(folder), folder / WEIGHTS
    tensors = _tensors(place)
    if config.student.depth > len(tensors):
        raise _unfit(place, f"{len(tensors)} weights for {config.student.depth} layers")
    heads = [HeadConfig(**teacher.head.model_dump()) for teacher in config.teachers]
    student = filled(partial(new_student, config.student, heads), _below(tensors, "student."), place)
    standards = [_standards(teacher, number, tensors, place) for number, teacher in enumerate(config.teachers)]
    poolers = {}
    for number, teacher in enumerate(config.teachers):
        if teacher.pooler is not None:
            make = partial(_pooler, teacher.pooler)
            poolers[teacher.name] = FrozenPooler(filled(make, _below(tensors, f"poolers.{number}."), place))
    tokenizer = None if config.student.text is None else _tokenizer(folder / TOKENIZER, config.student.text.vocabulary)
    return DistilledModel(config, student, standards, tokenizer, poolers).eval().to(device)


def _pooler(figures: dict[str, Any]) -> nn.Module:
    return new_pooler(figures).module


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}); export the model again") from error
    bad = sorted(name for name, value in tensors.items() if not value.isfinite().all())
    if bad:
        raise InputError(
            f"{str(path)!r}: {len(bad)} weights are not finite (NaN or infinite), first {bad[0]!r}; export the model "
            f"of another checkpoint, or in another --precision"
        )
    return tensors


def _tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer.read(path)
    if len(tokenizer) > vocabulary:
        raise InputError(f"{path} has {len(tokenizer)} tokens, the model {vocabulary}; export the run again")
    return tokenizer


def _standards(teacher: TeacherConfig, number: int, tensors: Mapping[str, Tensor], place: Path) -> Standards:
    """How the I-th teacher's targets were standardised. Raises InputError where it is not there for its head."""
    found = _below(tensors, f"standards.{number}.")
    wanted = {"summary": teacher.head.summary} | ({"patches": teacher.head.patches} if teacher.patches else {})
    for kind, width in wanted.items():
        sizes = {"mean": (width,), "scale": (), "rotation": (width, width)}
        for name, size in sizes.items():
            value = found.get(f"{kind}_{name}")
            if (value is None and name != "rotation") or (value is not None and value.shape != size):
                raise _unfit(place, f"standards.{number}.{kind}_{name}")
    return Standards.of(found)


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


def filled(make: Callable[[], Module], found: Mapping[str, Tensor], place: Path) -> Module:
    """A module with the weights found, of which none may be missing, left over, or of another size.

    Its sizes are compared before memory is taken for it. Raises InputError, naming `place`.
    """
    try:
        with torch.device("meta"), _SizesOnly():
            wanted = {name: value.shape for name, value in weights_of(make()).items()}
        names = sorted(wanted.keys() | found.keys())
        wrong = [name for name in names if name not in found or wanted.get(name) != found[name].shape]
        if wrong:
            raise _unfit(place, f"{len(wrong)} weights differ, first {wrong[0]!r}")
        module = make()
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _unfit(place, f"there is no model of its sizes ({error or type(error).__name__})") from error
    with torch.no_grad():
        for name, value in weights_of(module).items():
            value.copy_(found[name])
    return module


class _SizesOnly(TorchFunctionMode):
    """Modules are made without being filled: on the meta device that would load a compiler, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        in_place = name.endswith("_") and not name.startswith("_")
        return [*args, *kwargs.values()][0] if in_place else func(*args, **kwargs)


def _unfit(place: Path, why: str) -> InputError:
    return InputError(f"{str(place)!r} does not fit its configuration: {why}; export the model again")
