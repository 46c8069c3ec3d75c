"""The frozen teacher: a narrow residual network trained to classify 12,000 images, then used without its classifier.

python -m bench.ablations.teacher FOLDER      writes it to FOLDER, in the layout of timm's hub folders

It is small so that its features cost less than the student's training: 1.2M parameters, features of 256 channels on a
grid of 4 x 4, their mean as the summary.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.models import save_for_hf
from torch import Tensor, nn

from bench.ablations.cifar import Images, cifar, parts

ARCHITECTURE: dict[str, Any] = {
    "layers": (1, 1, 1, 1),
    "channels": (32, 64, 128, 256),
    "stem_type": "deep",
    "stem_width": 16,
    "output_stride": 8,
}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PREPROCESSING = {"tag": "cifar10", "input_size": (3, 32, 32), "mean": MEAN, "std": STD, "crop_pct": 1.0}
EPOCHS, BATCH, RATE = 12, 64, 0.1


def teach(folder: Path, seed: int = 0) -> float:
    """Train and write the network; returns its accuracy on the test set."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    training, _ = parts()
    model = timm.create_model("resnet18", num_classes=10, pretrained_cfg_overlay=PREPROCESSING, **ARCHITECTURE)
    model = model.to(memory_format=torch.channels_last)
    _train(model, training, seed)
    accuracy = _accuracy(model, cifar("test"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        built = Path(partial) / "teacher"
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in ARCHITECTURE.items()}
        model.to(memory_format=torch.contiguous_format)  # safetensors needs it
        save_for_hf(model, str(built), model_args=arguments, safe_serialization=True)
        built.rename(folder)
    return accuracy


def _train(model: nn.Module, images: Images, seed: int) -> None:
    pixels, labels = _tensor(images), torch.from_numpy(images.labels)
    steps = EPOCHS * (len(labels) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.2)
    rng = np.random.default_rng(seed)
    for epoch in range(EPOCHS):
        began, right = time.process_time(), 0
        order = rng.permutation(len(labels))
        for rows in order[: len(labels) // BATCH * BATCH].reshape(-1, BATCH):
            logits = model(_augmented(pixels[rows], rng))
            loss = nn.functional.cross_entropy(logits, labels[rows], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            right += int((logits.argmax(1) == labels[rows]).sum())
        print(f"epoch {epoch + 1}: {right / len(labels):.1%} right, {time.process_time() - began:.0f} s", flush=True)


def _tensor(images: Images) -> Tensor:
    """(n, 3, 32, 32), normalised."""
    pixels = torch.from_numpy(images.pixels()).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


def _augmented(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Images, half of them mirrored, each shifted by up to 4 pixels."""
    padded = nn.functional.pad(images, (4, 4, 4, 4), mode="reflect")
    flips, places = rng.random(len(images)) < 0.5, rng.integers(0, 9, (len(images), 2))
    cut = [
        image.flip(-1)[:, top : top + 32, left : left + 32] if flip else image[:, top : top + 32, left : left + 32]
        for image, flip, (top, left) in zip(padded, flips, places, strict=True)
    ]
    return torch.stack(cut).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def _accuracy(model: nn.Module, images: Images) -> float:
    model.eval()
    answers = torch.cat([model(chunk).argmax(1) for chunk in _tensor(images).split(500)])
    return float((answers == torch.from_numpy(images.labels)).float().mean())


def main() -> None:
    began = time.process_time()
    accuracy = teach(Path(sys.argv[1]))
    print(f"{accuracy:.1%} of the test set right; {(time.process_time() - began) / 60:.1f} CPU-minutes")


if __name__ == "__main__":
    main()
