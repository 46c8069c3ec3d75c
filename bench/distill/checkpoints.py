"""The time of a step while a checkpoint is written beside it, against steps without one, and the pause of a copy.

AMoE's student at a quarter of its width (18 layers, 28 experts) with AdamW, one thread of torch. A pair is some steps
without a checkpoint, then as many after one was begun.

    python -m bench.distill.checkpoints [PAIRS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from bench.distill.optimizer import student_of
from bench.kit.measure import line, machine
from distill.parallel import World
from distill.recipe import load_recipe
from distill.training.checkpoint_writer import CheckpointWriter
from distill.training.optim import build_optimizer, states
from distill.training.run_folder import RunFolder

_STEPS, _IMAGES, _SIDE = 4, 2, 16


def main(pairs: int = 5) -> None:
    torch.set_num_threads(1)
    student = student_of(0)
    optimizer = build_optimizer(student, load_recipe("amoe").train)
    patches = torch.randint(0, 256, (_IMAGES * _SIDE**2, student.backbone.embed.in_features), dtype=torch.uint8)

    def steps() -> tuple[float, float]:
        """Seconds of a step, and of this thread's processor time, which other processes do not change."""
        began, own = time.perf_counter(), time.thread_time()
        for _ in range(_STEPS):
            student(patches, [(_SIDE, _SIDE)] * _IMAGES).summary.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - began) / _STEPS, (time.thread_time() - own) / _STEPS

    steps()
    without, beside, copies, written = (
        list[tuple[float, float]](),
        list[tuple[float, float]](),
        list[float](),
        list[float](),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.checkpoints.mkdir()
        with CheckpointWriter(run, World(0, 1, torch.device("cpu")), 2) as writer:
            for number in range(1, pairs + 1):
                without.append(steps())
                tensors: dict[str, Tensor] = {f"student.{name}": value for name, value in student.state_dict().items()}
                tensors |= {f"optimizer.{name}": value for name, value in states(student, optimizer).items()}
                began = time.perf_counter()
                writer.save({"fingerprint": "f", "step": number}, tensors)
                copies.append(time.perf_counter() - began)
                beside.append(steps())
                writer.complete(wait=True)
                written.append(time.perf_counter() - began)
    size = sum(value.nbytes for value in tensors.values()) / 2**20
    for number, name in enumerate(("step", "step, processor time")):
        pair = [[one[number] for one in times] for times in (without, beside)]
        ratio = statistics.median(b / a for a, b in zip(*pair, strict=True))
        line(name, f"{statistics.median(pair[0]):.2f} s", f"{ratio:.3f} x beside a checkpoint, of {pairs} pairs")
    line("copy", f"{1e3 * statistics.median(copies):.0f} ms", f"{size:.0f} MiB; steps wait for it")
    line("written", f"{statistics.median(written):.2f} s", f"after it was begun, {_STEPS} steps included")


if __name__ == "__main__":
    print(machine())
    main(*map(int, sys.argv[1:]))
