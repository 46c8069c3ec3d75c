"""Small random students, exported as a run's would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from distill.export.model import new_student
from distill.export.model_folder import Trained
from distill.export.write import describe, write_model
from distill.models.student import HeadConfig, Student
from distill.models.tokenizer import Tokenizer
from distill.recipe import Recipe
from distill.teachers import Standards
from distill.teachers.standards import Standard

TEXTS = ["a red star", "two blue houses", "a star above the house", "a blue star and a red house", "the sea"]
TRAINED = Trained(fingerprint="f" * 32, step=7, ema=False)
HEADS = (HeadConfig(10, None, 16), HeadConfig(12, 6, 16))


def recipe(*, text: bool = True, teachers: Sequence[str] = ("plain", "dense"), **student: object) -> Recipe:
    size = {"patch": 8, "width": 32, "depth": 2, "heads": 2, "registers": 2, "head_hidden": 16, "embed": 24}
    tower = {"vocabulary": 300, "context": 12, "width": 16, "depth": 1, "heads": 2}
    source = {"dataset": "nowhere", "max_tokens": 24, "texts": {"txt": 1}}
    return Recipe.model_validate(
        {
            "name": "toy",
            "data": {"sources": [source], "sequence_tokens": 64},
            "student": {**size, **({"text": tower} if text else {}), **student},
            "contrastive": {} if text else None,
            "teachers": [{"encoder": "descriptor", "name": name} for name in teachers],
            "train": {"steps": 1, "warmup_steps": 0},
        }
    )


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, 300)


def standard(width: int, seed: int) -> Standard:
    """With a rotation, as PHI-S has one."""
    draw = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))[0]
    mean = torch.randn(width, generator=draw, dtype=torch.float64)
    return Standard(mean, torch.tensor(2.5, dtype=torch.float64), rotation)


def standards(teachers: int) -> list[Standards]:
    made = []
    for number, head in enumerate(HEADS[:teachers]):
        patches = standard(head.patches, 10 + number) if head.patches else None
        made.append(Standards(standard(head.summary, number), patches))
    return made


def save_distill(
    folder: Path, *, seed: int = 0, text: bool = True, teachers: Sequence[str] = ("plain", "dense"),
    precision: str = "float32", **size: object,
) -> Student:  # fmt: skip
    """A model folder, and the student in it."""
    made = recipe(text=text, teachers=teachers, **size)
    heads = HEADS[: len(teachers)]
    student = new_student(made.student, heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameter in student.parameters():
            torch.nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 1.0)
    scales = standards(len(teachers))
    config = describe(made, heads, TRAINED, precision)
    write_model(folder, config, student, scales, tokenizer().json().encode() if text else None)
    return student.eval()
