"""AMoE's full student on one GPU: tokens/s, share of the measured peak, memory, packed against padded.

Uses the recipe `amoe`, with teachers of the real sizes and random weights, which cost the same. Images are noise in the
sizes of `bench.distill.packing`, packed as in training; reading them is not measured here (see `bench.distill.reader`).

    python -m bench.distill.gpu_student              on a GPU
    python -m bench.distill.gpu_student tiny         the same code at a tiny size, on any machine; not for figures
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.distill.packing import BATCH, SIZES, Photo, padded
from bench.kit.measure import line
from curate.encoders.student.network.attention import BACKENDS
from curate.encoders.student.network.student import Student, build_student, compile_blocks
from curate.encoders.student.patches import grids
from distill.objectives.outputs import MicroBatch, spaces_of
from distill.parallel import World
from distill.recipe import Recipe, load_recipe
from distill.samples.batches.loader import Batch, collate
from distill.samples.batches.packing import first_fit_decreasing
from distill.samples.images.reader import PatchedImage
from distill.teachers import Target, Teachers, fit_standardisers
from distill.training.gradients import Gradients
from distill.training.optim import build_optimizer
from distill.training.throughput import Cost, measured_peak, size_of

REPEATS = 5
_TINY = (
    "student.width=64", "student.depth=2", "student.heads=2", "student.head_dim=32", "student.head_hidden=32",
    "student.moe.experts=4", "student.moe.active=2", "student.moe.hidden=32", "train.precision=float32",
    "teachers.0.encoder=timm:naflexvit_so400m_patch16_siglip?depth=1&embed_dim=64&num_heads=2&random=7",
    "teachers.1.encoder=timm:vit_large_patch16_dinov3?depth=1&embed_dim=64&num_heads=2&random=7",
    "teachers.0.precision=float32", "teachers.1.precision=float32",
)  # fmt: skip


def recipe_of(tiny: bool) -> Recipe:
    recipe = load_recipe("amoe", _TINY if tiny else ())
    if tiny:
        return recipe
    names = [f"{item.encoder}?random=7" for item in recipe.teachers]
    return load_recipe("amoe", [f"teachers.{number}.encoder={name}" for number, name in enumerate(names)])


def drawn(tokens: int, recipe: Recipe, seed: int = 0) -> list[PatchedImage]:
    """Images with about `tokens` tokens in total: aspect ratios of photographs (log-normal), sizes of stage 2."""
    rng, patch, found, held = np.random.default_rng(seed), recipe.student.patch, list[PatchedImage](), 0
    while held < tokens:
        aspect, size = float(np.exp(rng.normal(0.0, 0.35))), int(rng.choice(list(SIZES), p=list(SIZES.values())))
        width = np.array([4096 * aspect**0.5])
        columns, rows = grids(width, np.array([4096 / aspect**0.5]), patch=patch, max_tokens=size)
        grid = (int(rows[0]), int(columns[0]))
        patches = rng.integers(0, 256, (grid[0] * grid[1], patch**2 * 3), dtype=np.uint8)
        found.append(PatchedImage(len(found), grid, patches))
        held += len(patches) + recipe.student.prefix
    return found


class Measurement:
    def __init__(self, recipe: Recipe, device: torch.device, *, tokens: int, repeats: int) -> None:
        self.recipe, self.device, self.repeats = recipe, device, repeats
        self.world = World(0, 1, device)
        images = drawn(tokens, recipe)
        lengths = [len(image.patches) + recipe.student.prefix for image in images]
        packs = first_fit_decreasing(lengths, recipe.data.sequence_tokens, recipe.data.sequence_images)
        self.fill = sum(lengths) / (len(packs) * recipe.data.sequence_tokens)
        self.batch: Batch = collate(images)
        self.tokens = sum(lengths)
        self.teachers = Teachers.of(recipe, device)
        self.standardisers = fit_standardisers(self.teachers, recipe.teachers, [(images, [])], self.world)
        nothing = collate([], recipe.student.patch)
        self.empty = self.micro_batch(nothing, self.teachers.targets(nothing))

    def micro_batch(self, batch: Batch, targets: Sequence[Target]) -> MicroBatch:
        return MicroBatch(batch, dict(zip(self.teachers.names, targets, strict=True)))

    def precision(self) -> AbstractContextManager[Any]:
        if self.recipe.train.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def student(self, backend: str, compiled: bool) -> Student:
        student = build_student(self.recipe.student, self.teachers.heads(self.recipe), seed=0)
        student.backbone.attention = backend
        student.to(self.device)
        if compiled:
            compile_blocks(student)
        return student

    def seconds(self, work: Callable[[], object]) -> float:
        """Median of several calls, after two that warm up and compile."""
        times = []
        for _ in range(2 + self.repeats):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times[2:])

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def training(self, backend: str, compiled: bool) -> None:
        """Complete updates, with the teachers and with precomputed targets."""
        student, recipe = self.student(backend, compiled), self.recipe
        optimizer = build_optimizer(student, recipe.train)
        spaces = spaces_of(recipe, self.standardisers, self.teachers.poolers())
        gradients = Gradients(student, recipe.every_objective, spaces, self.empty, self.world, self.precision)
        cost = Cost.of(student, recipe)
        patches = [rows * columns for rows, columns in self.batch.grids]

        def update(targets: Sequence[Target] | None) -> None:
            optimizer.zero_grad(set_to_none=True)
            if targets is None:
                targets = self.teachers.targets(self.batch)
            gradients.add([self.micro_batch(self.batch, targets)], len(patches))
            optimizer.step()
            counts = student.backbone.expert_counts()
            assert counts is not None
            student.backbone.balance(counts)

        what = f"{backend}{', compiled' if compiled else ''}"
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        kept = self.teachers.targets(self.batch)
        alone, whole = self.seconds(lambda: update(kept)), self.seconds(lambda: update(None))
        share = cost.flops(patches, recipe.student.prefix) / alone
        peak = measured_peak(self.device, recipe.train.precision, torch.get_num_threads())
        line(f"{what}: student alone", f"{self.tokens / alone:,.0f} tokens/s", f"{share / peak:.1%} of the peak")
        note = f"{len(patches) / whole:,.1f} images/s"
        line(f"{what}: with two teachers", f"{self.tokens / whole:,.0f} tokens/s", note)
        if self.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.device) / 2**30
            line(f"{what}: peak memory", f"{memory:.1f} GiB", f"{self.tokens:,} tokens at once, teachers included")

    def against_padding(self, backend: str) -> None:
        """Backbone only, forward and backward."""
        student = self.student(backend, compiled=False)
        pixels = torch.from_numpy(self.batch.patches).to(self.device)
        prefix = len(student.backbone.prefix)
        sizes = [rows * columns for rows, columns in self.batch.grids]
        photos = [Photo(grid, part, 0) for grid, part in zip(self.batch.grids, pixels.split(sizes), strict=True)]
        photos = [photos[i] for i in np.random.default_rng(0).permutation(len(photos))]

        def packed() -> None:
            with self.precision():
                output = student(pixels, self.batch.grids)
                backward([output.summary, output.patches])

        def in_batches() -> None:
            for start in range(0, len(photos), BATCH):
                chosen = photos[start : start + BATCH]
                with self.precision():
                    backward(padded(student, chosen, prefix + max(len(photo.patches) for photo in chosen)))

        def backward(outputs: Sequence[Tensor]) -> None:
            torch.stack([tokens.float().square().mean() for tokens in outputs]).sum().backward()
            student.zero_grad()

        one, other = self.seconds(packed), self.seconds(in_batches)
        line(f"{backend}: backbone, packed", f"{self.tokens / one:,.0f} tokens/s", "forward and backward")
        line(f"{backend}: packed against randomly padded", f"{other / one:.2f}x", f"in batches of {BATCH}")


def main(mode: str = "") -> None:
    tiny = mode == "tiny"
    if not torch.cuda.is_available() and not tiny:
        print("gpu student: skipped, torch sees no GPU; `tiny` runs the same code on a CPU")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = recipe_of(tiny)
    tokens = 3_000 if tiny else 16 * recipe.data.sequence_tokens
    measured = Measurement(recipe, device, tokens=tokens, repeats=1 if tiny else REPEATS)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    size = size_of(measured.student("sdpa_loop", compiled=False), recipe)
    line(f"{name}: student", f"{size.parameters / 1e6:,.0f}M", f"{size.active / 1e6:,.0f}M active")
    peak = measured_peak(device, recipe.train.precision, torch.get_num_threads())
    line(f"measured {recipe.train.precision} peak", f"{peak / 1e12:,.1f} TFLOP/s", f"packs {measured.fill:.1%} full")
    usable = ["sdpa_loop"] if device.type == "cpu" else [name for name in BACKENDS if name != "sdpa_loop"]
    for backend in usable:
        for compiled in (False, True) if device.type == "cuda" else (False,):
            measured.training(backend, compiled)
    measured.against_padding(usable[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
