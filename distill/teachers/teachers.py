"""All teachers of a run. Their features stay in memory, per image, while there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor

from curate.core.errors import InputError, RecipeError
from curate.encoders import Encoder, load
from curate.encoders.base import no_texts
from curate.encoders.student.config import HeadConfig
from curate.encoders.student.network.pooler import FrozenPooler
from curate.encoders.student.standardise import Target
from curate.encoders.texts import encode_texts
from distill.objectives import Kind
from distill.objectives.distillation import TermRecipe
from distill.recipe import Recipe, TeacherRecipe
from distill.samples.batches.loader import Batch
from distill.samples.images.reader import CacheBudget, PatchedImage
from distill.teachers.base import Shape, Teacher, TeacherFeatures
from distill.teachers.encoder import EncoderTeacher
from distill.teachers.feature_cache import FeatureCache
from distill.teachers.hadamard import hadamard
from distill.teachers.resample import resample_patches
from distill.teachers.text_cache import TextCache


class Teachers:
    """All teachers, in the recipe's order. Reading threads call `missing` and `prepare`."""

    def __init__(
        self,
        teachers: Mapping[str, Teacher],
        *,
        allowance: CacheBudget | None = None,
        batch: int = 64,
        name: Callable[[int], str] = "row {}".format,
        half: Collection[str] = (),
        caches: Mapping[str, FeatureCache] | None = None,
        text_caches: Mapping[str, TextCache] | None = None,
    ) -> None:
        """teachers: by label; batch: images per call; name: name of an index row in errors; half: labels of teachers
        whose patches are rounded to float16; caches, text_caches: computed by `distill teach`, by label."""
        self.names = list(teachers)
        self._teachers = list(teachers.values())
        self._allowance, self._batch, self._name = allowance or CacheBudget(0), batch, name
        self._half, self._caches = frozenset(half), [(caches or {}).get(label) for label in self.names]
        self._kept: list[dict[Hashable, TeacherFeatures]] = [{} for _ in self.names]
        self._texts: list[dict[str, Tensor]] = [{} for _ in self.names]
        self._text_caches = text_caches or {}
        self.counts: Counter[str] = Counter()
        """Images whose features were `computed`, and `read` from a cache on disk; `texts` that were computed."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        device: torch.device,
        *,
        allowance: CacheBudget | None = None,
        name: Callable[[int], str] = "row {}".format,
        caches: Mapping[str, FeatureCache] | None = None,
        text_caches: Mapping[str, TextCache] | None = None,
    ) -> Self:
        """Load a recipe's teachers. CurateError for a model that cannot be loaded or does not fit the student."""
        teachers = {item.label: _load(item, recipe, device) for item in recipe.teachers}
        for item in recipe.teachers:
            _check(item, teachers[item.label].shape)
            if item.label in recipe.needs.teacher_texts and not teachers[item.label].encoder.context:
                raise RecipeError(f"teachers: {item.label!r}: {no_texts(item.encoder)}")
        half = [item.label for item in recipe.teachers if item.keep == "float16"]
        return cls(teachers, allowance=allowance, name=name, half=half, caches=caches, text_caches=text_caches)

    def with_empty_cache(
        self,
        *,
        allowance: CacheBudget | None = None,
        name: Callable[[int], str] = "row {}".format,
        caches: Mapping[str, FeatureCache] | None = None,
        text_caches: Mapping[str, TextCache] | None = None,
    ) -> Self:
        """The same models without features in memory, for the rows of another index or for hooks on their layers."""
        models = dict(zip(self.names, self._teachers, strict=True))
        return type(self)(
            models, allowance=allowance, batch=self._batch, name=name, half=self._half, caches=caches,
            text_caches=text_caches,
        )  # fmt: skip

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The teachers' encoders by label, for texts and layers."""
        return {name: teacher.encoder for name, teacher in zip(self.names, self._teachers, strict=True)}

    @property
    def shapes(self) -> list[Shape]:
        return [teacher.shape for teacher in self._teachers]

    def heads(self, recipe: Recipe) -> list[HeadConfig]:
        hidden = recipe.student.head_hidden
        return [HeadConfig(summary=shape.summary, patches=shape.patches, hidden=hidden) for shape in self.shapes]

    def poolers(self) -> dict[str, FrozenPooler]:
        """Attention poolers over patches by label, for the teachers whose summary is computed by one."""
        poolers = zip(self.names, (teacher.pooler() for teacher in self._teachers), strict=True)
        return {name: FrozenPooler(module) for name, module in poolers if module is not None}

    @property
    def prepares(self) -> bool:
        """Whether some teacher reads images itself, not only the student's patches."""
        return any(teacher.prepares for teacher in self._teachers)

    def missing(self, row: int) -> bool:
        """Whether some teacher still has to read the row's image."""
        return any(teacher.prepares and not self._cached(number, row) for number, teacher in enumerate(self._teachers))

    def prepare(self, row: int, image: Image.Image, *, augmented: bool = False) -> dict[str, Any]:
        """Inputs of the teachers without cached features of this row; for an augmented image, of every teacher.

        May raise Reject.
        """
        return {
            name: teacher.prepare(image)
            for number, (name, teacher) in enumerate(zip(self.names, self._teachers, strict=True))
            if teacher.prepares and (augmented or not self._cached(number, row))
        }

    def targets(self, batch: Batch | Sequence[PatchedImage]) -> list[Target]:
        """Targets of each teacher for B images, in the same order. InputError for features that are not finite."""
        images = batch.images if isinstance(batch, Batch) else batch
        return [self._targets(number, images) for number in range(len(self.names))]

    def texts(self, label: str, texts: Sequence[str], rows: Sequence[int] = ()) -> Tensor:
        """(n, E): vectors of texts by a teacher's text tower, from the cache on disk if it has them. Any other text is
        computed once if there is memory. rows: of the index, one for each text."""
        number = self.names.index(label)
        encoder, kept, cache = self._teachers[number].encoder, self._texts[number], self._text_caches.get(label)
        found = {text: kept[text] for text in texts if text in kept}
        for text, row in zip(texts, rows if cache is not None else (), strict=False):
            if cache is not None and text not in found:
                found |= cache.get(row) or {}
        todo = [text for text in dict.fromkeys(texts) if text not in found]
        for text, vector in zip(todo, torch.from_numpy(encode_texts(encoder, todo)), strict=True):
            found[text] = vector
            if self._allowance.take(vector.nbytes + len(text)):
                kept[text] = vector.clone()
        self.counts["texts"] += len(todo)
        if not all(torch.isfinite(found[text]).all() for text in todo):
            raise InputError(f"teachers: {label!r} has text vectors that are not finite; check its weights")
        return torch.stack([found[text] for text in texts]) if texts else torch.zeros(0, encoder.dim)

    def _cached(self, number: int, row: int) -> bool:
        """For a teacher that prepares."""
        cache = self._caches[number]
        return row in self._kept[number] or (cache is not None and cache.has(row))

    def _targets(self, number: int, images: Sequence[PatchedImage]) -> Target:
        """Computes the features of an augmented image each time, of any other image once if there is memory."""
        teacher, kept = self._teachers[number], self._kept[number]
        if not images:
            return _no_target(teacher.shape)
        keys = [_key(teacher, image, place) for place, image in enumerate(images)]
        features = {key: kept[key] for key in keys if key in kept}
        todo: dict[Hashable, PatchedImage] = {}
        for key, image in zip(keys, images, strict=True):
            if key not in features and (read := self._read(number, image)) is not None:
                features[key] = read
            elif key not in features:
                todo[key] = image
        items = list(todo.items())
        size = max(1, self._batch // max((image.frames for image in todo.values()), default=1))
        for start in range(0, len(items), size):
            chunk = items[start : start + size]
            for (key, image), computed in zip(chunk, self.compute(number, [item for _, item in chunk]), strict=True):
                features[key] = computed
                if not image.augmented and self._allowance.take(sum(value.nbytes for value in computed.tensors())):
                    kept[key] = computed.copy_to_cpu()
        return _joined([features[key] for key in keys], images)

    def _read(self, number: int, image: PatchedImage) -> TeacherFeatures | None:
        """Features from the cache on disk, if it has this image on this grid."""
        cache = self._caches[number]
        if cache is None or image.augmented or (features := cache.get(image.row)) is None:
            return None
        teacher, patches = self._teachers[number], features.patches
        grid = image.frames * image.grid[0], image.grid[1]
        if patches is not None and not teacher.prepares and patches.shape[:2] != grid:
            return None
        self.counts["read"] += 1
        return features

    def compute(self, number: int, images: Sequence[PatchedImage]) -> list[TeacherFeatures]:
        """Compute the features of one teacher. InputError if they are not finite."""
        teacher, label = self._teachers[number], self.names[number]
        pictures = [picture for image in images for picture in image.pictures()]
        each = iter(teacher.features(pictures, [item.prepared[label] for item in pictures] if teacher.prepares else []))
        features = [TeacherFeatures.of_frames(list(islice(each, image.frames))) for image in images]
        self.counts["computed"] += len(features)
        if label in self._half:
            features = [item.halved() for item in features]
        finite = torch.stack([torch.isfinite(value).all() for item in features for value in item.tensors()])
        if not finite.all():
            raise InputError(self._not_finite(label, teacher, images, features))
        return features

    def _not_finite(
        self, label: str, teacher: Teacher, images: Sequence[PatchedImage], features: Sequence[TeacherFeatures]
    ) -> str:
        bad = [
            image
            for image, item in zip(images, features, strict=True)
            if not all(torch.isfinite(value).all() for value in item.tensors())
        ]
        precision = getattr(teacher.encoder, "precision", "float32")
        lower = [f"precision: {precision}"] if precision != "float32" else []
        lower += ["keep: float16"] if label in self._half else []
        if lower:
            remedy = f"they may exceed the range of {' and '.join(lower)}: use float32"
        elif len(bad) == len(images):
            remedy = "all images fail, so check the teacher's weights, or name another teacher"
        else:
            remedy = "check that image, or remove it from the dataset"
        return (
            f"teachers: features of {label!r} are not finite for {len(bad)} of {len(images)} images, such as "
            f"{self._name(bad[0].row)}; {remedy}"
        )


def _load(item: TeacherRecipe, recipe: Recipe, device: torch.device) -> Teacher:
    encoder = load(item.encoder, device=str(device), precision=item.precision)
    kinds = recipe.needs.features[item.label]
    patches, registers = "patches" in kinds, recipe.student.registers if "registers" in kinds else 0
    teacher: Teacher
    if item.pictures == "student":
        from distill.teachers.native import NativeTeacher

        patch = recipe.student.patch
        teacher = NativeTeacher(item.label, encoder, patch=patch, patches=patches, registers=registers)
    else:
        teacher = EncoderTeacher(encoder, patches=patches, registers=registers)
    if item.pooler and (teacher.pooler() is None or teacher.shape.patches is None):
        raise RecipeError(
            f"teachers: {item.label!r} has no attention pooler over patches; set pooler: false, or name a model that "
            f"has one (timm:naflexvit_so400m_patch16_siglip)"
        )
    return teacher


def _check(item: TeacherRecipe, shape: Shape) -> None:
    """RecipeError if the recipe needs features that this teacher does not have. Called before any data is read."""
    widths: list[tuple[Kind, int | None]] = [("summary", shape.summary), ("patches", shape.patches)]
    for kind, width in widths:
        if item.standardise == "phi_s" and kind in item.kinds and width is not None and hadamard(width) is None:
            raise RecipeError(
                f"teachers: {item.label!r} has a {kind} of {width} dimensions, for which there is no Hadamard matrix "
                f"(see distill.teachers.hadamard); set standardise: scale for this teacher"
            )
    for name, available, why in (
        ("patches", shape.patches is not None, "has no patch features"),
        ("registers", shape.registers > 0, "has no registers, or not as many as the student"),
    ):
        weight: float = getattr(item, name).weight
        if weight not in (0.0, TermRecipe().weight) and not available:
            raise RecipeError(
                f"teachers: {item.label!r} {why}, so {name}.weight {weight:g} has no effect; leave it out"
            )


def _key(teacher: Teacher, image: PatchedImage, place: int) -> Hashable:
    """Key of an image's features in memory."""
    if image.augmented:
        return "augmented", place
    return image.row if teacher.prepares else (image.row, image.grid)


def _no_target(shape: Shape) -> Target:
    """The features of no image."""
    patches = None if shape.patches is None else torch.zeros(0, shape.patches)
    registers = torch.zeros(0, shape.registers, shape.summary) if shape.registers else None
    return Target(torch.zeros(0, shape.summary), patches, registers)


def _joined(features: Sequence[TeacherFeatures], images: Sequence[PatchedImage]) -> Target:
    """The features as one Target, on the device where the new ones are, or on the CPU if all were in memory."""
    devices = {item.summary.device for item in features}
    device = next((one for one in devices if one.type != "cpu"), torch.device("cpu"))
    patches, registers = [], []
    for item, image in zip(features, images, strict=True):
        if item.patches is not None:
            for frame in item.patches.to(device, torch.float32).chunk(image.frames):
                patches.append(resample_patches(frame, *image.grid))
        if item.registers is not None:
            registers.append(item.registers.to(device))
    return Target(
        torch.stack([item.summary.to(device) for item in features]),
        torch.cat(patches) if patches else None,
        torch.stack(registers) if registers else None,
    )
