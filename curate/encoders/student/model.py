"""An exported student as one module: from images of any size to summaries, patch features and teachers' features.

model = distill.load("student")
output = model([Image.open("a.jpg"), Image.open("b.png")])
output.summary                                # (2, width)
output.patches[0]                             # (rows, columns, width) for the first image
summary, patches = output.teachers["dinov3"]  # in the teacher's own space
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
from curate.encoders.student.images import ImageInput, as_list, pixels_of
from curate.encoders.student.model_folder import TOKENIZER, WEIGHTS, ModelConfig, TeacherConfig, read_config
from curate.encoders.student.network.pooler import FrozenPooler, new_pooler
from curate.encoders.student.network.student import Student, build_student
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.patches import grid, patchify
from curate.encoders.student.standardise import TargetStandardiser
from curate.encoders.student.tokenizer import AnyTokenizer, Tokenizer, known_tokenizer

Module = TypeVar("Module", bound=nn.Module)


@dataclass
class Output:
    """Vectors of B images, in the order of the input."""

    summary: Tensor
    """CLS (B, width)."""
    patches: list[Tensor]
    """(rows, columns, width) for each image; none for a student with `keep` or `merge`."""
    grids: list[tuple[int, int]]
    """(rows, columns) of each image in patches."""
    registers: Tensor
    """(B, R, width)."""
    embedding: Tensor | None = None
    """(B, embed), comparable by cosine with `encode_text`; None without a text tower."""
    teachers: dict[str, tuple[Tensor, list[Tensor] | None]] = field(default_factory=dict)
    """Predictions by teacher: summary (B, D) and patch features (rows, columns, P), in the teacher's own space."""


