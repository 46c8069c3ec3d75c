"""Fewer tokens: masked autoencoding against the full encoder, EViT and ToMe against the plain student.

ViT-S/16 (d 384, 12 layers) on images of 224 px, random weights. Variants take turns, so each ratio is a median over
pairs of neighbouring measurements.

mae         forward and backward pass of an encoder that sees a quarter of the patches, with the decoder of
            `distill.objectives.mae`, against those of the encoder on all patches
evit, tome  forward pass

    python -m bench.distill.tokens [--images 8] [--rounds 5] [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.kit.measure import line, machine
from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.student import Student, build_student
from distill.objectives.kernels.decoder import Decoder, normalised
from distill.objectives.mae import DecoderSize

PATCH, SIDE = 16, 14
SIZES: dict[str, Any] = {"patch": PATCH, "width": 384, "depth": 12, "heads": 6, "registers": 0}


def student(device: torch.device, **options: Any) -> Student:
    return build_student(StudentConfig(**SIZES, **options), [], seed=0).to(device)


class Work:
    """Images, and what is measured on them."""

    def __init__(self, images: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (images, SIDE**2, PATCH**2 * 3)
        self.patches = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
        self.grids, self.images, self.device = [(SIDE, SIDE)] * images, images, device
        rng = np.random.default_rng(0)
        self.places = [np.sort(rng.permutation(SIDE**2)[: SIDE**2 // 4]) for _ in range(images)]
        kept = torch.from_numpy(np.stack(self.places)).to(device)
        self.visible = self.patches.gather(1, kept[..., None].expand(-1, -1, shape[2])).flatten(0, 1)
        self.hidden = torch.ones(images, SIDE**2, device=device).scatter(1, kept, 0.0).flatten()

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def forward(self, model: Student) -> Callable[[], Any]:
        def run() -> Tensor:
            with torch.no_grad(), self.precision():
                return model(self.patches.flatten(0, 1), self.grids).summary

        return run

    def full_step(self, model: Student) -> Callable[[], Any]:
        def run() -> None:
            with self.precision():
                output = model(self.patches.flatten(0, 1), self.grids)
            (output.summary.square().mean() + output.patches.square().mean()).backward()
            model.zero_grad()

        return run

    def mae_step(self, model: Student) -> Callable[[], Any]:
        decoder = Decoder(model.backbone.config, **DecoderSize().model_dump()).to(self.device)

        def run() -> None:
            with self.precision():
                output = model(self.visible, self.grids, self.places)
                predicted = decoder(output.patches, self.grids, self.places)
            errors = (predicted - normalised(self.patches.flatten(0, 1).float())).square().mean(-1)
            ((errors * self.hidden).sum() / self.hidden.sum()).backward()
            model.zero_grad()
            decoder.zero_grad()

        return run


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    repeats = 10 if device.type == "cuda" else 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter() if device.type == "cuda" else time.process_time()
    for _ in range(repeats):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return ((time.perf_counter() if device.type == "cuda" else time.process_time()) - began) / repeats


def compare(name: str, work: Work, plain: Callable[[], Any], other: Callable[[], Any], rounds: int, aim: float) -> None:
    times: list[tuple[float, float]] = []
    for number in range(rounds + 1 + 3 * (work.device.type == "cuda")):  # the first ones compile
        pair = seconds(plain, work.device), seconds(other, work.device)
        if number > 3 * (work.device.type == "cuda"):
            times.append(pair)
    ratios = [one / two for one, two in times]
    rates = [work.images / statistics.median(side) for side in zip(*times, strict=True)]
    detail = f"{rates[1]:,.1f} against {rates[0]:,.1f} images/s, {min(ratios):.2f} to {max(ratios):.2f}, aim {aim}x"
    line(name, f"{statistics.median(ratios):.2f}x", detail)


def main(images: int, rounds: int, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_num_threads(1)
    print(torch.cuda.get_device_name(device) if device.type == "cuda" else machine())
    work, plain = Work(images, device), student(device)
    compare("mae, 75 % hidden", work, work.full_step(plain), work.mae_step(student(device)), rounds, 2.5)
    for name, options, aim in (
        ("evit, keep 0.7", {"keep": 0.7}, 1.4),
        ("evit, keep 0.5", {"keep": 0.5}, 1.4),
        ("tome, r 13", {"merge": 13}, 1.6),
        ("tome, r 8", {"merge": 8}, 1.0),
    ):
        fewer = student(device, **options)
        compare(name, work, work.forward(plain), work.forward(fewer), rounds, aim)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", type=torch.device, default="cpu")
    arguments = parser.parse_args()
    main(arguments.images, arguments.rounds, torch.device(arguments.device))
