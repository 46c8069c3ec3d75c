"""Packed images against padded batches: image tokens per second of one core, forward and backward.

Sizes are drawn among four (256, 384, 512 and 768 pixels squared) for photographs of ImageNet
(1,000 in `shared/data`; CURATE_SHARED names another folder): once at their size, never enlarged, once as if the
originals were larger than all of these sizes. The student (d 256, 6 layers) is the same for all: only the tokens and
the attention plan differ, and its outputs for an image must be equal. Peers are batches of 16 with torch's fused
attention and a key mask, which costs the same with and without a mask:

random      in random order, padded to the longest of the batch
canvases    by size: padded to the smallest square of 16, 24, 32 … patches per side that holds the image, as tensors of
            images are
lengths     batches of one drawn size, padded to the longest of the batch: the best that padding reaches without packing

    python -m bench.distill.packing [IMAGES [ROUNDS [LAYERS]]]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.kit.features import shared
from bench.kit.measure import line, machine
from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.rope import Grid, directions, positions, rotations
from curate.encoders.student.network.student import Student, build_student
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.patches import grids
from distill.samples.batches.packing import first_fit_decreasing

PATCH, BATCH, CAPACITY = 16, 16, 4096
SIZES = {256: 0.4, 576: 0.3, 1024: 0.2, 2304: 0.1}
CANVASES = (16, 24, 32, 48, 64, 96, 144)


@dataclass(frozen=True)
class Photo:
    grid: Grid
    patches: Tensor
    size: int
    """Maximum number of tokens."""

    @property
    def canvas(self) -> int:
        """Tokens of the smallest square that holds the image."""
        return next(side for side in CANVASES if side >= max(self.grid)) ** 2


def photographs(count: int, enlarge: float = 1.0) -> list[Photo]:
    """Photographs with noise as patches: only their number matters."""
    table = pq.read_table(shared() / "data" / "imagenet-sample-1000.parquet", columns=["width", "height"])
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    rows = rng.permutation(len(table))[:count]
    widths, heights = (np.asarray(table[name])[rows] * enlarge for name in ("width", "height"))
    drawn, photos = rng.choice(list(SIZES), count, p=list(SIZES.values())), []
    for width, height, size in zip(widths, heights, drawn.tolist(), strict=True):
        columns, tall = grids(np.array([width]), np.array([height]), patch=PATCH, max_tokens=size)
        grid = (int(tall[0]), int(columns[0]))
        shape = (grid[0] * grid[1], PATCH**2 * 3)
        photos.append(Photo(grid, torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), size))
    return photos


class Padded:
    """Attention over a padded batch with a key mask."""

    def __init__(self, lengths: Sequence[int], longest: int, device: torch.device) -> None:
        self.shape = (len(lengths), longest)
        valid = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
        self.mask = None if valid.all() else valid[:, None, None, :]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, self.shape).transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(0, 1)


def padded(student: Student, photos: Sequence[Photo], longest: int) -> list[Tensor]:
    """Normalised tokens of each image from the student's blocks, which also compute the padding."""
    backbone = student.backbone
    prefix, config = len(backbone.prefix), backbone.config
    lengths = [prefix + len(photo.patches) for photo in photos]
    filled = [
        torch.nn.functional.pad(photo.patches, (0, 0, 0, longest - n)) for photo, n in zip(photos, lengths, strict=True)
    ]
    x = backbone.embed(torch.stack(filled) / 127.5 - 1.0)
    x = torch.cat([backbone.prefix.expand(len(photos), -1, -1), x], dim=1).flatten(0, 1)
    at = torch.nn.utils.rnn.pad_sequence([positions([photo.grid], prefix) for photo in photos], batch_first=True)
    at = torch.nn.functional.pad(at, (0, 0, 0, longest - at.shape[1])).flatten(0, 1).to(x.device, torch.float32)
    rotation = rotations(directions(config.heads, config.head_dim or config.width // config.heads).to(at), at)
    plan = Padded(lengths, longest, at.device)
    for block in backbone.blocks:
        x = block(x, rotation, plan)
    out = backbone.norm(x).view(len(photos), longest, -1)
    return [tokens[:n] for tokens, n in zip(out, lengths, strict=True)]


def packed(student: Student, photos: Sequence[Photo]) -> list[Tensor]:
    output: VitOutput = student(torch.cat([photo.patches for photo in photos]), [photo.grid for photo in photos])
    heads = torch.cat([output.summary[:, None], output.registers], dim=1)
    rest = output.patches.split([len(photo.patches) for photo in photos])
    return [torch.cat(parts) for parts in zip(heads, rest, strict=True)]


Batching = Callable[[Student, list[Photo]], Iterator[tuple[list[Photo], list[Tensor]]]]


def in_packs(student: Student, photos: list[Photo]) -> Iterator[tuple[list[Photo], list[Tensor]]]:
    prefix = len(student.backbone.prefix)
    for sequence in first_fit_decreasing([len(photo.patches) + prefix for photo in photos], CAPACITY, BATCH):
        chosen = sorted((photos[i] for i in sequence), key=lambda photo: len(photo.patches))
        yield chosen, packed(student, chosen)


def in_batches(student: Student, photos: list[Photo], canvas: int = 0) -> Iterator[tuple[list[Photo], list[Tensor]]]:
    prefix = len(student.backbone.prefix)
    for start in range(0, len(photos), BATCH):
        chosen = photos[start : start + BATCH]
        yield chosen, padded(student, chosen, prefix + (canvas or max(len(photo.patches) for photo in chosen)))


def in_canvases(student: Student, photos: list[Photo]) -> Iterator[tuple[list[Photo], list[Tensor]]]:
    for canvas in sorted({photo.canvas for photo in photos}):
        yield from in_batches(student, [photo for photo in photos if photo.canvas == canvas], canvas)


def in_lengths(student: Student, photos: list[Photo]) -> Iterator[tuple[list[Photo], list[Tensor]]]:
    for size in SIZES:
        yield from in_batches(student, [photo for photo in photos if photo.size == size])


BATCHINGS: dict[str, Batching] = {
    "packed": in_packs,
    "random": in_batches,
    "canvases": in_canvases,
    "lengths": in_lengths,
}


def cost(batching: Batching, student: Student, photos: list[Photo]) -> float:
    """CPU seconds of the forward and backward passes."""
    began = time.process_time()
    for _, outputs in batching(student, photos):
        torch.stack([tokens.square().mean() for tokens in outputs]).sum().backward()
    student.zero_grad()
    return time.process_time() - began


@torch.no_grad()
def same(student: Student, photos: list[Photo]) -> None:
    """Assert that all batchings give the same outputs for each image."""
    outputs_of: dict[str, dict[int, Tensor]] = {name: {} for name in BATCHINGS}
    for name, batching in BATCHINGS.items():
        for group, outputs in batching(student, photos):
            outputs_of[name].update((id(photo), tokens) for photo, tokens in zip(group, outputs, strict=True))
    for name, found in outputs_of.items():
        worst = max(float((found[key] - tokens).abs().max()) for key, tokens in outputs_of["packed"].items())
        assert worst < 1e-3, f"{name} differs from packed by {worst}"


def main(count: int = 64, rounds: int = 1, layers: int = 3) -> None:
    if not (shared() / "data" / "imagenet-sample-1000.parquet").exists():
        print(f"packing: skipped, {shared() / 'data'} is missing; set CURATE_SHARED to the folder that contains data/")
        return
    torch.set_num_threads(1)
    print(machine())
    student = build_student(StudentConfig(patch=PATCH, width=256, depth=layers, heads=8), [], seed=0)
    same(student, photographs(BATCH // 2))
    for name, photos in {"as they are": photographs(count), "large originals": photographs(count, 10.0)}.items():
        compare(name, student, photos, rounds)


def compare(what: str, student: Student, photos: list[Photo], rounds: int) -> None:
    tokens = sum(len(photo.patches) + len(student.backbone.prefix) for photo in photos)
    costs: dict[str, list[float]] = {name: [] for name in BATCHINGS}
    for _ in range(rounds):
        for name, batching in BATCHINGS.items():
            costs[name].append(cost(batching, student, photos))
    rate = tokens / statistics.median(costs["packed"])
    line(f"{what}: packed", f"{rate:,.0f} tokens/s", f"{len(photos)} images, {tokens:,} tokens, {rounds} rounds")
    for name in list(BATCHINGS)[1:]:
        ratios = [other / own for other, own in zip(costs[name], costs["packed"], strict=True)]
        line(
            f"{what}: packed against {name}",
            f"{statistics.median(ratios):.2f}x",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )


if __name__ == "__main__":
    main(*(int(value) for value in sys.argv[1:]))