class DistilledModel(nn.Module):
    """`model(images)` and `model.encode_text(texts)`, differentiable; `model.student` is the trained network."""

    def __init__(
        self,
        config: ModelConfig,
        student: Student,
        standardisers: Sequence[TargetStandardiser],
        tokenizer: AnyTokenizer | None = None,
        poolers: Mapping[str, FrozenPooler] | None = None,
    ) -> None:
        """standards: one per teacher, in the configuration's order; poolers: by name of the teachers that have one."""
        super().__init__()
        self.config, self.student, self.tokenizer = config, student, tokenizer
        self.max_tokens = config.preprocessing.max_tokens
        """Maximum number of patches per image; larger images are scaled down."""
        self.teachers = [teacher.name for teacher in config.teachers]
        self.standardisers = list(standardisers)
        self.poolers = dict(poolers or {})
        self._pooling = nn.ModuleList(self.poolers.values())

    @property
    def device(self) -> torch.device:
        return self.student.backbone.prefix.device

    def prepare(self, image: ImageInput) -> NDArray[np.uint8]:
        """An image (a path, encoded bytes, a Pillow image, or RGB bytes (H, W, 3)) -> RGB bytes (rows * patch, columns
        * patch, 3), the same as in training; an array of this size is not changed.

        Raises InputError for an image that cannot be read, TypeError for any other type.
        """
        patch, limit = self.config.preprocessing.patch, self.max_tokens

        def fit(width: int, height: int) -> tuple[int, int]:
            columns, rows = grid(width, height, patch=patch, max_tokens=limit)
            return columns * patch, rows * patch

        return pixels_of(image, fit, reduced=self.config.preprocessing.decoding == "reduced")

    def forward(self, images: Sequence[ImageInput], *, teachers: Collection[str] | None = None) -> Output:
        """Images (B) of any sizes, packed without padding. teachers: names of the heads to compute; None for all.

        Raises the errors of `prepare`, with the position of the image.
        """
        prepared = [self._prepared(place, image) for place, image in enumerate(as_list(images))]
        if not prepared:
            raise InputError("no images; give the model at least one")
        patch = self.config.preprocessing.patch
        grids = [(pixels.shape[0] // patch, pixels.shape[1] // patch) for pixels in prepared]
        order = sorted(range(len(grids)), key=lambda place: (grids[place][0] * grids[place][1], grids[place]))
        patches = torch.from_numpy(np.concatenate([patchify(prepared[place], patch) for place in order]))
        packed = self.student(patches.to(self.device), [grids[place] for place in order])
        back = np.argsort(order).tolist()
        lengths = [grids[place][0] * grids[place][1] for place in order]

        def each(values_NP: Tensor) -> list[Tensor]:
            pieces = values_NP.split(lengths)
            return [pieces[back[place]].view(*grid, -1) for place, grid in enumerate(grids)]

        own = [] if packed.reduced else each(packed.patches)
        output = Output(packed.summary[back], own, grids, packed.registers[back])
        if self.student.text is not None:
            output.embedding = self.student.image_vectors(packed)[back]
        for name in self.teachers if teachers is None else teachers:
            summary, features = self._project(name, packed, lengths)
            output.teachers[name] = summary[back], None if features is None else each(features)
        return output

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (B, embed), comparable by cosine with `embedding`.

        Raises CurateError without a text tower, TypeError if `texts` is not a list of texts.
        """
        tower = self.student.text
        if tower is not None and not tower.config.tokenizes:
            raise CurateError(
                f"model {self.config.name!r} compares images with vectors of the column {tower.config.column!r}, not "
                f"with texts; call student.text(vectors)"
            )
        if self.tokenizer is None or tower is None:
            raise CurateError(
                f"model {self.config.name!r} has no text tower; train one with student.text and contrastive"
            )
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, not one str; write encode_text([text])")
        texts = list(texts)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {place}: expected str, not {type(text).__name__}")
        if not texts:
            return torch.zeros(0, self.config.student.embed, device=self.device)
        tokens = torch.from_numpy(self.tokenizer.encode(texts, tower.config.context))
        embeddings: Tensor = tower(tokens.to(self.device))
        return embeddings

    def _prepared(self, place: int, image: ImageInput) -> NDArray[np.uint8]:
        try:
            return self.prepare(image)
        except (InputError, TypeError) as error:
            raise type(error)(f"image {place}: {error}") from error

    def _project(self, name: str, packed: VitOutput, lengths: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Predictions of a teacher's summaries (B, D) and patch features (N, P), in its own space."""
        if name not in self.teachers:
            known = ", ".join(self.teachers) or "none"
            raise InputError(f"model {self.config.name!r} has no head {name!r}; its heads: {known}")
        number = self.teachers.index(name)
        head, standardisers = self.student.heads[number], self.standardisers[number]
        patches = None
        if self.config.teachers[number].patches and (name in self.poolers or not packed.reduced):
            patches = standardisers.invert_patches(head.patches(packed.patches))
        if name in self.poolers:
            return self.poolers[name](patches, lengths).to(packed.summary), patches
        return standardisers.invert_summary(head.summary(packed.summary)), patches


def load(path: str | Path, *, device: str | torch.device = "cpu") -> DistilledModel:
    """A folder written by `distill export` -> the model in float32, in evaluation mode.

    Raises InputError (one line) if the folder is not a model, is of a newer version, or lacks intact weights.
    """
    folder = Path(path).expanduser()
    config, file = read_config(folder), folder / WEIGHTS
    tensors = _tensors(file)
    if config.student.depth > len(tensors):
        raise _mismatch(file, f"{len(tensors)} weights for {config.student.depth} layers")
    heads = [teacher.head for teacher in config.teachers]
    student = _with_weights(partial(build_student, config.student, heads, seed=0), _under(tensors, "student."), file)
    standardisers = [_standardiser(teacher, number, tensors, file) for number, teacher in enumerate(config.teachers)]
    poolers = {}
    for number, teacher in enumerate(config.teachers):
        if teacher.pooler is not None:
            make = partial(_pooler, teacher.pooler)
            poolers[teacher.name] = FrozenPooler(_with_weights(make, _under(tensors, f"poolers.{number}."), file))
    text = config.student.text
    tokenizer = known_tokenizer(text, lambda: _tokenizer(folder / TOKENIZER, 0 if text is None else text.vocabulary))
    return DistilledModel(config, student, standardisers, tokenizer, poolers).eval().to(device)


def _pooler(figures: dict[str, Any]) -> nn.Module:
    return new_pooler(figures).module


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot read {str(path)!r} ({error}); export the model again") from error
    bad = sorted(name for name, value in tensors.items() if not value.isfinite().all())
    if bad:
        raise InputError(
            f"{str(path)!r}: {len(bad)} weights are not finite (NaN or infinite), first {bad[0]!r}; export another "
            f"checkpoint, or with another --precision"
        )
    return tensors


def _tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer.read(path)
    if len(tokenizer) > vocabulary:
        raise InputError(f"{path} has {len(tokenizer)} tokens, the model {vocabulary}; export the run again")
    return tokenizer


def _standardiser(teacher: TeacherConfig, number: int, tensors: Mapping[str, Tensor], file: Path) -> TargetStandardiser:
    """Standardisation of a teacher's features. Raises InputError if it is incomplete or does not fit the head."""
    found = _under(tensors, f"standards.{number}.")
    wanted = {"summary": teacher.head.summary} | ({"patches": teacher.head.patches} if teacher.patches else {})
    for kind, width in wanted.items():
        sizes = {"mean": (width,), "scale": (), "rotation": (width, width)}
        for name, size in sizes.items():
            value = found.get(f"{kind}_{name}")
            if (value is None and name != "rotation") or (value is not None and value.shape != size):
                raise _mismatch(file, f"standards.{number}.{kind}_{name}")
    return TargetStandardiser.of(found)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Saved tensors by name; one entry for a tensor that modules share."""
    lasting = module.state_dict().keys()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value for name, value in named.items() if name in lasting}


def _under(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _with_weights(make: Callable[[], Module], found: Mapping[str, Tensor], file: Path) -> Module:
    """A module with the weights `found`, which must match its own in names and sizes.

    Sizes are compared before the module is allocated. Raises InputError that names `file`.
    """
    try:
        wanted = {name: value.shape for name, value in weights_of(sizes_only(make)).items()}
        names = sorted(wanted.keys() | found.keys())
        wrong = [name for name in names if name not in found or wanted.get(name) != found[name].shape]
        if wrong:
            raise _mismatch(file, f"{len(wrong)} weights differ, first {wrong[0]!r}")
        module = make()
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _mismatch(file, f"no model has these sizes ({error or type(error).__name__})") from error
    with torch.no_grad():
        for name, value in weights_of(module).items():
            value.copy_(found[name])
    return module


def sizes_only(make: Callable[[], Module]) -> Module:
    """A module without memory for its weights."""
    with torch.device("meta"), _SizesOnly():
        return make()


class _SizesOnly(TorchFunctionMode):
    """Skips in-place initialisation, which on the meta device would import a compiler for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        in_place = name.endswith("_") and not name.startswith("_")
        return [*args, *kwargs.values()][0] if in_place else func(*args, **kwargs)


def _mismatch(file: Path, why: str) -> InputError:
    return InputError(f"{str(file)!r} does not match its configuration: {why}; export the model again")
