"""A stage of a recipe on one GPU, without its data: images/s, tokens/s, share of the measured peak, peak memory.

Images are noise of the stage's largest square, texts random tokens; reading them is not measured here (see
`bench.distill.reader`). The loss is over the images of one GPU, so it costs less than over those of a whole run.

    python -m bench.distill.gpu_recipe RECIPE [--stage N] [--images N] [--set KEY=VALUE …]      on a GPU
    python -m bench.distill.gpu_recipe RECIPE-tiny --images 8       the same code on any machine; not for figures
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from bench.kit.measure import line
from curate.encoders.student.network.attention import attention_backend
from curate.encoders.student.network.student import compile_blocks
from distill.context import new_student
from distill.objectives.outputs import MicroBatch
from distill.objectives.views import SECOND
from distill.parallel import World
from distill.recipe import Recipe, load_recipe
from distill.samples.batches.loader import collate
from distill.samples.images.reader import PatchedImage
from distill.training.gradients import Gradients
from distill.training.optim import build_optimizer
from distill.training.throughput import Cost, measured_peak, size_of

REPEATS = 5


def batch_of(recipe: Recipe, images: int, device: torch.device, seed: int = 0) -> MicroBatch:
    """Square images of the stage's limit, and a text of each."""
    rng, patch, needs = np.random.default_rng(seed), recipe.student.patch, recipe.needs
    side = math.isqrt(max(max(source.sizes) for source in recipe.data.sources))

    def drawn(number: int) -> PatchedImage:
        return PatchedImage(number, (side, side), rng.integers(0, 256, (side * side, patch**2 * 3), dtype=np.uint8))

    found = [drawn(number) for number in range(images)]
    for image in found:
        image.second = drawn(image.row) if SECOND in needs.views else None
    draws = rng.integers(0, 1 << 63, images, dtype=np.uint64)
    text, tokens, groups = recipe.student.text, None, None
    if needs.text_tower and text is not None:
        if text.tokenizes:
            tokens = torch.from_numpy(rng.integers(1, text.vocabulary, (images, text.context))).to(device)
        else:
            tokens = torch.from_numpy(rng.standard_normal((images, text.width), dtype=np.float32)).to(device)
        groups = torch.arange(images, device=device)[:, None].repeat(1, 2)
    return MicroBatch(collate(found, patch), {}, tokens, groups, draws, needs.views)


def measure(recipe: Recipe, images: int, device: torch.device, compiled: bool) -> None:
    student = new_student(recipe, [])
    student.backbone.attention = attention_backend(recipe.run.attention, device, recipe.train.precision)
    student.to(device)
    size, cost = size_of(student, recipe), Cost.of(student, recipe)
    if compiled:
        compile_blocks(student)
    precision: Any = nullcontext
    if recipe.train.precision == "bfloat16":

        def precision() -> Any:
            return torch.autocast(device.type, torch.bfloat16)

    micro = batch_of(recipe, images, device)
    optimizer = build_optimizer(student, recipe.train)
    empty, world = batch_of(recipe, 0, device), World(0, 1, device)
    gradients = Gradients(student, recipe.every_objective, {}, empty, world, precision)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        gradients.add([micro], images)
        optimizer.step()

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(2 + (REPEATS if device.type == "cuda" else 1)):
        wait()
        began = time.perf_counter()
        update()
        wait()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[2:])
    prefix, per_image = recipe.student.prefix, math.prod(micro.batch.grids[0])
    views = [(view.share, view.lengths(micro.batch.images)) for view in recipe.needs.views]
    tokens = sum(share * (sum(lengths) + prefix * len(lengths)) for share, lengths in views)
    flops = sum(share * cost.flops(lengths, prefix) for share, lengths in views)
    peak = measured_peak(device, recipe.train.precision, torch.get_num_threads())
    what = f"{recipe.name}{', compiled' if compiled else ''}"
    line(f"{what}: parameters", f"{size.parameters / 1e6:,.0f}M", f"{per_image:,} patches an image")
    line(f"{what}: an update of {images:,}", f"{images / seconds:,.0f} images/s", f"{tokens / seconds:,.0f} tokens/s")
    line(f"{what}: of the measured peak", f"{flops / seconds / peak:.1%}", "FLOPs of the image tower and heads alone")
    if device.type == "cuda":
        line(f"{what}: peak memory", f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = load_recipe(arguments.recipe, arguments.overrides).staged()[arguments.stage]
    for compiled in (False, True) if device.type == "cuda" else (False,):
        measure(recipe, arguments.images, device, compiled)


if __name__ == "__main__":
    main()
